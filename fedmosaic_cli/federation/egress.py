"""What leaves a site: every response passes `EgressFilter`, which applies the site's policy to each field of it.

Fields that depend only on the request and the site's settings are sent unchanged. All others are sent exactly, rounded
or withheld, by `SitePolicy.metrics_level`. An error has a code from a fixed list; once the plan is accepted, its text
counts as dependent on data, because it may come from a plug-in.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.policy import METRICS_LEVELS
from fedmosaic_cli.labels.trust_diagnosis import MIN_EFFECTIVE_TRUST

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fedmosaic_cli.federation.policy import MetricsLevel, SitePolicy

METRIC_DECIMALS = 2
"""Rounded metrics have two decimals and, from 1 on, two significant digits."""
PUBLIC_FIELDS = frozenset({"kind", "client", "run", "round", "asked", "device", "version"})
METRIC_FIELDS = frozenset({protocol.METRICS_FIELD, protocol.EVALUATION_FIELD})
DATA_FIELDS = frozenset({protocol.SKIPPED_FIELD, "examples", "model"})
"""Other fields that depend on data: whether a client diverged, its number of examples, the digest of its model."""
ERROR_FIELDS = frozenset({"error", "text"})
WITHHELD_TEXTS = {
    protocol.ERROR_REFUSED: "the site refuses the request, and its log has the reason",
    protocol.ERROR_UNKNOWN_PARTS: "the site does not have these parts",
    protocol.ERROR_FAILED: "the request failed at the site, and its log has the reason",
}
"""All errors that leave a site with withheld metrics after it has read its data."""
NUMBER_PATTERN = re.compile(r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
MAX_NUMBER_CHARS = 40
PLACE_PATTERN = re.compile(r"\([^()]*[/\\][^()]*\)")
"""A path in parentheses, where errors name a place. It may contain spaces."""
PATH_PATTERN = re.compile(r"(?<!\S)(?!1/\d)\S*[/\\]\S*")
"""A path elsewhere, but not a fraction such as 1/470."""


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

    def filter_header(
        self, header: Mapping[str, Any], has_read_data: bool = True, withheld_metrics: Collection[str] = ()
    ) -> dict[str, Any]:
        """Return the header that may leave the site. Unknown fields are an error: each needs a rule.

        Args:
            header: The header of a response.
            has_read_data: Whether the request has passed the checks of its plan, so that an error may depend on data.
            withheld_metrics: Names of metrics that are sent as null, because rounding does not protect them; see
                `InProcessClient.withheld_metrics`.
        """
        filtered: dict[str, Any] = {}
        level = self.policy.metrics_level
        for name, value in header.items():
            if name in PUBLIC_FIELDS:
                filtered[name] = value
            elif name in METRIC_FIELDS:
                withheld = withheld_metrics if name == protocol.METRICS_FIELD else ()
                filtered[name] = self._filter_metrics(name, value, withheld)
            elif name in DATA_FIELDS:
                if level != "withheld":
                    filtered[name] = value
            elif name not in ERROR_FIELDS:
                raise ValueError(f"no rule for the field '{name}' of a response")
        evaluation = protocol.EVALUATION_FIELD
        if level == "withheld" or (header.get(evaluation) is not None and filtered[evaluation] is None):
            filtered[protocol.WITHHELD] = True
        if header.get("kind") == protocol.ERROR:
            filtered |= self._filter_error(str(header.get("error")), str(header.get("text")), has_read_data)
        return filtered

    def filter_stored(self, header: Mapping[str, Any], metrics_level: MetricsLevel) -> dict[str, Any]:
        """Return the header of a stored response that may leave the site now.

        Args:
            header: The header, as it was sent before.
            metrics_level: The level at which it was filtered. If the policy sends less now, no metrics are sent.
        """
        is_stricter = METRICS_LEVELS.index(self.policy.metrics_level) < METRICS_LEVELS.index(metrics_level)
        policy = replace(self.policy, metrics="withheld") if is_stricter else self.policy
        is_withheld = header.get(protocol.WITHHELD) is True
        current = {name: value for name, value in header.items() if name != protocol.WITHHELD}
        filtered = replace(self, policy=policy).filter_header(current)
        return filtered | ({protocol.WITHHELD: True} if is_withheld else {})

    def _filter_error(self, code: str, text: str, has_read_data: bool) -> dict[str, Any]:
        """Return a code from a fixed list, and a text in one line; a fixed text if metrics are withheld."""
        if code not in protocol.ERROR_CODES:
            code = protocol.ERROR_INVALID
        if has_read_data and self.policy.metrics_level == "withheld":
            code = code if code in WITHHELD_TEXTS else protocol.ERROR_FAILED
            return {"error": code, "text": WITHHELD_TEXTS[code]}
        if has_read_data and self.policy.metrics_level == "rounded":
            text = NUMBER_PATTERN.sub(rounded_number, text)
        return {"error": code, "text": protocol.printable_text(without_paths(text))}

    def _filter_metrics(
        self, name: str, metrics: Mapping[str, Any] | None, withheld: Collection[str]
    ) -> dict[str, Any] | None:
        level = self.policy.metrics_level
        if metrics is None or level == "withheld":
            return {} if name == protocol.METRICS_FIELD else None
        if level == "exact-unprotected":
            return dict(metrics)
        if name == protocol.EVALUATION_FIELD:
            if self.num_test < self.policy.min_examples:
                return None
            few_validation = self.num_validation < self.policy.min_examples
            metrics = {key: value for key, value in metrics.items() if key != "val_accuracy" or not few_validation}
        elif self.num_train < self.policy.min_examples:
            return {}
        rounded = {key: None if key in withheld else rounded_metric(value) for key, value in metrics.items()}
        if name == protocol.METRICS_FIELD and rounded.get("trust") is not None:
            rounded["trust"] = rounded_trust(metrics["trust"])
        return rounded


def rounded_metric(value: Any) -> Any:
    """Return a number with two decimals and, from 1 on, two significant digits; other values as they are."""
    if type(value) not in (int, float) or not value or not math.isfinite(value):
        return value
    magnitude = math.floor(math.log10(abs(value)))
    return round(value, min(METRIC_DECIMALS, METRIC_DECIMALS - 1 - magnitude))


def rounded_trust(value: float) -> float:
    """Return a rounded lambda that is 0 only if the client ignores the public set, which a run reports at its end."""
    return 0.0 if value < MIN_EFFECTIVE_TRUST else max(rounded_metric(value), 10.0**-METRIC_DECIMALS)


def without_paths(text: str) -> str:
    """Return a text without paths: a coordinator must not learn names of directories and users."""
    return PATH_PATTERN.sub("...", PLACE_PATTERN.sub("(...)", text))


def rounded_number(match: re.Match[str]) -> str:
    """Return a number in a text as a metric would be sent."""
    text = match[0]
    return f"{rounded_metric(float(text)):g}" if len(text) <= MAX_NUMBER_CHARS else "..."
