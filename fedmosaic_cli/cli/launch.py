"""From the options of a training command to its runs."""

from __future__ import annotations

import shlex
import sys
import traceback
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from fedmosaic_cli.cli.at_sites import Sites, check_config, check_request, is_federated
from fedmosaic_cli.cli.console import notes, out, remark, say, say_json
from fedmosaic_cli.cli.diagnosis import beside_local, document, show_beside_local, warn_of_trust
from fedmosaic_cli.cli.dry_run import show_plan
from fedmosaic_cli.cli.interrupt import stop_request
from fedmosaic_cli.cli.options import Device, whole_numbers
from fedmosaic_cli.cli.place import data_place
from fedmosaic_cli.cli.privacy import options_of, privacy_layer, spent_lines, tell_planned
from fedmosaic_cli.cli.progress import view
from fedmosaic_cli.cli.tensorboard import check_installed, check_usable, recorded
from fedmosaic_cli.config.layers import Layers
from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.config.run import RunConfig, check_name, resolve_run
from fedmosaic_cli.config.yaml_files import read
from fedmosaic_cli.errors import FailedRunError, FedMosaicError, RequestError, ResourceError
from fedmosaic_cli.experiment.plan import Deal, check_directory, check_run, find_shards, run_directory
from fedmosaic_cli.experiment.privacy import train_sizes
from fedmosaic_cli.files import check_room, write
from fedmosaic_cli.lock import locked
from fedmosaic_cli.records import shards as shard_records
from fedmosaic_cli.records.runs import RunFiles
from fedmosaic_cli.records.site_shards import exported_description

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from fedmosaic_cli.cli.diagnosis import BesideLocal
    from fedmosaic_cli.cli.interrupt import StopRequest
    from fedmosaic_cli.cli.local_run import NoLocalRun
    from fedmosaic_cli.cli.progress import View
    from fedmosaic_cli.cli.request import Request
    from fedmosaic_cli.data.place import Place
    from fedmosaic_cli.experiment.elsewhere import Elsewhere
    from fedmosaic_cli.records.shards import Shards

LONGEST_GRACE = 86_400


@dataclass(frozen=True)
class Planned:
    """A run to be made."""

    config: RunConfig
    files: RunFiles

    @property
    def label(self) -> str:
        return f"{self.config.method.variant} seed {self.config.seed}, {self.config.data.clients} clients"


def launch(methods: list[str], request: Request, if_they_fit: Collection[str] = ()) -> None:
    """Check everything that was asked for, then make the runs one after the other.

    Methods that were not named one by one (`if_they_fit`) are left out where these clients cannot play them.
    """
    if not 0 <= request.grace <= LONGEST_GRACE:
        raise RequestError(f"a time of {request.grace} s (--grace): it must be between 0 and {LONGEST_GRACE}")
    check_request(request)
    if request.tensorboard:
        check_installed()
    layers, setting, given = layers_of(methods, request)
    with ExitStack() as hold:
        with data_place(request.data_dir, request.quiet or request.as_json) as place:
            runs = fitting(plan(methods, request, layers, setting, given, place), if_they_fit)
            for run in runs:
                check_config(request, run.config)
                run.config.check_privacy()
            if request.dry_run:
                configs, files = [run.config for run in runs], [run.files for run in runs]
                show_plan(configs, layers, files, given, place, request.device.value, request.as_json)
                warn(runs, request.quiet)
                return
            hold.enter_context(held(runs, request, place))
            shards = shards_by_seed(runs, given, request, place)
            notes(line for found in shards.values() if isinstance(found, Deal) for line in found.dataset.remarks)
        check_fit(request, runs, shards)
        tell_planned(
            ((run.config, *facts_of(shards[run.config.partition_seed])) for run in runs), is_federated(request)
        )
        warn(runs, request.quiet)
        make(runs, shards, request, place)


@contextmanager
def held(runs: list[Planned], request: Request, place: Place) -> Iterator[None]:
    """Be the only one who writes to the directories of all runs; they are refused before any is touched."""
    resume, nonidentical = request.resume, request.allow_nonidentical
    for run in runs:
        check_run(run.config, run.files, resume, place, nonidentical)
    with ExitStack() as locks:
        for run in runs:
            locks.enter_context(locked(run.files.path))
        for run in runs:  # whoever held one a moment ago may have left something in it
            check_directory(run.files, resume)
        yield


