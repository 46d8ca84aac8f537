"""The order of the selected rows and columns of a report, for options and selection. Imports nothing heavy."""

from __future__ import annotations

from enum import StrEnum


class SelectionOrder(StrEnum):
    """The order of the selected rows and columns."""

    given = "given"
    table = "table"
    accuracy = "accuracy"
