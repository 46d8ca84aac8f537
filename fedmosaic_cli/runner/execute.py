"""From the options of a training command to its runs."""

from __future__ import annotations

import sys
import traceback
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import typer

from fedmosaic_cli.cli.console import notes, remark, say_json
from fedmosaic_cli.cli.data_dir_options import data_place
from fedmosaic_cli.cli.flower_options import Sites, check_config, check_request, is_federated
from fedmosaic_cli.cli.interrupt import stop_request
from fedmosaic_cli.cli.privacy_options import tell_planned
from fedmosaic_cli.cli.tensorboard import check_installed, check_usable, recorded
from fedmosaic_cli.cli.views.dry_run_view import show_plan
from fedmosaic_cli.cli.views.local_comparison import beside_local, document, warn_of_trust
from fedmosaic_cli.cli.views.progress_view import view
from fedmosaic_cli.cli.views.summary_view import show_results
from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.errors import FailedRunError, FedMosaicError, RequestError, ResourceError
from fedmosaic_cli.federation.site_shards import train_sizes
from fedmosaic_cli.runner.plan import fitting, layers_of, plan
from fedmosaic_cli.runner.prepare import Deal, check_directory, check_run, find_shards
from fedmosaic_cli.storage.files import check_room, write
from fedmosaic_cli.storage.lock import locked

if TYPE_CHECKING:
    from fedmosaic_cli.storage.runs import RunFiles
    from collections.abc import Collection, Iterator

    from fedmosaic_cli.cli.interrupt import StopRequest
    from fedmosaic_cli.cli.train_options import Request
    from fedmosaic_cli.cli.views.local_comparison import BesideLocal
    from fedmosaic_cli.cli.views.progress_view import View
    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.federation.coordinator import Elsewhere
    from fedmosaic_cli.runner.local_baseline import NoLocalRun
    from fedmosaic_cli.runner.plan import Planned
    from fedmosaic_cli.storage.shards import Shards

LONGEST_GRACE = 86_400


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
    return len(shards.manifest["class_names"]), list(train_sizes(shards.manifest).values())


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
    from fedmosaic_cli.runner.build import check_networks, find_devices
    from fedmosaic_cli.runner.cost_estimates import disk_bytes, facts_of_shards
    from fedmosaic_cli.runner.environment import surroundings
    from fedmosaic_cli.runner.resume_checks import check_beforehand

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
    from fedmosaic_cli.runner import run as experiment

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
