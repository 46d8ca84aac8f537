"""Load of the server in a round with 10,000 clients: it receives, validates and counts label uploads on one core.

`python benchmarks/load.py CASE SIZES` is a process that measures one case and prints the figures as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from memory import MEGABYTE, own_memory
from results import Line, Result, at_most

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workload import Plan

CLASSES, LEVELS, FLOOR, TIE = 10, 255, 1e-6, 1e-9
DISTINCT = 200
MUTATED = 5_000
ROUND, RUN, PUBLIC = 1, bytes(16), bytes(range(16))


def load(plan: Plan) -> Result:
    """Compare 10,000 clients with 10,000 public examples with a plain loop over the same content."""
    clients, size = (100, 501) if plan.quick else (10_000, 10_000)
    result = Result(
        "Load: one round of 10,000 clients",
        [
            f"{clients} clients, {size} public examples, {CLASSES} classes, labels of 4 bits and expertise of 8; one "
            "process per case, one core, without torch; CPU time. Ours: every message is received, its checksum, form, "
            "labels and shares are validated, then all are counted, including the log values of each client. The "
            "plain loop unpacks the same payloads and sums them. Creating the messages is not measured."
        ],
    )
    sizes = {"clients": clients, "size": size}
    figures: dict[str, list[dict[str, float]]] = {"ours": [], "plain": []}
    for _ in range(plan.repetitions):
        for case, samples in figures.items():
            samples.append(measured(case, sizes))
    ours, plain = figures["ours"], figures["plain"]
    if {each["digest"] for each in ours} != {each["digest"] for each in plain}:
        raise RuntimeError("the plain loop computes another consensus")
    result.lines += [
        Line("receive and check", [each["receive"] for each in ours], "s, CPU"),
        Line("count", [each["count"] for each in ours], "s, CPU"),
        Line("count by the robust rules", [each["robust"] for each in ours], "s, CPU"),
        Line("receive, check and count", [each["seconds"] for each in ours], "s, CPU", at_most(5)),
        Line("plain NumPy loop", [each["seconds"] for each in plain], "s, CPU"),
        Line(
            "receive, check and count / plain NumPy loop",
            [a["seconds"] / b["seconds"] for a, b in zip(ours, plain, strict=True)],
            "ratio, CPU",
        ),
        Line("receive, check and count, peak", [each["peak"] for each in ours], "MB", at_most(300)),
        Line("plain NumPy loop, peak", [each["peak"] for each in plain], "MB"),
    ]
    mutations = measured("mutated", {"clients": MUTATED // (20 if plan.quick else 1), "size": size})
    result.lines.append(Line("a mutated message, median", [mutations["damaged"]], "ms", at_most(1)))
    result.lines.append(Line("a forged message with a valid checksum, median", [mutations["forged"]], "ms", at_most(1)))
    return result


def measured(case: str, sizes: dict[str, int]) -> dict[str, float]:
    """Measure a case in a new process."""
    command = [sys.executable, str(Path(__file__)), case, json.dumps(sizes)]
    figures: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return figures


def contents(size: int) -> list[tuple[Any, Any]]:
    """Return random labels and shares of a few hundred clients."""
    rng = np.random.default_rng(0)
    mixes = rng.dirichlet(np.full(CLASSES, 0.5), DISTINCT)
    labels_by_mix = [rng.integers(0, CLASSES, size) for _ in mixes]
    return [(labels, mix[labels]) for labels, mix in zip(labels_by_mix, mixes, strict=True)]


def payloads(size: int) -> list[bytes]:
    from fedmosaic_cli.labels import wire

    spec = message_spec(size)
    return [wire.encode_labels(labels, spec) + wire.encode_expertise(shares, spec) for labels, shares in contents(size)]


def message_spec(size: int) -> Any:
    from fedmosaic_cli.labels.wire import ExpertiseEncoding, MessageSpec

    return MessageSpec(size, CLASSES, expertise_encoding=ExpertiseEncoding.LEVELS, is_distribution=True)


def messages(clients: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield each client's number and message."""
    from fedmosaic_cli.labels import wire

    spec, known = message_spec(size), payloads(size)
    for client in range(clients):
        header = wire.MessageHeader(RUN, PUBLIC, ROUND, client)
        yield client, wire.encode_message(header, spec, known[client % DISTINCT])


