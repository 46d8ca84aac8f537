"""What leaves a site: every response passes `EgressFilter`, which applies the site's policy to each field of it.

A field is sent as it is only if it depends on the request and the site's settings alone. Values that depend on data are
rounded, withheld or sent as they are, by `SitePolicy.metrics_level`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.federation import protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.federation.policy import SitePolicy

METRIC_DECIMALS = 2
"""Rounded metrics have two decimals and, from 1 on, two significant digits."""
PUBLIC_FIELDS = frozenset({"kind", "client", "run", "round", "asked", "device", "version"})
METRIC_FIELDS = frozenset({"notes", "mark"})
DATA_FIELDS = frozenset({"left_out", "examples", "model"})
"""Other fields that depend on data: whether a client diverged, its number of examples, the digest of its model."""
ERROR_FIELDS = frozenset({"error", "text"})
WITHHELD_TEXT = "the reason stays at the site"


@dataclass(frozen=True)
class EgressFilter:
    """Applies the policy of a site to the header of a response.

    Attributes:
        policy: The policy.
        num_train: Number of training examples of the site.
        num_test: Number of test examples.
        num_validation: Number of validation examples; 0 for none.
    """

    policy: SitePolicy
    num_train: int
    num_test: int
    num_validation: int = 0

    def filter_header(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """Return the header that may leave the site. Unknown fields are an error: each needs a rule."""
        filtered: dict[str, Any] = {}
        level = self.policy.metrics_level
        for name, value in header.items():
            if name in PUBLIC_FIELDS:
                filtered[name] = value
            elif name in METRIC_FIELDS:
                filtered[name] = self._filter_metrics(name, value)
            elif name in DATA_FIELDS or name in ERROR_FIELDS:
                if level != "withheld":
                    filtered[name] = value
            else:
                raise ValueError(f"no rule for the field '{name}' of a response")
        if level == "withheld" or (header.get("mark") is not None and filtered["mark"] is None):
            filtered[protocol.WITHHELD] = True
        if level == "withheld" and header.get("kind") == protocol.ERROR:
            filtered |= self._withheld_error(header)
        return filtered

    def _withheld_error(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """Keep what the coordinator needs to go on: refusals depend on the plan and earlier runs, not on data."""
        code = header.get("error")
        if code == protocol.ERROR_REFUSED:
            return {"error": code, "text": header.get("text")}
        return {"error": code if code == protocol.ERROR_UNKNOWN_PARTS else "failed", "text": WITHHELD_TEXT}

    def _filter_metrics(self, name: str, metrics: Mapping[str, Any] | None) -> dict[str, Any] | None:
        level = self.policy.metrics_level
        if metrics is None or level == "withheld":
            return {} if name == "notes" else None
        if level == "exact-unprotected":
            return dict(metrics)
        if name == "mark":
            if self.num_test < self.policy.min_examples:
                return None
            few_validation = self.num_validation < self.policy.min_examples
            metrics = {key: value for key, value in metrics.items() if key != "val_accuracy" or not few_validation}
        elif self.num_train < self.policy.min_examples:
            return {}
        return {key: rounded_metric(value) for key, value in metrics.items()}


def rounded_metric(value: Any) -> Any:
    """Return a number with two decimals and, from 1 on, two significant digits; other values as they are."""
    if type(value) not in (int, float) or not value or not math.isfinite(value):
        return value
    magnitude = math.floor(math.log10(abs(value)))
    return round(value, min(METRIC_DECIMALS, METRIC_DECIMALS - 1 - magnitude))
