"""Clients on remote sites as the training loop sees them: each step sends requests and checks the responses."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from fedmosaic_cli.engine.client_pool import ClientResult, EvalResult
from fedmosaic_cli.engine.messages import SERVER_ID, is_complete, make_route, require_declared
from fedmosaic_cli.engine.method import has_finalize
from fedmosaic_cli.engine.traffic import broadcast_traffic, client_traffic, upload_bits
from fedmosaic_cli.errors import DivergenceError, RequestError, RunFailedError, RunStateError
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.protocol import ProtocolError, Request, Response
from fedmosaic_cli.federation.transport import ClientFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fedmosaic_cli.engine.context import FederationInfo, Message, State
    from fedmosaic_cli.engine.method import Method
    from fedmosaic_cli.engine.server import InProcessServer
    from fedmosaic_cli.engine.traffic import Traffic
    from fedmosaic_cli.federation.protocol import EncodedParts
    from fedmosaic_cli.federation.transport import Transport

CPU = torch.device("cpu")
HEADER_ALLOWANCE_BYTES = 1 << 16
"""Bytes of a response besides its upload."""
DEVICE_PATTERN = re.compile(r"[a-z]{1,10}(:\d{1,3})?")
JOIN_POLL_SECONDS = 0.5
JOIN_REQUEST_TIMEOUT_SECONDS = 120.0
RESPONSE_METRICS = {"accuracy", "loss", "global_accuracy", "val_accuracy"}


@dataclass
class AdaptiveTimeout:
    """How long a request may take: `fixed_seconds`, or else a multiple of the median duration of the rounds so far.

    What follows the last round (`Method.finalize`) is not comparable to a round, and gets `initial_seconds`.
    """

    fixed_seconds: float | None = None
    initial_seconds: float = 3600.0
    min_seconds: float = 90.0
    multiplier: float = 3.0
    _durations_seconds: list[float] = field(default_factory=list)

    def timeout_seconds(self, is_final: bool = False) -> float:
        """Return the timeout of the next request; `is_final` if it follows the last round."""
        if self.fixed_seconds is not None:
            return self.fixed_seconds
        if is_final or not self._durations_seconds:
            return self.initial_seconds
        return max(self.min_seconds, self.multiplier * median(self._durations_seconds))

    def record_duration(self, seconds: float) -> None:
        """Record how long a round took."""
        self._durations_seconds.append(seconds)


class RemoteClient:
    """A client on a remote site. Implements `engine.client_pool.ClientHandle`."""

    def __init__(self, client_id: int) -> None:
        self.id = client_id
        self.round = 0
        self.state: State = {}
        self.metrics: dict[str, Any] = {}
        self.is_skipped = False

    @property
    def device(self) -> torch.device:
        return CPU

    def begin_round(self, round_number: int) -> None:
        self.round = round_number
        self.metrics = {}
        self.is_skipped = False

    def log(self, **values: Any) -> None:
        self.metrics.update(values)


@dataclass
class RemoteClientPool:
    """Implements `engine.client_pool.ClientPool` for clients on remote sites."""

    transport: Transport
    method: Method
    ctx: FederationInfo
    run_id: str
    """The name under which sites store this run."""
    clients: Sequence[RemoteClient]
    quorum: int
    """Clients without a response get a second request if fewer than this responded."""
    server_device: torch.device = CPU
    round_timeout: AdaptiveTimeout = field(default_factory=AdaptiveTimeout)
    join_timeout_seconds: float = 600.0
    skip_diverged: bool = False
    """Whether a diverged client fails only in that round. Otherwise the run stops."""
    client_devices: dict[int, str] = field(default_factory=dict)
    """The device that each site reported."""
    _eval_results: dict[int, EvalResult] = field(default_factory=dict)
    """The last valid evaluation of each client."""
    _cached_digests: dict[int, str] = field(default_factory=dict)
    """Digest of the parts that each site has in its cache."""
    refusals: dict[int, str] = field(default_factory=dict)
    """Why sites did not join, by client. The run can continue without them."""
    _last_response_at: float = 0.0

    def join(self, plan: Mapping[str, Any], server: InProcessServer, num_finished_rounds: int) -> Iterator[set[int]]:
        """Send the plan to every site until all have joined or refused, or the time is over.

        Yields:
            The clients that have neither joined nor refused yet.

        Raises:
            RequestError: Too few sites are left for a quorum because sites refuse the plan.
            RunStateError: A site has lost the state of rounds that it answered, and too few others are left.
            RunFailedError: Too few sites joined in time.
        """
        missing = {client.id for client in self.clients}
        parts = self._encode_broadcasts(server, num_finished_rounds + 1)
        header = {"kind": protocol.JOIN, "run": self.run_id, **plan}
        reasons: dict[int, str] = {}
        deadline = time.monotonic() + self.join_timeout_seconds
        while missing:
            yield set(missing)
            if time.monotonic() > deadline:
                self._end_join({client: reasons.get(client, "") for client in sorted(missing)})
                return
            reachable = sorted(missing & self.transport.reachable_clients())
            time.sleep(0 if reachable else JOIN_POLL_SECONDS)
            requests = {client: Request(header, parts[client]) for client in reachable}
            responses, failures = self._send_requests(requests, JOIN_REQUEST_TIMEOUT_SECONDS)
            reasons |= {client: f" ({reason})" for client, reason in failures.items()}
            for client, response in responses.items():
                missing.discard(client)
                self._on_join_response(client, response, parts[client])

    def _on_join_response(self, client: int, response: Response, parts: EncodedParts) -> None:
        """Record a client that joined, with its first evaluation, or continue without it."""
        try:
            check_join_response(self.clients[client], response)
            # Without a message from the server, a client may not be able to evaluate itself yet.
            if parts or has_evaluation(response):
                self._eval_results[client] = decode_eval_result(response, client)
        except (ProtocolError, RequestError, RunStateError) as error:
            self._exclude(client, error)
            return
        device = response.header.get("device")
        is_device = isinstance(device, str) and DEVICE_PATTERN.fullmatch(device)
        self.client_devices[client] = str(device) if is_device else "unknown"
        self._cached_digests[client] = protocol.digest_parts(parts)

    def _end_join(self, missing: Mapping[int, str]) -> None:
        """Continue without the missing clients, here with the reasons, unless too few others joined in time."""
        if len(self.client_devices) >= self.quorum:
            self.refusals |= {client: f"no response{reason}" for client, reason in missing.items()}
            return
        absent = ", ".join(f"client {client}{reason}" for client, reason in missing.items())
        raise RunFailedError(
            f"{len(self.client_devices)} of {len(self.clients)} clients joined within "
            f"{self.join_timeout_seconds:g} s (--join-timeout), {absent}: start their sites"
        )

    def _exclude(self, client: int, error: Exception) -> None:
        """Continue without a client that does not join, unless too few others are left."""
        reason = (
            f"client {client} sent an invalid response, {error}" if isinstance(error, ProtocolError) else str(error)
        )
        self.refusals[client] = reason
        if len(self.clients) - len(self.refusals) >= self.quorum:
            return
        if isinstance(error, ProtocolError):
            raise RunFailedError(f"{reason} ({self.run_id}): check its site")
        raise error

    def run_round(
        self, clients: Sequence[RemoteClient], make_message: Callable[[int], Message]
    ) -> dict[int, ClientResult]:
        """Run a round. A client without a valid response in time fails. Below the quorum, failed ones get a retry."""
        round_number, started = clients[0].round, time.monotonic()
        messages = {client.id: make_message(client.id) for client in clients}
        parts = self._encode_messages(messages, round_number)
        results: dict[int, ClientResult] = {}
        client_by_id = {client.id: client for client in clients}
        diverged: dict[int, DivergenceError] = {}
        for attempt in range(2):
            missing = [client for client in client_by_id if client not in results]
            if attempt and len(results) >= min(self.quorum, len(client_by_id)):
                break
            responses, failures = self._request(protocol.LOCAL_ROUND, round_number, {c: parts[c] for c in missing})
            for client, response in responses.items():
                try:
                    results[client] = self._client_result(client_by_id[client], response, messages[client])
                    client_by_id[client].metrics.pop("lost", None)
                    self.refusals.pop(client, None)
                except ProtocolError as error:
                    failures[client] = str(error)
            for client, reason in failures.items():
                # Prefer the reason of the refusal to 'has not joined the run'.
                client_by_id[client].log(lost=self.refusals.get(client, reason))
                if reason.startswith(f"{protocol.ERROR_DIVERGED}: "):
                    diverged[client] = DivergenceError(client, round_number, reason.partition(": ")[2])
        if diverged and not self.skip_diverged and len(results) < min(self.quorum, len(client_by_id)):
            raise next(iter(diverged.values()))
        if results:  # a client that never responds must not extend the deadline
            self.round_timeout.record_duration(self._last_response_at - started)
        return {client: results[client] for client in sorted(results)}

    def finalize(self, server: InProcessServer) -> dict[int, Traffic]:
        """Let every site call `Method.finalize`. A site that does not respond calls it before its next evaluation."""
        round_number = self.clients[0].round
        messages = self._broadcasts_after_round(server)
        parts = self._encode_messages(messages, round_number + 1)
        responses, failures = self._request(protocol.FINALIZE, round_number, parts)
        for client, response in responses.items():
            handle, self._cached_digests[client] = self.clients[client], protocol.digest_parts(parts[client])
            try:
                metrics = protocol.validate_metrics(response.header.get(protocol.METRICS_FIELD))
                handle.metrics = {**metrics, **handle.metrics}
                handle.is_skipped |= response.header.get(protocol.SKIPPED_FIELD) is True
            except ProtocolError as error:
                failures[client] = str(error)
        self._log_unevaluated(failures)
        return {c: broadcast_traffic(self.method, message, c, self.ctx) for c, message in messages.items()}

    def evaluate(self, server: InProcessServer) -> list[EvalResult]:
        """Return the evaluation of all clients. Without a valid response, a client keeps its last result."""
        round_number = self.clients[0].round
        is_final = has_finalize(self.method) and round_number == self.ctx.num_rounds
        if self.method.needs.broadcast_to_evaluate or is_final:
            parts = self._encode_broadcasts(server, round_number + 1)
            responses, failures = self._request(protocol.EVALUATE, round_number, parts)
            for client, response in responses.items():
                self._cached_digests[client] = protocol.digest_parts(parts[client])
                try:
                    self._eval_results[client] = decode_eval_result(response, client)
                    self.clients[client].metrics.pop("evaluation_error", None)
                except ProtocolError as error:
                    failures[client] = str(error)
            self._log_unevaluated(failures)
        for handle in self.clients:
            if handle.id not in self._eval_results and "evaluation_error" not in handle.metrics:
                handle.log(evaluation_error=self.refusals.get(handle.id, "no response"))
        if not self._eval_results:
            raise RunFailedError(f"no evaluation of any client is available ({self.run_id}): repeat the command")
        return [self._eval_results.get(c.id, EvalResult(c.id, c.id, None, None, {})) for c in self.clients]

    def _log_unevaluated(self, failures: Mapping[int, str]) -> None:
        for client, reason in failures.items():
            self.clients[client].log(evaluation_error=reason)

    def finish(self, server: InProcessServer, round_number: int) -> dict[int, dict[str, Any]]:
        """Let every site save its personal model, and return the headers of their responses.

        Sites without a response have none: their models are those of their last checkpoint.

        Raises:
            RunFailedError: Fewer sites than the quorum respond.
        """
        headers: dict[int, dict[str, Any]] = {}
        parts = self._encode_broadcasts(server, round_number + 1)
        failures: dict[int, str] = {}
        for _ in range(2):
            missing = {client: parts[client] for client in parts if client not in headers}
            responses, failures = self._request(protocol.FINISH, round_number, missing)
            headers |= {client: response.header for client, response in responses.items()}
        if len(headers) < min(self.quorum, len(parts)):
            failed = "; ".join(f"client {client}: {reason}" for client, reason in failures.items())
            raise RunFailedError(
                f"all rounds are finished, but only {len(headers)} of {len(parts)} sites responded, {failed}: repeat "
                "the command"
            )
        return headers

    def _broadcasts_after_round(self, server: InProcessServer) -> dict[int, Message]:
        """Return what the server sends in the next round, if clients need it for their evaluation."""
        is_needed = self.method.needs.broadcast_to_evaluate
        return {c.id: self.method.broadcast(server, c.id, self.ctx) if is_needed else {} for c in self.clients}

    def _encode_broadcasts(self, server: InProcessServer, round_number: int) -> dict[int, EncodedParts]:
        """Encode what the server sends in the next round, if clients need it for their evaluation."""
        return self._encode_messages(self._broadcasts_after_round(server), round_number)

    def _encode_messages(self, messages: Mapping[int, Message], round_number: int) -> dict[int, EncodedParts]:
        """Encode one message per client. Content that several messages share is encoded once."""
        encoded: dict[tuple[str, int], bytes] = {}
        route, declared = make_route(CPU, self.ctx, round_number, SERVER_ID), self.method.downloads
        parts: dict[int, EncodedParts] = {}
        for client, message in messages.items():
            require_declared(message, declared)
            parts[client] = {}
            for name, value in message.items():
                part = declared[name]
                if (name, id(value)) not in encoded:
                    encoded[name, id(value)] = part.encode(value, route)
                parts[client][name] = part.kind, encoded[name, id(value)]
        return parts

    def _request(
        self, kind: str, round_number: int, parts: Mapping[int, EncodedParts]
    ) -> tuple[dict[int, Response], dict[int, str]]:
        """Send a request about a round to the clients of `parts`, by digest where a site has the parts in its cache."""
        requests = {}
        for client, own_parts in parts.items():
            header = {"kind": kind, "run": self.run_id, "round": round_number}
            answered = self.clients[client].state.get(protocol.LAST_ANSWERED_ROUND)
            if answered is not None:
                header[protocol.LAST_ANSWERED_ROUND] = answered
            cached = self._cached_digests.get(client) if own_parts else None
            is_cached = cached is not None and cached == protocol.digest_parts(own_parts)
            requests[client] = Request(header, cached_digest=cached) if is_cached else Request(header, own_parts)
        is_final = has_finalize(self.method) and kind != protocol.LOCAL_ROUND and round_number == self.ctx.num_rounds
        timeout_seconds = self.round_timeout.timeout_seconds(is_final)
        deadline = time.monotonic() + timeout_seconds
        responses, failures = self._send_requests(requests, timeout_seconds)
        forgotten = [client for client, reason in failures.items() if reason == protocol.ERROR_UNKNOWN_PARTS]
        for client in forgotten:
            self._cached_digests.pop(client, None)
        remaining = deadline - time.monotonic()
        if forgotten and remaining > 0:
            again = {client: Request(requests[client].header, parts[client]) for client in forgotten}
            more_responses, more_failures = self._send_requests(again, remaining)
            responses |= more_responses
            failures = {c: reason for c, reason in failures.items() if c not in forgotten} | more_failures
        return responses, failures

    def _send_requests(
        self, requests: Mapping[int, Request], timeout_seconds: float
    ) -> tuple[dict[int, Response], dict[int, str]]:
        """Send requests. Return the valid responses, and the reasons of all failures, by client."""
        responses: dict[int, Response] = {}
        failures: dict[int, str] = {}
        encoded = {client: request.encode() for client, request in requests.items()}
        for outcome in self.transport.send_requests(encoded, timeout_seconds) if encoded else ():
            client = outcome.client_id
            if isinstance(outcome, ClientFailure):
                failures[client] = outcome.reason
                continue
            response = self._decode_response(client, requests[client], outcome.data)
            if isinstance(response, str):
                failures[client] = response
            else:
                responses[client] = response
                self._last_response_at = time.monotonic()
        return responses, failures

    def _decode_response(self, client_id: int, request: Request, data: bytes) -> Response | str:
        """Return the response to a request, or the reason why it is not used."""
        try:
            response = Response.decode(data, self._max_response_bytes())
        except ProtocolError as error:
            return str(error)
        header, round_number = response.header, request.header.get("round")
        if response.kind == protocol.ERROR:
            error_code = header.get("error")
            if error_code == protocol.ERROR_REFUSED and request.kind == protocol.JOIN:
                return response
            return (
                protocol.ERROR_UNKNOWN_PARTS if error_code == protocol.ERROR_UNKNOWN_PARTS else site_error_text(header)
            )
        if header.get("client") != client_id:
            return "unknown_client"
        if header.get("run") != self.run_id:
            return "wrong_run"
        is_expected = response.kind == request.kind and round_number in (None, header.get("round"))
        return response if is_expected else "wrong_round"

    def _max_response_bytes(self) -> int:
        """Return the largest accepted size of a response.

        It is twice the planned upload, which is counted without the headers of its parts (names and shapes of tensors).
        """
        return HEADER_ALLOWANCE_BYTES + 2 * upload_bits(self.method, self.ctx) // 8

    def _client_result(self, client: RemoteClient, response: Response, broadcast: Message) -> ClientResult:
        """Return a client's result and update the client. Raise `ProtocolError` if the response is invalid."""
        if not is_complete(response.parts, self.method.uploads):
            protocol.reject_message("wrong_parts")
        route = make_route(self.server_device, self.ctx, client.round, client.id)
        upload = protocol.decode_parts(response.parts, self.method.uploads, route)
        metrics = protocol.validate_metrics(response.header.get(protocol.METRICS_FIELD))
        if has_evaluation(response):
            self._eval_results[client.id] = decode_eval_result(response, client.id)
        client.metrics = {**metrics, **({"withheld": 1} if protocol.WITHHELD in response.header else {})}
        client.is_skipped = response.header.get(protocol.SKIPPED_FIELD) is True
        client.state[protocol.LAST_ANSWERED_ROUND] = client.round
        bits_up, bits_down = (
            sum(parts[name].bits(value, self.ctx) for name, value in message.items())
            for message, parts in ((upload, self.method.uploads), (broadcast, self.method.downloads))
        )
        return ClientResult(upload, client_traffic(self.method, client.id, self.ctx, bits_up, bits_down))


