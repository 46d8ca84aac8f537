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
from fedmosaic_cli.config.run_config import recorded_run
from fedmosaic_cli.engine.local_pool import examined, part_in, way
from fedmosaic_cli.errors import DivergenceError, FedMosaicError, RequestError, RunStateError
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.policy import Policy
from fedmosaic_cli.federation.protocol import Letter, RefusedLetterError
from fedmosaic_cli.federation.remote_pool import DIVERGED, HEARD, REFUSED, UNKNOWN_PARTS
from fedmosaic_cli.labels.privacy.privatize import LEDGER
from fedmosaic_cli.labels.wire import SERVER
from fedmosaic_cli.runner.build import assemble_site
from fedmosaic_cli.runner.environment import versions
from fedmosaic_cli.runner.run_state import capture, restore, to_arrays
from fedmosaic_cli.storage import checkpoints
from fedmosaic_cli.storage.files import make_directories, read_sealed, sealed, write
from fedmosaic_cli.storage.runs import RunFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import torch

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.engine.client import SimulatedClient
    from fedmosaic_cli.engine.method import Received
    from fedmosaic_cli.engine.rounds import Federation
    from fedmosaic_cli.federation.site_shards import SiteShard

PLAN, REPLY = "plan.json", "reply.bin"
PIECE = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"
PATH = re.compile(r"(?<![\w.])/[^\s():,;]+")
RUN_NAME = re.compile(rf"{PIECE}/{PIECE}/seed-\d{{1,20}}/[0-9a-f]{{8,32}}")


@dataclass(frozen=True)
class Answered:
    """Something was asked and answered: a word for it, of which run and round, and how long it took."""

    asked: str
    run: str
    round: int | None
    seconds: float
    bytes_out: int
    problem: str = ""


@dataclass
class SiteRun:
    """A run that the site takes part in, as it stands."""

    name: str
    config: RunConfig
    federation: Federation
    files: RunFiles

    @property
    def client(self) -> SimulatedClient:
        client: SimulatedClient = self.federation.standing.clients[0]
        return client

    @property
    def round(self) -> int:
        """The last round that it played."""
        return self.federation.standing.finished

    def reply_to(self, number: int) -> bytes | None:
        """What it answered in a round, if that is not too long ago."""
        paths = {path.name: path for path in checkpoints.all_in(self.files.checkpoints)}
        path = paths.get(f"{checkpoints.PREFIX}{number:05d}")
        return None if path is None else checkpoints.load(path).logs[REPLY]

    def keep(self, number: int, reply: bytes) -> None:
        """Remember the round and what was said in it, before anybody hears of it."""
        self.federation.standing.finished = number
        arrays, values = capture(self.federation.standing)
        origin = {"config": self.config.to_dict(), "environment": {"versions": versions()}, "nonidentical": []}
        checkpoints.save(self.files.checkpoints, checkpoints.Checkpoint(number, arrays, values, {REPLY: reply}, origin))


