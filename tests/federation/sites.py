"""Sites in this process: letters go there and back as bytes, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from fedmosaic_cli.config.layers import Layers
from fedmosaic_cli.config.run_config import RunConfig, resolve_run
from fedmosaic_cli.data.data_dirs import Place
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.federation.coordinator import Elsewhere
from fedmosaic_cli.federation.policy import Policy
from fedmosaic_cli.federation.site import Site
from fedmosaic_cli.federation.site_shards import load_site_shard
from fedmosaic_cli.federation.transport import Answer, Loss
from fedmosaic_cli.runner.prepare import deal
from fedmosaic_cli.runner.run import Finished, Terms, run
from fedmosaic_cli.storage.runs import RunFiles
from fedmosaic_cli.storage.shards import Shards

CPU = torch.device("cpu")
CLIENTS = 3
ANYTHING = Policy("models")


def exported(folder: Path, clients: int = CLIENTS, **settings) -> Shards:
    """Digits, dealt to a few clients and written with their examples."""
    data = DataSettings(scheme="dirichlet", alpha=0.5, clients=clients, public_size=60, **settings)
    return deal(data, 0, folder / "shards", Place(folder)).written(export=True)


def configured(shards: Shards, method: str, folder: Path, *assignments: str, seed: int = 0) -> RunConfig:
    """A short run of a method on these shards, clients one by one as at sites."""
    layers = Layers()
    layers.add("shards", {"data": shards.partition.settings.model_dump(mode="json")})
    short = ("train.rounds=4", "train.local_steps=3", "train.execution=threads", "model.name=mlp", "train.workers=1")
    for assignment in (*short, *assignments):
        layers.set(assignment)
    return resolve_run("toy", layers, method, seed, Place(folder), shards.partition.seed)


class Sites:
    """Implements `federation.transport.Carrier`. `spoil` may change what comes back: (client, letter, answer) -> answer."""

    def __init__(self, shards: Shards, folder: Path, policy: Policy = ANYTHING) -> None:
        self.shards = shards
        self.folder = folder
        self.policy = policy
        self.spoil: Callable[[int, bytes, bytes], bytes | None] = lambda client, letter, answer: answer
        self.sites = {client: self.site(client) for client in range(len(shards.manifest["clients"]))}
        self.letters: list[tuple[int, bytes, bytes]] = []

    def site(self, client: int) -> Site:
        shard = load_site_shard(self.shards.path / f"client-{client:03d}.npz")
        return Site(shard, self.folder / f"site-{client}", CPU, Place(self.folder), self.policy)

    def restart(self, client: int) -> None:
        """As after a crash: what is not on disk is gone."""
        self.sites[client] = self.site(client)

    def present(self) -> set[int]:
        return set(self.sites)

    def ask(self, letters: Mapping[int, bytes], seconds: float) -> Iterator[Answer | Loss]:
        for client, letter in reversed(letters.items()):
            answer = self.spoil(client, letter, self.sites[client].answer(letter))
            if answer is None:
                yield Loss(client, "deadline")
            else:
                self.letters.append((client, letter, answer))
                yield Answer(client, answer)

    def close(self) -> None:
        pass

    @contextmanager
    def opened(self) -> Iterator[Sites]:
        yield self


def play(config: RunConfig, shards: Shards, folder: Path, sites: Sites | None = None, **how) -> RunFiles:
    """Make a run, with clients in this process or at sites. What it leaves on disk."""
    folder.mkdir(exist_ok=True)
    files = RunFiles(folder)
    elsewhere = None if sites is None else Elsewhere("test", sites.opened, wait=5.0, **how)
    events = list(run(config, shards, files, Place(folder), Terms(device="cpu", elsewhere=elsewhere)))
    assert isinstance(events[-1], Finished)
    return files
