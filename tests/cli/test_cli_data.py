"""Data on the command line: partition, export, presets with and without data, doctor, fetch."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import load_preset, preset_names
from fedmosaic_cli.config.run_config import resolve_run_config
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.datasets import DATASETS, fashion_mnist
from tests.data.files import (
    save_images,
    write_cifar,
    write_cifar100,
    write_emnist,
    write_fashion,
    write_pfllib,
    write_tiny_imagenet,
)

PRESETS = {
    "quickstart",
    "quickstart-feature-shift",
    "quickstart-hybrid",
    "pathological-fashion-mnist",
    "pathological-cifar10",
    "practical-fashion-mnist",
    "practical-cifar10",
    "feature-shift-office10",
    "feature-shift-domainnet",
    "hybrid-office10",
    "hybrid-domainnet",
    "hybrid-domainnet-vit",
    "misleading-cifar10",
    "public-size-cifar10",
    "public-skew-cifar10",
    "pathological-fashion-mnist-quick",
    "pathological-cifar10-quick",
    "practical-fashion-mnist-quick",
    "practical-cifar10-quick",
    "feature-shift-office10-quick",
    "hybrid-office10-quick",
    "lowdata-cifar10",
    "lowdata-cifar10-dir01",
    "lowdata-fashion-mnist",
    "lowdata-fashion-mnist-domains",
    "lowdata-office10",
    "regimes-fashion-mnist",
}


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Run a command in an empty directory, within this process, without installed data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDMOSAIC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fashion_mnist, "DEBIAN_DIR", tmp_path / "debian")

    def call(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return call


def manifest_of(path):
    return json.loads((path / "manifest.json").read_text())


def test_all_presets_are_there():
    assert set(preset_names()) >= PRESETS


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_dry_run_without_data_names_what_is_missing(invoke, tmp_path, preset):
    done = invoke("train", "--preset", preset, "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    (run,) = json.loads(done.stdout)["runs"]
    if preset.startswith("quickstart"):
        assert run["missing"] is None
    else:
        assert "not found (data)" in run["missing"]
        text = invoke("train", "--preset", preset, "--dry-run").stdout
        assert "missing: data set" in text
    assert run["bits_up"] > 0
    assert list(tmp_path.iterdir()) == []


def test_preset_trains_if_its_data_exists(invoke, tmp_path):
    write_fashion(tmp_path / "data" / "fashion-mnist", train=400, test=100)
    settings = ("--set", "data.public_size=50", "--set", "data.min_size=2", "--set", "model.hidden=[8]")
    done = invoke("train", "--preset", "pathological-fashion-mnist", *settings, "--rounds", 1, "--quiet")
    assert done.exit_code == 0, done.output
    (summary,) = (tmp_path / "runs").rglob("summary.json")
    assert json.loads(summary.read_text())["dataset"] == "fashion-mnist"


@pytest.mark.parametrize(
    ("preset", "size", "num_tests", "public_size", "clients"),
    [
        ("lowdata-cifar10", 100, 150, 2000, 20),
        ("lowdata-cifar10-dir01", 100, 150, 2000, 20),
        ("lowdata-fashion-mnist", 50, 150, 2000, 20),
        ("lowdata-fashion-mnist-domains", 50, 150, 2000, 20),
        ("lowdata-office10", 60, None, 520, 7),
    ],
)
def test_low_data_presets_have_their_sizes(preset, size, num_tests, public_size, clients):
    layers = ConfigLayers()
    layers.add_all(load_preset(preset).layers)
    config = resolve_run_config(preset, layers, "fedmosaic", 0, DataDirs())
    sizes = (config.data.examples_per_client, config.data.test_examples_per_client, config.data.public_size)
    assert sizes == (size, num_tests, public_size)
    assert config.data.clients == clients
    assert config.model.name == "cnn3-bn"
    train = config.train
    assert (train.rounds, train.local_steps, train.batch_size, train.optimizer, train.lr) == (10, 10, 25, "adam", 0.002)
    if config.data.scheme == "dirichlet":
        assert config.data.alpha == (0.1 if preset.endswith("dir01") else 0.5)


@pytest.mark.parametrize("preset", ["lowdata-fashion-mnist", "lowdata-fashion-mnist-domains"])
def test_low_data_presets_are_partitioned(invoke, tmp_path, preset):
    write_fashion(tmp_path / "data" / "fashion-mnist", packed=False, train=8000, test=8000)
    done = invoke("partition", "--preset", preset, "-q")
    assert done.exit_code == 0, done.output
    manifest = manifest_of(tmp_path / "shards" / f"{preset}-s0")
    assert [(client["train"]["size"], client["test"]["size"]) for client in manifest["clients"]] == [(50, 150)] * 20
    assert manifest["public"]["class_counts"] == [200] * 10
    domains = [client["domain"] for client in manifest["clients"]]
    assert len(set(domains)) == (4 if preset.endswith("domains") else 1)


def test_low_data_preset_of_office_tests_on_the_rest(invoke, tmp_path):
    from fedmosaic_cli.data.datasets.office10 import CLASSES

    for domain, count in (("amazon", 90), ("dslr", 16), ("webcam", 30)):
        for label in CLASSES:
            save_images(tmp_path / "data" / "office" / domain / label, count, side=8)
    done = invoke("partition", "--preset", "lowdata-office10", "-q")
    assert done.exit_code == 0, done.output
    manifest = manifest_of(tmp_path / "shards" / "lowdata-office10-s0")
    assert [client["domain"] for client in manifest["clients"]] == ["amazon"] * 4 + ["dslr"] + ["webcam"] * 2
    assert {client["train"]["size"] for client in manifest["clients"]} == {60}
    assert sum(client["test"]["size"] for client in manifest["clients"]) == 1360 - 520 - 7 * 60
    assert manifest["clients"][4]["test"]["size"] == 60, "the public set leaves the small domain its tests"
    assert manifest["left_out"] == 0


def test_share_can_be_partitioned_trained_and_resumed(invoke, tmp_path):
    write_fashion(tmp_path / "data" / "fashion-mnist", train=400, test=100)
    few = ("--clients", 3, "--min-size", 2, "--public-size", 10)
    assert invoke("partition", "--preset", "practical-fashion-mnist-quick", *few, "--out", "s", "-q").exit_code == 0
    manifest = manifest_of(tmp_path / "s")
    assert manifest["examples"] == 100
    assert sum(client["test"]["size"] for client in manifest["clients"]) + manifest["left_out"] == 20
    small = ("--set", "model.hidden=[8]", "--set", "methods.fedmosaic.warmup_rounds=0", "-q", "--resume", "--name", "s")
    for rounds in (1, 2):
        done = invoke("train", "--shards", "s", *small, "--rounds", rounds)
        assert done.exit_code == 0, done.output
    (run,) = (tmp_path / "runs").glob("*/*/seed-0")
    done = invoke("evaluate", run)
    assert done.exit_code == 0, done.output
    # Without shards on disk, the same are dealt anew, under a name of their own.
    done = invoke("train", "--preset", "quickstart", "--set", "data.fraction=0.9", "--rounds", 1, "-q")
    assert done.exit_code == 0, done.output
    (folder,) = (tmp_path / "shards").iterdir()
    assert folder.name != "quickstart-s0"
    assert manifest_of(folder)["parameters"]["share"] == 0.9


def test_shards_override_the_share_of_a_preset(invoke, tmp_path):
    assert invoke("partition", "--preset", "quickstart", "--out", "s", "-q").exit_code == 0
    (tmp_path / "some.yaml").write_text("extends: quickstart\ndata: {share: 0.5}\n")
    done = invoke("train", "--preset", "some.yaml", "--shards", "s", "--rounds", 1, "-q")
    assert done.exit_code == 0, done.output


def test_cifar10_with_the_network_of_its_presets(invoke, tmp_path):
    write_cifar(tmp_path / "data" / "cifar-10-batches-py", each=40)
    small = ("--set", "data.public_size=20", "--set", "model.width=0.1", "--rounds", 2, "--quiet")
    for preset in ("misleading-cifar10", "pathological-cifar10"):
        done = invoke(
            "baseline", "fedavg", "fedct", "--preset", preset, *small, "--set", "methods.fedct.warmup_rounds=1"
        )
        assert done.exit_code == 0, done.output


def test_the_domains_of_office_with_a_narrow_alexnet(invoke, tmp_path):
    from fedmosaic_cli.data.datasets.office10 import CLASSES

    for domain in ("amazon", "dslr"):
        for label in CLASSES:
            save_images(tmp_path / "data" / "office" / domain / label, 6, side=64)
    narrow = ("--set", "data.domains=[amazon,dslr]", "--set", "data.image_size=64", "--set", "model.width=0.0625")
    for preset in ("feature-shift-office10", "hybrid-office10"):
        done = invoke("train", "--preset", preset, *narrow, "--set", "data.public_size=20", "--rounds", 1, "--quiet")
        assert done.exit_code == 0, done.output
        assert "note: no lists for amazon, dslr" in done.stderr
    shards = next((tmp_path / "shards").glob("feature-shift*"))
    assert manifest_of(shards)["protocol"] == "fedbn"
    assert "val_accuracy" in next((tmp_path / "runs").glob("feature-shift*/**/rounds.jsonl")).read_text()


def test_a_dry_run_writes_nothing_even_where_images_would_be_decoded(invoke, tmp_path):
    save_user_images(tmp_path / "mine")
    data = ("--dataset", "folder", "--data-dir", "mine", "--scheme", "domain", "--out", "s", "-q")
    assert invoke("partition", *data).exit_code == 0
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "mine.yaml").write_text("data: {dataset: folder, scheme: domain}\n")
    for options in (("--shards", "s"), ("--preset", "mine.yaml", "--data-dir", "mine")):
        before = sorted(tmp_path.rglob("*"))
        done = invoke("train", *options, "--dry-run", "--json")
        assert done.exit_code == 0, done.output
        (run,) = json.loads(done.stdout)["runs"]
        assert run["steps"] > 0
        assert run["data_mb"] == pytest.approx(72 * 12 * 12 * 3 / 1e6)
        assert sorted(tmp_path.rglob("*")) == before


def test_a_dry_run_with_a_part_of_the_domains_says_which_is_missing(invoke, tmp_path):
    (tmp_path / "data" / "office" / "amazon").mkdir(parents=True)
    done = invoke("train", "--preset", "hybrid-office10", "--dry-run")
    assert done.exit_code == 0, done.output
    assert "missing: domain 'caltech' of office10 not found" in done.stdout
    found = json.loads(invoke("doctor", "--json").stdout)["data sets"]["office10"]
    assert found.endswith("without caltech, dslr, webcam)")


def test_batches_of_cifar10_train_as_their_export_does(invoke, tmp_path):
    write_cifar(tmp_path / "data" / "cifar-10-batches-py", each=40)
    options = ("partition", "--scheme", "iid", "--clients", 3, "--dataset", "cifar10", "--public-size", 20, "-q")
    assert invoke(*options, "--out", "a/s").exit_code == 0
    assert invoke(*options, "--out", "b/s", "--export").exit_code == 0
    small = ("--rounds", 2, "--quiet", "--set", "model.name=cnn-bn", "--set", "model.width=0.1")
    for name in ("a", "b"):
        done = invoke("train", "--shards", f"{name}/s", *small, "--run-dir", f"run-{name}")
        assert done.exit_code == 0, done.output
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
    assert results(tmp_path / "run-a") == results(tmp_path / "run-b")


def test_missing_data_is_one_line_and_writes_nothing(invoke, tmp_path):
    done = invoke("train", "--preset", "hybrid-office10")
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: data set 'office10' not found (data): put FedBN's office_caltech_10")
    assert list(tmp_path.iterdir()) == []


def save_user_images(root, domains=("east", "west")):
    for number, domain in enumerate(domains):
        for first, label in enumerate(("cat", "dog", "owl")):
            save_images(root / domain / label, 12, first=100 * number + 20 * first, ending="png")


def test_training_on_user_images(invoke, tmp_path, monkeypatch):
    save_user_images(tmp_path / "mine")
    done = invoke("partition", "--scheme", "domain", "--dataset", "folder", "--data-dir", tmp_path / "mine")
    assert done.exit_code == 0, done.output
    shards = tmp_path / "shards" / "folder-domain-s0"
    manifest = manifest_of(shards)
    assert [client["domain"] for client in manifest["clients"]] == ["east", "west"]
    assert manifest["public"]["size"] == 7, "a tenth, when nobody says how many"
    done = invoke("train", "--shards", shards, "--rounds", 2, "--quiet")
    assert done.exit_code == 0, done.output
    run = tmp_path / "runs" / "folder-domain-s0" / "fedmosaic-frequency" / "seed-0"
    monkeypatch.chdir(tmp_path / "mine")
    assert invoke("evaluate", run, "--quiet").exit_code == 0, "found where the shards say"
    shutil.rmtree(shards)
    done = invoke("evaluate", run, "--data-dir", tmp_path / "mine", "--quiet")
    assert done.exit_code == 0, "dealt again, when the shards are gone"


def results(run):
    """Return models and log without the values that need labels of the public set."""
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for row in rows:
        for oracle in ("pseudo_label_accuracy", "weighted_accuracy", "majority_accuracy"):
            row.pop(oracle, None)
    return rows, {path.name: path.read_bytes() for path in sorted((run / "models").iterdir())}


def knows_public_labels(run):
    return "pseudo_label_accuracy" in (run / "rounds.jsonl").read_text()


@pytest.mark.parametrize("method", ["fedmosaic", "centralized", "fedavg"])
def test_exported_shards_train_to_the_same_bytes_without_the_data(invoke, tmp_path, method):
    save_user_images(tmp_path / "mine")
    own = ("--dataset", "folder", "--data-dir", tmp_path / "mine")
    options = ("--scheme", "hybrid", "--clients-per-domain", 2, "--flip-labels", 1, "--label-noise", 0.2, *own)
    for name, export in (("plain", ()), ("exported", ("--export",))):
        done = invoke("partition", *options, "--val-fraction", 0.2, "--out", tmp_path / name / "s", *export, "--quiet")
        assert done.exit_code == 0, done.output
    train = ("baseline", method, "--rounds", 3, "--quiet", "--shards")
    assert invoke(*train, tmp_path / "plain" / "s", "--run-dir", "a").exit_code == 0
    shutil.rmtree(tmp_path / "mine")
    shutil.rmtree(tmp_path / "cache")
    done = invoke(*train, tmp_path / "exported" / "s", "--run-dir", "b")
    assert done.exit_code == 0, done.output
    assert results(tmp_path / "a") == results(tmp_path / "b")
    assert [knows_public_labels(tmp_path / name) for name in "ab"] == [method == "fedmosaic", False]
    done = invoke("evaluate", "b", "--split", "val", "--json")
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (tmp_path / "b" / "rounds.jsonl").read_text().splitlines()]
    last = [row["val_accuracy"] for row in rows if row["round"] == 3]
    assert [mark["accuracy"] for mark in json.loads(done.stdout)[0]["per_client"]] == last
    summary = json.loads((tmp_path / "b" / "summary.json").read_text())
    assert summary["best_round"]["chosen_on"] == "validation"


def test_the_best_round_is_chosen_on_validation_data_alone(invoke, tmp_path):
    done = invoke("partition", "--scheme", "iid", "--clients", 3, "--val-fraction", 0.3, "--quiet")
    assert done.exit_code == 0, done.output
    done = invoke("baseline", "local", "--shards", "shards/digits-iid-s0", "--rounds", 6, "--quiet", "--run-dir", "r")
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (tmp_path / "r" / "rounds.jsonl").read_text().splitlines()]
    marks = {n: np.mean([row["val_accuracy"] for row in rows if row["round"] == n]) for n in range(1, 7)}
    best = json.loads((tmp_path / "r" / "summary.json").read_text())["best_round"]
    assert best["round"] == max(marks, key=marks.get)
    assert best["client_mean"] == pytest.approx(np.mean([r["accuracy"] for r in rows if r["round"] == best["round"]]))


def test_evaluating_a_missing_split_is_refused(invoke, tmp_path):
    assert invoke("baseline", "local", "--preset", "quickstart", "--rounds", 1, "--quiet").exit_code == 0
    done = invoke("evaluate", "runs/quickstart/local/seed-0", "--split", "val")
    assert done.exit_code == 2
    assert "the clients have no validation data" in done.stderr


def test_a_split_of_pfllib_becomes_shards(invoke, tmp_path):
    write_pfllib(tmp_path / "Cifar10")
    done = invoke(
        "partition", "--scheme", "natural", "--dataset", "pfllib", "--data-dir", "Cifar10", "--public-size", 12
    )
    assert done.exit_code == 0, done.output
    manifest = manifest_of(tmp_path / "shards" / "pfllib-natural-s0")
    assert [client["test"]["size"] for client in manifest["clients"]] == [8, 8, 8]
    assert manifest["public"]["class_counts"] == [3, 3, 3, 3]


def test_image_warnings_are_repeated_from_the_cache(invoke, tmp_path):
    save_user_images(tmp_path / "mine")
    (tmp_path / "mine" / "east" / "cat" / "0000.png").write_bytes(b"broken")
    for out in ("one", "two"):
        done = invoke("partition", "--scheme", "iid", "--dataset", "folder", "--data-dir", "mine", "--out", out)
        assert done.exit_code == 0, done.output
        assert "note: left out, cannot be read: east/cat/0000.png" in done.stderr
    assert manifest_of(tmp_path / "one")["remarks"] == manifest_of(tmp_path / "two")["remarks"] != []


def test_help_of_partition_names_all_data_sets(invoke, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = invoke("partition", "--help").stdout
    assert all(name in text for name in DATASETS)


@pytest.mark.parametrize("dataset", ["mnist", "emnist-letters", "cifar100", "cifar100-coarse", "tiny-imagenet"])
def test_published_data_sets_are_partitioned_and_trained_on(invoke, tmp_path, dataset):
    write_fashion(tmp_path / "data" / "mnist", train=200, test=100)
    write_emnist(tmp_path / "data", "letters", np.arange(1, 27), examples=260)
    write_cifar100(tmp_path / "data" / "cifar-100-python")
    write_tiny_imagenet(tmp_path / "data" / "tiny-imagenet-200", train=20, val=9)
    done = invoke(
        *("partition", "--scheme", "iid", "--clients", 2, "--dataset", dataset, "--public-size", 12, "--out", "s", "-q")
    )
    assert done.exit_code == 0, done.output
    done = invoke("baseline", "fedavg", "--shards", "s", "--rounds", 1, "--run-dir", "run", "--json", "-q")
    assert done.exit_code == 0, done.output
    assert "name: cnn\n" in (tmp_path / "run" / "config.yaml").read_text()
    found = json.loads(invoke("doctor", "--json").stdout)["data sets"]
    assert found[dataset].startswith("found: data")


@pytest.mark.parametrize("dataset", ["mnist", "emnist-byclass", "cifar100-coarse", "tiny-imagenet"])
def test_costs_are_estimated_before_a_data_set_is_downloaded(invoke, tmp_path, dataset):
    done = invoke("train", "--preset", "quickstart", "--dataset", dataset, "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    (run,) = json.loads(done.stdout)["runs"]
    assert f"fedmosaic fetch {dataset.replace('-coarse', '')}" in run["missing"]
    assert run["data_mb"] > 50
    assert list(tmp_path.iterdir()) == []


def test_doctor_lists_locations_and_hints(invoke, tmp_path):
    write_cifar(tmp_path / "sets" / "cifar-10-batches-py")
    write_fashion(tmp_path / "more" / "fashion-mnist")
    more = json.loads(invoke("doctor", "--data-dir", tmp_path / "more", "--json").stdout)["data sets"]
    assert more["fashion-mnist-domains"].endswith("(the same images, each in one of four synthetic domains)")
    done = invoke("doctor", "--data-dir", tmp_path / "sets", "--json")
    found = json.loads(done.stdout)["data sets"]
    assert found["cifar10"].startswith(f"found: {tmp_path / 'sets' / 'cifar-10-batches-py'}")
    assert found["digits"].startswith("found: embedded")
    assert found["office10"].startswith("missing: put ")
    assert found["fashion-mnist"].startswith("missing: 'fedmosaic fetch fashion-mnist' downloads it")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fetch", "digits"), "'digits' cannot be downloaded"),
        (("fetch", "cifar11"), "did you mean 'cifar10'"),
        (("fetch", "emnist"), "did you mean 'emnist-balanced'"),
        (("partition", "--scheme", "domain", "--dataset", "mnist"), "data set 'mnist' has no domains"),
        (("partition", "--scheme", "iid", "--dataset", "cifar100", "--image-size", "64"), "have one size"),
        (("partition", "--scheme", "iid", "--balanced"), "--balanced has no effect with scheme 'iid'"),
        (("partition", "--scheme", "domain", "--clients", "3"), "--clients has no effect with scheme 'domain'"),
        (("partition", "--scheme", "iid", "--label-noise-kind", "asymmetric"), "no effect with no --label-noise"),
        (("partition", "--scheme", "domain", "--clients-per-domain", "4,,2"), "cannot read '4,,2'"),
        (("partition", "--scheme", "domain", "--clients-per-domain", "4,1"), "2 numbers of clients for 5 domains"),
        (
            ("partition", "--scheme", "dirichlet", "--examples-per-client", "40", "--min-size", "5"),
            "--min-size has no effect with data.examples_per_client",
        ),
        (
            ("partition", "--scheme", "iid", "--examples-per-client", "40", "--test-fraction", "0.5"),
            "--test-fraction has no effect with data.examples_per_client",
        ),
        (("partition", "--scheme", "iid", "--examples-per-client", "1"), "data.examples_per_client is 1 (flag)"),
        (("partition", "--scheme", "iid", "--test-examples-per-client", "0"), "it must be at least 1"),
        (("partition", "--scheme", "iid", "--examples-per-client", "500"), "(data.examples_per_client)"),
        (("partition", "--scheme", "iid", "--label-noise", "1.5"), "at most 1"),
        (("partition", "--scheme", "iid", "--val-fraction", "1"), "less than 1"),
        (("partition", "--scheme", "iid", "--dataset", "folder", "--data-dir", "nowhere"), "not found (nowhere)"),
        (("partition", "--scheme", "iid", "--domains", "a,,b"), "cannot read 'a,,b'"),
        (("partition", "--scheme", "iid", "--image-size", "8"), "have one size"),
        (("partition", "--scheme", "natural", "--dataset", "npz"), "not found (data)"),
        (("train", "--preset", "quickstart", "--set", "model.name=alexnet-bn"), "at least 64x64"),
        (("train", "--preset", "quickstart", "--set", "model.name=resnet"), "'alexnet-bn'"),
        (("train", "--preset", "quickstart", "--model", "resnet8", "--set", "model.norm=layer"), "'group' or 'batch'"),
        (("train", "--preset", "quickstart", "--set", "model.norm=batch"), "model.norm has no effect on a mlp"),
        (("train", "--preset", "quickstart", "--set", "data.fraction=0"), "data.fraction is 0"),
        (("train", "--preset", "quickstart", "--set", "data.fraction=1.5"), "data.fraction is 1.5"),
        (
            ("train", "--preset", "quickstart", "--set", "data.fraction=0.001"),
            "a share of 0.001 leaves nothing of class",
        ),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(invoke, tmp_path, arguments, message):
    done = invoke(*arguments)
    assert done.exit_code == 2, done.output
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert not any((tmp_path / name).exists() for name in ("runs", "shards", "cache"))


@pytest.mark.parametrize("damage", ["truncate", "mutate", "swap"])
def test_damaged_shards_are_refused_by_name_before_anything_is_trained(invoke, tmp_path, damage):
    assert invoke("partition", "--scheme", "iid", "--clients", 3, "--out", "s", "-q").exit_code == 0
    path, other = tmp_path / "s" / "client-001.npz", tmp_path / "s" / "client-002.npz"
    content = path.read_bytes()
    if damage == "swap":
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
    else:
        changed = content[:300] + bytes([content[300] ^ 1]) + content[301:]
        path.write_bytes(content[:200] if damage == "truncate" else changed)
    done = invoke("train", "--shards", "s", "--rounds", 1)
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert "client-001.npz" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_number_of_examples_of_each_client(invoke, tmp_path):
    sizes = ("--examples-per-client", 40, "--test-examples-per-client", 30)
    done = invoke("partition", "--scheme", "dirichlet", "--alpha", 1, "--clients", 10, *sizes, "--out", "s")
    assert done.exit_code == 0, done.output
    assert "drawn by each client's class distribution, 30 per client (protocol official)" in done.stdout
    clients = manifest_of(tmp_path / "s")["clients"]
    assert [(client["train"]["size"], client["test"]["size"]) for client in clients] == [(40, 30)] * 10
    few = ("--set", "data.examples_per_client=25", "--name", "few", "--rounds", 1, "-q")
    done = invoke("train", "--preset", "quickstart", *few)
    assert done.exit_code == 0, done.output
    (folder,) = (tmp_path / "shards").iterdir()
    assert folder.name != "quickstart-s0"
    clients = manifest_of(folder)["clients"]
    assert [(client["train"]["size"], client["test"]["size"]) for client in clients] == [(25, 40)] * 10
    done = invoke("train", "--preset", "quickstart", *few, "--rounds", 2, "--resume")
    assert done.exit_code == 0, done.output
    (run,) = (tmp_path / "runs").glob("*/*/seed-0")
    assert invoke("evaluate", run).exit_code == 0


def test_number_of_clients_of_each_domain(invoke, tmp_path):
    few = ("--domains", "plain,noisy", "--clients-per-domain", "2,1", "--public-size", 20)
    done = invoke("partition", "--scheme", "domain", *few, "--out", "s", "-q")
    assert done.exit_code == 0, done.output
    manifest = manifest_of(tmp_path / "s")
    assert [client["domain"] for client in manifest["clients"]] == ["plain", "plain", "noisy"]
    assert manifest["parameters"]["clients_per_domain"] == [2, 1]
    done = invoke("baseline", "local", "--shards", "s", "--rounds", 1, "-q")
    assert done.exit_code == 0, done.output


def test_unbalanced_split_varies_in_size(invoke, tmp_path):
    sizes = {}
    for kind in ("--balanced", "--unbalanced"):
        assert invoke("partition", "--scheme", "pathological", kind, "--out", kind.strip("-"), "-q").exit_code == 0
        sizes[kind] = [client["train"]["size"] for client in manifest_of(tmp_path / kind.strip("-"))["clients"]]
    assert np.std(sizes["--unbalanced"]) > 2 * np.std(sizes["--balanced"])
