"""Clients at sites of their own: what the loop asks of them goes there as letters, and comes back as letters."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from fedmosaic_cli.engine.client_pool import ClientResult, EvalResult
from fedmosaic_cli.engine.messages import SERVER_ID, Weights, make_route, tensor_bits
from fedmosaic_cli.engine.method import Traffic
from fedmosaic_cli.errors import DivergenceError, RequestError, RunFailedError, RunStateError
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.deadline import AdaptiveDeadline
from fedmosaic_cli.federation.protocol import ProtocolError, ProtocolMessage
from fedmosaic_cli.federation.transport import ClientResponse
from fedmosaic_cli.labels.sharing import SharesLabels
from fedmosaic_cli.labels.wire import HEADER_STRUCT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fedmosaic_cli.engine.messages import Message
    from fedmosaic_cli.engine.method import FederationInfo, Method, ReceivedMessage, State
    from fedmosaic_cli.federation.transport import Transport

    EncodedParts = dict[str, tuple[str, bytes]]

CPU = torch.device("cpu")
# A head, in which a long run's ledger may be, and what a network may add.
HEADER_ALLOWANCE_BYTES = protocol.MAX_HEADER_BYTES + (1 << 12)
DEVICE_PATTERN = re.compile(r"[a-z]{1,10}(:\d{1,3})?")
JOIN_POLL_SECONDS = 0.5
JOIN_TIMEOUT_SECONDS = 120.0
ERROR_UNKNOWN_PARTS, ERROR_DIVERGED, ERROR_REFUSED = "unknown_parts", "diverged", "refused"
LAST_ANSWERED_ROUND = "heard"
"""What is remembered of a client: the last round that it answered in. A site that knows of less has lost something."""


class RemoteClient:
    """A client at a site. Implements `engine.client_pool.Member`."""

    def __init__(self, client_id: int) -> None:
        self.id = client_id
        self.round = 0
        self.state: State = {}
        self.metrics: dict[str, Any] = {}
        self.is_skipped = False

    @property
    def device(self) -> torch.device:
        """Where what is heard of it lies."""
        return CPU

    def begin_round(self, round_number: int) -> None:
        self.round = round_number
        self.metrics = {}
        self.is_skipped = False

    def log(self, **values: Any) -> None:
        self.metrics.update(values)


@dataclass
class RemoteClientPool:
    """Implements `engine.client_pool.Company`. `run` is the name under which sites keep what belongs to it."""

    transport: Transport
    method: Method
    ctx: FederationInfo
    run_id: str
    clients: Sequence[RemoteClient]
    quorum: int
    server_device: torch.device = CPU
    """Where the server computes."""
    deadline: AdaptiveDeadline = field(default_factory=AdaptiveDeadline)
    join_timeout_seconds: float = 600.0
    """How many seconds everybody may take to join."""
    skip_diverged: bool = False
    """Whether a client that diverges is lost in the round, instead of being the end of the run."""
    client_devices: dict[int, str] = field(default_factory=dict)
    """Where each client computes, as it says."""
    _eval_results: dict[int, EvalResult] = field(default_factory=dict)
    """How each client's last exam went."""
    _cached_digests: dict[int, str] = field(default_factory=dict)
    """The parts that each client was sent last and need not be sent again."""
    _last_response_at: float = 0.0
    """When somebody last answered."""

    def join(self, plan: Mapping[str, Any], server_state: State, num_finished_rounds: int) -> Iterator[set[int]]:
        """Tell every site what is planned, after so many rounds. Yields who is not there yet, until all are; refused by
        one is by all."""
        missing = {client.id for client in self.clients}
        parts = self._encode_broadcasts(server_state, num_finished_rounds + 1)
        letter = {
            c: protocol.encode_protocol_message(ProtocolMessage({"kind": "join", "run": self.run_id, **plan}, parts[c]))
            for c in missing
        }
        why: dict[int, str] = {}
        until = time.monotonic() + self.join_timeout_seconds
        while missing:
            yield set(missing)
            if time.monotonic() > until:
                who = ", ".join(f"client {client}{why.get(client, '')}" for client in sorted(missing))
                raise RunFailedError(
                    f"not everybody joined within {self.join_timeout_seconds:g} s (--join-timeout), {who}: "
                    "start their sites"
                )
            asked = {client: letter[client] for client in sorted(missing & self.transport.reachable_clients())}
            time.sleep(0 if asked else JOIN_POLL_SECONDS)
            for client, answer in self._exchange("join", None, asked, JOIN_TIMEOUT_SECONDS).items():
                if isinstance(answer, str):
                    why[client] = f" ({answer})"
                    continue
                check_join_response(self.clients[client], answer)
                missing.discard(client)
                device = answer.header.get("device")
                self.client_devices[client] = (
                    device if isinstance(device, str) and DEVICE_PATTERN.fullmatch(device) else "unknown"
                )
                self._eval_results[client] = self._require_eval_result(client, answer)
                self._cached_digests[client] = protocol.digest_parts(parts[client])

    def run_round(
        self, clients: Sequence[RemoteClient], make_message: Callable[[int], Message]
    ) -> dict[int, ClientResult]:
        """Who does not answer in time, or not as one should, is lost; too few, and those are asked once more."""
        number, started = clients[0].round, time.monotonic()
        messages = {client.id: make_message(client.id) for client in clients}
        parts = self._encode_messages(messages, number)
        turns: dict[int, ClientResult] = {}
        members = {client.id: client for client in clients}
        for attempt in range(2):
            missing = [client for client in members if client not in turns]
            if attempt and len(turns) >= min(self.quorum, len(members)):
                break
            asked = {client: self._encode_request("turn", number, client, parts[client]) for client in missing}
            for client, answer in self._exchange("turn", number, asked, self.deadline.timeout_seconds(), parts).items():
                turn = (
                    answer
                    if isinstance(answer, str)
                    else self._client_result(members[client], answer, messages[client])
                )
                if isinstance(turn, str):
                    members[client].log(lost=turn)
                else:
                    turns[client] = turn
                    members[client].metrics.pop("lost", None)
        if turns:  # who does not answer says nothing of how long a round takes
            self.deadline.record_duration(self._last_response_at - started)
        return {client: turns[client] for client in sorted(turns)}

    def evaluate(self, server_state: State) -> list[EvalResult]:
        """Who is not heard of has the mark that it had before: as far as anybody knows, its model is the same."""
        if self.method.evaluation_needs_server:
            number = self.clients[0].round
            parts = self._encode_broadcasts(server_state, number + 1)
            asked = {client: self._encode_request("exam", number, client, parts[client]) for client in parts}
            for client, answer in self._exchange("exam", number, asked, self.deadline.timeout_seconds(), parts).items():
                if isinstance(answer, str):
                    self.clients[client].log(unexamined=answer)
                    continue
                self._cached_digests[client] = protocol.digest_parts(parts[client])
                try:
                    self._eval_results[client] = decode_eval_result(answer, client)
                except ProtocolError as error:
                    self.clients[client].log(unexamined=str(error))
        return [self._eval_results[client.id] for client in self.clients]

    def finish(self, server_state: State, round_number: int) -> dict[int, dict[str, Any]]:
        """Have every site keep its personal model; what each tells of it. All have to."""
        told: dict[int, dict[str, Any]] = {}
        parts = self._encode_broadcasts(server_state, round_number + 1)
        for _ in range(2):
            missing = [client for client in parts if client not in told]
            asked = {client: self._encode_request("finish", round_number, client, parts[client]) for client in missing}
            lost = {}
            for client, answer in self._exchange(
                "finish", round_number, asked, self.deadline.timeout_seconds(), parts
            ).items():
                if isinstance(answer, str):
                    lost[client] = answer
                else:
                    told[client] = answer.header
        if len(told) < len(parts):
            who = "; ".join(f"client {client}: {reason}" for client, reason in lost.items())
            raise RunFailedError(f"all rounds are played, but not everybody is here, {who}: continue with --resume")
        return told

    def _encode_broadcasts(self, server_state: State, round_number: int) -> dict[int, EncodedParts]:
        """What the server has, where clients need it to be examined: what it sends them when the next round begins."""
        if not self.method.evaluation_needs_server:
            return {client.id: {} for client in self.clients}
        messages = {c.id: self.method.broadcast(server_state, c.id, self.ctx) for c in self.clients}
        return self._encode_messages(messages, round_number)

    def _encode_messages(self, messages: Mapping[int, Message], round_number: int) -> dict[int, EncodedParts]:
        """The messages as bytes; what is the same for everybody is written once."""
        written: dict[int, bytes] = {}
        to = make_route(CPU, self.ctx, round_number, SERVER_ID)
        packed: dict[int, EncodedParts] = {}
        for client, message in messages.items():
            packed[client] = {}
            for name, part in message.items():
                content = part.values if isinstance(part, Weights) else getattr(part, "labels", part)
                if id(content) not in written:
                    written[id(content)] = part.encode(to)
                packed[client][name] = part.kind, written[id(content)]
        return packed

    def _encode_request(self, kind: str, round_number: int, client_id: int, parts: EncodedParts) -> bytes:
        heard = self.clients[client_id].state.get(LAST_ANSWERED_ROUND)
        head = {
            "kind": kind,
            "run": self.run_id,
            "round": round_number,
            **({LAST_ANSWERED_ROUND: heard} if heard else {}),
        }
        known = self._cached_digests.get(client_id) if parts else None
        if known and known == protocol.digest_parts(parts):
            return protocol.encode_protocol_message(ProtocolMessage(head, cached_digest=known))
        return protocol.encode_protocol_message(ProtocolMessage(head, parts))

    def _exchange(
        self,
        kind: str,
        round_number: int | None,
        requests: Mapping[int, bytes],
        timeout_seconds: float,
        parts: Mapping[int, EncodedParts] | None = None,
    ) -> dict[int, ProtocolMessage | str]:
        """What came back from each, or why nothing did. Who has forgotten what it was sent is sent it again."""
        heard: dict[int, ProtocolMessage | str] = {}
        until = time.monotonic() + timeout_seconds
        forgotten: dict[int, bytes] = {}
        for reply in self.transport.send_requests(requests, timeout_seconds) if requests else ():
            read = (
                self._decode_response(reply.client_id, kind, round_number, reply.data)
                if isinstance(reply, ClientResponse)
                else reply.reason
            )
            heard[reply.client_id] = read
            if isinstance(heard[reply.client_id], ProtocolMessage):
                self._last_response_at = time.monotonic()
            if heard[reply.client_id] == ERROR_UNKNOWN_PARTS and parts is not None:
                self._cached_digests.pop(reply.client_id, None)
                head = protocol.decode_protocol_message(requests[reply.client_id]).header
                forgotten[reply.client_id] = protocol.encode_protocol_message(
                    ProtocolMessage(head, parts[reply.client_id])
                )
        left = until - time.monotonic()
        return {**heard, **self._exchange(kind, round_number, forgotten, left)} if forgotten and left > 0 else heard

    def _decode_response(
        self, client_id: int, kind: str, round_number: int | None, data: bytes
    ) -> ProtocolMessage | str:
        """An answer to what was asked, if it can be read, or the reason why it is not used."""
        try:
            letter = protocol.decode_protocol_message(data, self._max_response_bytes())
        except ProtocolError as error:
            return str(error)
        head = letter.header
        if letter.kind != "error":
            return self._mismatch_reason(client_id, kind, round_number, letter) or letter
        if head.get("error") == ERROR_DIVERGED and kind in ("turn", "exam") and not self.skip_diverged:
            raise DivergenceError(client_id, round_number or 0, protocol.printable_text(str(head.get("text")), 200))
        if head.get("error") == ERROR_REFUSED and kind == "join":
            return letter
        return ERROR_UNKNOWN_PARTS if head.get("error") == ERROR_UNKNOWN_PARTS else site_error_text(head)

    def _mismatch_reason(self, client_id: int, kind: str, round_number: int | None, response: ProtocolMessage) -> str:
        """Why an answer is none to what was asked; "" if it is."""
        if response.header.get("client") != client_id:
            return "unknown_client"
        if response.header.get("run") != self.run_id:
            return "wrong_run"
        fits = response.kind == kind and (round_number is None or response.header.get("round") == round_number)
        return "" if fits else "wrong_round"

    def _max_response_bytes(self) -> int:
        """More bytes than this are no answer."""
        form = self.method.message_spec(self.ctx) if isinstance(self.method, SharesLabels) else None
        opinion = form.total_bytes if form is not None else HEADER_STRUCT.size
        weights = sum(tensor.numel() * tensor.element_size() for tensor in self.ctx.initial_model.values())
        logits = self.ctx.float_bits // 8 * self.ctx.public_size * self.ctx.num_classes
        return HEADER_ALLOWANCE_BYTES + max(
            opinion, 2 * weights if "weights" in self.method.uploads.values() else 0, logits
        )

    def _client_result(self, client: RemoteClient, response: ProtocolMessage, broadcast: Message) -> ClientResult | str:
        """What a client's answer comes to, or the reason why it is not used."""
        try:
            expected = {name: kind for name, (kind, _) in response.parts.items()}
            if response.parts and expected != dict(self.method.uploads):
                protocol.reject_message("wrong_parts")
            model = next((part.values for part in broadcast.values() if isinstance(part, Weights)), {})
            there = make_route(self.server_device, self.ctx, client.round, client.id)
            upload = protocol.decode_parts(response.parts, there, self.ctx, model)
            notes = protocol.validate_metrics(response.header.get("notes"))
            if response.header.get("mark") is not None:
                self._eval_results[client.id] = decode_eval_result(response, client.id)
        except ProtocolError as error:
            return str(error)
        client.metrics = dict(notes)
        client.is_skipped = response.header.get("left_out") is True
        client.state[LAST_ANSWERED_ROUND] = client.round
        return ClientResult(upload, Traffic(self._upload_bits(upload), sum(part.bits for part in broadcast.values())))

    def _upload_bits(self, upload: ReceivedMessage) -> int:
        """What a client's message says, in bits."""
        form = self.method.message_spec(self.ctx) if isinstance(self.method, SharesLabels) else None
        total = 0
        for part in upload.values():
            if isinstance(part, bytes):
                total += 8 * form.payload_bytes if form is not None else 0
            elif isinstance(part, dict):
                total += sum(map(tensor_bits, part.values()))
            else:
                total += tensor_bits(part)
        return total

    def _require_eval_result(self, client_id: int, response: ProtocolMessage) -> EvalResult:
        """How a client's exam went; one that cannot even say this is of no use."""
        try:
            return decode_eval_result(response, client_id)
        except ProtocolError as error:
            raise RunFailedError(
                f"client {client_id} answers nonsense, {error} ({self.run_id}): look at its site"
            ) from None


