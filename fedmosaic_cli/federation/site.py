"""A site's side of a run: one client with its own data, which answers letters and remembers what it has answered.

Where its data and its models lie is the site's business: nothing that arrives names a path. What it has said in a round
is on its disk before it leaves, and whoever asks again gets the same bytes: noise is drawn once.
"""

from __future__ import annotations

import math
import re
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedmosaic_cli import __version__
from fedmosaic_cli.config.run_config import run_config_from_dict
from fedmosaic_cli.engine.local_pool import evaluate_client, run_local_round
from fedmosaic_cli.engine.messages import SERVER_ID, make_route
from fedmosaic_cli.errors import DivergenceError, FedMosaicError, RequestError, RunStateError
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.policy import SitePolicy
from fedmosaic_cli.federation.protocol import ProtocolError, ProtocolMessage
from fedmosaic_cli.federation.remote_pool import ERROR_DIVERGED, ERROR_REFUSED, ERROR_UNKNOWN_PARTS, LAST_ANSWERED_ROUND
from fedmosaic_cli.labels.privacy.privatize import LEDGER_KEY
from fedmosaic_cli.runner.build import build_site_federation
from fedmosaic_cli.runner.environment import package_versions
from fedmosaic_cli.runner.run_state import capture_state, restore_state, to_arrays
from fedmosaic_cli.storage import checkpoints
from fedmosaic_cli.storage.files import make_directories, read_checksummed_json, to_checksummed_json, write_atomic
from fedmosaic_cli.storage.runs import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import torch

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.engine.client import SimulatedClient
    from fedmosaic_cli.engine.federation import Federation
    from fedmosaic_cli.engine.method import ReceivedMessage
    from fedmosaic_cli.federation.site_shards import SiteShard

PLAN_FILE, RESPONSE_KEY = "plan.json", "reply.bin"
RUN_ID_COMPONENT = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"
PATH_PATTERN = re.compile(r"(?<![\w.])/[^\s():,;]+")
RUN_ID_PATTERN = re.compile(rf"{RUN_ID_COMPONENT}/{RUN_ID_COMPONENT}/seed-\d{{1,20}}/[0-9a-f]{{8,32}}")


@dataclass(frozen=True)
class HandledRequest:
    """Something was asked and answered: a word for it, of which run and round, and how long it took."""

    kind: str
    run_id: str
    round: int | None
    duration_seconds: float
    response_bytes: int
    error: str = ""


@dataclass
class SiteRun:
    """A run that the site takes part in, as it stands."""

    run_id: str
    config: RunConfig
    federation: Federation
    files: RunDirectory

    @property
    def client(self) -> SimulatedClient:
        client: SimulatedClient = self.federation.state.clients[0]
        return client

    @property
    def last_round(self) -> int:
        """The last round that it played."""
        return self.federation.state.finished

    def cached_response(self, round_number: int) -> bytes | None:
        """What it answered in a round, if that is not too long ago."""
        paths = {path.name: path for path in checkpoints.list_checkpoints(self.files.checkpoints_dir)}
        path = paths.get(f"{checkpoints.CHECKPOINT_PREFIX}{round_number:05d}")
        return None if path is None else checkpoints.read_checkpoint(path).logs[RESPONSE_KEY]

    def save_round(self, round_number: int, response: bytes) -> None:
        """Remember the round and what was said in it, before anybody hears of it."""
        self.federation.state.finished = round_number
        arrays, values = capture_state(self.federation.state)
        origin = {"config": self.config.to_dict(), "environment": {"versions": package_versions()}, "nonidentical": []}
        checkpoints.write_checkpoint(
            self.files.checkpoints_dir,
            checkpoints.Checkpoint(round_number, arrays, values, {RESPONSE_KEY: response}, origin),
        )


