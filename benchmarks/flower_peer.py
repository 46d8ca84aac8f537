"""FedAvg rounds of Flower's simulation. A process of `peers.py`; see `round_clock.py`.

Clients run in a process of Ray, so CPU time is summed over all processes below this one.
"""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import naive
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from round_clock import RoundClock
from workload import Job, stored_task

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flwr.app import ConfigRecord

JOB = "FLOWER_PEER_JOB"
# The clock of the server process, which `run` creates.
CLOCKS: list[RoundClock] = []
client_app, server_app = ClientApp(), ServerApp()


@cache
def load_client(number: int) -> naive.Client:
    """Return a client's data and loaders, created once per Ray process."""
    torch.set_num_threads(1)
    job = Job(**json.loads(os.environ[JOB]))
    task = stored_task(job)
    share = task.shares[number]
    return naive.Client(naive.network(), naive.examples(task, share.train), naive.examples(task, share.test), job.batch)


def client_of(message: Message, context: Context) -> naive.Client:
    """Return the addressed client with the received model."""
    client = load_client(int(context.node_config["partition-id"]))
    client.model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return client


@client_app.train()
def train(message: Message, context: Context) -> Message:
    client = client_of(message, context)
    client.train()
    metrics = MetricRecord({"num-examples": len(client.train_set)})
    arrays = ArrayRecord(client.model.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    client = client_of(message, context)
    accuracy, loss = client.test()
    metrics = MetricRecord({"accuracy": accuracy, "loss": loss, "num-examples": len(client.test_set)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


class TimedFedAvg(FedAvg):
    """FedAvg whose rounds are timed."""

    clock: RoundClock

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.clock.start()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        metrics = super().aggregate_evaluate(server_round, replies)
        self.clock.stop()
        return metrics


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    job = Job(**json.loads(os.environ[JOB]))
    nodes = {"min_train_nodes": job.clients, "min_evaluate_nodes": job.clients, "min_available_nodes": job.clients}
    strategy = TimedFedAvg(**nodes)
    strategy.clock = CLOCKS[0]
    outcome = strategy.start(grid, ArrayRecord(naive.network().state_dict()), num_rounds=job.rounds)
    if len(outcome.evaluate_metrics_clientapp) != job.rounds:
        raise RuntimeError("some clients did not respond")


def process_tree_cpu_seconds() -> float:
    """Return the CPU time so far of this process and its descendants (Linux)."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, fields = int(path.parent.name), path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended
        stats[pid] = int(fields[1]), sum(map(int, fields[11:13]))
    tree: set[int] = set()
    extended = {os.getpid()}
    while extended != tree:
        tree = extended
        extended = tree | {pid for pid, (parent, _) in stats.items() if parent in tree}
    return sum(stats[pid][1] for pid in tree if pid in stats) / os.sysconf("SC_CLK_TCK")


def run(job: str) -> None:
    """Run the simulation with one Ray worker."""
    CLOCKS.append(RoundClock(process_tree_cpu_seconds))
    os.environ[JOB] = job
    torch.set_num_threads(1)
    one_worker = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 1}}
    run_simulation(server_app, client_app, num_supernodes=Job(**json.loads(job)).clients, backend_config=one_worker)


if __name__ == "__main__":
    import flower_peer  # imported under its name, so that Ray's processes can import these functions and the cache

    flower_peer.run(sys.argv[1])
