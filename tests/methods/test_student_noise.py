"""Student with randomised labels: what is sent, the corrected loss, and what needs the clean class frequencies."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.config.run_config import resolve_run_config
from fedmosaic_cli.cotraining.label_noise import denoised_mean
from fedmosaic_cli.cotraining.logit_adjustment import shift_to_client
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.label_messages import LabelVotes
from fedmosaic_cli.methods.mixture_model import SHIFT_ENTRY
from fedmosaic_cli.methods.student import Student, noise_fraction
from fedmosaic_cli.methods.student_mixture import NUM_LR_PHASES, STUDENT_NETWORK
from tests.methods.problems import by_hand_logits, full_batch_toy
from tests.methods.test_student import ALWAYS, FAST, LARGE, rows_of
from tests.toys import close, models, personal_models, run_toy, same

MECHANISMS = pytest.mark.parametrize("labels", ["krr", "xor"])


def noisy(labels: str, epsilon: float | str = 2.0, toy=LARGE):
    return toy.changed(privacy={"labels": labels, "label_epsilon": epsilon})


class UniformConfidence(Student):
    """All votes of a client have the same confidence."""

    def make_upload(self, client, ctx):
        votes = super().make_upload(client, ctx)["opinion"]
        return {"opinion": LabelVotes(votes.labels, torch.ones(len(votes.labels)).double().numpy())}


class Uncorrected(Student):
    """Wrong: shares of noisy votes are learnt like clean ones."""

    def label_noise(self, ctx):
        return 0.0


@MECHANISMS
def test_infinite_budget_sends_exact_labels_without_confidence(labels):
    uniform = UniformConfidence(steps=40, batch_size=8, check_agreement=False, check_shares=False, gate="off")
    assert same(models(ALWAYS, noisy(labels, "inf")), models(uniform, LARGE))
    assert not same(models(ALWAYS, noisy(labels, "inf")), models(ALWAYS, LARGE))


@pytest.mark.parametrize(("labels", "bits"), [("krr", 2), ("xor", 3)])
def test_noisy_clients_send_labels_only(labels, bits):
    rows = rows_of(ALWAYS, noisy(labels))
    assert {row["bits_up"] for row in rows if row["round"] == 3} == {40 * bits}


@MECHANISMS
def test_noise_is_reproducible_and_the_correction_changes_the_student(labels):
    first = models(ALWAYS, noisy(labels))
    assert same(first, models(ALWAYS, noisy(labels).changed(workers=3)))
    assert not same(first, models(ALWAYS, LARGE))
    wrong = models(
        Uncorrected(steps=40, batch_size=8, check_agreement=False, check_shares=False, gate="off"), noisy(labels)
    )
    assert not same(first, wrong)


def by_hand_corrected_student(model, inputs, shares, fraction, sharpen, steps, lr):
    """Return a model after full-batch steps of Adam on the forward-corrected loss."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in model.items()}
    optimizer = torch.optim.Adam(leaves.values(), lr=lr)
    num_classes = shares.shape[1]
    transition = (1 - fraction) * torch.eye(num_classes, dtype=torch.float64) + fraction / num_classes
    for phase in range(NUM_LR_PHASES):
        optimizer.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * phase / NUM_LR_PHASES)) / 2
        for _ in range(steps // NUM_LR_PHASES):
            optimizer.zero_grad()
            clean = (by_hand_logits(leaves, inputs) / sharpen).softmax(dim=1)
            (-(shares * (clean @ transition).log()).sum(dim=1).mean()).backward()
            optimizer.step()
    return {name: tensor.detach() for name, tensor in leaves.items()}


@MECHANISMS
def test_student_of_noisy_votes_by_hand(labels):
    toy = noisy(labels, toy=full_batch_toy((24, 18, 30), rounds=3))
    method = replace(ALWAYS, share_bits=16, batch_size=1000)
    federation = run_toy(method, toy)
    client, fraction = federation.state.clients[0], noise_fraction(federation.ctx)
    shares = federation.state.server.state["shares"]
    public = client.public.inputs(slice(None))
    initial = client.shared_result("initial", lambda trainer: trainer.initial_network(STUDENT_NETWORK))
    right = by_hand_corrected_student(initial, public, shares, fraction, 2.0, 40, 0.3)
    corrected = {
        name.removeprefix("corrected."): tensor
        for name, tensor in personal_models(federation)[0].items()
        if name.startswith("corrected.")
    }
    assert close([corrected], [right], 1e-2)
    for wrong in ((0.0, 2.0), (fraction, 1.0)):
        assert not close([corrected], [by_hand_corrected_student(initial, public, shares, *wrong, 40, 0.3)], 0.1)


@MECHANISMS
def test_shares_are_those_of_the_noisy_votes_without_a_power(labels):
    """So every share is a multiple of one vote, and with three voters and krr a third."""
    server = run_toy(ALWAYS, noisy(labels)).state.server
    shares = server.state["shares"]
    assert shares.sum(dim=1) == pytest.approx(torch.ones(40))
    if labels == "krr":
        assert (3 * shares) == pytest.approx((3 * shares).round())
    else:  # several bits may be set
        assert len({round(value, 6) for value in shares.flatten().tolist()}) > 4


@MECHANISMS
def test_prior_shift_uses_the_class_frequencies_before_the_noise(labels):
    federation = run_toy(ALWAYS, noisy(labels))
    shares, fraction = federation.state.server.state["shares"], noise_fraction(federation.ctx)
    for client, model in zip(federation.state.clients, personal_models(federation).values(), strict=True):
        expected = shift_to_client(client.class_counts, denoised_mean(shares, fraction))
        assert model[SHIFT_ENTRY] == pytest.approx(expected, abs=0.1)
        assert (model[SHIFT_ENTRY] - shift_to_client(client.class_counts, shares)).abs().max() > 0.1


def test_leading_classes_need_no_correction():
    hard = replace(ALWAYS, downlink="labels")
    ctx = noisy("krr").federation(hard).ctx
    assert noise_fraction(ctx) > 0.3
    assert hard.label_noise(ctx) == 0
    assert ALWAYS.label_noise(ctx) == noise_fraction(ctx)
    wrong = Uncorrected(
        steps=40, batch_size=8, check_agreement=False, check_shares=False, gate="off", downlink="labels"
    )
    assert same(models(hard, noisy("krr")), models(wrong, noisy("krr")))


def test_guards_run_with_noise():
    rows = [row for row in rows_of(replace(FAST, check_shares=True), noisy("xor", 8.0)) if row["round"] == 3]
    assert all("holdout_z" in row and math.isfinite(row["median_z"]) for row in rows)
    assert all(0 <= row["vote_agreement"] <= 1 for row in rows)


def test_reputations_of_flipped_bits_are_refused():
    layers = ConfigLayers()
    layers.add_all(load_preset("quickstart").layers)
    for assignment in ("methods.student.robust=true", "privacy.labels=xor", "privacy.epsilon=8"):
        layers.add_assignment(assignment)
    with pytest.raises(RequestError, match=r"methods.student.robust is true \(.*\): it cannot compare votes with xor"):
        resolve_run_config("x", layers, "student", 0, DataDirs())
    layers.add_assignment("privacy.labels=krr")
    assert resolve_run_config("x", layers, "student", 0, DataDirs()).noise is not None


def test_noise_on_confidence_that_is_not_sent_is_refused():
    layers = ConfigLayers()
    layers.add_all(load_preset("quickstart").layers)
    for assignment in ("privacy.expertise=gaussian", "privacy.labels=krr", "privacy.epsilon=8"):
        layers.add_assignment(assignment)
    with pytest.raises(
        RequestError, match=r"privacy.expertise is gaussian \(.*\): Student sends randomised labels without confidence"
    ):
        resolve_run_config("x", layers, "student", 0, DataDirs())
    resolve_run_config("x", layers, "fedmosaic", 0, DataDirs())
