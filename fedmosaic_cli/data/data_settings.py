"""The `data` section of the configuration: data set and partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from fedmosaic_cli.schema import ConfigSection, IntTuple, StrTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

PartitionScheme = Literal["iid", "pathological", "dirichlet", "domain", "hybrid", "natural"]
SplitProtocol = Literal["official", "pfllib", "fedbn"]
LabelNoiseKind = Literal["symmetric", "asymmetric"]
MAX_CLIENTS = 100_000

# The settings that each scheme reads in addition to the common ones.
SCHEME_PARAMETERS = {
    "iid": ("clients",),
    "pathological": ("clients", "classes_per_client", "balanced"),
    "dirichlet": ("clients", "alpha", "min_size"),
    "domain": ("clients_per_domain",),
    "hybrid": ("clients_per_domain", "classes_per_client", "balanced"),
    "natural": ("clients",),
}
# Settings added later: omitted at their defaults, so that digests and names of older shards stay valid.
OMITTED_IF_DEFAULT = ("share", "public_from", "examples_per_client", "test_examples_per_client")
# Those that config.yaml and run ids of version 0.1.0 do not contain.
NOT_IN_FIRST_VERSION = ("examples_per_client", "test_examples_per_client")


def require_client_counts(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Return the numbers of clients per domain. Raise ValueError if one is out of range."""
    if not counts or not all(1 <= count <= MAX_CLIENTS for count in counts):
        raise ValueError(f"a list of numbers from 1 to {MAX_CLIENTS}")
    return counts


ClientCount = Annotated[int, Field(ge=1, le=MAX_CLIENTS)]
ClientCounts = Annotated[IntTuple, AfterValidator(require_client_counts)]


class DataSettings(ConfigSection):
    """All settings that determine a partition, except the seed. None means that the default depends on the others.

    A `share` below 1 uses a fixed subset of the data set, the same for every seed. `public_from` is the size of a pool
    that no client gets and from which the public set is drawn, whatever its size and skew. `clients_per_domain` is one
    number for all domains, or one per domain in their order. `examples_per_client` is the exact number of training
    examples of each client, its validation examples included, and `test_examples_per_client` that of its test examples.
    """

    dataset: str = "digits"
    scheme: PartitionScheme = "dirichlet"
    protocol: SplitProtocol = "official"
    clients: ClientCount | None = None
    alpha: Annotated[float, Field(gt=0)] = 0.1
    classes_per_client: Annotated[int, Field(ge=1, le=65_536)] = 2
    balanced: bool = True
    clients_per_domain: ClientCount | ClientCounts | None = None
    domains: StrTuple = ()
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    image_size: Annotated[int, Field(ge=1, le=4096)] | None = None
    public_size: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    public_alpha: Annotated[float, Field(gt=0)] | None = None
    public_from: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    test_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    val_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    min_size: Annotated[int, Field(ge=2, le=10_000_000)] | None = None
    examples_per_client: Annotated[int, Field(ge=2, le=10_000_000)] | None = None
    test_examples_per_client: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    flip_labels: IntTuple = ()
    label_noise: Annotated[float, Field(ge=0, le=1)] = 0.0
    label_noise_kind: LabelNoiseKind = "symmetric"

    def used_parameters(self) -> dict[str, object]:
        """Return the settings that this scheme and protocol read."""
        return self.model_dump(mode="json", include=set(self.used_parameter_names()))

    def used_parameter_names(self) -> tuple[str, ...]:
        common = ("protocol", "domains", "image_size", "public_size", "public_alpha", "flip_labels", "label_noise")
        fractions = () if self.protocol == "fedbn" else ("test_fraction", "val_fraction")
        unused = set() if self.examples_per_client is None else {"min_size", "test_fraction"}
        noise_kind = ("label_noise_kind",) if self.label_noise else ()
        later = set(OMITTED_IF_DEFAULT) - self.omitted_fields()
        names = (*SCHEME_PARAMETERS[self.scheme], *common, *fractions, *noise_kind, *later)
        return tuple(name for name in names if name not in unused)

    def to_record(self) -> dict[str, object]:
        """Return all settings for digests; later ones only if they differ from the default."""
        return self.model_dump(mode="json", exclude=self.omitted_fields())

    def to_config(self) -> dict[str, object]:
        """Return all settings for config.yaml; those that 0.1.0 did not have only if they differ from the default."""
        return self.model_dump(mode="json", exclude=self.omitted_fields() & set(NOT_IN_FIRST_VERSION))

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Represent the settings as 0.1.0 did, because run ids are made from it."""
        omitted = self.omitted_fields() & set(NOT_IN_FIRST_VERSION)
        return ((name, value) for name, value in super().__repr_args__() if name not in omitted)

    def omitted_fields(self) -> set[str]:
        return {name for name in OMITTED_IF_DEFAULT if getattr(self, name) == type(self).model_fields[name].default}
