"""What a site holds of exported shards: the manifest of all clients, the public set, and one client's examples."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage.files import sha256
from fedmosaic_cli.storage.shard_manifest import train_sizes
from fedmosaic_cli.storage.shards import (
    INVALID_MANIFEST_ERRORS,
    PUBLIC_FILE,
    SHARD_MANIFEST_FILE,
    ShardSet,
    check_disjoint,
    check_public_set,
    load_exported_shards,
    read_client_shard,
    read_shard_header,
)

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.partitioning.partition import Partition, Shard

CLIENT_FILE_PATTERN = re.compile(r"client-(\d{3,})\.npz")


@dataclass(frozen=True)
class SiteShard:
    """One client of exported shards. `partition` contains only this client and indexes `dataset`."""

    client_id: int
    shard_set: ShardSet
    dataset: Dataset
    partition: Partition

    @property
    def own(self) -> Shard:
        """The indices of the client's examples."""
        return self.partition.shards[0]

    @cached_property
    def private_digest(self) -> str:
        """Digest of the client's examples and labels. It does not depend on their order or on the public set."""
        examples = [
            sha256(self.dataset.images[index].tobytes() + int(self.dataset.labels[index]).to_bytes(4, "little"))
            for part in self.own.splits().values()
            for index in part
        ]
        return sha256("\n".join(sorted(examples)).encode())

    @property
    def client_train_sizes(self) -> dict[int, int]:
        return train_sizes(self.shard_set.manifest)


def load_site_shard(path: Path) -> SiteShard:
    """Load a client's file such as client-003.npz, with manifest.json and public.npz from the same directory."""
    match = CLIENT_FILE_PATTERN.fullmatch(path.name)
    if match is None or not path.is_file():
        raise RequestError(
            f"not the shard of a client ({path}): give a file such as client-003.npz of 'fedmosaic site pack' or "
            "'fedmosaic partition --export'"
        )
    for name in (SHARD_MANIFEST_FILE, PUBLIC_FILE):
        if not (path.parent / name).is_file():
            raise RequestError(f"no {name} next to the shard ({path.parent}): ask the coordinator for it")
    shards, client = read_exported_manifest(path.parent), int(match[1])
    entry = next((entry for entry in shards.manifest["clients"] if entry["id"] == client), None)
    if entry is None:
        num_clients = len(shards.manifest["clients"])
        raise RequestError(
            f"the manifest has {num_clients} clients, but no client {client} ({path}): use the manifest of its shards"
        )
    shard = read_client_shard(path.parent, entry, shards.manifest)
    own_shards = replace(shards, partition=replace(shards.partition, shards=(shard,)))
    check_disjoint(path.parent, own_shards.partition, shards.manifest["examples"])
    return SiteShard(client, shards, *load_exported_shards(own_shards))


def read_exported_manifest(path: Path) -> ShardSet:
    """Read manifest and public set of exported shards. The clients' files may be missing."""
    shards = read_shard_header(path)
    if not shards.has_examples:
        raise RequestError(
            f"these shards do not contain their examples ({path / SHARD_MANIFEST_FILE}): make them with "
            "'fedmosaic partition --export' or 'fedmosaic federation gather'"
        )
    try:
        check_public_set(shards)
    except INVALID_MANIFEST_ERRORS:
        raise RequestError(f"the manifest does not match its public set ({path}): export the shards again") from None
    return shards