def make(runs: list[Planned], shards: dict[int, Shards | Deal], request: Request, place: Place) -> None:
    """Make the runs one after the other. One that fails leaves the others alone, and is the end of it in the end."""
    finished: list[tuple[Planned, dict[str, Any]]] = []
    failures: list[FailedRunError] = []
    with (
        stop_request(request.grace) as asked_to_stop,
        view(request.quiet or request.as_json, len(runs)) as progress,
        ExitStack() as hold,
    ):
        sites = Sites(request, place, hold)
        for run in runs:
            if asked_to_stop():
                remark(f"stopped before {run.label}: go on with --resume")
                raise typer.Exit(asked_to_stop.code)
            on_disk = shards[run.config.partition_seed] = written(shards[run.config.partition_seed])
            try:
                finished.append((run, follow(run, on_disk, request, place, progress, asked_to_stop, sites.of(on_disk))))
            except FailedRunError as error:
                failures.append(error)
                if len(runs) > 1:
                    remark(f"failed: {error}")
    beside = besides(finished, shards, request, place)
    for run, summary in finished if not request.quiet else ():
        warn_of_trust(run.label, summary)
    if request.as_json:
        say_json([document(summary, result) for (_, summary), result in zip(finished, beside, strict=True)])
    elif finished:
        show_results(finished, beside, request)
    if failures and len(runs) == 1:
        raise failures[0]
    if failures:
        raise FailedRunError(f"{len(failures)} of {len(runs)} runs failed, the first: {failures[0]}")
    if asked_to_stop():  # too late to stop anything here, but not for what the shell would do next
        remark("asked to stop in the last round: everything is finished")
        raise typer.Exit(asked_to_stop.code)


def besides(
    finished: list[tuple[Planned, dict[str, Any]]], shards: dict[int, Shards | Deal], request: Request, place: Place
) -> list[BesideLocal | NoLocalRun | None]:
    """How each run fares beside its Local run, if anybody wants to know."""
    if request.quiet and not request.as_json:
        return [None] * len(finished)
    dealt = {seed: found.shards if isinstance(found, Deal) else found for seed, found in shards.items()}
    sizes = {seed: found.test_sizes() for seed, found in dealt.items()}
    return [
        beside_local(run.label, run.files, summary, sizes[run.config.partition_seed], place)
        for run, summary in finished
    ]


def fitting(runs: list[Planned], optional: Collection[str]) -> list[Planned]:
    """The runs that these clients can play; one that was asked for by name has to be among them."""
    misfits = {run.config.method.name: (run.config.method.title, why) for run in runs if (why := run.config.misfit())}
    left_out: dict[str, list[str]] = {}
    for name, (title, why) in misfits.items():
        if name not in optional:
            raise RequestError(f"{title} {why.needs}, but {why.but}: {why.way_out}")
        left_out.setdefault(f"{why.needs}, but {why.but}", []).append(title)
    for reason, titles in left_out.items():
        remark(f"left out: {'each of ' if len(titles) > 1 else ''}{', '.join(titles)} {reason}")
    return [run for run in runs if run.config.method.name not in misfits]


def shards_by_seed(
    runs: list[Planned], given: Shards | None, request: Request, place: Place
) -> dict[int, Shards | Deal]:
    """The shards of all runs: runs that differ in method alone share theirs."""
    standard = load_preset(request.preset) if request.preset is not None else None
    one_a_seed = {run.config.partition_seed: run.config for run in runs}
    return {seed: given or find_shards(config, standard, place) for seed, config in one_a_seed.items()}


def facts_of(found: Shards | Deal) -> tuple[int, list[int]]:
    """The number of classes, and of the training examples of each client."""
    shards = found.shards if isinstance(found, Deal) else found
    return len(shards.manifest["class_names"]), train_sizes(shards)


def written(shards: Shards | Deal) -> Shards:
    """The shards on disk."""
    return shards.written() if isinstance(shards, Deal) else shards


def warn(runs: list[Planned], quiet: bool) -> None:
    """Say what one should know, once all that would be refused is."""
    for note in dict.fromkeys(run.config.method.cost(run.config.train.rounds) for run in runs):
        if note and not quiet:
            remark(note)
    for warning in dict.fromkeys(filter(None, map(caution, runs))):
        remark(f"warning: {warning}")


def caution(run: Planned) -> str:
    """A word where a method would be another one under its name."""
    config = run.config
    participants = config.train.clients_per_round or config.data.clients or 1
    return config.method.caution(config.train.rounds, participants, config.model_of(0).has_batch_norm)


