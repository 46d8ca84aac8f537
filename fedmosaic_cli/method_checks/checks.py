"""The checks of `fedmosaic check-method`: short runs on a small data set, compared byte by byte."""

from __future__ import annotations

import json
import random
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.run_config import resolve_run_config
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.engine.method import has_finalize
from fedmosaic_cli.engine.rounds import evaluate_round, run_rounds
from fedmosaic_cli.engine.traffic import planned_once_traffic, planned_traffic, upload_bits
from fedmosaic_cli.errors import FedMosaicError
from fedmosaic_cli.federation.coordinator import RemoteCoordinator
from fedmosaic_cli.method_checks.in_process_sites import InProcessSites
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.plugin_sources import plugin_failure
from fedmosaic_cli.runner.build import build_federation, find_devices
from fedmosaic_cli.runner.checkpoint_state import capture_state
from fedmosaic_cli.runner.evaluate import RunEvaluated, evaluate_saved_models
from fedmosaic_cli.runner.events import RunStopped
from fedmosaic_cli.runner.experiment import run_experiment
from fedmosaic_cli.runner.prepare import load_and_partition, load_shard_data
from fedmosaic_cli.runner.run_options import RunOptions
from fedmosaic_cli.storage.files import make_directories
from fedmosaic_cli.storage.runs import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.engine.federation import Federation
    from fedmosaic_cli.storage.shards import ShardSet

NUM_ROUNDS, NUM_CLIENTS = 3, 3
SETTINGS = {"train.rounds": NUM_ROUNDS, "train.local_steps": 3, "train.batch_size": 16, "train.workers": 1}
STACKED_TOLERANCE = 1e-4


class CheckFailedError(Exception):
    """A check failed; the text says what differs and what to do."""


