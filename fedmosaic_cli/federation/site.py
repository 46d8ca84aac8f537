"""A site's side of a run: one client with its own data, which handles the coordinator's requests.

No request names a path. The response of a round is on disk before it is sent, and a repeated request returns the same
bytes, so noise is drawn once. Every response passes `federation.egress`, and every release with noise is in the site's
privacy ledger before it is sent.
"""

from __future__ import annotations

import math
import re
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from fedmosaic_cli import __version__
from fedmosaic_cli.config.run_config import run_config_from_dict
from fedmosaic_cli.engine.federation import first_round
from fedmosaic_cli.engine.local_pool import evaluate_client, finalize_client, run_local_round
from fedmosaic_cli.engine.messages import SERVER_ID, make_route
from fedmosaic_cli.engine.method import has_finalize
from fedmosaic_cli.errors import DivergenceError, FedMosaicError, RequestError, RunStateError
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.egress import EgressFilter
from fedmosaic_cli.federation.policy import SitePolicy
from fedmosaic_cli.federation.privacy_ledger import LEDGER_FILE, PrivacyLedger, default_anchor_dir
from fedmosaic_cli.federation.protocol import ProtocolError, Request, Response
from fedmosaic_cli.federation.site_dir import PLAN_FILE, RUNS_DIR
from fedmosaic_cli.federation.site_run import SiteRun, require_same_plan
from fedmosaic_cli.federation.usage_limits import USAGE_FILE, UsageLimits, UsageRecord
from fedmosaic_cli.labels.label_messages import ConsensusLabels
from fedmosaic_cli.labels.privacy.privacy_report import read_ledger
from fedmosaic_cli.labels.privacy.privatize import LEDGER_KEY
from fedmosaic_cli.plugin_sources import plugin_failure
from fedmosaic_cli.runner.accelerator_options import AcceleratorOptions
from fedmosaic_cli.runner.build import build_site_federation, count_weights
from fedmosaic_cli.runner.checkpoint_state import restore_state, to_arrays
from fedmosaic_cli.storage import checkpoints
from fedmosaic_cli.storage.files import make_directories, read_checksummed_json, to_checksummed_json, write_atomic
from fedmosaic_cli.storage.runs import RunDirectory
from fedmosaic_cli.storage.syscalls import private_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import torch

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.engine.context import Message, ReceivedMessage
    from fedmosaic_cli.federation.protocol import EncodedParts
    from fedmosaic_cli.federation.site_run import StoredResponse
    from fedmosaic_cli.federation.site_shards import SiteShard

RUN_ID_COMPONENT = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"
RUN_ID_PATTERN = re.compile(rf"{RUN_ID_COMPONENT}/{RUN_ID_COMPONENT}/seed-\d{{1,20}}/[0-9a-f]{{8,32}}")
OTHER_PLUGIN_TEXT = "the plan needs another version of a plug-in (--plugin): install the coordinator's version"
NO_NOISE_FILE = "values-without-noise"
"""An empty file in the directory of a run from which values without noise have left."""
MAX_ROUND = 1_000_000
MAX_EVALUATIONS = 2
"""How often a round is evaluated with different messages of the server: a resumed run may repeat its last round."""


@dataclass(frozen=True)
class HandledRequest:
    """A handled request, for the site's log. `error` is empty if it succeeded."""

    kind: str
    run_id: str
    round: int | None
    duration_seconds: float
    response_bytes: int
    error: str = ""


