"""What a site holds of exported shards: one client's examples and the public set, and the manifest that tells of all.

The other clients' files are not there, and nobody asks for them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedmosaic_cli.errors import RequestError
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
    from fedmosaic_cli.data.partitioning.partition import Partition

CLIENT_FILE_PATTERN = re.compile(r"client-(\d{3,})\.npz")


@dataclass(frozen=True)
class SiteShard:
    """One client's part of exported shards, with its examples as a data set of their own."""

    client_id: int
    shards: ShardSet
    dataset: Dataset
    partition: Partition
    """In the numbering of the data set; it knows of this client alone."""

    @property
    def client_train_sizes(self) -> dict[int, int]:
        return train_sizes(self.shards.manifest)


def load_site_shard(path: Path) -> SiteShard:
    """The shard that a site has under `path`, such as client-003.npz; the manifest and public.npz lie beside it."""
    match = CLIENT_FILE_PATTERN.fullmatch(path.name)
    if match is None or not path.is_file():
        raise RequestError(
            f"no shard of a client ({path}): name a file such as client-003.npz of 'fedmosaic site pack' or "
            "'fedmosaic partition --export'"
        )
    for name in (SHARD_MANIFEST_FILE, PUBLIC_FILE):
        if not (path.parent / name).is_file():
            raise RequestError(f"no {name} beside the shard ({path.parent}): ask the coordinator for it")
    shards, client = read_exported_description(path.parent), int(match[1])
    entries = [entry for entry in shards.manifest["clients"] if entry["id"] == client]
    if not entries:
        clients = len(shards.manifest["clients"])
        raise RequestError(f"the manifest knows of {clients} clients, not of client {client} ({path}): bring its own")
    own = replace(
        shards,
        partition=replace(shards.partition, shards=(read_client_shard(path.parent, entries[0], shards.manifest),)),
    )
    check_disjoint(path.parent, own.partition, shards.manifest["examples"])
    return SiteShard(client, shards, *load_exported_shards(own))


def read_exported_description(path: Path) -> ShardSet:
    """Exported shards of which no client's file need be here: what all of them are like, and the public set."""
    shards = read_shard_header(path)
    if not shards.has_examples:
        raise RequestError(
            f"these shards do not carry their examples ({path / SHARD_MANIFEST_FILE}): make them with "
            "'fedmosaic partition --export' or 'fedmosaic federation gather'"
        )
    try:
        check_public_set(shards)
    except INVALID_MANIFEST_ERRORS:
        raise RequestError(f"the manifest does not describe its public set ({path}): export the shards anew") from None
    return shards
