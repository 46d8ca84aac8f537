"""Configuration layers: precedence, validation and error messages."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import load_preset, preset_names
from fedmosaic_cli.config.run_config import flatten_keys, load_run_config, resolve_run_config
from fedmosaic_cli.config.yaml_files import parse_yaml, read_yaml
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.runner.resume_checks import ConfigDifference, config_differences
from fedmosaic_cli.storage.runs import RunDirectory


def layered(*assignments: str, preset: str = "quickstart") -> ConfigLayers:
    layers = ConfigLayers()
    layers.add_all(load_preset(preset).layers)
    for assignment in assignments:
        layers.add_assignment(assignment)
    return layers


def test_later_layers_override_and_every_value_has_an_origin():
    layers = layered("train.lr=0.5", preset="quickstart-hybrid")
    run = resolve_run_config("x", layers, "fedmosaic", seed=0, data_dirs=DataDirs())
    assert (run.train.lr, run.train.rounds, run.data.scheme, run.train.momentum) == (0.5, 30, "hybrid", 0.0)
    assert layers.origins["train.lr"] == "--set"
    assert layers.origins["train.rounds"] == "preset quickstart-label-skew"
    assert layers.origins["data.scheme"] == "preset quickstart-hybrid"
    assert "train.momentum" not in layers.origins


def test_a_method_reads_its_own_section_only():
    layers = layered("methods.fedct.warmup_rounds=9")
    assert resolve_run_config("x", layers, "fedct", 0, DataDirs()).method.warmup_rounds == 9
    assert resolve_run_config("x", layers, "fedmosaic", 0, DataDirs()).method.warmup_rounds == 3


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("train.ruonds=3", "did you mean 'train.rounds'"),
        ("trian.rounds=3", "did you mean 'train'"),
        ("methods.fedmosiac.trust=1", "did you mean 'fedmosaic'"),
        ("methods.fedmosaic.trsut=1", "did you mean 'methods.fedmosaic.trust'"),
        ("methods.fedmosaic.trust=papr", "must be 'paper', 'stabilised', 'agreement' or 'gated' or a number"),
        ("methods.fedmosaic.trust=-1", "at least 0"),
        ("methods.fedmosaic.warmup_rounds=1.5", "a whole number"),
        ("methods.fedmosaic.expertise=frequent", "'frequency'"),
        ("train.lr=fast", "train.lr is 'fast'"),
        ("train.lr=true", "train.lr is True"),
        ("train.lr='0.1'", "train.lr is '0.1'"),
        ("train.lr=.nan", "train.lr is nan"),
        ("train.lr=.inf", "train.lr is inf"),
        ("train.lr=0", "greater than 0"),
        ("train.rounds=0", "at least 1"),
        ("train.optimizer=adamw", "'adam' or 'sgd'"),
        ("data.alpha=0", "data.alpha is 0"),
        ("data.alpha=-1", "greater than 0"),
        ("data.scheme=dirichlett", "data.scheme is 'dirichlett'"),
        ("data.dataset=digit", "did you mean 'digits'"),
        ("data.flip_labels=[0, 99]", "no client 99"),
        ("data.flip_labels=3", "a list"),
        ("train.momentum=0.5", "use optimizer sgd"),
        ("train.lr=1_0", "train.lr is '1_0'"),
        ("data.test_fraction=1", "less than 1"),
        ("data.clients_per_domain=[2,0]", "a whole number or a list of numbers from 1 to 100000"),
        ("data.clients_per_domain=[]", "a whole number or a list of numbers from 1 to 100000"),
        ("model.hidden=[0]", "between 1 and 65536"),
        ("train", "write section.key=value"),
        ("train.rounds", "write section.key=value"),
        ("train.rounds=[", "not valid YAML"),
        ("data=3", "write section.key=value"),
    ],
)
def test_invalid_assignments_are_refused_in_one_line(assignment, words):
    with pytest.raises(RequestError) as refused:
        resolve_run_config("x", layered(assignment), "fedmosaic", seed=0, data_dirs=DataDirs())
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@given(st.text(max_size=30))
def test_any_assignment_is_accepted_or_refused(text):
    with suppress(RequestError):
        resolve_run_config("x", layered(f"train.lr={text}"), "fedmosaic", seed=0, data_dirs=DataDirs())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("3E4", 3e4),
        ("-1e5", -1e5),
        ("7", 7),
        ("1.5", 1.5),
        ("a1e3", "a1e3"),
        ("3:20", "3:20"),
        ("010", "010"),
        ("yes", "yes"),
        ("true", True),
        ("~", None),
        ("2020-01-01", "2020-01-01"),
    ],
)
def test_yaml_numbers_are_parsed_as_written(text, value):
    assert parse_yaml(text, "here") == value
    assert type(parse_yaml(text, "here")) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2\n", "is repeated"),
        ("- a\n- b\n", "is a mapping"),
        ("a: [1\n", "not valid YAML"),
        ("!!python/object/apply:os.getcwd []", "not valid YAML"),
    ],
)
def test_files_without_a_configuration_are_refused(tmp_path, text, words):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(RequestError, match=words):
        read_yaml(path)


def test_binary_and_missing_files_are_refused(tmp_path):
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RequestError, match="not a text file"):
        read_yaml(tmp_path / "b.yaml")
    with pytest.raises(RequestError, match="cannot read"):
        read_yaml(tmp_path / "missing.yaml")


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("method", METHODS)
def test_every_preset_is_valid_for_every_method(preset, method):
    loaded = load_preset(preset)
    assert loaded.description
    assert loaded.path.read_text().startswith("# "), "a preset opens with a comment"
    config = resolve_run_config(preset, layered(preset=preset), method, seed=0, data_dirs=DataDirs())
    assert config.method.info.name == method


def test_a_stored_configuration_is_read_back_unchanged(tmp_path):
    run = resolve_run_config(
        "mine", layered("train.lr=0.25", "data.flip_labels=[1]"), "fedmosaic", seed=3, data_dirs=DataDirs()
    )
    files = RunDirectory(tmp_path / "run")
    files.path.mkdir()
    files.initialize(run.to_dict(), {}, {}, {})
    assert load_run_config(files.config_path, DataDirs()) == run


def test_resume_refuses_changes_that_affect_results():
    def changed(*assignments, method="local", seed=0):
        old = resolve_run_config("x", layered(), method, seed=0, data_dirs=DataDirs())
        return config_differences(old, resolve_run_config("x", layered(*assignments), method, seed, DataDirs()))

    assert changed("train.rounds=40", "train.workers=7", "train.execution=threads") == []
    [rate] = changed("train.lr=0.5")
    assert rate == ConfigDifference("train.lr was 0.003 and is now 0.5", is_overridable=True)
    [fewer] = changed("train.rounds=5")
    assert "fewer" in fewer.text
    assert not fewer.is_overridable
    worst = changed("train.lr=0.5", "model.hidden=[3]", seed=1)[0]
    assert not worst.is_overridable, "what cannot be had at all is named first"
    assert changed("methods.fedmosaic.trust=0.5", method="fedmosaic")[0].is_overridable
    assert not changed("methods.fedmosaic.expertise=frequency", method="fedmosaic")[0].is_overridable, "another row"
    assert changed("train.rounds=40", method="fedphp")[0].is_overridable, "but its schedule is another one then"


def test_flatten_keys_joins_nested_keys_with_dots():
    assert flatten_keys({"a": {"b": {"c": 1}}, "d": 2}) == {"a.b.c": 1, "d": 2}


def test_a_preset_file_extends_a_file_in_its_directory(tmp_path, monkeypatch):
    (tmp_path / "base.yaml").write_text("train: {rounds: 7, lr: 1e-2}\n")
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\ntrain: &t {batch_size: 8}\nmodel: {<<: {name: mlp}}\n")
    monkeypatch.chdir("/")
    run = resolve_run_config("x", layered(preset=str(tmp_path / "mine.yaml")), "local", seed=0, data_dirs=DataDirs())
    assert (run.train.rounds, run.train.lr, run.train.batch_size) == (7, 0.01, 8)


def test_a_later_round_length_replaces_the_other_one():
    assert resolve_run_config("x", layered("train.local_epochs=2"), "local", 0, DataDirs()).train.local_steps is None
    both = resolve_run_config("x", layered("train.local_epochs=2", "train.local_steps=4"), "local", 0, DataDirs()).train
    assert (both.local_epochs, both.local_steps) == (1, 4)


def test_domain_schemes_choose_a_data_set_with_domains():
    layers = ConfigLayers()
    layers.add_assignment("data.scheme=domain")
    assert resolve_run_config("x", layers, "local", 0, DataDirs()).data.dataset == "digits-domains"


@pytest.mark.parametrize("name", ["", ".hidden", "a b", "a/b", "..", "x" * 65, "naïve", "a\n", "-x", "--help"])
def test_unsafe_names_of_runs_are_refused(name):
    with pytest.raises(RequestError, match="is not a valid name for runs"):
        resolve_run_config(name, layered(), "local", seed=0, data_dirs=DataDirs())


def test_a_preset_extends_only_files_in_its_directory(tmp_path):
    (tmp_path / "base.yaml").write_text("train: {rounds: 7}")
    (tmp_path / "mine.yaml").write_text("extends: base.yaml")
    assert load_preset(str(tmp_path / "mine.yaml")).layers[0][1] == {"train": {"rounds": 7}}
    for elsewhere in ("../base.yaml", str(tmp_path / "base.yaml"), "a/base.yaml"):
        (tmp_path / "mine.yaml").write_text(f"extends: {elsewhere}")
        with pytest.raises(RequestError, match="is not in the directory of the preset"):
            load_preset(str(tmp_path / "mine.yaml"))