@dataclass
class Site:
    """Answers letters for one client. `folder` is where it keeps what it learns in each run."""

    shard: SiteShard
    folder: Path
    device: torch.device
    data_dirs: DataDirs
    policy: SitePolicy = field(default_factory=SitePolicy)
    on_request: Callable[[HandledRequest], None] = lambda _: None
    _current_run: SiteRun | None = None
    _cached_parts: tuple[str, dict[str, tuple[str, bytes]]] | None = None
    """What it was sent last, and need not be sent again."""

    def handle_request(self, data: bytes) -> bytes:
        """The answer to a letter. Whatever is wrong with it, there is one."""
        started, letter = time.monotonic(), ProtocolMessage({})
        problem = ""
        try:
            letter = protocol.decode_protocol_message(data)
            reply = (
                self._handlers[letter.kind](letter)
                if letter.kind in self._handlers
                else protocol.reject_message("bad_head")
            )
        except DivergenceError as error:
            problem, reply = str(error), self._encode_error(letter, ERROR_DIVERGED, error.quantity, error.round)
        except ProtocolError as error:
            problem, reply = str(error), self._encode_error(letter, str(error), "the letter is not used")
        except FedMosaicError as error:
            problem, reply = str(error), self._encode_error(letter, ERROR_REFUSED, redact_paths(str(error)))
        except Exception as error:
            problem, reply = (
                self._record_crash(error),
                self._encode_error(letter, "failed", f"{type(error).__name__} at the site"),
            )
        if problem:
            self._current_run = None  # what was begun is not known to be whole: the disk knows better
        number = letter.header.get("round") if type(letter.header.get("round")) is int else None
        name, asked = (
            protocol.printable_text(str(letter.header.get("run", "")), 200),
            protocol.printable_text(letter.kind, 20),
        )
        took = time.monotonic() - started
        self.on_request(HandledRequest(asked, name, number, took, len(reply), protocol.printable_text(problem, 1000)))
        return reply

    @property
    def _handlers(self) -> dict[str, Callable[[ProtocolMessage], bytes]]:
        return {
            "join": self._handle_join,
            "turn": self._handle_local_round,
            "exam": self._handle_evaluate,
            "finish": self._handle_finish,
        }

    def _handle_join(self, request: ProtocolMessage) -> bytes:
        """Take part in a run, or say why not."""
        head = request.header
        if head.get("version") != __version__:
            raise RequestError(
                f"the coordinator has fedmosaic {str(head.get('version'))[:40]}, this site {__version__}: use the same"
            )
        if head.get("shards") != self.shard.shards.digest:
            raise RequestError("the plan is for other shards than this site holds: carry over those of this run")
        config = self._validate_config(head.get("config"))
        folder = self._run_folder(head)
        make_directories(folder)
        write_atomic(folder / PLAN_FILE, to_checksummed_json({"config": config.to_dict()}))
        run = self._current_run = self._load_run(request)
        server = self._decode_received(request, run, run.last_round + 1)
        mark = self._evaluate(run, server) if server or not config.method.evaluation_needs_server else None
        about = {"device": str(self.device), "examples": len(run.client.private), "version": __version__}
        return self._encode_response(run, "join", run.last_round, {"mark": mark, **about})

    def _handle_local_round(self, request: ProtocolMessage) -> bytes:
        """Play a round; or, if it was played, say again what was said."""
        run, number = self._get_run(request), self._requested_round(request)
        if number > run.config.train.rounds:
            raise RequestError(f"round {number} is none of the {run.config.train.rounds} that are planned")
        if number <= run.last_round:
            reply = run.cached_response(number)
            if reply is None:
                raise RequestError(f"round {number} was played here long ago, the last was {run.last_round}")
            return reply
        federation, client = run.federation, run.client
        client.begin_round(number)
        received = self._decode_received(request, run, number)
        message = run_local_round(federation.method, client, received, federation.ctx, federation.skip_diverged)
        parts = protocol.encode_parts(message, make_route(self.device, federation.ctx, number, client.id))
        mark = None if federation.method.evaluation_needs_server else self._evaluate(run, {})
        told = {"notes": dict(client.metrics), "left_out": client.is_skipped, "mark": mark}
        reply = self._encode_response(run, "turn", number, told, parts)
        run.save_round(number, reply)
        return reply

    def _handle_evaluate(self, request: ProtocolMessage) -> bytes:
        """Sit the exam with what the server has after a round."""
        run, number = self._get_run(request), self._requested_round(request)
        return self._encode_response(
            run, "exam", number, {"mark": self._evaluate(run, self._decode_received(request, run, number + 1))}
        )

    def _handle_finish(self, request: ProtocolMessage) -> bytes:
        """Keep the personal model, and tell what stands for it. It stays here."""
        run, number = self._get_run(request), self._requested_round(request)
        server = self._decode_received(request, run, number + 1)
        model = to_arrays(run.federation.method.personal_model(server, run.client))
        digests = run.files.save_models([(run.client.id, model)])
        told = {"model": next(iter(digests.values())), "ledger": run.client.state.get(LEDGER_KEY)}
        return self._encode_response(run, "finish", number, told)

    def _evaluate(self, run: SiteRun, received: ReceivedMessage) -> dict[str, float]:
        mark = evaluate_client(run.federation.method, run.client, run.federation.eval_tasks[0], received)
        if not math.isfinite(mark.loss):
            raise DivergenceError(run.client.id, run.client.round, "its loss on test examples")
        return {"accuracy": mark.accuracy, "loss": mark.loss, **mark.extra_metrics}

    def _decode_received(self, request: ProtocolMessage, run: SiteRun, round_number: int) -> ReceivedMessage:
        """The message in a letter; what it only stands for was in the one before."""
        parts = request.parts
        if request.cached_digest is not None:
            if self._cached_parts is None or self._cached_parts[0] != request.cached_digest:
                protocol.reject_message(ERROR_UNKNOWN_PARTS)
            parts = self._cached_parts[1]
        elif parts:
            self._cached_parts = request.parts_digest, parts
        federation = run.federation
        there = make_route(self.device, federation.ctx, round_number, SERVER_ID)
        return protocol.decode_parts(parts, there, federation.ctx, None)

    def _get_run(self, request: ProtocolMessage) -> SiteRun:
        """The run that a letter is about, from memory or from the disk."""
        if self._current_run is None or self._current_run.run_id != request.header.get("run"):
            self._current_run = self._load_run(request)
        heard = request.header.get(LAST_ANSWERED_ROUND, 0)
        if type(heard) is not int:
            protocol.reject_message("bad_head")
        if self._current_run.last_round < heard:
            raise RequestError(
                f"this site remembers round {self._current_run.last_round} and has answered in round {heard}: put its directory back"
            )
        return self._current_run

    def _load_run(self, request: ProtocolMessage) -> SiteRun:
        folder = self._run_folder(request.header)
        if not (folder / PLAN_FILE).is_file():
            raise RequestError("this site has not joined the run: start it again at the coordinator with --resume")
        config = self.policy.limited_config(self._validate_config(read_checksummed_json(folder / PLAN_FILE)["config"]))
        shard = self.shard
        federation = build_site_federation(
            config, shard.dataset, shard.partition, shard.client_train_sizes, shard.shards.digest, self.device
        )
        run = SiteRun(request.header["run"], config, federation, RunDirectory(folder))
        checkpoint, damaged = checkpoints.read_newest_checkpoint(run.files.checkpoints_dir)
        if damaged and config.noise is not None:
            # To play those rounds again would be to draw other noise for the same truth, and to forget what was spent.
            raise RunStateError(f"{next(iter(damaged.values()))}: put it back, or begin another run")
        if checkpoint is not None:
            restore_state(run.federation, checkpoint.arrays, checkpoint.values, checkpoint.round)
        for path in damaged:
            checkpoints.quarantine_checkpoint(path)
        return run

    def _validate_config(self, content: Any) -> RunConfig:
        """A plan as it may be asked for; nothing of it is taken on trust."""
        if not isinstance(content, dict):
            raise RequestError("the plan is none (coordinator): it sends no configuration")
        config = run_config_from_dict(content, "the coordinator's plan", self.data_dirs)
        why = config.incompatibility()
        if why is not None:
            raise RequestError(f"{config.method.title} {why.requirement}, but {why.problem}")
        if config.method.is_centralized or config.attack.kind != "none":
            raise RequestError("pooled data and simulated attacks are for one process (--engine): leave them out")
        if config.data != self.shard.shards.partition.settings:
            raise RequestError("the plan tells of other data than this site's shards (data): plan with these shards")
        config.check_privacy_budget()
        self.policy.check_config(config, len(self.shard.partition.shards[0].train))
        return config

    def _run_folder(self, header: Mapping[str, Any]) -> Path:
        """Where a run is kept. Its name is one of ours, or none."""
        name = header.get("run")
        if not isinstance(name, str) or not RUN_ID_PATTERN.fullmatch(name):
            protocol.reject_message("wrong_run")
        return self.folder.joinpath("runs", *name.split("/"))

    def _requested_round(self, request: ProtocolMessage) -> int:
        number = request.header.get("round")
        if type(number) is not int or not 1 <= number <= 1_000_000:
            protocol.reject_message("bad_head")
        return number

    def _encode_response(
        self,
        run: SiteRun,
        kind: str,
        round_number: int,
        fields: dict[str, Any],
        parts: dict[str, tuple[str, bytes]] | None = None,
    ) -> bytes:
        head = {"kind": kind, "client": self.shard.client_id, "run": run.run_id, "round": round_number, **fields}
        return protocol.encode_protocol_message(ProtocolMessage(head, parts or {}))

    def _encode_error(self, request: ProtocolMessage, code: str, text: str, round_number: int | None = None) -> bytes:
        head = {"kind": "error", "client": self.shard.client_id, "asked": request.kind, "error": code, "text": text}
        return protocol.encode_protocol_message(ProtocolMessage({**head, "round": round_number}))

    def _record_crash(self, error: Exception) -> str:
        """Leave word of what nobody foresaw, where the people at the site can read it."""
        with suppress(OSError):
            write_atomic(self.folder / "crash.txt", traceback.format_exc().encode())
        return f"{type(error).__name__}: {error} ({self.folder / 'crash.txt'})"


def redact_paths(text: str) -> str:
    """A message for others: where things lie on this machine is not their business."""
    return PATH_PATTERN.sub("...", text)
