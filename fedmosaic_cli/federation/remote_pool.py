"""Clients at sites of their own: what the loop asks of them goes there as letters, and comes back as letters."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from fedmosaic_cli.engine.client_pool import Mark, Turn
from fedmosaic_cli.engine.local_pool import way
from fedmosaic_cli.engine.messages import Weights, bits_of
from fedmosaic_cli.engine.method import Traffic
from fedmosaic_cli.errors import DivergenceError, FailedRunError, RequestError, RunStateError
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.deadline import Patience
from fedmosaic_cli.federation.protocol import Letter, RefusedLetterError
from fedmosaic_cli.federation.transport import Answer
from fedmosaic_cli.labels.wire import HEADER, SERVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fedmosaic_cli.engine.messages import Message
    from fedmosaic_cli.engine.method import Method, Received, State, World
    from fedmosaic_cli.federation.transport import Carrier

    Parts = dict[str, tuple[str, bytes]]

CPU = torch.device("cpu")
# A head, in which a long run's ledger may be, and what a network may add.
ROOM = protocol.MOST_HEAD + (1 << 12)
DEVICE = re.compile(r"[a-z]{1,10}(:\d{1,3})?")
PAUSE_SECONDS = 0.5
JOIN_SECONDS = 120.0
UNKNOWN_PARTS, DIVERGED, REFUSED = "unknown_parts", "diverged", "refused"
HEARD = "heard"
"""What is remembered of a client: the last round that it answered in. A site that knows of less has lost something."""


class RemoteClient:
    """A client at a site. Implements `engine.client_pool.Member`."""

    def __init__(self, client_id: int) -> None:
        self.id = client_id
        self.round = 0
        self.state: State = {}
        self.notes: dict[str, Any] = {}
        self.left_out = False

    @property
    def device(self) -> torch.device:
        """Where what is heard of it lies."""
        return CPU

    def begin_round(self, number: int) -> None:
        self.round = number
        self.notes = {}
        self.left_out = False

    def note(self, **values: Any) -> None:
        self.notes.update(values)


@dataclass
class Remote:
    """Implements `engine.client_pool.Company`. `run` is the name under which sites keep what belongs to it."""

    carrier: Carrier
    method: Method
    world: World
    run: str
    clients: Sequence[RemoteClient]
    quorum: int
    device: torch.device = CPU
    """Where the server computes."""
    patience: Patience = field(default_factory=Patience)
    wait: float = 600.0
    """How many seconds everybody may take to join."""
    skips: bool = False
    """Whether a client that diverges is lost in the round, instead of being the end of the run."""
    devices: dict[int, str] = field(default_factory=dict)
    """Where each client computes, as it says."""
    _marks: dict[int, Mark] = field(default_factory=dict)
    """How each client's last exam went."""
    _held: dict[int, str] = field(default_factory=dict)
    """The parts that each client was sent last and need not be sent again."""
    _heard_at: float = 0.0
    """When somebody last answered."""

    def join(self, plan: Mapping[str, Any], server: State, finished: int) -> Iterator[set[int]]:
        """Tell every site what is planned, after so many rounds. Yields who is not there yet, until all are; refused by
        one is by all."""
        missing = {client.id for client in self.clients}
        parts = self._server_parts(server, finished + 1)
        letter = {c: protocol.write(Letter({"kind": "join", "run": self.run, **plan}, parts[c])) for c in missing}
        why: dict[int, str] = {}
        until = time.monotonic() + self.wait
        while missing:
            yield set(missing)
            if time.monotonic() > until:
                who = ", ".join(f"client {client}{why.get(client, '')}" for client in sorted(missing))
                raise FailedRunError(f"not everybody joined within {self.wait:g} s (--wait), {who}: start their sites")
            asked = {client: letter[client] for client in sorted(missing & self.carrier.present())}
            time.sleep(0 if asked else PAUSE_SECONDS)
            for client, answer in self._answers("join", None, asked, JOIN_SECONDS).items():
                if isinstance(answer, str):
                    why[client] = f" ({answer})"
                    continue
                check_welcome(self.clients[client], answer)
                missing.discard(client)
                device = answer.head.get("device")
                self.devices[client] = device if isinstance(device, str) and DEVICE.fullmatch(device) else "unknown"
                self._marks[client] = self._understood(client, answer)
                self._held[client] = protocol.digest_of(parts[client])

    def turns(self, clients: Sequence[RemoteClient], letter: Callable[[int], Message]) -> dict[int, Turn]:
        """Who does not answer in time, or not as one should, is lost; too few, and those are asked once more."""
        number, started = clients[0].round, time.monotonic()
        messages = {client.id: letter(client.id) for client in clients}
        parts = self._packed(messages, number)
        turns: dict[int, Turn] = {}
        members = {client.id: client for client in clients}
        for attempt in range(2):
            missing = [client for client in members if client not in turns]
            if attempt and len(turns) >= min(self.quorum, len(members)):
                break
            asked = {client: self._asking("turn", number, client, parts[client]) for client in missing}
            for client, answer in self._answers("turn", number, asked, self.patience.seconds(), parts).items():
                turn = answer if isinstance(answer, str) else self._turn(members[client], answer, messages[client])
                if isinstance(turn, str):
                    members[client].note(lost=turn)
                else:
                    turns[client] = turn
                    members[client].notes.pop("lost", None)
        if turns:  # who does not answer says nothing of how long a round takes
            self.patience.took(self._heard_at - started)
        return {client: turns[client] for client in sorted(turns)}

    def marks(self, server: State) -> list[Mark]:
        """Who is not heard of has the mark that it had before: as far as anybody knows, its model is the same."""
        if self.method.judged_with_server:
            number = self.clients[0].round
            parts = self._server_parts(server, number + 1)
            asked = {client: self._asking("exam", number, client, parts[client]) for client in parts}
            for client, answer in self._answers("exam", number, asked, self.patience.seconds(), parts).items():
                if isinstance(answer, str):
                    self.clients[client].note(unexamined=answer)
                    continue
                self._held[client] = protocol.digest_of(parts[client])
                try:
                    self._marks[client] = mark_of(answer, client)
                except RefusedLetterError as error:
                    self.clients[client].note(unexamined=str(error))
        return [self._marks[client.id] for client in self.clients]

    def finish(self, server: State, number: int) -> dict[int, dict[str, Any]]:
        """Have every site keep its personal model; what each tells of it. All have to."""
        told: dict[int, dict[str, Any]] = {}
        parts = self._server_parts(server, number + 1)
        for _ in range(2):
            missing = [client for client in parts if client not in told]
            asked = {client: self._asking("finish", number, client, parts[client]) for client in missing}
            lost = {}
            for client, answer in self._answers("finish", number, asked, self.patience.seconds(), parts).items():
                if isinstance(answer, str):
                    lost[client] = answer
                else:
                    told[client] = answer.head
        if len(told) < len(parts):
            who = "; ".join(f"client {client}: {reason}" for client, reason in lost.items())
            raise FailedRunError(f"all rounds are played, but not everybody is here, {who}: go on with --resume")
        return told

    def _server_parts(self, server: State, number: int) -> dict[int, Parts]:
        """What the server has, where clients need it to be examined: what it sends them when the next round begins."""
        if not self.method.judged_with_server:
            return {client.id: {} for client in self.clients}
        messages = {c.id: self.method.broadcast(server, c.id, self.world) for c in self.clients}
        return self._packed(messages, number)

    def _packed(self, messages: Mapping[int, Message], number: int) -> dict[int, Parts]:
        """The messages as bytes; what is the same for everybody is written once."""
        written: dict[int, bytes] = {}
        to = way(CPU, self.world, number, SERVER)
        packed: dict[int, Parts] = {}
        for client, message in messages.items():
            packed[client] = {}
            for name, part in message.items():
                content = part.values if isinstance(part, Weights) else getattr(part, "labels", part)
                if id(content) not in written:
                    written[id(content)] = part.write(to)
                packed[client][name] = part.kind, written[id(content)]
        return packed

    def _asking(self, kind: str, number: int, client: int, parts: Parts) -> bytes:
        heard = self.clients[client].state.get(HEARD)
        head = {"kind": kind, "run": self.run, "round": number, **({HEARD: heard} if heard else {})}
        known = self._held.get(client) if parts else None
        if known and known == protocol.digest_of(parts):
            return protocol.write(Letter(head, known=known))
        return protocol.write(Letter(head, parts))

    def _answers(
        self,
        kind: str,
        number: int | None,
        asked: Mapping[int, bytes],
        seconds: float,
        parts: Mapping[int, Parts] | None = None,
    ) -> dict[int, Letter | str]:
        """What came back from each, or why nothing did. Who has forgotten what it was sent is sent it again."""
        heard: dict[int, Letter | str] = {}
        until = time.monotonic() + seconds
        forgotten: dict[int, bytes] = {}
        for reply in self.carrier.ask(asked, seconds) if asked else ():
            read = self._read(reply.client, kind, number, reply.data) if isinstance(reply, Answer) else reply.reason
            heard[reply.client] = read
            if isinstance(heard[reply.client], Letter):
                self._heard_at = time.monotonic()
            if heard[reply.client] == UNKNOWN_PARTS and parts is not None:
                self._held.pop(reply.client, None)
                head = protocol.read(asked[reply.client]).head
                forgotten[reply.client] = protocol.write(Letter(head, parts[reply.client]))
        left = until - time.monotonic()
        return {**heard, **self._answers(kind, number, forgotten, left)} if forgotten and left > 0 else heard

    def _read(self, client: int, kind: str, number: int | None, data: bytes) -> Letter | str:
        """An answer to what was asked, if it can be read, or the reason why it is not used."""
        try:
            letter = protocol.read(data, self._most())
        except RefusedLetterError as error:
            return str(error)
        head = letter.head
        if letter.kind != "error":
            return self._unfit(client, kind, number, letter) or letter
        if head.get("error") == DIVERGED and kind in ("turn", "exam") and not self.skips:
            raise DivergenceError(client, number or 0, protocol.printable(str(head.get("text")), 200))
        if head.get("error") == REFUSED and kind == "join":
            return letter
        return UNKNOWN_PARTS if head.get("error") == UNKNOWN_PARTS else plain(head)

    def _unfit(self, client: int, kind: str, number: int | None, letter: Letter) -> str:
        """Why an answer is none to what was asked; "" if it is."""
        if letter.head.get("client") != client:
            return "unknown_client"
        if letter.head.get("run") != self.run:
            return "wrong_run"
        fits = letter.kind == kind and (number is None or letter.head.get("round") == number)
        return "" if fits else "wrong_round"

    def _most(self) -> int:
        """More bytes than this are no answer."""
        form = self.method.opinion_form(self.world)
        opinion = form.total_bytes if form is not None else HEADER.size
        weights = sum(tensor.numel() * tensor.element_size() for tensor in self.world.init.values())
        logits = self.world.number_bits // 8 * self.world.public_size * self.world.num_classes
        return ROOM + max(opinion, 2 * weights if "weights" in self.method.uploads.values() else 0, logits)

    def _turn(self, client: RemoteClient, answer: Letter, sent: Message) -> Turn | str:
        """What a client's answer comes to, or the reason why it is not used."""
        try:
            expected = {name: kind for name, (kind, _) in answer.parts.items()}
            if answer.parts and expected != dict(self.method.uploads):
                protocol.refuse("wrong_parts")
            model = next((part.values for part in sent.values() if isinstance(part, Weights)), {})
            there = way(self.device, self.world, client.round, client.id)
            upload = protocol.unpacked(answer.parts, there, self.world, model)
            notes = protocol.checked_notes(answer.head.get("notes"))
            if answer.head.get("mark") is not None:
                self._marks[client.id] = mark_of(answer, client.id)
        except RefusedLetterError as error:
            return str(error)
        client.notes = dict(notes)
        client.left_out = answer.head.get("left_out") is True
        client.state[HEARD] = client.round
        return Turn(upload, Traffic(self._bits(upload), sum(part.bits for part in sent.values())))

    def _bits(self, upload: Received) -> int:
        """What a client's message says, in bits."""
        form, total = self.method.opinion_form(self.world), 0
        for part in upload.values():
            if isinstance(part, bytes):
                total += 8 * form.payload_bytes if form is not None else 0
            elif isinstance(part, dict):
                total += sum(map(bits_of, part.values()))
            else:
                total += bits_of(part)
        return total

    def _understood(self, client: int, answer: Letter) -> Mark:
        """How a client's exam went; one that cannot even say this is of no use."""
        try:
            return mark_of(answer, client)
        except RefusedLetterError as error:
            raise FailedRunError(f"client {client} answers nonsense, {error} ({self.run}): look at its site") from None


