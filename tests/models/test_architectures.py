"""Architectures: parameter counts, supported image sizes and randomness."""

from __future__ import annotations

import pytest
import torch

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.models.architectures import ARCHITECTURES, build_network
from fedmosaic_cli.models.model_settings import ESTIMATOR_NAMES, MODEL_KEYS, ModelSettings

SHAPES = {
    "mlp": (1, 8, 8),
    "cnn": (1, 28, 28),
    "cnn-bn": (3, 32, 32),
    "cnn3-bn": (3, 32, 32),
    "alexnet-bn": (3, 64, 64),
    "resnet8": (3, 32, 32),
    "resnet18": (3, 96, 96),
    "vit": (3, 32, 32),
    "vit-tiny": (1, 28, 28),
}
SMALL = {"alexnet-bn": {"width": 1 / 16}, "resnet18": {"width": 1 / 4}, "vit": {"width": 1 / 16}}


def small(name, **more):
    return build_network(ModelSettings(name=name, **{**SMALL.get(name, {}), **more}), SHAPES[name], 10)


def weights(name, shape, **more):
    with torch.device("meta"):
        return sum(p.numel() for p in build_network(ModelSettings(name=name, **more), shape, 10).parameters())


def state_shapes(name, shape, **more):
    with torch.device("meta"):
        state = build_network(ModelSettings(name=name, **more), shape, 10).state_dict()
    return {key: tensor.shape for key, tensor in state.items()}


def test_every_architecture_is_covered():
    assert SHAPES.keys() == ARCHITECTURES.keys()


@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_computed_by_the_head(name):
    model = small(name).eval()
    inputs = torch.rand(3, *SHAPES[name])
    outputs = model(inputs)
    assert outputs.shape == (3, 10)
    features = model.head.in_features
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.arange(10.0))
    assert torch.equal(model(inputs), torch.arange(10.0).expand(3, 10)), "nothing but the head makes logits"
    assert features > 10


def test_model_keys_list_the_keys_that_change_a_model():
    fields = set(ModelSettings.model_fields) - {"name"}
    assert MODEL_KEYS.keys() == {*ARCHITECTURES, *ESTIMATOR_NAMES}
    assert frozenset().union(*MODEL_KEYS.values()) == fields
    changes = {"hidden": (9,), "width": 0.5, "patch": 2, "norm": "batch"}
    for name, shape in SHAPES.items():
        plain = state_shapes(name, shape)
        for key, value in changes.items():
            assert (state_shapes(name, shape, **{key: value}) != plain) == (key in MODEL_KEYS[name]), (name, key)


@pytest.mark.parametrize("name", SHAPES)
def test_every_parameter_has_a_gradient(name):
    model = small(name).train()
    model(torch.rand(4, *SHAPES[name])).logsumexp(dim=1).sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("name", SHAPES)
def test_forward_pass_does_not_use_the_global_generator(name):
    model = small(name).train()
    before = torch.random.get_rng_state()
    model(torch.zeros(4, *SHAPES[name])).sum().backward()
    assert torch.equal(before, torch.random.get_rng_state())


def test_parameter_counts_equal_those_of_the_literature():
    assert weights("cnn", (1, 28, 28)) == 582_026, "FedAvgCNN of PFLlib"
    assert weights("mlp", (1, 28, 28), hidden=(512, 512)) == 669_706, "2.6 MB"
    assert weights("alexnet-bn", (3, 256, 256)) == 57_063_498
    assert weights("vit", (3, 224, 224)) == 85_806_346, "torchvision's vit_b_16 with ten classes"
    for norm in ("group", "batch"):
        assert weights("resnet18", (3, 32, 32), norm=norm) == 11_173_962, "with the CIFAR stem"
        assert weights("resnet18", (3, 64, 64), norm=norm) == 11_173_962, "Tiny-ImageNet has the CIFAR stem"
        assert weights("resnet8", (3, 32, 32), norm=norm) == 78_042
    with torch.device("meta"):
        large = build_network(ModelSettings(name="resnet18"), (3, 224, 224), 1000)
    assert sum(weight.numel() for weight in large.parameters()) == 11_689_512, "torchvision's resnet18"


def test_small_convolutional_network_has_three_convolutions():
    layers = list(small("cnn3-bn").body)
    convolutions = [layer for layer in layers if isinstance(layer, torch.nn.Conv2d)]
    assert [(layer.in_channels, layer.out_channels) for layer in convolutions] == [(3, 16), (16, 32), (32, 64)]
    assert small("cnn3-bn").head.in_features == 64 * 4 * 4
    assert weights("cnn3-bn", (3, 32, 32)) == 34_058 < weights("cnn-bn", (3, 32, 32)) / 20
    assert weights("cnn3-bn", (1, 28, 28)) == 29_290


