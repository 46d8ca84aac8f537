"""Sites in this process: letters go there and back as bytes, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.run_config import RunConfig, resolve_run_config
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.federation.coordinator import RemoteCoordinator
from fedmosaic_cli.federation.policy import SitePolicy
from fedmosaic_cli.federation.site import Site
from fedmosaic_cli.federation.site_shards import load_site_shard
from fedmosaic_cli.federation.transport import ClientFailure, ClientResponse
from fedmosaic_cli.runner.events import RunFinished, RunOptions
from fedmosaic_cli.runner.prepare import load_and_partition
from fedmosaic_cli.runner.run import run_experiment
from fedmosaic_cli.storage.runs import RunDirectory
from fedmosaic_cli.storage.shards import ShardSet

CPU = torch.device("cpu")
CLIENTS = 3
ANYTHING = SitePolicy("models")


def exported(folder: Path, clients: int = CLIENTS, **settings) -> ShardSet:
    """Digits, dealt to a few clients and written with their examples."""
    data = DataSettings(scheme="dirichlet", alpha=0.5, clients=clients, public_size=60, **settings)
    return load_and_partition(data, 0, folder / "shards", DataDirs(folder)).save(export=True)


def configured(shards: ShardSet, method: str, folder: Path, *assignments: str, seed: int = 0) -> RunConfig:
    """A short run of a method on these shards, clients one by one as at sites."""
    layers = ConfigLayers()
    layers.add("shards", {"data": shards.partition.settings.model_dump(mode="json")})
    short = ("train.rounds=4", "train.local_steps=3", "train.execution=threads", "model.name=mlp", "train.workers=1")
    for assignment in (*short, *assignments):
        layers.add_assignment(assignment)
    return resolve_run_config("toy", layers, method, seed, DataDirs(folder), shards.partition.seed)


class Sites:
    """Implements `federation.transport.Carrier`. `spoil` may change what comes back: (client, letter, answer) -> answer."""

    def __init__(self, shards: ShardSet, folder: Path, policy: SitePolicy = ANYTHING) -> None:
        self.shards = shards
        self.folder = folder
        self.policy = policy
        self.spoil: Callable[[int, bytes, bytes], bytes | None] = lambda client, letter, answer: answer
        self.sites = {client: self.site(client) for client in range(len(shards.manifest["clients"]))}
        self.letters: list[tuple[int, bytes, bytes]] = []

    def site(self, client: int) -> Site:
        shard = load_site_shard(self.shards.path / f"client-{client:03d}.npz")
        return Site(shard, self.folder / f"site-{client}", CPU, DataDirs(self.folder), self.policy)

    def restart(self, client: int) -> None:
        """As after a crash: what is not on disk is gone."""
        self.sites[client] = self.site(client)

    def reachable_clients(self) -> set[int]:
        return set(self.sites)

    def send_requests(
        self, requests: Mapping[int, bytes], timeout_seconds: float
    ) -> Iterator[ClientResponse | ClientFailure]:
        for client, letter in reversed(requests.items()):
            answer = self.spoil(client, letter, self.sites[client].handle_request(letter))
            if answer is None:
                yield ClientFailure(client, "deadline")
            else:
                self.letters.append((client, letter, answer))
                yield ClientResponse(client, answer)

    def close(self) -> None:
        pass

    @contextmanager
    def opened(self) -> Iterator[Sites]:
        yield self


def play(config: RunConfig, shards: ShardSet, folder: Path, sites: Sites | None = None, **how) -> RunDirectory:
    """Make a run, with clients in this process or at sites. What it leaves on disk."""
    folder.mkdir(exist_ok=True)
    files = RunDirectory(folder)
    elsewhere = None if sites is None else RemoteCoordinator("test", sites.opened, join_timeout_seconds=5.0, **how)
    events = list(run_experiment(config, shards, files, DataDirs(folder), RunOptions(device="cpu", remote=elsewhere)))
    assert isinstance(events[-1], RunFinished)
    return files
