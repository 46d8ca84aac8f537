"""What one exchange of labels brought to every client, from the log of a run: certificates, and a diagnosis of votes.

A certificate says whether a client uses what it received, and what its own held-out examples say about it.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from fedmosaic_cli.cotraining.vote_shares import MIN_Z
from fedmosaic_cli.labels.trust_diagnosis import finite_metric, last_metric, mean_metric
from fedmosaic_cli.schema import Fraction, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    LogRows = Sequence[dict[str, Any]]

INTERVAL_Z = 1.96
"""Standard errors of a nominal 95 % interval."""
MIN_CLASS_COVERAGE = 0.5
MAX_EXAMPLES = 500


class Interval(Record):
    """A mean and its nominal 95 % interval. It covers less, because the mixture is chosen on the same data."""

    mean: float
    low: float
    high: float


class Certificate(Record):
    """The decision of one client after the exchange, and the evidence for it.

    A certificate is the result of the client's own test, not a guarantee.

    Attributes:
        client: Number of the client.
        collaborates: Whether it predicts with the mixture; otherwise its model is that of Local.
        accuracy_gain: Difference in accuracy between mixture and own model on held-out training examples, for the best
            mixture that was tested; None if nothing was tested.
        brier_gain: The same for the Brier score, which decides.
        weights: Weights of the views in the mixture; empty if it is not used.
        agreement_z: Agreement of the client's votes with those of the others, in standard deviations from chance.
    """

    client: Annotated[int, Field(ge=0)]
    collaborates: bool
    accuracy_gain: Interval | None = None
    brier_gain: Interval | None = None
    weights: dict[str, Fraction] = Field(default_factory=dict)
    agreement_z: float | None = None


class ExchangeDiagnosis(Record):
    """What the votes of a run are worth.

    Attributes:
        confidence: Mean confidence of the votes, as a fraction of the maximum.
        median_z: Median of the clients' `agreement_z`.
        holdout_z: How far a student predicts votes that it has not seen, in standard deviations from chance.
        class_coverage: Number of classes that the shares cover, as a fraction of all classes.
        label_accuracy: Fraction of correct labels, if the true ones are known.
        largest_client: Training examples of the largest client.
        failed: Whether there was no exchange, because too few uploads of the last round were valid.
    """

    confidence: Fraction | None = None
    median_z: float | None = None
    holdout_z: float | None = None
    class_coverage: Annotated[float, Field(ge=0)] | None = None
    label_accuracy: Fraction | None = None
    largest_client: Annotated[int, Field(ge=0)] = 0
    failed: bool = False

    def warnings(self, has_noise: bool = False) -> list[str]:
        """Return one sentence per reason to expect little of the exchange.

        Args:
            has_noise: Whether the votes are randomised labels.
        """
        messages = []
        if self.failed:
            messages.append(
                "too few valid uploads in the last round: there was no exchange, and all clients keep their own model; "
                "check which clients failed, or set a lower defence.min_clients"
            )
        if self.median_z is not None and self.median_z < MIN_Z:
            remedy = (
                "less noise may help (privacy.label_epsilon)"
                if has_noise
                else "a larger or more similar public set may help (data.public_size)"
            )
            messages.append(
                f"voters do not agree on the public set (median z {self.median_z:.1f}, below {MIN_Z:g}), so with the "
                f"gate `safe` all clients keep their own model: {remedy}"
            )
        if self.holdout_z is not None and self.holdout_z < MIN_Z:
            messages.append(
                f"a student cannot predict the votes (z {self.holdout_z:.1f}, below {MIN_Z:g}): they are noise, and "
                "all clients keep their own model; a larger or more similar public set may help (data.public_size)"
            )
        if self.class_coverage is not None and self.class_coverage < MIN_CLASS_COVERAGE:
            messages.append(
                f"the votes cover {100 * self.class_coverage:.0f}% of the classes: the public set is skewed, or the "
                "voters are; choose public examples of all classes, or let more clients take part"
            )
        if self.largest_client > MAX_EXAMPLES:
            messages.append(
                f"clients have up to {self.largest_client} training examples: above about {MAX_EXAMPLES}, gains are "
                "small unless the clients' data are similar; compare with Local before you rely on them"
            )
        return messages


def client_certificates(rows: LogRows) -> list[Certificate]:
    """Return the certificate of every client, from the rows of the last round.

    Raises:
        KeyError, TypeError, ValueError: The rows are not lines of a log.
    """
    last_round = max((row["round"] for row in rows), default=0)
    return [
        Certificate(
            client=row["client"],
            collaborates=bool(row["gate_on"]),
            accuracy_gain=interval(row, "gate_accuracy_gain", "gate_accuracy_error"),
            brier_gain=interval(row, "gate_gain", "gate_error"),
            weights={
                name.removeprefix("weight_"): float(value) for name, value in row.items() if name.startswith("weight_")
            },
            agreement_z=finite_metric(row, "agreement_z"),
        )
        for row in rows
        if row["round"] == last_round and finite_metric(row, "gate_on") is not None
    ]


def interval(row: dict[str, Any], mean: str, error: str) -> Interval | None:
    """Return the nominal 95 % interval of a logged mean with its standard error; None if it is not logged."""
    center, half = finite_metric(row, mean), finite_metric(row, error)
    if center is None or half is None:
        return None
    return Interval(mean=center, low=center - INTERVAL_Z * half, high=center + INTERVAL_Z * half)


def mean_accuracy_gain(certificates: Sequence[Certificate]) -> float | None:
    """Return the mean gain on held-out data of the clients that use the student; None without a test.

    It is usually larger than the gain on test data: the own models of the test have seen fewer examples, only clients
    with a gain on these data are counted, and the shares contain the client's own votes.
    """
    gains = [each.accuracy_gain.mean for each in certificates if each.collaborates and each.accuracy_gain]
    return fmean(gains) if gains else None


def diagnose_exchange(rows: LogRows, largest_client: int) -> ExchangeDiagnosis:
    """Diagnose the votes of a run with one exchange."""
    median_z = last_metric(rows, "median_z")
    return ExchangeDiagnosis(
        confidence=mean_metric(rows, "confidence"),
        median_z=median_z,
        holdout_z=mean_metric(rows, "holdout_z"),
        class_coverage=last_metric(rows, "class_coverage"),
        label_accuracy=last_metric(rows, "pseudo_label_accuracy"),
        largest_client=largest_client,
        failed=median_z is None and last_metric(rows, "exchanged") == 0,
    )


def describe_certificates(certificates: Sequence[Certificate], exchange: ExchangeDiagnosis) -> list[str]:
    """Return a summary of certificates and votes in sentences."""
    num_used = sum(certificate.collaborates for certificate in certificates)
    lines = [f"{num_used} of {len(certificates)} clients use the student"]
    gain = mean_accuracy_gain(certificates)
    if gain is not None:
        lines[0] += f"; on their held-out training data it brings {100 * gain:+.1f} points (an optimistic estimate)"
    numbers = {
        "mean confidence {:.1f}%": exchange.confidence and 100 * exchange.confidence,
        "median agreement z {:.1f}": exchange.median_z,
        "prediction of votes z {:.1f}": exchange.holdout_z,
        "classes covered {:.0f}%": exchange.class_coverage and 100 * exchange.class_coverage,
    }
    known = [text.format(value) for text, value in numbers.items() if value is not None]
    return [*lines, f"votes: {', '.join(known)}"] if known else lines
