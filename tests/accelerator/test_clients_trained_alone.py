"""Clients of a stack whose trainings cannot be stacked: they are trained one at a time, on a module that they share."""

from __future__ import annotations

import threading
from typing import ClassVar

import pytest
from torch import nn

from fedmosaic_cli.engine import network_learner
from fedmosaic_cli.engine.method import Needs, hyperparameters
from fedmosaic_cli.methods.local import Local
from fedmosaic_cli.models.classifier import Classifier
from tests.accelerator.simulated_device import register
from tests.accelerator.test_methods import results
from tests.engine.test_contract_points import FlatLoss, InputGradient
from tests.toys import TOYS, same


class WithIdentity(Classifier):
    """The client's network with a layer that cannot be stacked. The names of all weights are the same."""

    def __init__(self, network, num_classes, layer=nn.Identity):
        super().__init__(nn.Sequential(*network.body, layer()), network.head.in_features, num_classes)


class WithDropout(WithIdentity):
    """The client's network with dropout before the head."""

    def __init__(self, network, num_classes):
        super().__init__(network, num_classes, nn.Dropout)


@hyperparameters
class TrainedWithIdentity(Local):
    """The client's model is trained as an additional network."""

    needs: ClassVar[Needs] = Needs(networks={"other": WithIdentity})

    def local_round(self, client, received, ctx):
        client.train("model", network="other")
        return {}


@hyperparameters
class TrainedWithDropout(TrainedWithIdentity):
    """The same with random layers."""

    needs: ClassVar[Needs] = Needs(networks={"other": WithDropout})


@hyperparameters
class FlatHead(Local):
    """Clients with an even number train the head only, the others the whole model."""

    def local_round(self, client, received, ctx):
        names = ctx.groups["head"] if client.id % 2 == 0 else None
        client.train("model", [InputGradient(0.1)], parameters=names)
        return {}


class FreeLock:
    """A lock for which no thread waits. A client that waited for a paused client would wait forever."""

    def __init__(self):
        self._lock = threading.Lock()

    def __enter__(self):
        if not self._lock.acquire(blocking=False):
            raise RuntimeError("a paused client holds the lock")

    def __exit__(self, *error):
        self._lock.release()


@pytest.mark.parametrize("method", [FlatLoss(), FlatHead(), TrainedWithIdentity(), TrainedWithDropout()], ids=repr)
def test_each_client_trains_its_own_weights(method, monkeypatch):
    monkeypatch.setattr(network_learner, "GLOBAL_RNG_LOCK", FreeLock())
    toy = TOYS["uneven"]
    stacked, single = (
        results(method, toy.changed(execution=execution), [register()])[1] for execution in ("stacked", "threads")
    )
    assert same(stacked, single)
    assert not same(stacked, results(method, toy, [register()], rounds=0)[1])