def ours(clients: int, size: int) -> dict[str, float]:
    """Measure the time to receive and to count, and the peak memory, which includes all messages."""
    from fedmosaic_cli.labels.defences import VotingRules
    from fedmosaic_cli.labels.inbox import LabelInbox
    from fedmosaic_cli.labels.voting import aggregate_votes
    from fedmosaic_cli.labels.wire import ExpectedMessage

    inbox = LabelInbox(ExpectedMessage(message_spec(size), RUN, PUBLIC, ROUND, range(clients)))
    received = 0.0
    for client, data in messages(clients, size):
        started = time.process_time()
        inbox.receive(client, data)
        received += time.process_time() - started
    started = time.process_time()
    ballots = inbox.accepted_ballots()
    outcome = aggregate_votes(ballots)
    counted = time.process_time() - started
    peak_memory = peak()
    started = time.process_time()
    aggregate_votes(ballots, VotingRules(normalise=True, cap_share=0.2), reputation={})
    robust = time.process_time() - started
    if len(ballots) != clients or "torch" in sys.modules:
        raise RuntimeError(f"{len(ballots)} of {clients} messages were accepted")
    return {
        "receive": received,
        "count": counted,
        "robust": robust,
        "seconds": received + counted,
        "peak": peak_memory,
        "digest": fingerprint(outcome.labels),
    }


def plain(clients: int, size: int) -> dict[str, float]:
    """Measure the smallest amount of work: unpack two labels per byte and sum per example and class."""
    known, rows = payloads(size), np.arange(size)
    started = time.process_time()
    sums = np.zeros((size, CLASSES))
    for client in range(clients):
        raw = np.frombuffer(known[client % DISTINCT], dtype=np.uint8)
        split = (size + 1) // 2
        labels = np.empty(2 * split, dtype=np.uint8)
        labels[::2], labels[1::2] = raw[:split] >> 4, raw[:split] & 15
        sums[rows, labels[:size]] += raw[split:] / LEVELS + FLOOR
    winners = (sums >= (1 - TIE) * sums.max(axis=1, keepdims=True)).argmax(axis=1)
    return {"seconds": time.process_time() - started, "peak": peak(), "digest": fingerprint(winners)}


def mutated(clients: int, size: int) -> dict[str, float]:
    """Return the median time in milliseconds for a damaged message and for a forged one with a valid checksum."""
    from fedmosaic_cli.labels.inbox import LabelInbox
    from fedmosaic_cli.labels.wire import CHECKSUM_BYTES, HEADER_STRUCT, ExpectedMessage, message_checksum

    rng = np.random.default_rng(1)

    def flipped(data: bytes, lowest: int, end: int) -> bytes:
        damaged, position = bytearray(data), int(rng.integers(lowest, end))
        damaged[position] ^= 1 << int(rng.integers(8))
        return bytes(damaged)

    def forged(data: bytes) -> bytes:
        content = flipped(data, HEADER_STRUCT.size, len(data) - CHECKSUM_BYTES)[:-CHECKSUM_BYTES]
        return content + message_checksum(content)

    damages: list[Callable[[bytes], bytes]] = [
        lambda data: flipped(data, 0, len(data)),
        lambda data: data[: rng.integers(len(data))],
        lambda data: data + bytes(3),
        lambda data: rng.bytes(len(data)),
    ]
    times: dict[str, list[float]] = {"damaged": [], "forged": []}
    for client, data in messages(clients, size):
        for name, modify in ("damaged", damages[client % len(damages)]), ("forged", forged):
            modified = modify(data)
            inbox = LabelInbox(ExpectedMessage(message_spec(size), RUN, PUBLIC, ROUND, range(clients)))
            started = time.perf_counter()
            inbox.receive(client, modified)
            times[name].append(1e3 * (time.perf_counter() - started))
    return {name: median(values) for name, values in times.items()}


def peak() -> float:
    """Return the peak memory of this process in MB. `getrusage` would include the process that started it."""
    return own_memory()["peak"] / MEGABYTE


def fingerprint(labels: Any) -> float:
    """Return a number that differs for different consensus labels."""
    return float(np.dot(labels.astype(np.int64), np.arange(1, len(labels) + 1)))


CASES = {"ours": ours, "plain": plain, "mutated": mutated}

if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]](**json.loads(sys.argv[2]))))
