"""Time and memory of votes, with and without each client, at sizes far above those of the presets.

python benchmarks/voting.py                       # 10,000 clients, 10,000 public examples, 10 classes
python benchmarks/voting.py --clients 1000 --rules capped,trimmed
python benchmarks/voting.py --expertise histogram    # a value per class instead of one per example
python benchmarks/voting.py --clients 100 --examples 1000 --one-by-one    # also one vote of the others per client
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

MEGABYTE = 2**20
RULES = {
    "paper": {},
    "normalised": {"normalise": True},
    "majority": {"vote": "majority"},
    "capped": {"cap_share": 0.2},
    "trimmed": {"vote": "trimmed", "trim": 0.1},
    "capped-trimmed": {"vote": "trimmed", "trim": 0.1, "cap_share": 0.2},
}


def resident_peak() -> float:
    """Return the largest resident memory of this process, in bytes (Linux)."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * float(fields["VmHWM"].split()[0])


def measure(rule: str, clients: int, examples: int, classes: int, expertise: str, one_by_one: bool) -> dict[str, float]:
    """Vote under a rule, in this process."""
    from fedmosaic_cli.engine.messages import MessageHeader
    from fedmosaic_cli.labels import wire
    from fedmosaic_cli.labels.defences import VotingRules
    from fedmosaic_cli.labels.leave_one_out import leave_one_out_votes
    from fedmosaic_cli.labels.voting import Ballot, aggregate_votes

    before, rules = resident_peak(), VotingRules(**RULES[rule])
    encoding = wire.ExpertiseEncoding[expertise.upper()]
    spec = wire.MessageSpec(examples, classes, expertise_encoding=encoding)
    rng = np.random.default_rng(0)
    truth = rng.integers(0, classes, examples)
    ballots = []
    for client in range(clients):
        labels = np.where(rng.random(examples) < 0.5, truth, rng.integers(0, classes, examples))
        header = MessageHeader(bytes(16), bytes(16), 1, client)
        message = wire.encode_label_upload(header, spec, labels, rng.random(spec.num_levels))
        ballots.append(Ballot(client, message, spec))
    started = time.process_time()
    aggregate_votes(ballots, rules)
    voted = time.process_time()
    labels = leave_one_out_votes(ballots, rules)
    ended, peak = time.process_time(), resident_peak() - before
    if one_by_one:
        for ballot in ballots:
            others = aggregate_votes([other for other in ballots if other is not ballot], rules).labels
            if not np.array_equal(labels[ballot.client_id], others):
                raise AssertionError(f"rule {rule}: the labels without client {ballot.client_id} are wrong")
    return {
        "vote": voted - started,
        "without each client": ended - voted,
        "one by one": time.process_time() - ended,
        "peak": peak / MEGABYTE,
        "uploads": sum(len(ballot.data) for ballot in ballots) / MEGABYTE,
    }


def main() -> None:
    """Measure each rule in a new process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--expertise", choices=["levels", "histogram"], default="levels", help="per example or class")
    parser.add_argument("--rules", default=",".join(RULES))
    parser.add_argument("--one-by-one", action="store_true", help="also count one vote per client, and compare labels")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        sizes = given.clients, given.examples, given.classes
        print(json.dumps(measure(given.rules, *sizes, given.expertise, given.one_by_one)))
        return
    print(
        f"{given.clients:,} clients, {given.examples:,} public examples, {given.classes} classes, {given.expertise}; "
        "CPU time"
    )
    columns = ["rule", "one vote, s", "votes without each client, s", "peak beyond imports, MB", "of it uploads, MB"]
    print(" | ".join([*columns, "one vote per client, s", "ratio"] if given.one_by_one else columns))
    for rule in given.rules.split(","):
        sizes = [f"--{name}={getattr(given, name)}" for name in ("clients", "examples", "classes", "expertise")]
        options = ["--one-by-one"] if given.one_by_one else []
        command = [sys.executable, __file__, "--child", f"--rules={rule}", *sizes, *options]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        row = [rule, f"{found['vote']:.3g}", f"{found['without each client']:.3g}"]
        row += [f"{found['peak']:.0f}", f"{found['uploads']:.0f}"]
        if given.one_by_one:
            row += [f"{found['one by one']:.3g}", f"{found['one by one'] / found['without each client']:.0f}"]
        print(" | ".join(row), flush=True)


if __name__ == "__main__":
    main()
