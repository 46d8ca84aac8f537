"""Base classes of everything that pydantic validates: configuration sections and records read from disk."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

STRICT_MODEL_CONFIG = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

# YAML has lists but no tuples; the elements stay strict.
IntTuple = Annotated[tuple[StrictInt, ...], Field(strict=False)]
StrTuple = Annotated[tuple[StrictStr, ...], Field(strict=False)]

Fraction = Annotated[float, Field(ge=0, le=1)]


class ConfigSection(BaseModel):
    """A section of the configuration: frozen, strictly typed, without unknown keys."""

    model_config = ConfigDict(**STRICT_MODEL_CONFIG, frozen=True)


class Record(BaseModel):
    """A part of a file on disk that may come from another version or another author; unknown keys are allowed."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, allow_inf_nan=False)