def site_error_text(header: Mapping[str, Any]) -> str:
    """Return the code of a site's error, which is one of a fixed list, and the site's text in one line."""
    code = header.get("error")
    if not isinstance(code, str) or code not in protocol.ERROR_CODES:
        code = protocol.ERROR_INVALID
    return protocol.printable_text(f"{code}: {header.get('text')}")


def check_join_response(client: RemoteClient, response: Response) -> None:
    """Raise an error if a site refuses the plan, or has lost the state of rounds that it answered."""
    if response.kind == protocol.ERROR:
        reason = protocol.printable_text(str(response.header.get("text")))
        raise RequestError(f"the site of client {client.id} refuses the plan, {reason}")
    stored, answered = response.header.get("round"), client.state.get(protocol.LAST_ANSWERED_ROUND, 0)
    if type(stored) is not int or stored < answered:
        stored_text = str(stored) if type(stored) is int and abs(stored) < 10**9 else "none"
        raise RunStateError(
            f"client {client.id} has answered in round {answered}, and its site remembers round {stored_text}: "
            "restore the site's directory, or start the run again in another place"
        )


def has_evaluation(response: Response) -> bool:
    """Return whether a response contains an evaluation, or its site withholds one."""
    return response.header.get(protocol.EVALUATION_FIELD) is not None or protocol.WITHHELD in response.header


def decode_eval_result(response: Response, client_id: int) -> EvalResult:
    """Return a client's evaluation, without values if its site withholds them.

    Raises:
        ProtocolError: A value is missing, unknown or out of range.
    """
    metrics = response.header.get(protocol.EVALUATION_FIELD)
    if metrics is None and protocol.WITHHELD in response.header:
        return EvalResult(client_id, client_id, None, None, {})
    if not isinstance(metrics, dict) or not {"accuracy", "loss"} <= metrics.keys() <= RESPONSE_METRICS:
        protocol.reject_message("invalid_evaluation")
    if not all(map(protocol.is_bounded_number, metrics.values())):
        protocol.reject_message("invalid_evaluation")
    if not all(0 <= value <= 1 for name, value in metrics.items() if name != "loss"):
        protocol.reject_message("invalid_evaluation")
    extra = {name: value for name, value in metrics.items() if name not in ("accuracy", "loss")}
    return EvalResult(client_id, client_id, metrics["accuracy"], metrics["loss"], extra)
