"""Student and Local from a start that is trained on the public images without labels (SimCLR).

The file is a script that trains the start, and a model for `--model` that begins with it:

    fedmosaic partition --preset lowdata-fashion-mnist --seed 0 --export --out shards
    python benchmarks/self_supervised_start.py shards start.pt
    export SELF_SUPERVISED_START=start.pt
    fedmosaic baseline local student --preset lowdata-fashion-mnist --shards shards \
      --model benchmarks/self_supervised_start.py:PretrainedCNN --tag self-supervised

SimCLR: Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import affine_grid, cross_entropy, grid_sample, normalize

from fedmosaic_cli.models.cnn import CNN3BN
from fedmosaic_cli.models.model_settings import ModelSettings

START_VARIABLE = "SELF_SUPERVISED_START"
STEPS = 600
BATCH_SIZE = 128
TEMPERATURE = 0.5
LEARNING_RATE = 2e-3


class PretrainedCNN(CNN3BN):
    """The network `cnn3-bn` whose body begins with the weights in the file that SELF_SUPERVISED_START names."""

    def __init__(self, input_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__(ModelSettings(name="cnn3-bn"), input_shape, num_classes)
        self.body.load_state_dict(torch.load(os.environ[START_VARIABLE], weights_only=True))


def random_views(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return images with a random crop, flip, brightness, contrast and, one in five, without colour."""

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(len(images), generator=generator)

    scale = uniform(0.3, 1.0).sqrt()
    flip = (uniform(0, 1) < 0.5) * -2.0 + 1.0
    theta = torch.zeros(len(images), 2, 3)
    theta[:, 0, 0], theta[:, 1, 1] = scale * flip, scale
    theta[:, 0, 2], theta[:, 1, 2] = (1 - scale) * uniform(-1, 1), (1 - scale) * uniform(-1, 1)
    views = grid_sample(images, affine_grid(theta, list(images.shape), align_corners=False), align_corners=False)
    views = views * uniform(0.6, 1.4)[:, None, None, None] + uniform(-0.3, 0.3)[:, None, None, None]
    channels = torch.rand(len(images), images.shape[1], 1, 1, generator=generator) * 0.6 + 0.7
    grey = (uniform(0, 1) < 0.2)[:, None, None, None]
    return torch.where(grey, views.mean(dim=1, keepdim=True).expand_as(views), views * channels)


def contrastive_loss(first: Tensor, second: Tensor) -> Tensor:
    """Return the loss of SimCLR for the embeddings of two views of each image."""
    embeddings = normalize(torch.cat([first, second]), dim=1)
    similarity = embeddings @ embeddings.T / TEMPERATURE
    similarity.fill_diagonal_(-math.inf)
    partners = torch.arange(len(embeddings)).roll(len(first))
    return cross_entropy(similarity, partners)


def train_start(images: Tensor) -> dict[str, Tensor]:
    """Return the weights of a body that is trained on the images, [n, channels, height, width] in [-1, 1]."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    channels, height, width = images.shape[1:]
    network = CNN3BN(ModelSettings(name="cnn3-bn"), (channels, height, width), 2)
    projection = nn.Sequential(nn.Linear(network.head.in_features, 128), nn.ReLU(), nn.Linear(128, 64))
    optimizer = torch.optim.Adam([*network.body.parameters(), *projection.parameters()], LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for step in range(STEPS):
        batch = images[torch.randint(len(images), (BATCH_SIZE,), generator=generator)]
        first, second = (projection(network.body(random_views(batch, generator))) for _ in range(2))
        loss = contrastive_loss(first, second)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    return network.body.state_dict()


def main() -> None:
    from fedmosaic_cli.storage.shards import load_exported_shards, read_shards

    shards, out = Path(sys.argv[1]), Path(sys.argv[2])
    dataset, partition = load_exported_shards(read_shards(shards))
    pixels = torch.as_tensor(dataset.images[partition.public]).movedim(-1, 1).float()
    torch.save(train_start(pixels / 127.5 - 1), out)


if __name__ == "__main__":
    main()
