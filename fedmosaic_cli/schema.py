"""What all sections of a configuration have in common: frozen, strictly typed, and no key that nobody reads."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

STRICT_MODEL_CONFIG = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

# YAML knows lists, not tuples; the elements stay strict.
IntTuple = Annotated[tuple[StrictInt, ...], Field(strict=False)]
StrTuple = Annotated[tuple[StrictStr, ...], Field(strict=False)]


class ConfigSection(BaseModel):
    """One section of the configuration."""

    model_config = ConfigDict(**STRICT_MODEL_CONFIG, frozen=True)