@dataclass
class Site:
    """Handles the requests for one client. The state of each run is stored below `folder`.

    Attributes:
        shard: The site's data.
        folder: The site's directory.
        device: The device of the computations.
        data_dirs: Where the data sets of a plan are.
        policy: What may leave the site.
        on_request: Called after each request.
        limits: What a coordinator may use of the site.
        coordinator: Name of the coordinator, for `limits`.
        anchor_dir: The directory of the privacy ledger's anchor, outside of `folder`.
    """

    shard: SiteShard
    folder: Path
    device: torch.device
    data_dirs: DataDirs
    policy: SitePolicy = field(default_factory=SitePolicy)
    on_request: Callable[[HandledRequest], None] = lambda _: None
    limits: UsageLimits = field(default_factory=UsageLimits)
    coordinator: str = "coordinator"
    anchor_dir: Path = field(default_factory=default_anchor_dir)
    _current_run: SiteRun | None = None
    _has_read_data: bool = False
    """Whether the request in progress is beyond the checks of a plan: then the text of an error may contain data."""
    _cached_parts: tuple[str, EncodedParts] | None = None
    """The parts that were received last, with their digest: the coordinator may refer to them."""

    @cached_property
    def ledger(self) -> PrivacyLedger:
        """All releases of this site, over all runs."""
        num_classes = len(self.shard.dataset.class_names)
        return PrivacyLedger(self.folder / LEDGER_FILE, self.shard.private_digest, num_classes, self.anchor_dir)

    @cached_property
    def usage(self) -> UsageRecord:
        """What coordinators have used of this site."""
        return UsageRecord(self.folder / USAGE_FILE, self.limits)

    @cached_property
    def egress(self) -> EgressFilter:
        """The filter that every response passes."""
        sizes = {name: len(index) for name, index in self.shard.own.splits().items()}
        return EgressFilter(self.policy, sizes["train"], sizes["test"], sizes.get("val", 0))

    @private_files()
    def handle_request(self, data: bytes) -> bytes:
        """Return the response to a request. Invalid requests and failures give an error response.

        Files that it writes are for this user only.
        """
        started = time.monotonic()
        self._has_read_data = False
        request, response, problem = self._respond(data)
        if problem:
            self._current_run = None  # the state in memory may be incomplete: load it from disk
        self._report(request, len(response), problem, started)
        return response

    def _respond(self, data: bytes) -> tuple[Request, bytes, str]:
        """Return the decoded request, the response, and the problem for the site's log; "" for none."""
        request = Request({})
        handlers = {
            protocol.JOIN: self._handle_join,
            protocol.LOCAL_ROUND: self._handle_local_round,
            protocol.FINALIZE: self._handle_finalize,
            protocol.EVALUATE: self._handle_evaluate,
            protocol.FINISH: self._handle_finish,
        }
        try:
            request = Request.decode(data)
            if request.kind not in handlers:
                protocol.reject_message("bad_header")
            self._has_read_data = request.kind != protocol.JOIN
            return request, handlers[request.kind](request), ""
        except DivergenceError as error:
            problem = str(error)
            response = self._encode_error(request, protocol.ERROR_DIVERGED, error.quantity)
        except ProtocolError as error:
            problem, response = str(error), self._encode_error(request, str(error), "the request is invalid")
        except FedMosaicError as error:
            problem, response = str(error), self._encode_error(request, protocol.ERROR_REFUSED, str(error))
        except Exception as error:
            crash_path = self.folder / "crash.txt"
            with suppress(OSError):
                write_atomic(crash_path, traceback.format_exc().encode())
            problem = f"{plugin_failure(error) or f'{type(error).__name__}: {error}'} ({crash_path})"
            response = self._encode_error(request, protocol.ERROR_FAILED, f"{type(error).__name__} at the site")
        return request, response, problem

    def _report(self, request: Request, response_bytes: int, problem: str, started: float) -> None:
        """Count the duration of a request, and call `on_request`."""
        if request.header:
            with suppress(FedMosaicError, OSError):
                self.usage.add_seconds(self.coordinator, time.monotonic() - started)
        round_number = request.header.get("round")
        self.on_request(
            HandledRequest(
                protocol.printable_text(request.kind, 20),
                protocol.printable_text(str(request.header.get("run", "")), 200),
                round_number if type(round_number) is int else None,
                time.monotonic() - started,
                response_bytes,
                protocol.printable_text(problem, 1000),
            )
        )

    def _handle_join(self, request: Request) -> bytes:
        """Check the plan, store it, and return the client's state and evaluation."""
        header = request.header
        if header.get("version") != __version__:
            raise RequestError(
                f"the coordinator has fedmosaic {str(header.get('version'))[:40]}, this site {__version__} (version): "
                "install the same version at both"
            )
        if header.get("shards") != self.shard.shard_set.digest:
            raise RequestError(
                "the plan is for other shards than this site's (--shard): start the site with the shard of this run"
            )
        config = self._validate_config(header.get("config"))
        if header.get("plugins", {}) != config.plugins():
            raise RequestError(OTHER_PLUGIN_TEXT)
        folder = self._run_folder(header)
        plan = {"config": config.to_dict(), **({"plugins": config.plugins()} if config.plugins() else {})}
        if (folder / PLAN_FILE).exists():
            require_same_plan(read_checksummed_json(folder / PLAN_FILE), plan)
        else:
            self.usage.require_time(self.coordinator)
            self._require_budget(config)
            self.usage.count_run(self.coordinator, self.folder / RUNS_DIR)
            make_directories(folder)
        write_atomic(folder / PLAN_FILE, to_checksummed_json(plan))
        self._has_read_data = True
        run = self._current_run = self._load_run(request)
        received = self._decode_received(request, run, run.last_round + 1)
        evaluated_round = min(max(0, run.last_round), config.train.rounds)
        # A site that has lost its state must not evaluate again: the coordinator refuses it.
        has_state = evaluated_round >= run.last_evaluation()["round"]
        can_evaluate = has_state and (received or not config.method.needs.broadcast_to_evaluate)
        metrics = self._evaluate(run, received, evaluated_round, request) if can_evaluate else None
        fields = {
            protocol.EVALUATION_FIELD: metrics,
            "device": str(self.device),
            "examples": len(run.client.private),
            "version": __version__,
        }
        return self._encode_response(run, protocol.JOIN, max(0, run.last_round), fields)

    def _handle_local_round(self, request: Request) -> bytes:
        """Run a local round, or return the stored response of a finished one."""
        run, round_number = self._get_run(request), self._requested_round(request)
        first, last = first_round(run.config.method), run.config.train.rounds
        if round_number < first:
            raise RequestError(f"round {round_number} is before the first one (round): start with round {first}")
        if round_number > last:
            raise beyond_plan_error(round_number, last)
        if round_number <= run.last_round:
            stored = run.stored_response(round_number)
            if stored is None:
                raise RequestError(
                    f"the response of round {round_number} is no longer stored, the last round is {run.last_round} "
                    "(run): resume the coordinator from its newest checkpoint"
                )
            return self._encode_stored(stored)
        federation, client = run.federation, run.client
        received = self._decode_received(request, run, round_number)
        self._require_resources(run)
        client.begin_round(round_number)
        num_recorded = len(client.state.get(LEDGER_KEY, ()))
        message = run_local_round(federation.method, client, received, federation.ctx, self._skips_diverged(run))
        if client.is_skipped and self.policy.metrics_level == "withheld":
            message = run.substitute_upload(round_number)
        self._record_releases(run, message, num_recorded)
        route = make_route(self.device, federation.ctx, round_number, client.id)
        parts = protocol.encode_parts(message, federation.method.uploads, route)
        needs_broadcast = federation.method.needs.broadcast_to_evaluate
        metrics = None if needs_broadcast else self._evaluate(run, {}, round_number)
        fields = {
            protocol.METRICS_FIELD: dict(client.metrics),
            protocol.SKIPPED_FIELD: client.is_skipped,
            protocol.EVALUATION_FIELD: metrics,
        }
        response = self._encode_response(run, protocol.LOCAL_ROUND, round_number, fields, parts)
        run.save_round(round_number, response, self.policy.metrics_level)
        return response

    def _skips_diverged(self, run: SiteRun) -> bool:
        """Whether a diverged client is rolled back instead of an error. An error would reveal it to the coordinator."""
        return run.federation.skip_diverged or self.policy.metrics_level == "withheld"

    def _require_resources(self, run: SiteRun) -> None:
        """Refuse a computation that exceeds the limits of time, disk space or steps.

        With withheld metrics the planned steps count before a round. The number of steps that a method really takes may
        depend on data, and a refusal would reveal that to the coordinator.
        """
        self.usage.require_time(self.coordinator)
        self.usage.require_disk_space(self.folder / RUNS_DIR)
        if self.policy.metrics_level == "withheld":
            self.usage.count_steps(self.coordinator, run.steps_per_round)

    def _require_enough_labels(self, run: SiteRun, received: ReceivedMessage) -> None:
        """Refuse a consensus that labels so few public examples that metrics would be about single ones."""
        for name, part in run.federation.method.downloads.items():
            if isinstance(part, ConsensusLabels) and received.get(name) is not None:
                self.policy.require_labels(part.num_labels(received[name]), run.federation.ctx.public_size)

    def _require_budget(self, config: RunConfig) -> None:
        """Refuse a plan that would exceed the privacy budget together with all earlier releases."""
        if self.policy.max_epsilon is None or config.noise is None:
            return
        self._require_no_runs_without_noise()
        public_size = config.data.public_size or 0
        planned = config.noise.planned_releases(config.num_exchanges, 1, public_size, 1.0)
        releases = [replace(release, count=release.count * num_rounds) for release, num_rounds in planned]
        self.policy.require_budget(self.ledger.total_epsilon(self.policy.delta, releases))

    def _require_no_runs_without_noise(self) -> None:
        num_runs = self.usage.num_runs_without_noise
        if num_runs:
            raise RequestError(
                f"{num_runs} earlier {'run' if num_runs == 1 else 'runs'} sent values without noise, so this site has "
                "no total epsilon (--max-epsilon): use a new site directory with data that no earlier run used"
            )

    def _record_noise(self, config: RunConfig, folder: Path) -> None:
        """Count a run from which values without noise leave, once. A site with a budget refuses it after such a run."""
        if self.policy.max_epsilon is not None:
            self._require_no_runs_without_noise()
        elif not self.policy.has_noise_only(config) and not (folder / NO_NOISE_FILE).exists():
            self.usage.count_run_without_noise(self.coordinator)
            write_atomic(folder / NO_NOISE_FILE, b"")

    def _record_releases(self, run: SiteRun, message: Message, num_recorded: int) -> None:
        """Enter what a message releases into the site's privacy ledger, or refuse to send it."""
        releases = read_ledger(run.client.state.get(LEDGER_KEY, [])[num_recorded:])
        if self.policy.max_epsilon is not None:
            if message and not releases:
                title = run.config.method.info.title
                raise RunStateError(f"{title} sends values without noise (--max-epsilon): use another method")
            self.policy.require_budget(self.ledger.total_epsilon(self.policy.delta, releases))
        if releases:
            self.ledger.append(run.run_id, releases)

    def _handle_finalize(self, request: Request) -> bytes:
        """Let the method change the client once after the last round. A repeated request changes nothing."""
        run, round_number = self._get_run(request), self._requested_round(request)
        if round_number != run.config.train.rounds:
            last = run.config.train.rounds
            raise RequestError(
                f"round {round_number} is not the last of {last} rounds (finalize): finalize after round {last}"
            )
        return self._finalize_once(run, self._decode_received(request, run, round_number + 1))

    def _finalize_once(self, run: SiteRun, received: ReceivedMessage) -> bytes:
        """Let the method change the client, unless that is done, and return the response to the request for it."""
        last = run.config.train.rounds
        # The state afterwards is stored as one more round, because the response of the last round is still needed.
        stored = run.stored_response(last + 1) if run.last_round > last else None
        if stored is not None:
            return self._encode_stored(stored)
        federation, client = run.federation, run.client
        self._require_resources(run)
        client.begin_round(last)
        finalize_client(federation.method, client, received, federation.ctx, self._skips_diverged(run))
        fields = {protocol.METRICS_FIELD: dict(client.metrics), protocol.SKIPPED_FIELD: client.is_skipped}
        response = self._encode_response(run, protocol.FINALIZE, last, fields)
        run.save_round(last + 1, response, self.policy.metrics_level)
        return response

    def _handle_evaluate(self, request: Request) -> bytes:
        """Evaluate the client with the server's message of the next round."""
        run, round_number = self._get_run(request), self._requested_round(request)
        received = self._received_after_round(request, run, round_number)
        metrics = self._evaluate(run, received, round_number, request)
        return self._encode_response(run, protocol.EVALUATE, round_number, {protocol.EVALUATION_FIELD: metrics})

    def _handle_finish(self, request: Request) -> bytes:
        """Save the personal model here, and return its digest."""
        run, round_number = self._get_run(request), self._requested_round(request)
        received = self._received_after_round(request, run, round_number)
        model = to_arrays(run.federation.method.personal_model(run.client, received))
        [digest] = run.files.save_models([(run.client.id, model)]).values()
        return self._encode_response(run, protocol.FINISH, round_number, {"model": digest})

    def _evaluate(
        self, run: SiteRun, received: ReceivedMessage, round_number: int, request: Request | None = None
    ) -> dict[str, Any]:
        """Evaluate the client after a round, and store the result. A round has a limited number of evaluations.

        Raises:
            RequestError: The round is before the last evaluated one, or was evaluated with too many different messages.
        """
        digest = "" if request is None else request.cached_digest or protocol.digest_parts(request.parts)
        last = run.last_evaluation()
        if round_number == last["round"] and digest in last["metrics"]:
            stored: dict[str, Any] = last["metrics"][digest]
            return stored
        if round_number < last["round"]:
            raise RequestError(
                f"round {round_number} was requested after round {last['round']} (evaluation): evaluate rounds in order"
            )
        if round_number > run.config.train.rounds:
            raise beyond_plan_error(round_number, run.config.train.rounds)
        evaluated = last["metrics"] if round_number == last["round"] else {}
        if len(evaluated) >= MAX_EVALUATIONS:
            raise RequestError(
                f"round {round_number} was already evaluated {MAX_EVALUATIONS} times (evaluation): continue with the "
                "next round"
            )
        self.usage.require_time(self.coordinator)
        if request is not None and round_number > max(0, run.last_round):
            # The client was not selected in this round. Its evaluation costs as much of the daily limit as training.
            self.usage.count_steps(self.coordinator, run.steps_per_round)
        result = evaluate_client(run.federation.method, run.client, run.federation.eval_tasks[0], received)
        is_finite = result.loss is not None and math.isfinite(result.loss)
        if not is_finite and self.policy.metrics_level != "withheld":
            raise DivergenceError(run.client.id, run.client.round, "its loss on test examples")
        metrics = {"accuracy": result.accuracy, "loss": result.loss if is_finite else None, **result.extra_metrics}
        run.save_evaluation(round_number, {**evaluated, digest: metrics})
        return metrics

    def _received_after_round(self, request: Request, run: SiteRun, round_number: int) -> ReceivedMessage:
        """Return the server's message after a round, and make sure that the client is in its state after that round."""
        received = self._decode_received(request, run, round_number + 1)
        if round_number == run.config.train.rounds and has_finalize(run.config.method):
            self._finalize_once(run, received)
        run.client.round = round_number  # also if the client did not take part
        return received

    def _decode_received(self, request: Request, run: SiteRun, round_number: int) -> ReceivedMessage:
        """Return the server's message, from the request or from the cache that the request refers to."""
        parts = request.parts
        if request.cached_digest is not None:
            if self._cached_parts is None or self._cached_parts[0] != request.cached_digest:
                protocol.reject_message(protocol.ERROR_UNKNOWN_PARTS)
            parts = self._cached_parts[1]
        elif parts:
            self._cached_parts = protocol.digest_parts(parts), parts
        ctx = run.federation.ctx
        route = make_route(self.device, ctx, round_number, SERVER_ID)
        declared = run.federation.method.downloads
        received = protocol.ReceivedParts(protocol.decode_parts(parts, declared, route), declared)
        self._require_enough_labels(run, received)
        return received

    def _get_run(self, request: Request) -> SiteRun:
        """Return the run of a request from memory or disk."""
        if self._current_run is None or self._current_run.run_id != request.header.get("run"):
            self._current_run = self._load_run(request)
        answered, stored = request.header.get(protocol.LAST_ANSWERED_ROUND, -1), self._current_run.last_round
        if type(answered) is not int:
            protocol.reject_message("bad_header")
        if stored < answered:
            raise RequestError(
                f"this site's last stored round is {stored}, but it answered round {answered} (run directory): restore "
                "the directory"
            )
        return self._current_run

    def _load_run(self, request: Request) -> SiteRun:
        folder = self._run_folder(request.header)
        if not (folder / PLAN_FILE).is_file():
            raise RequestError("this site has not joined the run (run ID): restart the coordinator with its command")
        plan = read_checksummed_json(folder / PLAN_FILE)
        config = self.policy.limited_config(self._validate_config(plan["config"]))
        if plan.get("plugins", {}) != config.plugins():
            raise RequestError(OTHER_PLUGIN_TEXT)
        self._record_noise(config, folder)
        if self.device.type != "cpu":
            AcceleratorOptions.from_settings(config.train).apply()
        shard = self.shard
        federation = build_site_federation(
            config, shard.dataset, shard.partition, shard.client_train_sizes, shard.shard_set.digest, self.device
        )
        run = SiteRun(request.header["run"], config, federation, RunDirectory(folder))
        if self.policy.metrics_level != "withheld":
            run.client.call_before_training(partial(self.usage.count_steps, self.coordinator))
        checkpoint, damaged = checkpoints.read_newest_checkpoint(run.files.checkpoints_dir)
        if damaged and config.noise is not None:
            # Repeated rounds would draw other noise for the same data, and the ledger would miss what was spent.
            raise RunStateError(f"{next(iter(damaged.values()))}: restore it, or start another run")
        if checkpoint is not None:
            restore_state(run.federation, checkpoint.arrays, checkpoint.values, checkpoint.round)
        for path in damaged:
            checkpoints.quarantine_checkpoint(path)
        return run

    def _validate_config(self, content: Any) -> RunConfig:
        """Return the configuration of a plan. Raise an error if it is invalid or this site does not allow it."""
        if not isinstance(content, dict):
            raise RequestError("the plan has no configuration (coordinator): check its version of fedmosaic")
        config = run_config_from_dict(content, "the coordinator's plan", self.data_dirs)
        reason = config.incompatibility()
        if reason is not None:
            raise RequestError(
                f"{config.method.info.title} {reason.requirement}, but {reason.problem} (the coordinator's plan): "
                f"{reason.remedy}"
            )
        needs = config.method.needs
        if needs.pooled_data or needs.public_labels or config.attack.kind != "none":
            raise RequestError(
                "pooled data, labels of the public set and simulated attacks need one process (--engine): use "
                "--engine local"
            )
        if config.data != self.shard.shard_set.partition.settings:
            raise RequestError("the plan describes other data than this site's shards (data): use these shards")
        self.usage.require_weights(count_weights(config, self.shard.dataset, self.shard.client_id))
        config.check_privacy_budget(len(self.shard.dataset.class_names))
        self.policy.check_config(config, self.shard.client_id, len(self.shard.own.train))
        return config

    def _run_folder(self, header: Mapping[str, Any]) -> Path:
        run_id = header.get("run")
        if not isinstance(run_id, str) or not RUN_ID_PATTERN.fullmatch(run_id):
            protocol.reject_message("wrong_run")
        return self.folder.joinpath(RUNS_DIR, *run_id.split("/"))

    def _requested_round(self, request: Request) -> int:
        round_number = request.header.get("round")
        if type(round_number) is not int or not 0 <= round_number <= MAX_ROUND:
            protocol.reject_message("bad_header")
        return round_number

    def _encode_response(
        self, run: SiteRun, kind: str, round_number: int, fields: dict[str, Any], parts: EncodedParts | None = None
    ) -> bytes:
        header = {"kind": kind, "client": self.shard.client_id, "run": run.run_id, "round": round_number, **fields}
        header = self.egress.filter_header(header, withheld_metrics=run.client.withheld_metrics)
        return Response(header, parts or {}).encode()

    def _encode_stored(self, stored: StoredResponse) -> bytes:
        """Return a stored response: the same bytes, unless the policy sends less than when it was stored."""
        response = Response.decode(stored.data)
        return Response(self.egress.filter_stored(response.header, stored.metrics_level), response.parts).encode()

    def _encode_error(self, request: Request, code: str, text: str) -> bytes:
        round_number = request.header.get("round")
        header = {
            "kind": protocol.ERROR,
            "client": self.shard.client_id,
            "asked": protocol.printable_text(request.kind, 20),
            "round": round_number if type(round_number) is int and 0 <= round_number <= MAX_ROUND else None,
            "error": code,
            "text": text,
        }
        return Response(self.egress.filter_header(header, self._has_read_data)).encode()


def beyond_plan_error(round_number: int, num_rounds: int) -> RequestError:
    return RequestError(
        f"round {round_number} is beyond the {num_rounds} planned rounds (train.rounds): extend the run at the "
        "coordinator"
    )
