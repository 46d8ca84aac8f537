"""Registry of network architectures."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.models.alexnet import AlexNetBN
from fedmosaic_cli.models.classifier import Classifier
from fedmosaic_cli.models.cnn import CNN, CNN3BN, CNNBN
from fedmosaic_cli.models.mlp import MLP
from fedmosaic_cli.models.registered_models import MODELS
from fedmosaic_cli.models.resnet import ResNet8, ResNet18
from fedmosaic_cli.models.vit import TinyViT, ViT
from fedmosaic_cli.plugin_sources import describe_location, plugin_failure

if TYPE_CHECKING:
    from fedmosaic_cli.models.model_settings import ModelSettings

VARIADIC_KINDS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
ARCHITECTURES = {
    "mlp": MLP,
    "cnn": CNN,
    "cnn-bn": CNNBN,
    "cnn3-bn": CNN3BN,
    "alexnet-bn": AlexNetBN,
    "resnet8": ResNet8,
    "resnet18": ResNet18,
    "vit": ViT,
    "vit-tiny": TinyViT,
}


def build_network(
    settings: ModelSettings, input_shape: tuple[int, int, int], num_classes: int, check_outputs: bool = True
) -> Classifier:
    """Build a network for inputs of shape [channels, height, width].

    Args:
        settings: The network and its options.
        input_shape: [channels, height, width].
        num_classes: Number of outputs.
        check_outputs: Refuse a plug-in network with another number of outputs.

    Raises:
        RequestError: The architecture does not support this image size.
    """
    if settings.name in MODELS:
        return build_plugin_network(settings.name, input_shape, num_classes, check_outputs)
    return ARCHITECTURES[settings.name](settings, input_shape, num_classes)


def build_plugin_network(
    name: str, input_shape: tuple[int, int, int], num_classes: int, check_outputs: bool
) -> Classifier:
    """Build a plug-in network.

    Raises:
        RequestError: The network cannot be built or does not fit the images, with the reason.
    """
    factory = MODELS[name]
    offered = {"input_shape": input_shape, "num_classes": num_classes}
    parameters = inspect.signature(factory).parameters
    for parameter in parameters.values():
        is_required = parameter.default is inspect.Parameter.empty and parameter.kind not in VARIADIC_KINDS
        if is_required and parameter.name not in offered:
            raise RequestError(
                f"{factory.__name__} needs '{parameter.name}' ({describe_location(factory)}): give it a default; "
                "fedmosaic passes input_shape and num_classes"
            )
    try:
        module = factory(**{key: value for key, value in offered.items() if key in parameters})
        if not isinstance(module, nn.Module):
            raise RequestError(
                f"{factory.__name__} returns {type(module).__name__} ({describe_location(factory)}): "
                "return a torch.nn.Module"
            )
        network = as_classifier(module, input_shape)
        num_outputs = network.head.out_features
    except RequestError:
        raise
    except Exception as error:
        shape = "x".join(map(str, input_shape))
        failure = plugin_failure(error) or f"{type(error).__name__}: {error} ({describe_location(factory)})"
        raise RequestError(f"{factory.__name__} cannot process images of {shape}: {failure}") from None
    if check_outputs and num_outputs != num_classes:
        raise RequestError(
            f"{factory.__name__} has {num_outputs} outputs for {num_classes} classes ({describe_location(factory)}): "
            "use the parameter num_classes"
        )
    return network


def as_classifier(module: nn.Module, input_shape: tuple[int, int, int]) -> Classifier:
    """Return a module as a classifier with a body and a head.

    A module with `features` and `head` is used as it is. Of any other module, the last linear layer becomes the head.

    Raises:
        RequestError: The module has no linear layer, or its outputs are not those of its last linear layer.
    """
    has_parts = hasattr(module, "features") and isinstance(getattr(module, "head", None), nn.Linear)
    if isinstance(module, Classifier) or has_parts:
        return module  # type: ignore[return-value]
    return SplitModule(module, input_shape)


class SplitModule(Classifier):
    """Any module whose outputs are those of its last linear layer: the head is taken out of the module."""

    def __init__(self, module: nn.Module, input_shape: tuple[int, int, int]) -> None:
        nn.Module.__init__(self)
        path = next((name for name, layer in reversed(list(module.named_modules())) if type(layer) is nn.Linear), None)
        if path is None:
            raise RequestError(f"{type(module).__name__} has no linear layer (--model): end it with nn.Linear")
        parent, _, name = path.rpartition(".")
        head = module.get_submodule(path)
        example = torch.zeros(2, *input_shape, device=next(module.parameters()).device)
        was_training = module.training
        with torch.no_grad():
            expected = module.eval()(example)
            setattr(module.get_submodule(parent), name, nn.Identity())
            features = module(example)
            outputs = head(features) if features.dim() == 2 else features
        is_same = outputs.shape == expected.shape and (outputs.is_meta or torch.equal(outputs, expected))
        if not is_same:
            raise RequestError(
                f"the outputs of {type(module).__name__} are not those of its last linear layer, {path} (--model): "
                "return logits, no softmax"
            )
        self.body = module.train(was_training)
        self.head = cast("nn.Linear", head)
