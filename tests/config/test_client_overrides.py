"""The section `clients`: overrides per client, and which methods support them."""

from __future__ import annotations

import pytest

from fedmosaic_cli.config.client_overrides import expand_client_ranges, parse_client_range
from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.config.run_config import load_run_config, resolve_run_config
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.runner.resume_checks import config_differences


def run(method, *assignments, clients=6):
    layers = ConfigLayers()
    layers.add("preset", {"data": {"clients": clients}})
    for assignment in assignments:
        layers.add_assignment(assignment)
    return resolve_run_config("x", layers, method, 0, DataDirs())


def test_a_range_and_a_model_name_configure_clients():
    config = run("fedmosaic", "clients.0-1.model=cnn", "clients.3={model: {name: mlp, hidden: [7]}, lr: 0.5}")
    assert [config.model_settings_for(client).name for client in range(6)] == ["cnn", "cnn", "mlp", "mlp", "mlp", "mlp"]
    assert [config.model_settings_for(client).hidden for client in (2, 3)] == [(64,), (7,)]
    assert [config.train_settings_for(client).lr for client in (2, 3)] == [0.001, 0.5]
    assert config.train_settings_for(3).rounds == config.train.rounds


def test_every_value_has_an_origin():
    layers = ConfigLayers()
    layers.add_all(load_preset("quickstart-mixed").layers)
    layers.add_assignment("clients.2-3.lr=0.5")
    assert layers.origin("clients.4-5.model.trees") == "preset quickstart-mixed"
    assert layers.origin("clients.2-3.lr") == "--set"
    assert layers.origin("train.momentum") == "default"


def test_integer_keys_name_clients():
    layers = ConfigLayers()
    layers.add("file", {"data": {"clients": 3}, "clients": {2: {"optimizer": "sgd", "momentum": 0.5}}})
    config = resolve_run_config("x", layers, "fedavg", 0, DataDirs())
    assert (config.train_settings_for(2).optimizer, config.train_settings_for(1).optimizer) == ("sgd", "adam")
    assert not config.incompatibility()


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("clients.6.model=mlp", "numbered from 0 to 5"),
        ("clients.4-9.model=mlp", "numbered from 0 to 5"),
        ("clients.3-1.model=mlp", "write 1-3"),
        ("clients.0-99999999999.model=mlp", "numbered from 0 to 5"),
        ("clients.\u0663.model=mlp", "cannot read clients"),
        ("clients.1.model={name: mlp, trees: 5}", "clients.1.model.trees has no effect on a mlp (--set)"),
        ("clients.1.model={trees: 5}", "clients.1.model.trees has no effect on a mlp"),
        ("clients.1={model: random-forest, lr: 0.5}", "clients.1.lr has no effect on a random-forest"),
        (
            "clients.1.model={name: random-forest, trees: 0}",
            "clients.1.model.trees is 0 (--set): it must be at least 1",
        ),
        ("clients.1.model=null", "a name or a mapping"),
        ("model.trees=3", "model.trees has no effect on a mlp (--set)"),
        ("clients.-1.model=mlp", "cannot read clients"),
        ("clients.all.model=mlp", "cannot read clients"),
        ("clients.1.model=resnet", "it must be"),
        ("clients.1.model=3", "clients.1.model"),
        ("clients.1.model={nme: mlp}", "nme"),
        ("clients.1.modle=mlp", "clients.1.modle"),
        ("clients.1.lr=0", "greater than 0"),
        ("clients.1.momentum=0.5", "momentum 0.5 has no effect with adam (clients.1): use optimizer sgd"),
        ("clients.1=mlp", "not a mapping"),
        ("clients=mlp", "cannot read"),
        ("train.clients_per_round=7", "(--set): it must be at most 6"),
    ],
)
def test_invalid_sections_are_refused_in_one_line(assignment, words):
    with pytest.raises(RequestError) as error:
        run("fedmosaic", assignment)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_model_options_of_clients_are_merged():
    config = run("fedmosaic", "clients.1.model=random-forest", "clients.1.model.trees=7")
    assert (config.model_settings_for(1).name, config.model_settings_for(1).trees) == ("random-forest", 7)
    config = run("fedmosaic", "clients.1.model={name: random-forest, trees: 9}", "clients.1.model.depth=2")
    assert (config.model_settings_for(1).trees, config.model_settings_for(1).depth) == (9, 2)
    # A name alone resets the options of the previous model.
    config = run("fedmosaic", "clients.1.model={name: random-forest, trees: 9}", "clients.1.model=decision-tree")
    assert (config.model_settings_for(1).name, config.model_settings_for(1).trees) == ("decision-tree", 100)


def test_batch_normalisation_refuses_a_batch_of_one():
    with pytest.raises(RequestError, match="batch normalisation needs at least 2"):
        run("fedavg", "model.name=cnn-bn", "train.batch_size=1")
    assert run("fedavg", "train.batch_size=1").train.batch_size == 1


def test_overlapping_ranges_are_refused():
    with pytest.raises(RequestError, match="client 2 is in two ranges"):
        run("fedmosaic", "clients.0-2.model=cnn", "clients.2-3.model=mlp")
    assert list(parse_client_range("4", 5)) == [4]
    assert expand_client_ranges({}, 3) == {}


# What methods need besides a kind of learner and a public set.
OTHER_NEEDS = {"scaffold": ("train.optimizer=sgd",), "fedfomo": ("data.val_fraction=0.2",)}


@pytest.mark.parametrize("method", OTHER_NEEDS)
def test_other_needs_of_methods_are_checked(method):
    assert run(method).incompatibility()
    assert not run(method, *OTHER_NEEDS[method]).incompatibility()


@pytest.mark.parametrize("method", METHODS)
def test_methods_that_average_need_one_network(method):
    provided = OTHER_NEEDS.get(method, ())
    networks = run(method, "clients.0-2.model=cnn", *provided)
    forests = run(method, "clients.0-2.model=random-forest", *provided)
    anything = {"centralized", "local", "fedct", "fedmosaic", "student", "oracle"}
    assert bool(networks.incompatibility()) == (method not in anything | {"perfedckt", "gated"})
    assert bool(forests.incompatibility()) == (method not in anything)
    assert bool(run(method, "model.name=decision-tree", *provided).incompatibility()) == (method not in anything)
    assert not run(method, *provided).incompatibility()


@pytest.mark.parametrize("method", METHODS)
def test_methods_that_share_labels_need_a_public_set(method):
    config = run(method, "data.public_size=0", *OTHER_NEEDS.get(method, ()))
    sharing = {"fedct", "perfedckt", "fedmosaic", "gated", "feddf", "student", "oracle"}
    assert bool(config.incompatibility()) == (method in sharing)


def test_client_overrides_are_stored_and_compared_on_resume(tmp_path):
    import yaml

    layers = ConfigLayers()
    layers.add_all(load_preset("quickstart-mixed").layers)
    config = resolve_run_config("quickstart-mixed", layers, "fedmosaic", 0, DataDirs())
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config.to_dict()), encoding="utf-8")
    assert load_run_config(path, DataDirs()) == config
    layers.add_assignment("clients.2-3.lr=0.5")
    other = resolve_run_config("quickstart-mixed", layers, "fedmosaic", 0, DataDirs())
    assert "clients.2-3.lr" in config_differences(config, other)[0].text
