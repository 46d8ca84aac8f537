"""Mixtures of a client's own model with views of a student."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from fedmosaic_cli.cotraining.mixture import GATE_RULES, GateRule, choose_mixture, increased_weights, mixture_log_probs


def one_hot(labels, smoothing=0.0):
    hot = torch.nn.functional.one_hot(torch.tensor(labels), 3).double()
    return (1 - smoothing) * hot + smoothing / 3


def possible_weights(rule):
    """All mixtures that a gate can choose."""
    return {*rule.candidates, *(map(increased_weights, rule.candidates) if rule.increase_z is not None else ())}


LABELS = torch.tensor([0, 1, 2] * 20)
RIGHT, WRONG, UNSURE = one_hot([0, 1, 2] * 20), one_hot([1, 2, 0] * 20), torch.full((60, 3), 1 / 3).double()


def test_mixture_is_the_weighted_mean_of_probabilities():
    """A mean of logits, or of log-probabilities, is something else."""
    first, second = torch.tensor([[0.9, 0.1]]).double(), torch.tensor([[0.2, 0.8]]).double()
    mixed = mixture_log_probs([first.log(), second.log()], [0.25, 0.75]).exp()
    assert mixed == pytest.approx(0.25 * first + 0.75 * second)
    certain = torch.tensor([[0.0, -800.0]]).double()
    assert mixture_log_probs([certain, certain], [0.5, 0.5])[0, 1].item() == pytest.approx(-800.0)


@pytest.mark.parametrize("gate", ["safe", "bold", "light"])
def test_gate_opens_for_better_views_and_stays_closed_for_worse_ones(gate):
    rule = GATE_RULES[gate]
    opened = choose_mixture({"local": UNSURE, "corrected": RIGHT, "tuned": RIGHT}, LABELS, rule, 0.25)
    assert opened.weights in possible_weights(rule)
    assert opened.decision.gain > 0
    assert opened.accuracy_gain > 0
    assert opened.local_accuracy == (UNSURE.argmax(dim=1) == LABELS).double().mean().item()
    closed = choose_mixture({"local": RIGHT, "corrected": WRONG, "tuned": WRONG}, LABELS, rule, 0.25)
    assert closed.weights is None
    equal = choose_mixture({"local": UNSURE, "corrected": UNSURE, "tuned": UNSURE}, LABELS, rule, 0.25)
    assert equal.weights is None


def test_gates_are_those_of_the_documentation():
    assert GATE_RULES["safe"].candidates == ((0.5, 0.5, 0.0), (0.5, 0.0, 0.5), (0.5, 0.25, 0.25))
    assert GATE_RULES["bold"].candidates == ((0.75, 0.125, 0.125), (0.5, 0.25, 0.25), (0.25, 0.375, 0.375))
    assert GATE_RULES["light"].candidates == ((0.75, 0.25, 0.0), (0.5, 0.5, 0.0), (0.25, 0.75, 0.0))
    assert [GATE_RULES[name].z for name in ("safe", "bold", "light")] == [1.5, 1.0, 1.0]
    assert [GATE_RULES[name].increase_z for name in ("safe", "bold", "light")] == [2.0, None, None]
    assert [rule.uses_tuned for rule in GATE_RULES.values()] == [True, True, False, True]
    assert all(sum(weights) == 1.0 and weights[0] > 0 for rule in GATE_RULES.values() for weights in rule.candidates)


def test_candidate_with_the_highest_lower_bound_wins():
    once = replace(GATE_RULES["safe"], increase_z=None)
    chosen = choose_mixture({"local": UNSURE, "corrected": WRONG, "tuned": RIGHT}, LABELS, once, 0.25)
    assert chosen.weights == (0.5, 0.0, 0.5)
    chosen = choose_mixture({"local": UNSURE, "corrected": RIGHT, "tuned": WRONG}, LABELS, once, 0.25)
    assert chosen.weights == (0.5, 0.5, 0.0)


def test_higher_mean_gain_does_not_win_if_it_is_less_certain():
    """A student that is wrong and sure for some examples gains more with a larger weight, and with a larger error."""
    sure = torch.where((torch.arange(len(LABELS)) % 6 == 0)[:, None], WRONG, RIGHT)
    views = {"local": one_hot([0, 1, 2] * 20, 0.9), "corrected": sure}
    careful, daring = (0.5, 0.5, 0.0), (0.25, 0.75, 0.0)
    one, other = (choose_mixture(views, LABELS, GateRule((c,), 3.0), 0.25).decision for c in (careful, daring))
    assert one.gain < other.gain
    assert one.lower_bound(3.0) > other.lower_bound(3.0)
    assert choose_mixture(views, LABELS, GateRule((daring, careful), 3.0), 0.25).weights == careful


def test_weight_of_the_student_is_increased_only_if_the_increase_itself_gains():
    rule = GATE_RULES["safe"]
    views = {"local": UNSURE, "corrected": WRONG, "tuned": RIGHT}
    assert choose_mixture(views, LABELS, rule, 0.25).weights == (0.25, 0.0, 0.75)
    # A student that is always sure and wrong for every tenth example improves an unsure model, but not alone.
    sure = torch.where((torch.arange(len(LABELS)) % 10 == 0)[:, None], WRONG, RIGHT)
    views = {"local": one_hot([0, 1, 2] * 20, 0.6), "corrected": WRONG, "tuned": sure}
    assert choose_mixture(views, LABELS, rule, 0.25).weights == (0.5, 0.0, 0.5)
    larger = choose_mixture(views, LABELS, GateRule(((0.25, 0.0, 0.75),), 1.5), 0.25)
    assert larger.weights is not None  # it gains over the own model, but not over half of each


def test_gain_of_an_increased_weight_is_that_over_the_own_model():
    views = {"local": UNSURE, "corrected": WRONG, "tuned": RIGHT}
    choice = choose_mixture(views, LABELS, GATE_RULES["safe"], 0.25)
    fixed = choose_mixture(views, LABELS, GateRule(((0.25, 0.0, 0.75),), 1.5), 0.25)
    assert choice == fixed


def test_lower_bound_by_hand():
    local, student = one_hot([0, 1, 2, 0], 0.6), one_hot([0, 1, 2, 1], 0.3)
    labels = torch.tensor([0, 1, 2, 0])
    truth = one_hot([0, 1, 2, 0])
    mixture = 0.5 * local + 0.5 * student
    gains = ((local - truth) ** 2).sum(1) - ((mixture - truth) ** 2).sum(1)
    mean = gains.mean()
    error = math.sqrt((((gains - mean) ** 2).sum() + 0.25) / (4 * 3))
    choice = choose_mixture({"local": local, "corrected": student}, labels, GATE_RULES["light"], 0.25)
    light = [c for c in GATE_RULES["light"].candidates if c == (0.5, 0.5, 0.0)]
    single = choose_mixture(
        {"local": local, "corrected": student}, labels, type(GATE_RULES["light"])(tuple(light), 1.0), 0.25
    )
    assert single.decision.gain == pytest.approx(mean.item())
    assert single.decision.standard_error == pytest.approx(error)
    assert (single.weights is not None) == (mean > error)
    bounds = choice.decision.gain - choice.decision.standard_error
    assert bounds >= single.decision.gain - single.decision.standard_error


def test_few_examples_do_not_open_the_gate():
    views = {"local": UNSURE[:2], "corrected": RIGHT[:2], "tuned": RIGHT[:2]}
    assert choose_mixture(views, LABELS[:2], GATE_RULES["safe"], 0.25).weights is None
    assert choose_mixture(views, LABELS[:2], GATE_RULES["safe"], 0.0).weights is not None
