"""Time and memory of votes, with and without each client, at sizes far above those of the presets.

python benchmarks/voting.py                       # 10,000 clients, 10,000 public examples, 10 classes
python benchmarks/voting.py --clients 1000 --rules capped,trimmed
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
}


def resident_peak() -> float:
    """Return the largest resident memory of this process, in bytes (Linux)."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * float(fields["VmHWM"].split()[0])


def measure(rule: str, clients: int, examples: int, classes: int) -> dict[str, float]:
    """Vote under a rule, in this process."""
    from fedmosaic_cli.engine.messages import MessageHeader
    from fedmosaic_cli.labels import wire
    from fedmosaic_cli.labels.defences import VotingRules
    from fedmosaic_cli.labels.leave_one_out import leave_one_out_votes
    from fedmosaic_cli.labels.voting import Ballot, aggregate_votes

    before, rules = resident_peak(), VotingRules(**RULES[rule])
    spec = wire.MessageSpec(examples, classes, expertise_encoding=wire.ExpertiseEncoding.LEVELS)
    rng = np.random.default_rng(0)
    truth = rng.integers(0, classes, examples)
    ballots = []
    for client in range(clients):
        labels = np.where(rng.random(examples) < 0.5, truth, rng.integers(0, classes, examples))
        header = MessageHeader(bytes(16), bytes(16), 1, client)
        ballots.append(Ballot(client, wire.encode_label_upload(header, spec, labels, rng.random(examples)), spec))
    started = time.process_time()
    consensus = aggregate_votes(ballots, rules).labels
    voted = time.process_time()
    labels = leave_one_out_votes(ballots, rules)
    ended = time.process_time()
    return {
        "vote": voted - started,
        "without each client": ended - voted,
        "peak": (resident_peak() - before) / MEGABYTE,
        "uploads": sum(len(ballot.data) for ballot in ballots) / MEGABYTE,
        "differ": float(np.mean([np.mean(own != consensus) for own in labels.values()])),
    }


def main() -> None:
    """Measure each rule in a new process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--rules", default=",".join(RULES))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(given.rules, given.clients, given.examples, given.classes)))
        return
    print(f"{given.clients:,} clients, {given.examples:,} public examples, {given.classes} classes; CPU time")
    print("rule | one vote, s | votes without each client, s | peak beyond imports, MB | of it uploads, MB")
    for rule in given.rules.split(","):
        sizes = [f"--{name}={getattr(given, name)}" for name in ("clients", "examples", "classes")]
        command = [sys.executable, __file__, "--child", f"--rules={rule}", *sizes]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(
            f"{rule} | {found['vote']:.1f} | {found['without each client']:.1f} | {found['peak']:.0f} | "
            f"{found['uploads']:.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
