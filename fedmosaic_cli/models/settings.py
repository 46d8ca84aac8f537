"""The `model` section: which architecture, how large."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from fedmosaic_cli.settings import Integers, Section


class ModelSettings(Section):
    """`hidden` are the widths of the hidden layers."""

    name: Literal["mlp"] = "mlp"
    hidden: Integers = (64,)

    @field_validator("hidden")
    @classmethod
    def widths_are_positive(cls, hidden: tuple[int, ...]) -> tuple[int, ...]:
        if any(not 1 <= width <= 65_536 for width in hidden):
            raise ValueError("a list of widths between 1 and 65536")
        return hidden
