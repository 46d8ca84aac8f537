"""The `data` section: which data set, dealt to whom, and how."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedmosaic_cli.schema import Integers, Section, Texts

Scheme = Literal["iid", "pathological", "dirichlet", "domain", "hybrid", "natural"]
Protocol = Literal["official", "pfllib", "fedbn"]
NoiseKind = Literal["symmetric", "asymmetric"]
MOST_CLIENTS = 100_000

# What each scheme reads beside the settings that all of them do.
OWN_PARAMETERS = {
    "iid": ("clients",),
    "pathological": ("clients", "classes_per_client", "balanced"),
    "dirichlet": ("clients", "alpha", "min_size"),
    "domain": ("clients_per_domain",),
    "hybrid": ("clients_per_domain", "classes_per_client", "balanced"),
    "natural": ("clients",),
}
# Settings that came when there were shards already, whose digests and names shall stay.
LATER = ("share", "public_from")


class DataSettings(Section):
    """Everything that decides which example lies where, but for the seed. None: it depends on the other settings.

    With a `share` below 1 only a part of the data set is used, the same for every seed. With `public_from` the public
    set comes from a reserve of so many examples that no client gets, whatever its size and skew.
    """

    dataset: str = "digits"
    scheme: Scheme = "dirichlet"
    protocol: Protocol = "official"
    clients: Annotated[int, Field(ge=1, le=MOST_CLIENTS)] | None = None
    alpha: Annotated[float, Field(gt=0)] = 0.1
    classes_per_client: Annotated[int, Field(ge=1, le=65_536)] = 2
    balanced: bool = True
    clients_per_domain: Annotated[int, Field(ge=1, le=MOST_CLIENTS)] | None = None
    domains: Texts = ()
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    image_size: Annotated[int, Field(ge=1, le=4096)] | None = None
    public_size: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    public_alpha: Annotated[float, Field(gt=0)] | None = None
    public_from: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    test_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    val_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    min_size: Annotated[int, Field(ge=2, le=10_000_000)] | None = None
    flip_labels: Integers = ()
    label_noise: Annotated[float, Field(ge=0, le=1)] = 0.0
    label_noise_kind: NoiseKind = "symmetric"

    def parameters(self) -> dict[str, object]:
        """The settings that this scheme and this protocol read, for the manifest."""
        return self.model_dump(mode="json", include=set(self.names_read()))

    def names_read(self) -> tuple[str, ...]:
        """The names of these settings."""
        everywhere = ("protocol", "domains", "image_size", "public_size", "public_alpha", "flip_labels", "label_noise")
        sizes = () if self.protocol == "fedbn" else ("test_fraction", "val_fraction")
        kind = ("label_noise_kind",) if self.label_noise else ()
        return (*OWN_PARAMETERS[self.scheme], *everywhere, *sizes, *kind, *(set(LATER) - self.unused()))

    def recorded(self) -> dict[str, object]:
        """All settings, for what stands for them: a later one only where it is used, so that older names remain."""
        return self.model_dump(mode="json", exclude=self.unused())

    def unused(self) -> set[str]:
        """The later settings that are as if there were none."""
        return {name for name in LATER if getattr(self, name) == type(self).model_fields[name].default}
