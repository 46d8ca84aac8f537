"""Runs on disk: checkpoints, `evaluate`, `audit` and sites on simulated accelerators equal those on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedmosaic_cli.api.api_errors import FedMosaicWarning
from fedmosaic_cli.api.experiments import Experiment
from fedmosaic_cli.audit.membership_audit import AuditSettings, run_membership_audits
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation.site import Site
from fedmosaic_cli.federation.site_shards import load_site_shard
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.runner.accelerator_options import AcceleratorOptions
from fedmosaic_cli.runner.evaluate import RunEvaluated, evaluate_saved_models
from fedmosaic_cli.runner.events import RunFinished, RunStopped
from fedmosaic_cli.runner.experiment import run_experiment
from fedmosaic_cli.runner.run_options import RunOptions
from fedmosaic_cli.storage.runs import RunDirectory
from tests.accelerator.simulated_device import DEVICE_TYPE, register
from tests.federation.sites import Sites, export_shards, make_config, run
from tests.toys import CPU

SCENARIOS = ["fedmosaic", "ditto", "scaffold", "feddf"]
PLAIN_SGD = ("train.optimizer=sgd", "train.lr=0.1")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return export_shards(tmp_path_factory.mktemp("shards"))


def configuration(shards, method: str, folder: Path):
    return make_config(shards, method, folder, *(PLAIN_SGD if METHODS[method]().needs.plain_sgd else ()))


@pytest.fixture
def run_on(shards, tmp_path, use_devices):
    """Return a function that runs a method on some devices."""

    def run_on(method: str, name: str, *devices: torch.device, **options) -> RunDirectory:
        use_devices(*devices)
        return run(configuration(shards, method, tmp_path), shards, tmp_path / name, **options)

    return run_on


def assert_equal_runs(one: RunDirectory, other: RunDirectory, *more_keys: str) -> None:
    """Compare logs and models, and summaries without the entries that name the device."""
    assert (one.path / "rounds.jsonl").read_bytes() == (other.path / "rounds.jsonl").read_bytes()
    left, right = one.read_summary(), other.read_summary()
    for key in ("device", *more_keys):
        left.pop(key, None), right.pop(key, None)
    assert left == right


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("method", SCENARIOS)
def test_files_of_a_run_on_two_devices_equal_those_of_the_cpu(method, run_on):
    simulated = run_on(method, "simulated", register(), register(1))
    assert simulated.read_summary()["device"] == DEVICE_TYPE
    assert_equal_runs(simulated, run_on(method, "cpu", CPU))


def run_part(config, shards, folder: Path, rounds: int | None = None, **options) -> list:
    """Run until `rounds` rounds are finished, or to the end, and return the events."""
    folder.mkdir(exist_ok=True)
    finished = []
    stop = RunOptions(should_stop=lambda: rounds is not None and len(finished) >= rounds, **options)
    for event in run_experiment(config, shards, RunDirectory(folder), DataDirs(folder), stop):
        finished.append(event)
    return finished


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("first_is_simulated", [True, False])
@pytest.mark.parametrize("method", SCENARIOS)
def test_a_run_is_begun_on_one_device_and_resumed_on_the_other(
    method, first_is_simulated, run_on, shards, tmp_path, use_devices
):
    devices = [(register(), register(1)), (CPU,)]
    first, second = devices if first_is_simulated else reversed(devices)
    config, folder = configuration(shards, method, tmp_path), tmp_path / "resumed"
    use_devices(*first)
    assert isinstance(run_part(config, shards, folder, rounds=2)[-1], RunStopped)
    use_devices(*second)
    with pytest.raises(RequestError, match="the device was"):
        run_part(config, shards, folder)
    assert isinstance(run_part(config, shards, folder, allow_nonidentical=True)[-1], RunFinished)
    assert_equal_runs(RunDirectory(folder), run_on(method, "cpu", CPU), "nonidentical")


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("method", ["fedmosaic", "perfedckt", "pfedhn", "student"])
def test_evaluations_equal_those_of_the_cpu(method, run_on, use_devices):
    files = run_on(method, "run", CPU)

    def evaluated(device: torch.device) -> dict:
        use_devices(device)
        *_, last = evaluate_saved_models([files], "test", "auto", DataDirs())
        assert isinstance(last, RunEvaluated)
        assert last.result.pop("device") == str(device)
        return last.result

    assert evaluated(register()) == evaluated(CPU)


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("name", ["fedmosaic-entropy", "fedavg"])
def test_audits_equal_those_of_the_cpu(name, auditable_runs, use_devices):
    files = RunDirectory(auditable_runs / f"quickstart/{name}/seed-0")

    def audited(device: torch.device) -> dict:
        use_devices(device)
        [result] = run_membership_audits([files], AuditSettings(num_shadow_models=4), "auto", DataDirs())
        assert result.content.pop("device") == str(device)
        return result.content

    on_device = audited(register())
    assert on_device["replay_identical"] in (True, None)
    assert on_device == audited(CPU)


class SitesOnDevices(Sites):
    """Sites with an accelerator each."""

    def site(self, client: int) -> Site:
        shard, data = load_site_shard(self.shards.path / f"client-{client:03d}.npz"), DataDirs(self.folder)
        anchors = self.folder / "anchors"
        folder, device = self.folder / f"site-{client}", register(client % 2)
        return Site(shard, folder, device, data, self.policy, limits=self.limits, anchor_dir=anchors)


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("coordinator_is_simulated", [True, False])
@pytest.mark.parametrize("method", SCENARIOS)
def test_a_run_with_sites_on_accelerators_equals_the_run_on_the_cpu(
    method, coordinator_is_simulated, run_on, shards, tmp_path
):
    server = register() if coordinator_is_simulated else CPU
    remote = run_on(method, "remote", server, sites=SitesOnDevices(shards, tmp_path))
    assert DEVICE_TYPE in remote.read_summary()["device"]
    assert_equal_runs(remote, run_on(method, "local", CPU), "federation", "lost")


@pytest.fixture
def seen(monkeypatch) -> list[AcceleratorOptions]:
    """Return the options of torch during each local round of FedAvg."""
    seen, local_round = [], FedAvg.local_round

    def note(*arguments):
        seen.append(AcceleratorOptions.current())
        return local_round(*arguments)

    monkeypatch.setattr(FedAvg, "local_round", note)
    return seen


@pytest.mark.parametrize(
    ("option", "attribute", "value"),
    [
        ("tf32", "matmul_precision", "high"),
        ("cudnn_benchmark", "cudnn_benchmark", True),
        ("deterministic", "deterministic", True),
    ],
)
def test_options_of_torch_hold_during_a_run_and_are_part_of_its_configuration(
    option, attribute, value, shards, tmp_path, use_devices, run_on, seen
):
    """The kernels of the simulated device ignore them."""
    before, between = AcceleratorOptions.current(), []
    assert getattr(before, attribute) != value
    config = make_config(shards, "fedavg", tmp_path, f"train.{option}=true")
    use_devices(register())
    (tmp_path / "run").mkdir()
    for _ in run_experiment(config, shards, RunDirectory(tmp_path / "run"), DataDirs(tmp_path), RunOptions()):
        between.append(AcceleratorOptions.current())
    assert {getattr(options, attribute) for options in seen} == {value}
    assert set(between) == {before}
    assert f"{option}: true" in (tmp_path / "run" / "config.yaml").read_text()
    assert_equal_runs(RunDirectory(tmp_path / "run"), run_on("fedavg", "plain", CPU), "train")


def test_options_of_torch_hold_during_rounds_in_memory(use_devices, seen):
    use_devices(register())
    experiment = Experiment("quickstart", method="fedavg", overrides={"train.rounds": 2, "train.tf32": True})
    before = AcceleratorOptions.current()
    assert before.matmul_precision == "highest"
    with pytest.warns(FedMosaicWarning, match=r"train.tf32 .* no client is on a CUDA device"):
        between = [AcceleratorOptions.current() for _ in experiment.rounds()]
    assert {options.matmul_precision for options in seen} == {"high"}
    assert between == [before, before]