def check_fit(request: Request, runs: list[Planned], shards: dict[int, Shards | Deal]) -> None:
    """Refuse a device that is not there, a run that cannot go on, a network that cannot see the images, and a disk
    that is too full. From here on torch is needed."""
    if request.tensorboard:
        check_usable()
    from fedmosaic_cli.experiment.assemble import check_networks, find_devices
    from fedmosaic_cli.experiment.continuation import check_beforehand
    from fedmosaic_cli.experiment.costs import disk_bytes, facts_of_shards
    from fedmosaic_cli.experiment.environment import surroundings

    devices = find_devices(request.device.value)
    need = 0
    for run in runs:
        found = shards[run.config.partition_seed]
        dealt = found.shards if isinstance(found, Deal) else found
        check_beforehand(run.files, surroundings(devices, dealt.digest), request.allow_nonidentical)
        facts = facts_of_shards(dealt)
        channels, height, width = facts.input_shape
        check_networks(run.config, (height, width, channels), devices[0])
        need += max(0, disk_bytes(run.config, facts) - run.files.size())
    check_room(runs[0].files.path, need, "make room or choose another --runs-dir")


def follow(
    run: Planned,
    shards: Shards,
    request: Request,
    place: Place,
    progress: View,
    asked_to_stop: StopRequest,
    elsewhere: Elsewhere | None,
) -> dict[str, Any]:
    """Make one run and show how it goes. Its summary."""
    from fedmosaic_cli.experiment import run as experiment

    progress.begin(run.label, run.config.train.rounds)
    terms = experiment.Terms(
        device=request.device.value,
        arguments=tuple(sys.argv[1:]),
        asked_to_stop=asked_to_stop,
        grace=request.grace,
        nonidentical=request.allow_nonidentical,
        elsewhere=elsewhere,
    )
    played = experiment.run(run.config, shards, run.files, place, terms)
    with crash_kept(run.files), recorded(played, run.files, request.tensorboard) as events:
        for event in events:
            if isinstance(event, experiment.Begun):
                progress.tell(event)
            elif isinstance(event, experiment.Resumed):
                for warning in event.warnings:
                    remark(f"warning: {warning}")
                progress.skip_to(event.round)
            elif isinstance(event, experiment.Waiting):
                progress.wait_for(event.clients)
            elif isinstance(event, experiment.RoundDone):
                progress.update(event)
            elif isinstance(event, experiment.Stopped):
                remark(f"stopped after round {event.round} of {run.label}: go on with --resume and the same options")
                raise typer.Exit(asked_to_stop.code)
            else:
                return event.summary
    raise AssertionError("a run ends with a summary or is stopped")


@contextmanager
def crash_kept(files: RunFiles) -> Iterator[None]:
    """Leave word in the run's directory if it fails in a way that nobody foresaw."""
    try:
        yield
    except FileNotFoundError as error:
        raise ResourceError(
            f"{error.strerror} ({error.filename}): somebody took it away while the run was writing; start it again"
        ) from None
    except (FedMosaicError, typer.Exit, OSError):
        raise
    except Exception:
        with suppress(OSError):
            write(files.crash, traceback.format_exc().encode())
        raise


def layers_of(methods: list[str], request: Request) -> tuple[Layers, str, Shards | None]:
    """The layers of the configuration, the name of the setting, and the shards where they are given."""
    layers, setting, given = Layers(), "", None
    if request.preset is not None:
        preset = load_preset(request.preset)
        setting = preset.name
        layers.add_all(preset.layers)
    if request.shards is not None:
        given = load_shards(request)
        setting = request.shards.resolve().name
        layers.add(f"shards {request.shards}", {"data": given.partition.settings.model_dump(mode="json")})
    if not setting:
        raise RequestError("nothing to train on (fedmosaic): add --preset quickstart or --shards DIR")
    if request.local_sites is not None and request.shards is None:
        layers.add("--local-sites", {"data": {"clients": request.local_sites}})
        setting += f"-{request.local_sites}-sites"
    if request.name is not None:
        check_name(request.name, "--name")
        setting = request.name
    if request.config is not None:
        layers.add(f"file {request.config}", read(request.config))
    for assignment in request.assignments or []:
        layers.set(assignment)
    execution = request.execution and request.execution.value
    on_nan = request.on_nan and request.on_nan.value
    flags = {"rounds": request.rounds, "workers": request.workers, "execution": execution, "on_nan": on_nan}
    layers.add("flag", {"train": {key: value for key, value in flags.items() if value is not None}})
    layers.add("flag", {"privacy": privacy_layer(request)})
    if request.expertise is not None:
        if "fedmosaic" not in methods:
            raise RequestError("--expertise is for fedmosaic alone (fedmosaic baseline): leave it out")
        layers.add("flag", {"methods": {"fedmosaic": {"expertise": request.expertise}}})
    return layers, setting, given


