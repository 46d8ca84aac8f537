"""The `model` section of the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, field_validator, model_serializer

from fedmosaic_cli.models.registered_models import MODELS
from fedmosaic_cli.schema import ConfigSection, IntTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import SerializerFunctionWrapHandler

Architecture = Literal["mlp", "cnn", "cnn-bn", "cnn3-bn", "alexnet-bn", "resnet8", "resnet18", "vit", "vit-tiny"]
NormName = Literal["group", "batch"]
EstimatorName = Literal["decision-tree", "random-forest", "gradient-boosting", "logistic-regression"]
ESTIMATOR_NAMES: tuple[str, ...] = get_args(EstimatorName)
MAX_HIDDEN_LAYERS = 100


def require_registered_model(name: str) -> str:
    """Return the name of a plug-in network. Raise ValueError if no such network is registered."""
    if name not in MODELS:
        raise ValueError("the name of a network that --model or --plugin defines")
    return name


PluginModelName = Annotated[str, AfterValidator(require_registered_model)]

# Keys that each model reads, in addition to the name.
MODEL_KEYS: dict[str, frozenset[str]] = {
    "mlp": frozenset({"hidden"}),
    "cnn": frozenset({"width"}),
    "cnn-bn": frozenset({"width"}),
    "cnn3-bn": frozenset({"width"}),
    "alexnet-bn": frozenset({"width"}),
    "resnet8": frozenset({"width", "norm"}),
    "resnet18": frozenset({"width", "norm"}),
    "vit": frozenset({"width", "patch"}),
    "vit-tiny": frozenset({"width", "patch"}),
    "decision-tree": frozenset({"depth"}),
    "random-forest": frozenset({"trees", "depth"}),
    "gradient-boosting": frozenset({"trees", "depth"}),
    "logistic-regression": frozenset(),
}
# Keys added later: recorded only for models that read them, so that older configurations and run ids stay the same.
KEYS_OF_LATER_VERSIONS = frozenset({"norm"})


class ModelSettings(ConfigSection):
    """The model of a client.

    Attributes:
        name: Architecture or estimator.
        hidden: Widths of the hidden layers of an mlp.
        width: Factor of the layer widths of all other networks.
        norm: Normalisation of a residual network.
        patch: Side of the patches of a vit; by default 16 for vit and 4 for vit-tiny.
        trees: Trees of a random forest, or rounds of gradient boosting.
        depth: Maximum depth of a tree.
    """

    name: Architecture | EstimatorName | PluginModelName = "mlp"
    hidden: IntTuple = (64,)
    width: Annotated[float, Field(ge=1 / 16, le=4)] = 1.0
    norm: NormName = "group"
    patch: Annotated[int, Field(ge=1, le=256)] | None = None
    trees: Annotated[int, Field(ge=1, le=10_000)] = 100
    depth: Annotated[int, Field(ge=1, le=1000)] | None = None

    @field_validator("hidden")
    @classmethod
    def require_positive_widths(cls, hidden: tuple[int, ...]) -> tuple[int, ...]:
        if len(hidden) > MAX_HIDDEN_LAYERS or any(not 1 <= width <= 65_536 for width in hidden):
            raise ValueError(f"a list of at most {MAX_HIDDEN_LAYERS} widths between 1 and 65536")
        return hidden

    @property
    def is_network(self) -> bool:
        """True if the model has weights that can be averaged."""
        return self.name not in ESTIMATOR_NAMES

    @property
    def has_batch_norm(self) -> bool:
        """True if the network has batch normalisation. For plug-in networks this is not known, so it is True."""
        has_norm_option = "norm" in self.used_keys and self.norm == "batch"
        return has_norm_option or self.name in ("cnn-bn", "cnn3-bn", "alexnet-bn", *MODELS)

    @property
    def used_keys(self) -> frozenset[str]:
        """The options that this model reads, in addition to its name."""
        return MODEL_KEYS.get(self.name, frozenset())

    def scaled_width(self, channels: int) -> int:
        """The number of channels times `width`, at least 1."""
        return max(1, round(channels * self.width))

    @model_serializer(mode="wrap")
    def without_unused_later_keys(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if key not in KEYS_OF_LATER_VERSIONS - self.used_keys}

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Represent the settings as older versions did, because run ids are made from it."""
        omitted = KEYS_OF_LATER_VERSIONS - self.used_keys
        return ((name, value) for name, value in super().__repr_args__() if name not in omitted)
