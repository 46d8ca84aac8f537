"""`--dry-run`: what would be done, from which values, at what price."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from fedmosaic_cli.cli.console import out, say
from fedmosaic_cli.config.run import flat

if TYPE_CHECKING:
    from fedmosaic_cli.config.layers import Layers
    from fedmosaic_cli.config.run import RunConfig


def show_plan(configs: list[RunConfig], layers: Layers, paths: list[str]) -> None:
    """The configuration with the origin of each value, the runs, and their work, memory and traffic."""
    view = Table("key", "value", "from", box=None, pad_edge=False)
    shown: dict[str, object] = {}
    for config in configs:
        shown |= flat({name: part for name, part in config.to_dict().items() if isinstance(part, dict)})
    for key, value in shown.items():
        origin = layers.origins.get(key, "default" if value is not None else "default (not set)")
        view.add_row(key, str(value), origin)
    out().print(view)
    say("")
    work = Table("run", "rounds", "steps", "data MB", "models MB", "bits up", "bits down", box=None, pad_edge=False)
    for config, path in zip(configs, paths, strict=True):
        work.add_row(path, *costs(config))
    out().print(work)
    say("bits are per client and round of exchange; models include optimizer state; nothing was written")


def costs(config: RunConfig) -> list[str]:
    """Rounds, steps of all clients together, megabytes and bits of one run."""
    import torch

    from fedmosaic_cli.data.partition import partition
    from fedmosaic_cli.data.sources import find_source
    from fedmosaic_cli.models.architectures import build

    dataset = find_source(config.data.dataset).load()
    dealt = partition(dataset, config.data, config.partition_seed)
    _, height, width, channels = dataset.images.shape
    with torch.device("meta"):
        module = build(config.model, (channels, height, width), dataset.num_classes)
    model_bytes = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    train = config.train
    copies = (3 if train.optimizer == "adam" else 1 + bool(train.momentum)) if train.optimizer_state == "keep" else 1
    sizes = [len(shard.train) for shard in dealt.shards]
    if train.local_steps is not None:
        steps = train.local_steps * len(sizes)
    else:
        held = [sum(sizes)] if config.method.pooled else sizes
        steps = train.local_epochs * sum(-(-size // train.batch_size) for size in held)
    models = 1 if config.method.pooled else len(sizes)
    bits = config.method.traffic(8 * model_bytes, len(dealt.public), dataset.num_classes)
    megabytes = [dataset.images.nbytes / 1e6, models * copies * model_bytes / 1e6]
    return [
        str(train.rounds),
        str(train.rounds * steps),
        *(f"{value:.1f}" for value in megabytes),
        f"{bits.up:,}",
        f"{bits.down:,}",
    ]
