"""The paper's colour rule: what a method is worth beside training alone and training on everything."""

from __future__ import annotations

from enum import Enum

# Of an accuracy; no test part is so large that a later digit could mean anything.
ACCURACY_DECIMALS = 9


class BaselineRelation(Enum):
    """Name, mark in plain text, colour of the paper."""

    BASELINE = ("baseline", "", "377EB8")
    WORSE_THAN_BOTH = ("worse than both baselines", "▼", "E41A1C")
    WORSE_THAN_LOCAL = ("worse than local training", "▽", "D95F02")
    BETTER_THAN_BOTH = ("better than both baselines", "▲", "1B9E77")
    NEITHER = ("between the baselines or equal to one", "", "")
    UNKNOWN = ("a baseline is missing", "?", "")

    def __init__(self, description: str, symbol: str, colour: str) -> None:
        self.description = description
        self.symbol = symbol
        self.colour = colour


def relation_to_baselines(accuracy: float, local: float | None, centralized: float | None) -> BaselineRelation:
    """The verdict on a method. A tie is neither better nor worse; means that differ by rounding alone are a tie."""
    if local is None or centralized is None:
        return BaselineRelation.UNKNOWN
    accuracy, local, centralized = (round(value, ACCURACY_DECIMALS) for value in (accuracy, local, centralized))
    if accuracy < local:
        return BaselineRelation.WORSE_THAN_BOTH if accuracy < centralized else BaselineRelation.WORSE_THAN_LOCAL
    if accuracy > local and accuracy > centralized:
        return BaselineRelation.BETTER_THAN_BOTH
    return BaselineRelation.NEITHER