def test_resnet18_equals_that_of_torchvision():
    from torchvision.models import resnet18

    reference = resnet18(num_classes=7).eval()
    network = build_network(ModelSettings(name="resnet18", norm="batch"), (3, 96, 96), 7).eval()
    # Both list their layers in the order of computation: stem, blocks with their shortcuts last, head.
    entries = dict(zip(network.state_dict(), reference.state_dict().values(), strict=True))
    for name, tensor in entries.items():
        if tensor.is_floating_point():  # other values than those of a new network, also for the statistics
            tensor.copy_(torch.rand_like(tensor) if name.endswith("running_var") else torch.randn_like(tensor) / 20)
    network.load_state_dict(entries)
    images = torch.randn(2, 3, 96, 96)
    assert torch.allclose(network(images), reference(images), rtol=1e-5, atol=1e-6)
    assert network(images).std() > 0


def test_small_images_have_a_stem_without_pool():
    def stem(side):
        return build_network(ModelSettings(name="resnet8"), (3, side, side), 10).body[0]

    assert (stem(95).kernel_size, stem(95).stride) == ((3, 3), (1, 1))
    assert (stem(96).kernel_size, stem(96).stride) == ((7, 7), (2, 2))


def test_group_normalisation_treats_examples_separately():
    images = torch.rand(4, 3, 32, 32)
    for norm, is_separate in (("group", True), ("batch", False)):
        model = small("resnet8", norm=norm).train()
        assert torch.allclose(model(images)[:2], model(images[:2]), atol=1e-5) == is_separate


def test_norm_is_recorded_only_for_networks_that_read_it():
    assert "norm" not in ModelSettings().model_dump(mode="json")
    assert "norm" not in repr(ModelSettings(name="cnn"))
    settings = ModelSettings(name="resnet8", norm="batch")
    assert settings.model_dump(mode="json")["norm"] == "batch"
    assert "norm='batch'" in repr(settings)
    assert ModelSettings(**settings.model_dump()) == settings


def test_width_makes_networks_smaller():
    assert weights("cnn-bn", (3, 32, 32), width=0.5) < weights("cnn-bn", (3, 32, 32)) / 2
    assert weights("vit", (3, 64, 64), width=0.25) < weights("vit", (3, 64, 64)) / 8


def test_has_batch_norm_matches_the_layers():
    def has_norm(name):
        return any(isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) for layer in small(name).modules())

    assert [name for name in SHAPES if has_norm(name)] == ["cnn-bn", "cnn3-bn", "alexnet-bn"]
    assert all(ModelSettings(name=name).has_batch_norm == has_norm(name) for name in SHAPES)
    assert ModelSettings(name="resnet8", norm="batch").has_batch_norm
    assert not ModelSettings(name="cnn", norm="batch").has_batch_norm
    assert all(ModelSettings(name=name).is_network for name in SHAPES)


@pytest.mark.parametrize(
    ("settings", "shape", "words"),
    [
        ({"name": "cnn"}, (1, 3, 8), "cnn needs images of at least 4x4, these are 8x3"),
        ({"name": "cnn3-bn"}, (1, 28, 7), "cnn3-bn needs images of at least 8x8, these are 7x28"),
        ({"name": "alexnet-bn"}, (3, 32, 32), "at least 64x64"),
        ({"name": "resnet18"}, (1, 7, 28), "resnet18 needs images of at least 8x8, these are 28x7"),
        ({"name": "vit"}, (3, 28, 28), "cannot be cut into 16x16 patches"),
        ({"name": "vit-tiny", "patch": 5}, (1, 28, 28), r"5x5 patches \(model\.patch\)"),
        ({"name": "vit-tiny"}, (3, 32, 64), "cannot be cut"),
    ],
)
def test_unsupported_image_sizes_are_rejected(settings, shape, words):
    with pytest.raises(RequestError, match=words):
        build_network(ModelSettings(**settings), shape, 10)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cnn", (1, 16, 16)),
        ("cnn", (1, 4, 15)),
        ("cnn3-bn", (1, 8, 15)),
        ("alexnet-bn", (3, 64, 64)),
        ("resnet8", (1, 8, 8)),
        ("resnet18", (3, 8, 15)),
        ("vit-tiny", (1, 4, 4)),
    ],
)
def test_smallest_supported_images_work(name, shape):
    settings = ModelSettings(name=name, width=1 / 16)
    assert build_network(settings, shape, 3).eval()(torch.zeros(2, *shape)).shape == (2, 3)
