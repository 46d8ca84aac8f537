"""Names of experiments and runs from the values that differ from the preset."""

from __future__ import annotations

from copy import deepcopy
from itertools import combinations

import pytest

from fedmosaic_cli.config.automatic_names import (
    MAX_NAME_CHARS,
    UNPREFIXED_SECTIONS,
    automatic_experiment_name,
    automatic_tag,
)
from fedmosaic_cli.config.layers import CONFIG_SECTIONS, ConfigLayers, field_names
from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.config.run_config import NAME_PATTERN, resolve_run_config
from fedmosaic_cli.config.swept_values import expand_assignments, split_values
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.errors import RequestError


def layers_of(*assignments: str) -> tuple[ConfigLayers, ConfigLayers]:
    base, layers = ConfigLayers(), ConfigLayers()
    for each in (base, layers):
        each.add_all(load_preset("quickstart").layers)
    for assignment in assignments:
        layers.add_assignment(assignment)
    return base, layers


def name_of(*assignments: str, swept: tuple[str, ...] = ()) -> str:
    return automatic_experiment_name("quickstart", *layers_of(*assignments), DataDirs(), swept)


@pytest.mark.parametrize(
    ("assignments", "name"),
    [
        ((), "quickstart"),
        (("data.alpha=0.3",), "quickstart-alpha-0.3"),
        (("data.alpha=0.5",), "quickstart"),
        (("data.val_fraction=0",), "quickstart"),
        (("train.lr=0.01", "model.name=cnn"), "quickstart-model-cnn-lr-0.01"),
        (("train.rounds=60",), "quickstart"),
        (("train.execution=threads", "train.eval_every=5"), "quickstart"),
        (("train.local_epochs=1",), "quickstart-local-epochs-1"),
        (("methods.ditto.mu=3",), "quickstart"),
        (("attack.kind=flip", "attack.clients=[0,1]"), "quickstart-attack-flip-clients-0-1"),
        (("clients.0-4.model=cnn",), "quickstart-clients-0-4-model-name-cnn"),
        (("model.hidden=[8,4]",), "quickstart-hidden-8-4"),
        (("data.fraction=0.5",), "quickstart-fraction-0.5"),
    ],
)
def test_values_that_affect_results_are_in_the_name(assignments, name):
    assert name_of(*assignments) == name


def test_a_swept_key_is_always_in_the_name():
    assert name_of("data.alpha=0.5", swept=("data.alpha",)) == "quickstart-alpha-0.5"
    assert name_of("train.rounds=60", swept=("train.rounds",)) == "quickstart-rounds-60"


def test_a_long_name_ends_in_a_digest_of_all_values():
    changes = [f"train.lr={rate}" for rate in ("0.0123456789", "0.0123456788")]
    others = (
        "data.examples_per_client=33",
        "data.test_examples_per_client=17",
        "train.momentum=0.5",
        "train.optimizer=sgd",
    )
    first, second = (name_of(*others, change) for change in changes)
    assert first != second
    for name in (first, second):
        assert name.startswith("quickstart-examples-per-client-33")
        assert len(name) <= MAX_NAME_CHARS
        assert NAME_PATTERN.fullmatch(name)


def test_no_two_sections_share_a_key_in_names():
    for first, second in combinations(UNPREFIXED_SECTIONS, 2):
        keys = [set(field_names(CONFIG_SECTIONS[section])) - {"name"} for section in (first, second)]
        assert not keys[0] & keys[1]


@pytest.mark.parametrize(
    ("method", "assignments", "tag"),
    [
        ("ditto", (), ""),
        ("ditto", ("methods.ditto.mu=0.1",), "mu-0.1"),
        ("ditto", ("methods.ditto.mu=3",), ""),
        ("fedmosaic", ("methods.fedmosaic.trust=paper",), "trust-paper"),
        ("fedmosaic", ("methods.fedmosaic.expertise=frequency",), ""),  # in the variant
        ("fedmosaic", ("privacy.labels=krr", "privacy.epsilon=8"), "privacy-labels-krr-epsilon-8"),
        ("local", ("privacy.labels=krr", "privacy.epsilon=8"), ""),
    ],
)
def test_hyperparameters_and_noise_are_in_the_tag(method, assignments, tag):
    base, layers = layers_of(*assignments)
    config = resolve_run_config("quickstart", layers, method, 0, DataDirs())
    assert automatic_tag(config, base, layers) == tag


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1", ["1"]),
        ("0.01, 0.1,1", ["0.01", "0.1", "1"]),
        ("[8,4]", ["[8,4]"]),
        ("[8,4],[2]", ["[8,4]", "[2]"]),
        ("{a: 1, b: 2}", ["{a: 1, b: 2}"]),
        ('"a,b",c', ['"a,b"', "c"]),
        ("don't,stop", ["don't", "stop"]),
        ("[1,2", ["[1,2"]),
    ],
)
def test_values_are_split_at_commas_outside_brackets_and_quotes(text, values):
    assert split_values(text) == values


def test_several_lists_give_the_product():
    swept = expand_assignments(["train.lr=1,2", "data.alpha=3", "methods.ditto.mu=4,5"])
    assert [tuple(each.values.values()) for each in swept] == [("1", "4"), ("1", "5"), ("2", "4"), ("2", "5")]
    assert swept[1].assignments == ("train.lr=1", "data.alpha=3", "methods.ditto.mu=5")


@pytest.mark.parametrize("assignment", ["train.lr=1,,2", "train.lr=1,1"])
def test_empty_and_repeated_values_are_refused(assignment):
    with pytest.raises(RequestError, match=r"\(--set\)"):
        expand_assignments([assignment])


def test_noise_that_is_turned_off_is_in_the_tag():
    base = ConfigLayers()
    base.add_all(load_preset("quickstart-dp").layers)
    layers = deepcopy(base)
    layers.add_assignment("privacy.labels=off")
    config = resolve_run_config("quickstart-dp", layers, "fedmosaic", 0, DataDirs())
    assert automatic_tag(config, base, layers) == "privacy-off"
