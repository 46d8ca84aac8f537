"""The `data` section: which data set, dealt to whom, and how."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedmosaic_cli.settings import Integers, Section

Scheme = Literal["iid", "pathological", "dirichlet", "domain", "hybrid"]


class DataSettings(Section):
    """Everything that decides which example lies where, but for the seed."""

    dataset: str = "digits"
    scheme: Scheme = "dirichlet"
    clients: Annotated[int, Field(ge=1, le=100_000)] = 15
    alpha: Annotated[float, Field(gt=0)] = 0.1
    classes_per_client: Annotated[int, Field(ge=1)] = 2
    clients_per_domain: Annotated[int, Field(ge=1)] | None = None
    public_size: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    public_alpha: Annotated[float, Field(gt=0)] | None = None
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.25
    min_size: Annotated[int, Field(ge=2)] = 10
    flip_labels: Integers = ()

    def parameters(self) -> dict[str, object]:
        """The settings that this scheme reads, for the manifest."""
        own = {
            "iid": ("clients",),
            "pathological": ("clients", "classes_per_client"),
            "dirichlet": ("clients", "alpha", "min_size"),
            "domain": ("clients_per_domain",),
            "hybrid": ("clients_per_domain", "classes_per_client"),
        }[self.scheme]
        everywhere = ("public_size", "public_alpha", "test_fraction", "flip_labels")
        return self.model_dump(mode="json", include={*own, *everywhere})