def site_error_text(header: Mapping[str, Any]) -> str:
    """Why a site did not do what it was asked to, as far as that can be printed."""
    return protocol.printable_text(f"{header.get('error')}: {header.get('text')}")


def check_join_response(client: RemoteClient, response: ProtocolMessage) -> None:
    """Refuse to begin where a site does not want to take part, or no longer knows what it did."""
    if response.kind == "error":
        raise RequestError(f"the site of client {client.id} refuses, {site_error_text(response.header)}")
    known, heard = response.header.get("round"), client.state.get(LAST_ANSWERED_ROUND, 0)
    if type(known) is not int or known < heard:
        raise RunStateError(
            f"client {client.id} has answered in round {heard}, and its site remembers round {round_text(known)}: "
            "put the site's directory back, or begin the run anew in another place"
        )


def round_text(value: Any) -> str:
    return str(value) if type(value) is int else "none"


def decode_eval_result(response: ProtocolMessage, client_id: int) -> EvalResult:
    """A client's exam as it tells of it. Raises RefusedLetterError."""
    told = response.header.get("mark")
    if not isinstance(told, dict) or not {"accuracy", "loss"} <= told.keys() <= EVAL_METRICS:
        protocol.reject_message("bad_mark")
    shares = [value for name, value in told.items() if name != "loss"]
    if not all(protocol.is_bounded_number(value) for value in told.values()) or not all(
        0 <= share <= 1 for share in shares
    ):
        protocol.reject_message("bad_mark")
    extra = {name: told[name] for name in told if name not in ("accuracy", "loss")}
    return EvalResult(client_id, client_id, told["accuracy"], told["loss"], extra)


EVAL_METRICS = {"accuracy", "loss", "global_accuracy", "val_accuracy"}