class CheckSkippedError(Exception):
    """A check does not apply; the text says why."""


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check. `problem` is empty if it passed or was skipped."""

    name: str
    problem: str = ""
    skipped: str = ""


class MethodChecks:
    """Runs the checks of one method on the embedded digits.

    Args:
        name: The name of a registered method.
        folder: A directory for the runs, which the caller removes.
        overrides: Values for `section.key`, e.g. hyper-parameters.
    """

    def __init__(self, name: str, folder: Path, overrides: tuple[str, ...] = ()) -> None:
        self._name = name
        self._folder = folder
        self._overrides = overrides
        self._data_dirs = DataDirs(folder)
        self._num_runs = 0
        needs = METHODS[name]().needs
        validation = 0.2 if needs.validation else 0.0
        settings = DataSettings(
            scheme="dirichlet", alpha=1.0, clients=NUM_CLIENTS, public_size=40, share=0.2, val_fraction=validation
        )
        partition = load_and_partition(settings, 0, folder / "shards", self._data_dirs)
        # Sites need exported shards, which do not contain the labels of the public set.
        self._shards: ShardSet = partition.save(export=not needs.public_labels)

    def checks(self) -> dict[str, Callable[[], None]]:
        """Return the checks by name, in the order in which they are run."""
        return {
            "runs and stays finite": self.check_run,
            "the same seed gives the same bytes": self.check_repetition,
            "an interrupted run continues to the same bytes": self.check_resume,
            "evaluation changes nothing": self.check_evaluation,
            "global random generators are neither used nor changed": self.check_generators,
            "a sample of the clients may take part": self.check_sampling,
            "batch normalisation is supported": self.check_batch_norm,
            "stacked execution agrees with threads": self.check_stacked,
            "remote sites give the same bytes": self.check_sites,
            "planned traffic is what is sent": self.check_traffic,
            "planned memory is sufficient": self.check_memory,
            "saved models are evaluated as in the last round": self.check_saved_models,
        }

    def run(self) -> Iterator[CheckResult]:
        """Run all checks and yield each result."""
        is_usable = True
        for name, check in self.checks().items():
            if not is_usable:
                yield CheckResult(name, skipped="it does not run")
                continue
            try:
                check()
                yield CheckResult(name)
            except CheckSkippedError as reason:
                yield CheckResult(name, skipped=str(reason))
            except (CheckFailedError, FedMosaicError) as error:
                is_usable = check != self.check_run
                yield CheckResult(name, problem=str(error))
            except Exception as error:
                is_usable = check != self.check_run
                failure = plugin_failure(error)
                yield CheckResult(name, problem=str(failure or f"{type(error).__name__}: {error}"))

    def check_run(self) -> None:
        files = self._run(self._config())
        if len(files.read_rounds()) != NUM_ROUNDS * NUM_CLIENTS:
            raise CheckFailedError("the log does not have one row per round and client")

    def check_repetition(self) -> None:
        self._require_same(self._run(self._config()), self._run(self._config()), "two runs with one seed differ")

    def check_resume(self) -> None:
        config = self._config("train.checkpoint_every=1")
        whole, parts = self._run(config), self._new_files()
        self._run(config, parts, stop_after=1)
        self._run(config, parts)
        self._require_same(
            whole,
            parts,
            "a run that stops after round 1 ends differently: keep all state in client.state, server.state",
        )

    def check_evaluation(self) -> None:
        federation = self._federation(self._config())
        with federation.worker_pool:
            next(run_rounds(federation, NUM_ROUNDS))
            before = state_bytes(federation)
            rows = evaluate_round(federation, {})
            if evaluate_round(federation, {}) != rows:
                raise CheckFailedError("two evaluations of one state differ: personal_model must not draw new numbers")
        if state_bytes(federation) != before:
            raise CheckFailedError("evaluation changes the state: personal_model, predict must not change anything")

    def check_generators(self) -> None:
        expected = self._run(self._config())
        torch.default_generator.manual_seed(1)
        np.random.set_state(np.random.RandomState(1).get_state())
        random.setstate(random.Random(1).getstate())
        before = generator_states()
        self._require_same(
            expected, self._run(self._config()), "results depend on global random generators: use client.rng"
        )
        if generator_states() != before:
            raise CheckFailedError("a global random generator was used: use client.rng(purpose) or server.rng(purpose)")

    def check_sampling(self) -> None:
        if self._needs().pooled_data:
            raise CheckSkippedError("it pools the data")
        self._run(self._config("train.clients_per_round=2"))

    def check_batch_norm(self) -> None:
        self._run(self._config("model.name=cnn-bn", "model.width=0.25"))

    def check_stacked(self) -> None:
        threads, stacked = (self._run(self._config(f"train.execution={mode}")) for mode in ("threads", "stacked"))
        for client in range(NUM_CLIENTS):
            first, second = (files.load_model(client, files.read_summary()["models"]) for files in (threads, stacked))
            for entry, array in first.items():
                if not np.allclose(array, second[entry], rtol=0, atol=STACKED_TOLERANCE):
                    raise CheckFailedError(f"entry '{entry}' of client {client}'s model differs by execution")

    def check_sites(self) -> None:
        if self._needs().pooled_data:
            raise CheckSkippedError("it pools the data")
        if self._needs().public_labels:
            raise CheckSkippedError("it needs the labels of the public set")
        config = self._config()
        local, remote = self._run(config), self._new_files()
        sites = InProcessSites(self._shards, self._folder / f"sites-{self._num_runs}", self._data_dirs)
        try:
            self._run(config, remote, remote=RemoteCoordinator("check", sites.opened, join_timeout_seconds=30.0))
        except FedMosaicError as error:
            reasons = "; ".join(dict.fromkeys(sites.failures))
            raise CheckFailedError(f"{error}{'; at a site: ' + reasons if reasons else ''}") from None
        first, second = ((files.path / "rounds.jsonl").read_bytes() for files in (local, remote))
        lost = next((row["lost"] for row in remote.read_rounds() if "lost" in row), None)
        if lost is not None:
            raise CheckFailedError(f"an upload was rejected at the server: {lost}; declare it in uploads")
        if first != second or local.read_summary()["models"] != remote.read_summary()["models"]:
            raise CheckFailedError(
                "results at sites differ: what a client reads must be in its state, `received` or `ctx`"
            )

    def check_traffic(self) -> None:
        if self._needs().pooled_data:
            raise CheckSkippedError("it pools the data")
        federation = self._federation(self._config())
        method, ctx = federation.method, federation.ctx
        planned, once = planned_traffic(method, ctx), planned_once_traffic(method, ctx)
        # An initial exchange is logged with round 1, the broadcast to `finalize` with the last round.
        num_broadcasts = NUM_ROUNDS + int(method.needs.initial_exchange) + int(has_finalize(method))
        with federation.worker_pool:
            rows = [row for record in run_rounds(federation, NUM_ROUNDS) for row in record.rows]
        for direction, per_round, single in (
            ("up", planned.uplink_bits, once.uplink_bits),
            ("down", planned.downlink_bits, once.downlink_bits),
        ):
            limit = num_broadcasts * (per_round or 0) + (single or 0)
            for client in range(NUM_CLIENTS):
                sent = sum(row[f"bits_{direction}"] for row in rows if row["client"] == client)
                if sent > limit:
                    raise CheckFailedError(f"{sent} bits {direction}, {limit} planned: correct planned_bits of a part")

    def check_memory(self) -> None:
        federation = self._federation(self._config())
        ctx, method = federation.ctx, federation.method
        with federation.worker_pool:
            list(run_rounds(federation, NUM_ROUNDS))
        costs = method.costs(ctx)
        model_bytes = sum(tensor.numel() * tensor.element_size() for tensor in ctx.initial_model.values())
        num_models = costs.state_models + 2 * costs.trained_models
        limit = num_models * model_bytes + upload_bits(method, ctx) // 8 + 4 * ctx.public_size * ctx.num_classes * 8
        arrays = capture_state(federation.state)[0]
        for client in federation.state.clients:
            size = sum(array.nbytes for key, array in arrays.items() if key.startswith(f"client-{client.id}/"))
            if size > 1.05 * limit + 4096:
                raise CheckFailedError(
                    f"client {client.id} keeps {size} bytes, {limit:.0f} are planned: set state_models and "
                    "trained_models in costs"
                )

    def check_saved_models(self) -> None:
        files = self._run(self._config())
        events = evaluate_saved_models([files], "test", "cpu", self._data_dirs)
        [result] = [event.result for event in events if isinstance(event, RunEvaluated)]
        logged = {row["client"]: row["accuracy"] for row in files.read_rounds() if row["round"] == NUM_ROUNDS}
        for entry in result["per_client"]:
            if entry["accuracy"] != logged[entry["client"]]:
                values = f"{entry['accuracy']:.4f} from disk, {logged[entry['client']]:.4f} in the run"
                raise CheckFailedError(
                    f"client {entry['client']}: {values}: personal_model must return everything that predict reads"
                )

    def _needs(self) -> Any:
        return METHODS[self._name]().needs

    def _config(self, *assignments: str) -> RunConfig:
        layers = ConfigLayers()
        layers.add("shards", {"data": self._shards.partition.settings.model_dump(mode="json")})
        sgd = ("train.optimizer=sgd", "train.lr=0.05") if self._needs().plain_sgd else ()
        defaults = tuple(f"{key}={json.dumps(value)}" for key, value in SETTINGS.items())
        for assignment in (*defaults, "train.execution=threads", *sgd, *self._overrides, *assignments):
            layers.add_assignment(assignment)
        config = resolve_run_config("check", layers, self._name, 0, self._data_dirs, self._shards.partition.seed)
        reason = config.incompatibility()
        if reason is not None:
            raise CheckFailedError(f"{config.method.info.title} {reason.requirement}, but {reason.problem}")
        return config

    def _federation(self, config: RunConfig) -> Federation:
        return build_federation(config, *load_shard_data(self._shards, self._data_dirs), find_devices("cpu"))

    def _new_files(self) -> RunDirectory:
        self._num_runs += 1
        path = self._folder / f"run-{self._num_runs}"
        make_directories(path)
        return RunDirectory(path)

    def _run(
        self,
        config: RunConfig,
        files: RunDirectory | None = None,
        stop_after: int | None = None,
        remote: RemoteCoordinator | None = None,
    ) -> RunDirectory:
        """Make a run and return its directory; stop it after a round if asked to."""
        files = files or self._new_files()
        num_done = 0

        def should_stop() -> bool:
            nonlocal num_done
            num_done += 1
            return stop_after is not None and num_done >= stop_after

        options = replace(RunOptions(device="cpu", remote=remote), should_stop=should_stop)
        for event in run_experiment(config, self._shards, files, self._data_dirs, options):
            if isinstance(event, RunStopped):
                break
        return files

    def _require_same(self, first: RunDirectory, second: RunDirectory, problem: str) -> None:
        if (first.path / "rounds.jsonl").read_bytes() != (second.path / "rounds.jsonl").read_bytes():
            raise CheckFailedError(problem)
        if first.read_summary()["models"] != second.read_summary()["models"]:
            raise CheckFailedError(f"{problem} in the saved models")


def state_bytes(federation: Federation) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return the state of server and clients, bit for bit."""
    arrays, values = capture_state(federation.state)
    return {name: array.tobytes() for name, array in arrays.items()}, values


def generator_states() -> tuple[bytes, str, object]:
    """Return the states of the global generators of torch, NumPy and Python."""
    numpy_state = repr(np.random.get_state())
    return torch.get_rng_state().numpy().tobytes(), numpy_state, random.getstate()


def check_method(name: str, overrides: tuple[str, ...] = ()) -> Iterator[CheckResult]:
    """Run all checks of a registered method in a temporary directory, and yield each result."""
    with tempfile.TemporaryDirectory(prefix="fedmosaic-check-") as folder:
        yield from MethodChecks(name, Path(folder), overrides).run()
