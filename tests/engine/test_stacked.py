"""Stacked execution gives the results of separate execution."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedmosaic_cli.engine.context import Training
from fedmosaic_cli.engine.execution import lockstep, worker_pool
from fedmosaic_cli.engine.execution.stacked.stacked_layers import (
    ForwardContext,
    StackedNetwork,
    is_stackable,
    num_multiplications,
)
from fedmosaic_cli.engine.execution.stacked.stacked_trainer import StackedTrainer
from fedmosaic_cli.engine.losses import TargetLoss, UniformTargetLoss
from fedmosaic_cli.engine.method import hyperparameters
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.methods.fedct import FedCT
from fedmosaic_cli.methods.feddf import FedDF
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.methods.local import Local
from fedmosaic_cli.methods.pfedme import PFedMe
from fedmosaic_cli.models.architectures import ARCHITECTURES, build_network
from fedmosaic_cli.models.classifier import Classifier
from fedmosaic_cli.models.model_settings import ModelSettings
from fedmosaic_cli.models.registered_models import MODELS
from fedmosaic_cli.runner.checkpoint_state import capture_state, restore_state
from tests.test_contract import VARIANTS
from tests.toys import TOYS, close, from_disk, make_toy, mixed, models, personal_models, run_toy, same

NETWORKS = {
    "mlp": (ModelSettings(hidden=(6, 5)), (1, 4, 4)),
    "cnn": (ModelSettings(name="cnn", width=1 / 16), (2, 16, 16)),
    "cnn-bn": (ModelSettings(name="cnn-bn", width=1 / 16), (3, 8, 8)),
    "cnn3-bn": (ModelSettings(name="cnn3-bn", width=1 / 16), (3, 8, 8)),
    "alexnet-bn": (ModelSettings(name="alexnet-bn", width=1 / 16), (3, 64, 64)),
    "resnet8": (ModelSettings(name="resnet8", width=1 / 4), (3, 8, 8)),
    "resnet8-batch-norm": (ModelSettings(name="resnet8", width=1 / 4, norm="batch"), (3, 16, 16)),
    "resnet18": (ModelSettings(name="resnet18", width=1 / 16), (3, 96, 96)),
}


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
@pytest.mark.parametrize("method", VARIANTS.values(), ids=VARIANTS)
def test_stacked_training_equals_separate_training(method, toy):
    check(method, toy)


@pytest.mark.thinned(every=3)
@pytest.mark.usefixtures("with_batch_norm")
@pytest.mark.parametrize("policy", ["average", "local", "drop"])
@pytest.mark.parametrize("method", VARIANTS.values(), ids=VARIANTS)
def test_stacked_batch_statistics_are_per_client(method, policy):
    # SGD, because a bias before a normalisation has only a rounding error as gradient, which Adam would amplify.
    # For the same reason without the server's steps of FedDF, which uses Adam.
    method = replace(method, steps=0) if isinstance(method, FedDF) else method
    for toy in (TOYS["uneven"], TOYS["epochs"], make_toy([5, 1, 4]).changed(local_steps=None)):
        check(method, toy.changed(bn_buffers=policy, optimizer="sgd", momentum=0.5))


def test_mixed_learners_equal_separate_training():
    toy = mixed(make_toy([8, 5, 6, 7, 6]))
    check(FedMosaic(expertise="entropy", trust="stabilised"), toy)


def test_clients_with_and_without_optimizer_state_can_be_stacked():
    for optimizer in ({"optimizer": "sgd", "momentum": 0.5}, {"optimizer": "adam"}):
        check(Local(), TOYS["uneven"].changed(clients_per_round=2, local_steps=None, **optimizer))


@pytest.mark.parametrize("sizes", [(8, 0, 5), (8, 5, 0)], ids=str)
@pytest.mark.parametrize("name", ["fedavg", "perfedavg", "apfl", "pfedme", "fedct", "gated"])
def test_clients_without_examples_can_be_stacked(name, sizes):
    toy = make_toy(list(sizes)).changed(optimizer="sgd")
    check(VARIANTS[name], toy)
    check(VARIANTS[name], toy.changed(augment="crop", local_steps=None, local_epochs=2))


def check(method, toy):
    separate, stacked = toy.federation(method), toy.changed(execution="stacked").federation(method)
    assert (separate.execution, stacked.execution) == ("threads", "stacked")
    with separate.worker_pool, stacked.worker_pool:
        for expected, seen in zip(run_rounds(separate, 3), run_rounds(stacked, 3), strict=True):
            for left, right in zip(expected.rows, seen.rows, strict=True):
                assert_rows_close(left, right)
    assert close(list(personal_models(separate).values()), list(personal_models(stacked).values()), 1e-9)
    left, right = capture_state(separate.state), capture_state(stacked.state)
    assert {k: a.shape for k, a in left[0].items()} == {k: a.shape for k, a in right[0].items()}, "same checkpoints"


def assert_rows_close(left, right):
    assert left.keys() == right.keys()
    for key, value in left.items():
        expected = pytest.approx(value, rel=1e-9, abs=1e-12) if isinstance(value, int | float) else value
        assert right[key] == expected, key


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("method", VARIANTS.values(), ids=VARIANTS)
def test_stacked_runs_are_reproducible_with_any_workers_and_after_resume(method, monkeypatch):
    monkeypatch.setattr(worker_pool, "MAX_STACK_SIZE", 2)
    toy = make_toy([6, 9, 7, 3, 8]).changed(execution="stacked", clients_per_round=4)
    toy.dtype = torch.float32
    assert same(models(method, toy), models(method, toy.changed(workers=3)))
    halfway, resumed, uninterrupted = (toy.federation(method) for _ in range(3))
    with halfway.worker_pool, resumed.worker_pool, uninterrupted.worker_pool:
        list(run_rounds(halfway, 2))
        restore_state(resumed, *from_disk(capture_state(halfway.state)), 2)
        assert list(run_rounds(resumed, 4)) == list(run_rounds(uninterrupted, 4))[2:]
    assert same(list(personal_models(resumed).values()), list(personal_models(uninterrupted).values()))


@dataclass(frozen=True)
class ClassWeightedLoss(TargetLoss):
    """Cross-entropy with weights of the classes."""

    class_weights: torch.Tensor
    log_key = "loss_weighted"
    uses_public = False

    def example_losses(self, logits, targets):
        return cross_entropy(logits, targets, weight=self.class_weights, reduction="none")


@hyperparameters
class WeightedClasses(Local):
    """Each client weighs the classes in another way."""

    def local_round(self, client, received, ctx):
        weights = torch.arange(1, 1 + ctx.num_classes, dtype=torch.float64) ** client.id
        client.train("model", [ClassWeightedLoss(client.train_labels, 0.5, weights)])
        return {}


@pytest.mark.parametrize("toy", ["even", "uneven", "epochs"])
def test_tensors_besides_the_targets_of_a_loss_are_those_of_each_client(toy):
    check(WeightedClasses(), TOYS[toy])


def test_requests_of_all_clients_are_dispatched_together(monkeypatch):
    """Otherwise the tests above would compare equal code paths."""
    dispatched = Counter()
    original = lockstep.dispatch

    def note(requests):
        dispatched.update((request.group_key[1], len(requests)) for request in requests[:1])
        original(requests)

    monkeypatch.setattr(lockstep, "dispatch", note)
    models(FedCT(), TOYS["uneven"].changed(execution="stacked"), rounds=2)
    assert dispatched == {("fit", 3): 2, ("predict", 3): 2, ("evaluate", 3): 2}
    dispatched.clear()
    models(PFedMe(inner_steps=2), TOYS["uneven"].changed(execution="stacked", local_steps=5), rounds=1)
    assert dispatched == {("steps", 3): 1, ("evaluate", 3): 2}


@hyperparameters
class ThreeModels(Local):
    """Clients train two more models, one of them with a public loss, together or one after the other."""

    together: bool = True

    def init_client(self, client, ctx):
        super().init_client(client, ctx)
        client.state |= {"half": client.initial_model, "public": client.initial_model}

    def local_round(self, client, received, ctx):
        uniform = UniformTargetLoss(torch.zeros(ctx.public_size, dtype=torch.int64), 0.5)
        half = torch.arange(len(client.train_labels))[::2]
        trainings = [Training("model"), Training("public", [uniform]), Training("half", examples=half)]
        for own in [trainings] if self.together else [[training] for training in trainings]:
            client.train_all(own)
        return {}


@pytest.mark.parametrize("sizes", [[8, 8, 8], [16, 9, 8]], ids=["even", "uneven"])
@pytest.mark.parametrize("changes", [{}, {"local_steps": None, "local_epochs": 2}, {"clients_per_round": 2}], ids=str)
def test_models_trained_together_equal_models_trained_one_after_the_other_bit_for_bit(sizes, changes, monkeypatch):
    steps = Counter()
    original = StackedTrainer._step

    def note(trainer, *args):
        steps[len(trainer._clients)] += 1
        original(trainer, *args)

    monkeypatch.setattr(StackedTrainer, "_step", note)
    toy = make_toy(sizes).changed(execution="stacked", **changes)
    toy.dtype = torch.float32
    states = [capture_state(run_toy(ThreeModels(together=both), toy).state) for both in (True, False)]
    assert states[0][1] == states[1][1]
    for name, array in states[0][0].items():
        assert array.tobytes() == states[1][0][name].tobytes(), name
    merges = changes == {}  # batches have one size: 4
    assert (6 in steps) == merges


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("lengths", [(5, 5, 5), (5, 2, 4)], ids=["even", "ragged"])
def test_stacked_network_equals_separate_networks(name, lengths):
    settings, shape = NETWORKS[name]
    networks = [build_network(settings, shape, 4).double() for _ in lengths]
    inputs = [torch.randn(length, *shape, dtype=torch.float64) for length in lengths]
    labels = [torch.randint(4, (length,)) for length in lengths]
    weights = {key: torch.stack([net.state_dict()[key] for net in networks]) for key in networks[0].state_dict()}
    trained = [key for key, _ in networks[0].named_parameters()]
    for key in trained:
        weights[key].requires_grad_()
    images = torch.zeros(5, 3, *shape, dtype=torch.float64)
    for index, each in enumerate(inputs):
        images[: len(each), index] = each
    present = torch.arange(5) < torch.tensor(lengths)[:, None]
    ctx = ForwardContext(3, training=True, mask=None if len(set(lengths)) == 1 else present)
    stack = StackedNetwork(networks[0])
    logits = stack.head(weights, stack.features(weights, images, ctx), ctx)
    losses = [cross_entropy(logits[index, :length], labels[index]) for index, length in enumerate(lengths)]
    gradients = dict(zip(trained, torch.autograd.grad(sum(losses), [weights[key] for key in trained]), strict=True))
    for index, net in enumerate(networks):
        alone = net.train()(inputs[index])
        cross_entropy(alone, labels[index]).backward()
        assert torch.allclose(logits[index, : lengths[index]], alone, atol=1e-9)
        assert all(torch.allclose(gradients[k][index], p.grad, atol=1e-9) for k, p in net.named_parameters())
        assert all(torch.allclose(weights[k][index], b) for k, b in net.named_buffers()), "running statistics"
        net.eval()
        eval_ctx = ForwardContext(3)
        evaluated = stack.head(weights, stack.features(weights, images, eval_ctx), eval_ctx)
        assert torch.allclose(evaluated[index, : lengths[index]], net(inputs[index]), atol=1e-9)


def test_all_architectures_but_transformers_are_stackable():
    sizes = {"vit": 32, "vit-tiny": 8, "alexnet-bn": 64}
    stackable_by_name = {
        name: is_stackable(
            build_network(ModelSettings(name=name, width=1 / 16), (3, sizes.get(name, 8), sizes.get(name, 8)), 3)
        )
        for name in ARCHITECTURES
    }
    assert {name for name, stackable in stackable_by_name.items() if not stackable} == {"vit", "vit-tiny"}
    stackable_names = {settings.name for settings, _ in NETWORKS.values()}
    assert {name for name, stackable in stackable_by_name.items() if stackable} == stackable_names


def plain_network(num_classes):
    return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU()), 3, num_classes)


class ScaledFeatures(Classifier):
    def __init__(self, num_classes):
        super().__init__(plain_network(3).body, 3, num_classes)

    def features(self, inputs):
        return self.body(inputs * 5 + 1)


class ScaledOutputs(ScaledFeatures):
    features = Classifier.features

    def forward(self, inputs):
        return 2 * self.head(self.features(inputs))


class WithoutBody(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.head = nn.Linear(4, num_classes)

    def features(self, inputs):
        return inputs.flatten(1)

    def forward(self, inputs):
        return self.head(self.features(inputs))


def with_hook(num_classes):
    network = plain_network(num_classes)
    network.body[1].register_forward_hook(lambda layer, inputs, outputs: outputs + 1)
    return network


def with_backward_hook(num_classes):
    network = plain_network(num_classes)
    network.body[2].register_full_backward_hook(lambda layer, inputs, outputs: (2 * inputs[0],))
    return network


def with_backward_pre_hook(num_classes):
    network = plain_network(num_classes)
    network.body[2].register_full_backward_pre_hook(lambda layer, outputs: (2 * outputs[0],))
    return network


def double(inputs):
    return 2 * inputs


def flatten_and_double(inputs):
    return 2 * inputs.flatten(1)


def with_replaced_layer_function(num_classes):
    network = plain_network(num_classes)
    network.body[2].forward = double
    return network


def with_replaced_body_function(num_classes):
    network = Classifier(nn.Sequential(nn.Flatten()), 4, num_classes)
    network.body.forward = flatten_and_double
    return network


def with_unused_weights(num_classes):
    network = plain_network(num_classes)
    network.unused = nn.Linear(2, 2)
    return network


def with_repeated_layer(num_classes):
    relu = nn.ReLU()
    return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), relu, nn.Linear(3, 3), relu), 3, num_classes)


def with_shared_weights(num_classes):
    network = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Linear(4, 4)), 4, num_classes)
    network.body[2].weight = network.body[1].weight
    return network


@pytest.mark.parametrize(
    "factory",
    [
        ScaledFeatures,
        ScaledOutputs,
        WithoutBody,
        with_hook,
        with_backward_hook,
        with_backward_pre_hook,
        with_replaced_layer_function,
        with_replaced_body_function,
        with_unused_weights,
        with_repeated_layer,
        with_shared_weights,
    ],
)
def test_networks_with_own_code_are_trained_one_by_one(factory, monkeypatch):
    monkeypatch.setitem(MODELS, "own", factory)
    toy = TOYS["even"].changed(models={client: ModelSettings(name="own") for client in range(3)})
    assert not is_stackable(factory(3))
    assert same(models(Local(), toy), models(Local(), toy.changed(execution="auto")))


def test_plugin_networks_of_known_layers_are_stacked(monkeypatch):
    monkeypatch.setitem(MODELS, "own", plain_network)
    toy = TOYS["even"].changed(models={client: ModelSettings(name="own") for client in range(3)})
    check(Local(), toy)


@pytest.mark.parametrize("name", NETWORKS)
def test_num_multiplications_equals_the_flop_counter(name):
    from torch.utils.flop_counter import FlopCounterMode

    settings, shape = NETWORKS[name]
    network = build_network(settings, shape, 4).eval()
    with FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, *shape))
    assert 2 * num_multiplications(network, shape[1]) == counter.get_total_flops()
