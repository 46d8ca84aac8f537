"""A simple federated simulator: a model and data loaders per client, and an evaluation of all data after every round.

In the style of the usual research simulators: float32 images [examples, channels, height, width], torch's DataLoader,
torch's SGD, and after every round an evaluation on the test and on the training set at the training batch size.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from workload import CLASSES, LR

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from workload import Task


def network() -> nn.Sequential:
    """Return the layers of our `cnn` for images of 32x32, in the usual order."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 5 * 5, 512),
        nn.ReLU(),
        nn.Linear(512, CLASSES),
    )


def to_tensor(task: Task, index: NDArray[np.int64]) -> Tensor:
    """Return images as float32 [examples, channels, height, width] in [-1, 1]."""
    images = torch.tensor(task.images[index], dtype=torch.float32).permute(0, 3, 1, 2)
    return (images / 127.5 - 1.0).contiguous()


def examples(task: Task, index: NDArray[np.int64]) -> TensorDataset:
    return TensorDataset(to_tensor(task, index), torch.tensor(task.labels[index]))


def train_epoch(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]], optimizer: torch.optim.Optimizer) -> None:
    """Train on all batches of the loader."""
    model.train()
    for images, labels in loader:
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def evaluate(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> tuple[float, float]:
    """Return accuracy and mean loss."""
    model.eval()
    correct, loss, count = 0, 0.0, 0
    with torch.no_grad():
        for images, labels in loader:
            logits = model(images)
            loss += cross_entropy(logits, labels).item() * len(labels)
            correct += (logits.argmax(dim=1) == labels).sum().item()
            count += len(labels)
    return correct / count, loss / count


class Client:
    """A client with its model, optimizer and data."""

    def __init__(self, model: nn.Module, train_set: TensorDataset, test_set: TensorDataset, batch: int) -> None:
        self.model = copy.deepcopy(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR)
        self.train_set = train_set
        self.test_set = test_set
        self.batch = batch

    def train_loader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.train_set, self.batch, shuffle=True, drop_last=False)

    def test_loader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.test_set, self.batch, shuffle=False, drop_last=False)

    def receive(self, model: nn.Module) -> None:
        for own, received in zip(self.model.parameters(), model.parameters(), strict=True):
            own.data = received.data.clone()

    def train(self) -> None:
        train_epoch(self.model, self.train_loader(), self.optimizer)

    def test(self) -> tuple[float, float]:
        """Return accuracy and mean loss on the test set."""
        return evaluate(self.model, self.test_loader())

    def metrics(self) -> tuple[float, float, float]:
        """Return test accuracy, test loss and training loss."""
        accuracy, test_loss = self.test()
        return accuracy, test_loss, evaluate(self.model, self.train_loader())[1]


class FedAvg:
    """Federated averaging."""

    def __init__(self, task: Task, batch: int) -> None:
        self.model = network()
        self.clients = [
            Client(self.model, examples(task, share.train), examples(task, share.test), batch) for share in task.shares
        ]

    def run_round(self) -> list[tuple[float, float, float]]:
        """Train all clients, average their models, and evaluate the new global model on all clients."""
        for client in self.clients:
            client.receive(self.model)
            client.train()
        self.average()
        for client in self.clients:
            client.receive(self.model)
        return [client.metrics() for client in self.clients]

    def average(self) -> None:
        total = sum(len(client.train_set) for client in self.clients)
        for parameter in self.model.parameters():
            parameter.data.zero_()
        for client in self.clients:
            share = len(client.train_set) / total
            for total_weights, weights in zip(self.model.parameters(), client.model.parameters(), strict=True):
                total_weights.data += weights.data * share


class MosaicClient(Client):
    """A client that also learns from pseudo-labels on public images."""

    def __init__(self, task: Task, number: int, public: Tensor, batch: int) -> None:
        share = task.shares[number]
        super().__init__(network(), examples(task, share.train), examples(task, share.test), batch)
        self.public = public
        counts = torch.bincount(torch.tensor(task.labels[share.train]), minlength=CLASSES)
        self.class_share = counts / counts.sum()

    def local_round(self, consensus: Tensor | None) -> tuple[Tensor, Tensor]:
        """Train, then return labels of the public images and their expertise."""
        private_loss = evaluate(self.model, self.train_loader())[1]
        if consensus is None:
            self.train()
        else:
            pseudo_labelled = TensorDataset(self.public, consensus)
            public_loss = evaluate(self.model, DataLoader(pseudo_labelled, self.batch))[1]
            trust = min(1.0, math.exp(-(public_loss - private_loss) / (private_loss + 0.3)))
            self.train_with(pseudo_labelled, trust)
        labels = self.predict_public()
        return labels, self.class_share[labels] + 1e-6

    def train_with(self, pseudo_labelled: TensorDataset, trust: float) -> None:
        """Train one epoch with a private and a public batch in every step."""
        self.model.train()
        public_loader = DataLoader(pseudo_labelled, self.batch, shuffle=True)
        public_batches = iter(public_loader)
        for images, labels in self.train_loader():
            try:
                public_images, pseudo_labels = next(public_batches)
            except StopIteration:
                public_batches = iter(public_loader)
                public_images, pseudo_labels = next(public_batches)
            loss = cross_entropy(self.model(images), labels)
            loss = loss + trust * cross_entropy(self.model(public_images), pseudo_labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def predict_public(self) -> Tensor:
        self.model.eval()
        loader = DataLoader(TensorDataset(self.public), self.batch)
        with torch.no_grad():
            return torch.cat([self.model(images).argmax(dim=1) for (images,) in loader])


class FedMosaic:
    """Co-training with trust and expertise; every quantity has a separate pass over the data."""

    def __init__(self, task: Task, batch: int) -> None:
        public = to_tensor(task, task.public)
        self.consensus: Tensor | None = None
        self.clients = [MosaicClient(task, number, public, batch) for number in range(len(task.shares))]

    def run_round(self) -> list[tuple[float, float]]:
        """Train all clients, vote, and test every client's own model."""
        uploads = [client.local_round(self.consensus) for client in self.clients]
        votes = torch.zeros(len(uploads[0][0]), CLASSES)
        for labels, expertise in uploads:
            votes[torch.arange(len(labels)), labels] += expertise
        self.consensus = votes.argmax(dim=1)
        return [client.test() for client in self.clients]