def plain(head: Mapping[str, Any]) -> str:
    """Why a site did not do what it was asked to, as far as that can be printed."""
    return protocol.printable(f"{head.get('error')}: {head.get('text')}")


def check_welcome(client: RemoteClient, answer: Letter) -> None:
    """Refuse to begin where a site does not want to take part, or no longer knows what it did."""
    if answer.kind == "error":
        raise RequestError(f"the site of client {client.id} refuses, {plain(answer.head)}")
    known, heard = answer.head.get("round"), client.state.get(HEARD, 0)
    if type(known) is not int or known < heard:
        raise RunStateError(
            f"client {client.id} has answered in round {heard}, and its site remembers round {plain_number(known)}: "
            "put the site's directory back, or begin the run anew in another place"
        )


def plain_number(value: Any) -> str:
    return str(value) if type(value) is int else "none"


def mark_of(answer: Letter, client: int) -> Mark:
    """A client's exam as it tells of it. Raises RefusedLetterError."""
    told = answer.head.get("mark")
    if not isinstance(told, dict) or not {"accuracy", "loss"} <= told.keys() <= MARKS:
        protocol.refuse("bad_mark")
    shares = [value for name, value in told.items() if name != "loss"]
    if not all(protocol.is_number(value) for value in told.values()) or not all(0 <= share <= 1 for share in shares):
        protocol.refuse("bad_mark")
    extra = {name: told[name] for name in told if name not in ("accuracy", "loss")}
    return Mark(client, client, told["accuracy"], told["loss"], extra)


MARKS = {"accuracy", "loss", "global_accuracy", "val_accuracy"}
