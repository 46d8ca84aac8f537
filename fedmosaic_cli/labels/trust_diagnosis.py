"""What the log of a run tells of its co-training: a few numbers, and a warning where they mean something else."""

from __future__ import annotations

from statistics import fmean, median
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from fedmosaic_cli.schema import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    LogRows = Sequence[dict[str, Any]]

MIN_EFFECTIVE_TRUST = 1e-6
"""With less trust than this, no step notices the public set."""
MAX_LOGGED_VALUE = 1e300

UnitFraction = Annotated[float, Field(ge=0, le=1)]
NonNegativeCount = Annotated[int, Field(ge=0)]
TrustValue = Annotated[float, Field(ge=0)]


class GateOutcome(Record):
    """What a client's gate decided: whether a consensus that it trusts so far (`trust`) and agrees with so often may
    join its training, by the mean gain out of fold and its standard error."""

    client: NonNegativeCount
    round: Annotated[int, Field(ge=1)]
    agreement: UnitFraction | None = None
    trust: TrustValue | None = None
    gain: float | None = None
    error: Annotated[float, Field(ge=0)] | None = None
    on: bool


class VoteAccuracy(Record):
    """How many labels of the last vote are right, weighted by expertise and by plain majority: by labels that nobody
    in a federation has."""

    weighted: UnitFraction | None = None
    majority: UnitFraction | None = None


class TrustDiagnosis(Record):
    """Lambda in the last round that each client took part in, and what clients made of the consensus until then.

    Counted are `clients` that were sent a consensus, in so many `rounds`. Silent is a lambda below 1e-6. Self-training
    is a lambda above 1 for pseudo-labels that fit better than the client's own labels, while these fit worse than when
    the first consensus came. Agreement, difference of votes and public share are means over clients and rounds.
    """

    clients: Annotated[int, Field(ge=1)]
    rounds: Annotated[int, Field(ge=1)]
    by_losses: bool = False
    """Whether lambda follows from the ratio of two training losses."""
    median_lambda: TrustValue | None = None
    least_lambda: TrustValue | None = None
    largest_lambda: TrustValue | None = None
    silent_share: UnitFraction = 0.0
    silent_clients: NonNegativeCount = 0
    silent_by_gate: NonNegativeCount = 0
    silent_since: Annotated[int, Field(ge=1)] | None = None
    self_training_clients: NonNegativeCount = 0
    vote_agreement: UnitFraction | None = None
    votes_differ: UnitFraction | None = None
    public_share: UnitFraction | None = None
    oracle: VoteAccuracy = VoteAccuracy()
    gate: list[GateOutcome] = Field(default_factory=list)

    def warnings(self) -> list[str]:
        """What a reader of the accuracies should know, a sentence each."""
        found, faded = [], self.silent_clients - self.silent_by_gate
        if self.by_losses and self.silent_since is not None and 2 * faded > self.clients:
            found.append(
                f"lambda is below 1e-6 for {faded} of {self.clients} clients since round {self.silent_since}: for "
                "them this is Local training, and nothing here tells of collaboration"
            )
        if 2 * self.self_training_clients > self.clients:
            found.append(
                f"lambda is above 1 for {self.self_training_clients} of {self.clients} clients while their private "
                "loss rises: they follow pseudo-labels that they memorised (self-training)"
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """The entry of a summary; the warnings are for those who read it there."""
        return {**self.model_dump(), "warnings": self.warnings()}


def diagnose_trust(rows: LogRows, is_loss_based: bool) -> TrustDiagnosis | None:
    """The diagnosis of a co-training run from the lines of its log, in the order of the rounds.

    None where nobody was ever sent a consensus. Raises KeyError, TypeError or ValueError where these are no such lines.
    """
    courses: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if (finite_metric(row, "bits_down") or 0) > 0 and finite_metric(row, "lambda") is not None:
            courses.setdefault(row["client"], []).append(row)
    if not courses:
        return None
    exchanged = [row for course in courses.values() for row in course]
    lasts = [course[-1]["lambda"] for course in courses.values()]
    decisions = gate_outcomes(rows)
    fades = {client: start for client, course in courses.items() if (start := silent_since_round(course)) is not None}
    shut = {decision.client for decision in decisions if not decision.on} & fades.keys()
    return TrustDiagnosis(
        clients=len(courses),
        rounds=len({row["round"] for row in exchanged}),
        by_losses=is_loss_based,
        median_lambda=float(median(lasts)),
        least_lambda=float(min(lasts)),
        largest_lambda=float(max(lasts)),
        silent_share=fmean(row["lambda"] < MIN_EFFECTIVE_TRUST for row in exchanged),
        silent_clients=len(fades),
        silent_by_gate=len(shut),
        silent_since=max((start for client, start in fades.items() if client not in shut), default=None),
        self_training_clients=sum(map(is_self_training, courses.values())),
        vote_agreement=mean_metric(rows, "vote_agreement"),
        votes_differ=mean_metric(rows, "votes_differ"),
        public_share=mean_metric(exchanged, "public_share"),
        oracle=VoteAccuracy(
            weighted=last_metric(rows, "weighted_accuracy"), majority=last_metric(rows, "majority_accuracy")
        ),
        gate=decisions,
    )


def silent_since_round(client_rows: LogRows) -> int | None:
    """The round since which a client's lambda is below what matters; None where it is not at the end."""
    start = None
    for row in reversed(client_rows):
        if row["lambda"] >= MIN_EFFECTIVE_TRUST:
            break
        start = row["round"]
    return start


def is_self_training(client_rows: LogRows) -> bool:
    """Whether a client follows pseudo-labels that it knows better than its own labels, which it forgets."""
    first, private = finite_metric(client_rows[0], "loss_private"), finite_metric(client_rows[-1], "loss_private")
    public = finite_metric(client_rows[-1], "loss_public")
    if first is None or private is None or public is None:
        return False
    return bool(client_rows[-1]["lambda"] > 1) and private > first and public < private


def gate_outcomes(rows: LogRows) -> list[GateOutcome]:
    """The last decision of every client's gate, where clients have one. How far a client agrees may be known before."""
    last = {row["client"]: row for row in rows if finite_metric(row, "gate_on") is not None}
    agreement = {
        row["client"]: row["gate_agreement"] for row in rows if finite_metric(row, "gate_agreement") is not None
    }
    return [
        GateOutcome(
            client=client,
            round=row["round"],
            agreement=agreement.get(client),
            trust=finite_metric(row, "gate_trust"),
            gain=finite_metric(row, "gate_gain"),
            error=finite_metric(row, "gate_error"),
            on=bool(row["gate_on"]),
        )
        for client, row in sorted(last.items())
    ]


def mean_metric(rows: Iterable[dict[str, Any]], name: str) -> float | None:
    values = [value for row in rows if (value := finite_metric(row, name)) is not None]
    return fmean(values) if values else None


def last_metric(rows: LogRows, name: str) -> float | None:
    return next((value for row in reversed(rows) if (value := finite_metric(row, name)) is not None), None)


def finite_metric(row: dict[str, Any], name: str) -> float | None:
    """A value of a line, if it is a number to calculate with."""
    value = row.get(name)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not -MAX_LOGGED_VALUE <= value <= MAX_LOGGED_VALUE
    ):
        return None
    return float(value)
