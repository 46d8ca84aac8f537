"""Make runs from Python, with the functions of the command line."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.api.api_errors import python_wording, warn
from fedmosaic_cli.api.plugin_arguments import dataset_name, method_name, model_name, plugin_options
from fedmosaic_cli.api.results import Result
from fedmosaic_cli.api.tensorboard_callback import TensorBoard
from fedmosaic_cli.config.key_names import display_key, display_value
from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.rerun_args import default_runs_dir
from fedmosaic_cli.data.data_dirs import DEFAULT_DATA_DIR, DataDirs
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods.registry import recorded_hyperparameters
from fedmosaic_cli.plugins import load_named_plugins
from fedmosaic_cli.runner.events import RoundCompleted, RunFailed, RunFinished, RunResumed, RunStarted
from fedmosaic_cli.runner.execute import (
    check_resources,
    execute_runs,
    find_shards,
    lock_runs,
    method_warnings,
    unfinished_runs,
)
from fedmosaic_cli.runner.plan import RunRequest, plan_runs
from fedmosaic_cli.runner.prepare import UnsavedPartition, load_shard_data, shard_set
from fedmosaic_cli.runner.run_options import RunOptions
from fedmosaic_cli.runner.tensorboard_log import require_tensorboard_importable
from fedmosaic_cli.storage.runs import RunDirectory
from fedmosaic_cli.storage.shards import read_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    import pandas as pd
    from torch import nn

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.engine.method import Method
    from fedmosaic_cli.runner.events import RunEvent, RunPreparing, WritingShards
    from fedmosaic_cli.runner.execute import EventObserver, Shards
    from fedmosaic_cli.runner.plan import PlannedRun, RunPlan

    Event = RunEvent | WritingShards | RunPreparing | RunFailed
    EventHandler = Callable[[Event], object]

DEVICES = ("auto", "cpu", "cuda", "mps")
CALLBACK_METHODS = {"on_start": RunStarted, "on_round": RoundCompleted, "on_finish": RunFinished}
"""The methods of a callback object and the events that they get."""


@dataclass(frozen=True, eq=False)
class RoundResult:
    """A finished round.

    Attributes:
        number: The number of the round, from 1.
        rows: One row per client, as in rounds.jsonl.
    """

    number: int
    rows: list[dict[str, Any]]

    @property
    def accuracy(self) -> float | None:
        """The mean accuracy over clients, as a fraction; None if the round was not evaluated (`train.eval_every`)."""
        values = [row["accuracy"] for row in self.rows]
        return None if None in values else fmean(values)

    @property
    def trust(self) -> float | None:
        """The mean trust (lambda) over clients; None if no client has one."""
        values = [row["lambda"] for row in self.rows if row["lambda"] is not None]
        return fmean(values) if values else None

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One row per client, with the columns of rounds.jsonl."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def __repr__(self) -> str:
        trust = "" if self.trust is None else f", trust {self.trust:.3f}"
        accuracy = "not evaluated" if self.accuracy is None else f"accuracy {100 * self.accuracy:.2f} %"
        return f"RoundResult({self.number}: {accuracy}{trust})"


class Experiment:
    """One method on one data partition with one seed.

    Plug-ins that the environment variable FEDMOSAIC_PLUGINS names are imported.

    Args:
        preset: Name or path of a preset. None uses the default values; `shards` is then required.
        method: The name of a method, `FILE.py:NAME`, a method class, or a method instance. The fields of an instance
            are its hyper-parameters; `overrides` take precedence over them.
        seed: The seed of the partition and of all random numbers of the run.
        overrides: Configuration values by dotted key, as in `--set`: `{"train.rounds": 3}`.
        shards: Directory of existing shards to train on.
        data_dir: Directory of data sets; by default FEDMOSAIC_DATA or `data`.
        device: "auto", "cpu", "cuda" or "mps".
        name: Name of the experiment in directories and reports; by default that of the shards or the preset, and the
            values that differ from it.
        model: The name of a model, `FILE.py:NAME`, or a class or function that returns a `torch.nn.Module`; by default
            the model of the preset.
        dataset: The name of a data set, `FILE.py:NAME`, or a function that returns images and labels; by default the
            data set of the preset.

    Raises:
        FedMosaicError: A name or value is invalid. The message names it and the allowed values.

    Example:
        >>> import fedmosaic_cli as fedmosaic
        >>> experiment = fedmosaic.Experiment("quickstart", method="ditto", overrides={"methods.ditto.mu": 0.1})
        >>> for round in experiment.rounds():
        ...     print(round.number, round.accuracy)
    """

    def __init__(
        self,
        preset: str | Path | None = "quickstart",
        method: str | type[Method] | Method = "fedmosaic",
        seed: int = 0,
        overrides: Mapping[str, Any] | None = None,
        shards: str | Path | None = None,
        data_dir: str | Path | None = None,
        device: str = "auto",
        name: str | None = None,
        model: str | Callable[..., nn.Module] | None = None,
        dataset: str | Callable[[], Any] | None = None,
    ) -> None:
        if device not in DEVICES:
            raise RequestError(f"unknown device '{device}' (device): use {', '.join(DEVICES)}")
        if type(seed) is not int or seed < 0:
            raise RequestError(f"the seed is {seed!r} (seed): it must be a whole number of at least 0")
        self._data_dir = Path(data_dir or os.environ.get("FEDMOSAIC_DATA") or DEFAULT_DATA_DIR)
        self._data_dirs = DataDirs(self._data_dir)
        self._device = device
        self._preset = None if preset is None else str(preset)
        self._seed = seed
        self._name = name
        with python_wording():
            load_named_plugins(())
            self._method_name = method_name(method)
            self._model = None if model is None else model_name(model)
            self._dataset = None if dataset is None else dataset_name(dataset)
            self._assignments = (*hyperparameter_assignments(method), *assignments(overrides or {}))
            reject_repeated_selection(self._assignments, model=self._model, dataset=self._dataset)
            reject_unknown_overrides(self._assignments)
            self._shards = None if shards is None else read_shards(Path(shards))
            self._config = self._plan().runs[0].config

    @property
    def config(self) -> RunConfig:
        """The configuration of the run, resolved and checked. `config.to_dict()` is the content of config.yaml."""
        return self._config

    def rounds(self) -> Iterator[RoundResult]:
        """Run the experiment in memory and yield each round. Nothing is written.

        The numbers are those of `run`. Every call starts with the first round.

        Yields:
            The finished rounds.

        Raises:
            FedMosaicError: The data is missing, the device does not exist, or a client diverges.
            RequestError: States of clients are configured to be on disk.

        Example:
            >>> for round in fedmosaic.Experiment("quickstart").rounds():
            ...     print(round.number, round.accuracy, round.clients.test_loss.max())
        """
        from fedmosaic_cli.engine.execution.worker_pool import use_single_thread
        from fedmosaic_cli.engine.rounds import run_rounds
        from fedmosaic_cli.machine import tune_malloc
        from fedmosaic_cli.runner.accelerator_options import with_accelerator_options
        from fedmosaic_cli.runner.build import build_federation, check_networks, find_devices
        from fedmosaic_cli.runner.experiment import next_round
        from fedmosaic_cli.runner.unused_options import unused_option_warnings

        config, no_files = self._config, RunDirectory(Path(os.devnull))
        if config.train.client_state == "disk":
            raise RequestError("rounds() writes nothing, so states cannot be on disk (train.client_state): use run()")
        with python_wording():
            plan = self._plan()
            shards = shard_set(self._find_shards(plan, plan.runs)[plan.runs[0].shards_key])
            devices = find_devices(self._device)
            dataset, partition = load_shard_data(shards, self._data_dirs)
            check_networks(config, dataset.images.shape[1:], dataset.num_classes, devices[0])
            warn(method_warnings(plan.runs))
            use_single_thread()
            tune_malloc()

            def results() -> Generator[RoundResult, None, None]:
                federation = build_federation(config, dataset, partition, devices, shards_digest=shards.digest)
                warn(unused_option_warnings(config.train, federation.client_devices, federation.execution))
                with federation.worker_pool:
                    rounds = run_rounds(federation, config.train.rounds)
                    while (record := next_round(rounds, config, no_files)) is not None:
                        yield RoundResult(record.number, record.rows)

            yield from with_accelerator_options(config.train, devices[0], results())

    def run(
        self,
        out: str | Path | None = None,
        resume: bool = True,
        callbacks: Iterable[Any] = (),
    ) -> Result:
        """Make the run, continue it, or return it if it is finished.

        The run directory has the content that `fedmosaic train` writes. As there, new shards are written to
        `shards/` in the current directory.

        Args:
            out: Directory of the run; by default `runs/<preset>/<variant>/seed-<seed>`, or below FEDMOSAIC_RUNS.
            resume: Continue a run that exists in the directory; with `out`, a run with fewer rounds is extended. If
                False, the directory must be empty.
            callbacks: Called during the run. A callback is a function of an event (see `runner.events`), an object
                with any of the methods `on_start`, `on_round` and `on_finish`, which get one event each, or a
                `TensorBoard`. If a callback raises an exception, the run stops; the next call of `run` continues it.

        Returns:
            The finished run.

        Raises:
            FedMosaicError: The directory belongs to another run, the data is missing, or a client diverges.

        Example:
            >>> experiment = fedmosaic.Experiment("quickstart", overrides={"train.rounds": 10})
            >>> experiment.run(out="runs/mine", callbacks=[print]).accuracy
        """
        callbacks = tuple(callbacks)
        boards = [callback for callback in callbacks if isinstance(callback, TensorBoard)]
        handlers = [event_handler(callback) for callback in callbacks if not isinstance(callback, TensorBoard)]
        options = RunOptions(device=self._device, cli_args=self.command_line(out))
        with python_wording():
            plan = self._plan(out, resume)
            if boards:
                require_tensorboard_importable()
            with lock_runs(plan, self._data_dirs):
                shards = self._find_shards(plan, unfinished_runs(plan))
                check_resources(plan, shards)
                warn(method_warnings(plan.runs))
                events = execute_runs(plan, shards, options, self._data_dirs, observe=observer(boards))
                with closing(events):  # type: ignore[type-var]
                    summary = consume_events((event for _, event in events), handlers)
            return Result(plan.runs[0].files.path, summary)

    def command_line(self, out: str | Path | None = None) -> tuple[str, ...]:
        """Return the arguments of the equivalent command `fedmosaic`, which env.json records."""
        options = {
            "--preset": self._preset,
            "--shards": self._shards and self._shards.path,
            "--seed": self._seed,
            "--name": self._name,
            "--data-dir": None if self._data_dir == DEFAULT_DATA_DIR else self._data_dir,
            "--device": None if self._device == "auto" else self._device,
            "--run-dir": out,
        }
        words = plugin_options(self._config, self._model, self._dataset)
        words += [word for option, value in options.items() if value is not None for word in (option, str(value))]
        return ("train", *words, *(word for assignment in self._assignments for word in ("--set", assignment)))

    def _plan(self, out: str | Path | None = None, resume: bool = True) -> RunPlan:
        request = RunRequest(
            methods=(self._method_name,),
            preset=self._preset,
            shards=self._shards,
            experiment_name=self._name,
            assignments=self._assignments,
            overrides={
                **({} if self._model is None else {"model": {"name": self._model}}),
                **({} if self._dataset is None else {"data": {"dataset": self._dataset}}),
            },
            seeds=(self._seed,),
            runs_dir=default_runs_dir(),
            run_dir=None if out is None else Path(out),
            resume=resume,
            must_be_new=not resume,
            device=self._device,
        )
        return plan_runs(request, self._data_dirs)

    def _find_shards(self, plan: RunPlan, runs: Iterable[PlannedRun]) -> Shards:
        shards = find_shards(plan.request.shards, runs, self._data_dirs)
        warn(plan.layers.notices)
        for planned in shards.values():
            warn(planned.dataset.warnings if isinstance(planned, UnsavedPartition) else ())
        return shards

    def __repr__(self) -> str:
        config = self._config
        return f"Experiment({config.experiment_name}, {config.method!r}, seed {config.seed})"


def hyperparameter_assignments(method: str | type[Method] | Method) -> tuple[str, ...]:
    """Return the fields of a method instance as assignments; () for a name or a class."""
    if isinstance(method, str | type):
        return ()
    values = recorded_hyperparameters(method).items()
    keys = ((f"methods.{method.info.name}.{key}", value) for key, value in values)
    return assignments({display_key(key): display_value(key, value) for key, value in keys})


def assignments(overrides: Mapping[str, Any]) -> tuple[str, ...]:
    """Return configuration values as `section.key=value`. A value may be a dictionary.

    Raises:
        RequestError: A key is not a dotted text, or a value has a type that a configuration does not have.
    """
    words: list[str] = []
    for key, value in overrides.items():
        if not isinstance(key, str) or "=" in key:
            raise RequestError(f"{key!r} is not a key (overrides): write section.key, e.g. 'train.rounds'")
        if isinstance(value, dict) and "." not in key:
            words += assignments({f"{key}.{inner}": each for inner, each in value.items()})
            continue
        try:
            words.append(f"{key}={json.dumps(value, default=plain_value)}")
        except (TypeError, ValueError):
            raise RequestError(
                f"{key} is a {type(value).__name__} (overrides): use a number, a text, true or false, or a list of them"
            ) from None
    return tuple(words)


def reject_unknown_overrides(words: Iterable[str]) -> None:
    """Raise RequestError for a key that no configuration has."""
    for word in words:
        try:
            ConfigLayers().add_assignment(word)
        except RequestError as error:
            raise RequestError(str(error).replace("(configuration)", "(overrides)")) from None


def reject_repeated_selection(words: Iterable[str], model: str | None, dataset: str | None) -> None:
    """Raise RequestError if `overrides` name a model or data set that is also a parameter."""
    for parameter, key, value in (("model", "model.name", model), ("dataset", "data.dataset", dataset)):
        if value is not None and any(word.startswith(f"{key}=") for word in words):
            raise RequestError(f"{key} is given twice ({parameter}, overrides): leave it out of overrides")


def plain_value(value: Any) -> Any:
    """Return a number or an array of numpy, or a path, as a value of Python."""
    if isinstance(value, Path):
        return str(value)
    if not hasattr(value, "tolist"):
        raise TypeError(type(value).__name__)
    return value.tolist()


def event_handler(callback: Any) -> EventHandler:
    """Return a function of an event that calls a callback."""
    methods = {kind: getattr(callback, name) for name, kind in CALLBACK_METHODS.items() if hasattr(callback, name)}
    if methods:
        return lambda event: methods[type(event)](event) if type(event) in methods else None
    if not callable(callback):
        raise RequestError(
            f"{callback!r} is not a callback (callbacks): give a function of an event, or an object with "
            f"{', '.join(CALLBACK_METHODS)}"
        )
    handler: EventHandler = callback
    return handler


def observer(boards: Iterable[TensorBoard]) -> EventObserver:
    """Return a function that passes the events of a run through all loggers."""

    @contextmanager
    def observe(events: Iterator[RunEvent], files: RunDirectory) -> Iterator[Iterator[RunEvent]]:
        with ExitStack() as stack:
            for board in boards:
                events = stack.enter_context(board.observe(events, files))
            yield events

    return observe


def consume_events(events: Iterable[Event], handlers: Iterable[EventHandler]) -> dict[str, Any]:
    """Pass the events of a run to handlers and return its summary; raise the error of a run that failed."""
    summary: dict[str, Any] = {}
    for event in events:
        for handler in handlers:
            handler(event)
        if isinstance(event, RunFailed):
            raise event.error
        if isinstance(event, RunStarted | RunResumed):
            warn(event.warnings)
        if isinstance(event, RunFinished):
            summary = event.summary
    warn((summary.get("diagnosis") or {}).get("warnings", ()))
    return summary
