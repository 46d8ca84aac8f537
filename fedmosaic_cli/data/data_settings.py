"""The `data` section: which data set, dealt to whom, and how."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedmosaic_cli.schema import ConfigSection, IntTuple, StrTuple

PartitionScheme = Literal["iid", "pathological", "dirichlet", "domain", "hybrid", "natural"]
SplitProtocol = Literal["official", "pfllib", "fedbn"]
LabelNoiseKind = Literal["symmetric", "asymmetric"]
MAX_CLIENTS = 100_000

# What each scheme reads beside the settings that all of them do.
SCHEME_PARAMETERS = {
    "iid": ("clients",),
    "pathological": ("clients", "classes_per_client", "balanced"),
    "dirichlet": ("clients", "alpha", "min_size"),
    "domain": ("clients_per_domain",),
    "hybrid": ("clients_per_domain", "classes_per_client", "balanced"),
    "natural": ("clients",),
}
# Settings that came when there were shards already, whose digests and names shall stay.
OMITTED_IF_DEFAULT = ("share", "public_from")


class DataSettings(ConfigSection):
    """Everything that decides which example lies where, but for the seed. None: it depends on the other settings.

    With a `share` below 1 only a part of the data set is used, the same for every seed. With `public_from` the public
    set comes from a reserve of so many examples that no client gets, whatever its size and skew.
    """

    dataset: str = "digits"
    scheme: PartitionScheme = "dirichlet"
    protocol: SplitProtocol = "official"
    clients: Annotated[int, Field(ge=1, le=MAX_CLIENTS)] | None = None
    alpha: Annotated[float, Field(gt=0)] = 0.1
    classes_per_client: Annotated[int, Field(ge=1, le=65_536)] = 2
    balanced: bool = True
    clients_per_domain: Annotated[int, Field(ge=1, le=MAX_CLIENTS)] | None = None
    domains: StrTuple = ()
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    image_size: Annotated[int, Field(ge=1, le=4096)] | None = None
    public_size: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    public_alpha: Annotated[float, Field(gt=0)] | None = None
    public_from: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    test_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    val_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    min_size: Annotated[int, Field(ge=2, le=10_000_000)] | None = None
    flip_labels: IntTuple = ()
    label_noise: Annotated[float, Field(ge=0, le=1)] = 0.0
    label_noise_kind: LabelNoiseKind = "symmetric"

    def used_parameters(self) -> dict[str, object]:
        """The settings that this scheme and this protocol read, for the manifest."""
        return self.model_dump(mode="json", include=set(self.used_parameter_names()))

    def used_parameter_names(self) -> tuple[str, ...]:
        """The names of these settings."""
        everywhere = ("protocol", "domains", "image_size", "public_size", "public_alpha", "flip_labels", "label_noise")
        sizes = () if self.protocol == "fedbn" else ("test_fraction", "val_fraction")
        kind = ("label_noise_kind",) if self.label_noise else ()
        return (
            *SCHEME_PARAMETERS[self.scheme],
            *everywhere,
            *sizes,
            *kind,
            *(set(OMITTED_IF_DEFAULT) - self.omitted_fields()),
        )

    def to_record(self) -> dict[str, object]:
        """All settings, for what stands for them: a later one only where it is used, so that older names remain."""
        return self.model_dump(mode="json", exclude=self.omitted_fields())

    def omitted_fields(self) -> set[str]:
        """The later settings that are as if there were none."""
        return {name for name in OMITTED_IF_DEFAULT if getattr(self, name) == type(self).model_fields[name].default}