@dataclass
class Site:
    """Answers letters for one client. `folder` is where it keeps what it learns in each run."""

    shard: SiteShard
    folder: Path
    device: torch.device
    place: Place
    policy: Policy = field(default_factory=Policy)
    tell: Callable[[Answered], None] = lambda _: None
    _run: SiteRun | None = None
    _parts: tuple[str, dict[str, tuple[str, bytes]]] | None = None
    """What it was sent last, and need not be sent again."""

    def answer(self, data: bytes) -> bytes:
        """The answer to a letter. Whatever is wrong with it, there is one."""
        started, letter = time.monotonic(), Letter({})
        problem = ""
        try:
            letter = protocol.read(data)
            reply = self._ways[letter.kind](letter) if letter.kind in self._ways else protocol.refuse("bad_head")
        except DivergenceError as error:
            problem, reply = str(error), self._error(letter, DIVERGED, error.what, error.round)
        except RefusedLetterError as error:
            problem, reply = str(error), self._error(letter, str(error), "the letter is not used")
        except FedMosaicError as error:
            problem, reply = str(error), self._error(letter, REFUSED, without_paths(str(error)))
        except Exception as error:
            problem, reply = self._crashed(error), self._error(letter, "failed", f"{type(error).__name__} at the site")
        if problem:
            self._run = None  # what was begun is not known to be whole: the disk knows better
        number = letter.head.get("round") if type(letter.head.get("round")) is int else None
        name, asked = protocol.printable(str(letter.head.get("run", "")), 200), protocol.printable(letter.kind, 20)
        took = time.monotonic() - started
        self.tell(Answered(asked, name, number, took, len(reply), protocol.printable(problem, 1000)))
        return reply

    @property
    def _ways(self) -> dict[str, Callable[[Letter], bytes]]:
        return {"join": self._join, "turn": self._turn, "exam": self._exam, "finish": self._finish}

    def _join(self, letter: Letter) -> bytes:
        """Take part in a run, or say why not."""
        head = letter.head
        if head.get("version") != __version__:
            raise RequestError(
                f"the coordinator has fedmosaic {str(head.get('version'))[:40]}, this site {__version__}: use the same"
            )
        if head.get("shards") != self.shard.shards.digest:
            raise RequestError("the plan is for other shards than this site holds: carry over those of this run")
        config = self._config(head.get("config"))
        folder = self._folder(head)
        make_directories(folder)
        write(folder / PLAN, sealed({"config": config.to_dict()}))
        run = self._run = self._open(letter)
        server = self._received(letter, run, run.round + 1)
        mark = self._mark(run, server) if server or not config.method.judged_with_server else None
        about = {"device": str(self.device), "examples": len(run.client.private), "version": __version__}
        return self._write(run, "join", run.round, {"mark": mark, **about})

    def _turn(self, letter: Letter) -> bytes:
        """Play a round; or, if it was played, say again what was said."""
        run, number = self._opened(letter), self._round(letter)
        if number > run.config.train.rounds:
            raise RequestError(f"round {number} is none of the {run.config.train.rounds} that are planned")
        if number <= run.round:
            reply = run.reply_to(number)
            if reply is None:
                raise RequestError(f"round {number} was played here long ago, the last was {run.round}")
            return reply
        federation, client = run.federation, run.client
        client.begin_round(number)
        received = self._received(letter, run, number)
        message = part_in(federation.method, client, received, federation.world, federation.skips)
        parts = protocol.packed(message, way(self.device, federation.world, number, client.id))
        mark = None if federation.method.judged_with_server else self._mark(run, {})
        told = {"notes": dict(client.notes), "left_out": client.left_out, "mark": mark}
        reply = self._write(run, "turn", number, told, parts)
        run.keep(number, reply)
        return reply

    def _exam(self, letter: Letter) -> bytes:
        """Sit the exam with what the server has after a round."""
        run, number = self._opened(letter), self._round(letter)
        return self._write(run, "exam", number, {"mark": self._mark(run, self._received(letter, run, number + 1))})

    def _finish(self, letter: Letter) -> bytes:
        """Keep the personal model, and tell what stands for it. It stays here."""
        run, number = self._opened(letter), self._round(letter)
        server = self._received(letter, run, number + 1)
        model = to_arrays(run.federation.method.personal(server, run.client))
        digests = run.files.save_models([(run.client.id, model)])
        told = {"model": next(iter(digests.values())), "ledger": run.client.state.get(LEDGER)}
        return self._write(run, "finish", number, told)

    def _mark(self, run: SiteRun, server: Received) -> dict[str, float]:
        mark = examined(run.federation.method, run.client, run.federation.exams[0], server)
        if not math.isfinite(mark.loss):
            raise DivergenceError(run.client.id, run.client.round, "its loss on test examples")
        return {"accuracy": mark.accuracy, "loss": mark.loss, **mark.extra}

    def _received(self, letter: Letter, run: SiteRun, number: int) -> Received:
        """The message in a letter; what it only stands for was in the one before."""
        parts = letter.parts
        if letter.known is not None:
            if self._parts is None or self._parts[0] != letter.known:
                protocol.refuse(UNKNOWN_PARTS)
            parts = self._parts[1]
        elif parts:
            self._parts = letter.digest, parts
        federation = run.federation
        there = way(self.device, federation.world, number, SERVER)
        return protocol.unpacked(parts, there, federation.world, None)

    def _opened(self, letter: Letter) -> SiteRun:
        """The run that a letter is about, from memory or from the disk."""
        if self._run is None or self._run.name != letter.head.get("run"):
            self._run = self._open(letter)
        heard = letter.head.get(HEARD, 0)
        if type(heard) is not int:
            protocol.refuse("bad_head")
        if self._run.round < heard:
            raise RequestError(
                f"this site remembers round {self._run.round} and has answered in round {heard}: put its directory back"
            )
        return self._run

    def _open(self, letter: Letter) -> SiteRun:
        folder = self._folder(letter.head)
        if not (folder / PLAN).is_file():
            raise RequestError("this site has not joined the run: start it again at the coordinator with --resume")
        config = self.policy.limited(self._config(read_sealed(folder / PLAN)["config"]))
        run = SiteRun(letter.head["run"], config, assemble_site(config, self.shard, self.device), RunFiles(folder))
        checkpoint, damaged = checkpoints.load_newest(run.files.checkpoints)
        if damaged and config.noise is not None:
            # To play those rounds again would be to draw other noise for the same truth, and to forget what was spent.
            raise RunStateError(f"{next(iter(damaged.values()))}: put it back, or begin another run")
        if checkpoint is not None:
            restore(run.federation, checkpoint.arrays, checkpoint.values, checkpoint.round)
        for path in damaged:
            checkpoints.set_aside(path)
        return run

    def _config(self, content: Any) -> RunConfig:
        """A plan as it may be asked for; nothing of it is taken on trust."""
        if not isinstance(content, dict):
            raise RequestError("the plan is none (coordinator): it sends no configuration")
        config = recorded_run(content, "the coordinator's plan", self.place)
        why = config.misfit()
        if why is not None:
            raise RequestError(f"{config.method.title} {why.needs}, but {why.but}")
        if config.method.pooled or config.attack.kind != "none":
            raise RequestError("pooled data and simulated attacks are for one process (--engine): leave them out")
        if config.data != self.shard.shards.partition.settings:
            raise RequestError("the plan tells of other data than this site's shards (data): plan with these shards")
        config.check_privacy()
        self.policy.check(config, len(self.shard.partition.shards[0].train))
        return config

    def _folder(self, head: Mapping[str, Any]) -> Path:
        """Where a run is kept. Its name is one of ours, or none."""
        name = head.get("run")
        if not isinstance(name, str) or not RUN_NAME.fullmatch(name):
            protocol.refuse("wrong_run")
        return self.folder.joinpath("runs", *name.split("/"))

    def _round(self, letter: Letter) -> int:
        number = letter.head.get("round")
        if type(number) is not int or not 1 <= number <= 1_000_000:
            protocol.refuse("bad_head")
        return number

    def _write(
        self,
        run: SiteRun,
        kind: str,
        number: int,
        told: dict[str, Any],
        parts: dict[str, tuple[str, bytes]] | None = None,
    ) -> bytes:
        head = {"kind": kind, "client": self.shard.client, "run": run.name, "round": number, **told}
        return protocol.write(Letter(head, parts or {}))

    def _error(self, letter: Letter, word: str, text: str, number: int | None = None) -> bytes:
        head = {"kind": "error", "client": self.shard.client, "asked": letter.kind, "error": word, "text": text}
        return protocol.write(Letter({**head, "round": number}))

    def _crashed(self, error: Exception) -> str:
        """Leave word of what nobody foresaw, where the people at the site can read it."""
        with suppress(OSError):
            write(self.folder / "crash.txt", traceback.format_exc().encode())
        return f"{type(error).__name__}: {error} ({self.folder / 'crash.txt'})"


def without_paths(text: str) -> str:
    """A message for others: where things lie on this machine is not their business."""
    return PATH.sub("...", text)