def load_shards(request: Request) -> Shards:
    """The shards that were named. Where clients are at sites, so are their files."""
    path = request.shards or Path()
    sites = is_federated(request) and request.local_sites is None
    return exported_description(path) if sites else shard_records.load(path)


def plan(
    methods: list[str], request: Request, layers: Layers, setting: str, given: Shards | None, place: Place
) -> list[Planned]:
    """The runs that the request amounts to, each checked."""
    if request.seeds is not None and request.seed is not None:
        raise RequestError("both --seed and --seeds are given (fedmosaic): use one of them")
    seeds = whole_numbers(request.seeds, "--seeds") if request.seeds is not None else (request.seed or 0,)
    partition_seed = given.partition.seed if given else None
    configs = [resolve_run(setting, layers, name, seed, place, partition_seed) for name in methods for seed in seeds]
    if given and any(config.data != given.partition.settings for config in configs):
        raise RequestError(
            f"shards are dealt already, so data settings cannot change ({request.shards}): partition anew"
        )
    if request.label is not None:
        check_name(request.label, "--label")
    if request.run_dir is not None and len(configs) > 1:
        raise RequestError(f"{len(configs)} runs do not fit into one directory (--run-dir): use --runs-dir")
    return [
        Planned(config, RunFiles(request.run_dir or run_directory(request.runs_dir, config, request.label or "")))
        for config in configs
    ]


def show_results(
    finished: list[tuple[Planned, dict[str, Any]]],
    beside: list[BesideLocal | NoLocalRun | None],
    request: Request,
) -> None:
    """The numbers of the runs, and what one would do next."""
    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    for heading in ("accuracy %", "weighted %", "worst client %", "kB up", "kB down"):
        table.add_column(heading, justify="right")
    for run, summary in finished:
        accuracy = summary["accuracy"]
        numbers = [f"{100 * accuracy[key]:.2f}" for key in ("client_mean", "sample_weighted", "worst")]
        bits = [summary["bits"][way] for way in ("up", "down")]
        traffic = ["raw data" if number is None else f"{number / 8000:.1f}" for number in bits]
        table.add_row(str(run.files.path), *numbers, *traffic)
    out().print(table)
    for line in spent_lines(summary for _, summary in finished):
        say(line)
    for run, summary in finished:
        if summary.get("degraded"):
            remark(
                f"warning: {run.label}: too few valid messages in {len(summary['degraded'])} of {summary['rounds']} "
                "rounds, in which the consensus stayed as it was (defence.min_clients, or more than half)"
            )
        if "honest_accuracy" in summary:
            say(f"{run.label}: {100 * summary['honest_accuracy']['client_mean']:.2f}% over clients that do not attack")
    if request.verbose:
        for run, summary in finished:
            marks = " ".join(f"{100 * value:.1f}" for value in summary["accuracy"]["per_client"])
            say(f"{run.label}: {marks}")
    if not request.quiet:
        say("accuracy: mean over clients, each on its own test part, last round")
        show_beside_local(beside)
        for line in next_steps([run for run, _ in finished], request):
            say(line)


def next_steps(runs: list[Planned], request: Request) -> list[str]:
    """The commands that one would type next: the baselines under the same conditions, and the report."""
    place = str(request.run_dir or request.runs_dir)
    report = shlex.join(["fedmosaic", "report", *([] if place == "runs" else [place])])
    if is_federated(request) or any(run.config.method.name != "fedmosaic" for run in runs):
        return [f"next: {report}"]
    options = {
        "--preset": request.preset,
        "--shards": request.shards,
        "--rounds": request.rounds,
        "--seed": request.seed,
        "--seeds": request.seeds,
        "--config": request.config,
        "--name": request.name,
        **options_of(request),
        "--execution": request.execution and request.execution.value,
        "--on-nan": request.on_nan and request.on_nan.value,
        "--device": None if request.device is Device.auto else request.device.value,
        "--data-dir": request.data_dir,
        "--runs-dir": None if str(request.runs_dir) == "runs" else request.runs_dir,
    }
    words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    words += ["--tensorboard"] if request.tensorboard else []
    words += [word for assignment in request.assignments or [] for word in ("--set", assignment)]
    return [f"next: {shlex.join(['fedmosaic', 'baseline', 'all', *words])}", f"then: {report}"]
