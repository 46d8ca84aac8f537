"""Diagnosis of co-training from the log of a run: statistics of lambda, and warnings."""

from __future__ import annotations

from statistics import fmean, median
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from fedmosaic_cli.schema import Fraction, Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    LogRows = Sequence[dict[str, Any]]

MIN_EFFECTIVE_TRUST = 1e-6
"""Below this lambda the public set has no effect on training."""
MAX_LOGGED_VALUE = 1e300

NonNegativeCount = Annotated[int, Field(ge=0)]
TrustValue = Annotated[float, Field(ge=0)]


class GateOutcome(Record):
    """The decision of a client's gate (`on`: collaboration is accepted), from the held-out gain and its error."""

    client: NonNegativeCount
    round: Annotated[int, Field(ge=1)]
    agreement: Fraction | None = None
    trust: TrustValue | None = None
    gain: float | None = None
    error: Annotated[float, Field(ge=0)] | None = None
    on: bool


class VoteAccuracy(Record):
    """Accuracy of the last weighted and majority vote, by the true labels of the public set."""

    weighted: Fraction | None = None
    majority: Fraction | None = None


class TrustDiagnosis(Record):
    """Statistics over the clients and rounds with a received consensus.

    Lambda is that of each client's last round. A client is silent if its lambda is below 1e-6. It is self-training if
    its lambda is above 1, the pseudo-labels fit better than its own labels, and its private loss is above that of its
    first round with a consensus. `vote_agreement`, `votes_differ` and `public_share` are means over clients and rounds.
    """

    clients: Annotated[int, Field(ge=1)]
    rounds: Annotated[int, Field(ge=1)]
    by_losses: bool = False
    """True if lambda is computed from the ratio of two training losses."""
    median_lambda: TrustValue | None = None
    least_lambda: TrustValue | None = None
    largest_lambda: TrustValue | None = None
    silent_share: Fraction = 0.0
    silent_clients: NonNegativeCount = 0
    silent_by_gate: NonNegativeCount = 0
    silent_since: Annotated[int, Field(ge=1)] | None = None
    self_training_clients: NonNegativeCount = 0
    vote_agreement: Fraction | None = None
    votes_differ: Fraction | None = None
    public_share: Fraction | None = None
    oracle: VoteAccuracy = VoteAccuracy()
    gate: list[GateOutcome] = Field(default_factory=list)

    @property
    def num_faded(self) -> int:
        """Number of clients whose lambda vanished without a decision of their gate."""
        return self.silent_clients - self.silent_by_gate

    @property
    def has_faded(self) -> bool:
        """Whether lambda vanished for most clients."""
        return self.by_losses and self.silent_since is not None and 2 * self.num_faded > self.clients

    @property
    def has_self_training(self) -> bool:
        return 2 * self.self_training_clients > self.clients

    def explanations(self) -> list[str]:
        """The warnings for readers who do not know lambda; those of `warnings` are recorded in the summary."""
        messages = []
        if self.has_faded:
            messages.append(
                f"{self.num_faded} of {self.clients} clients have ignored the pseudo-labels since round "
                f"{self.silent_since} (lambda below 1e-6): they train alone, as in Local, so these accuracies say "
                "nothing about collaboration"
            )
        if self.has_self_training:
            messages.append(
                f"{self.self_training_clients} of {self.clients} clients follow pseudo-labels that they have memorised "
                "(lambda above 1 while their private loss rises): their accuracy may fall below that of Local"
            )
        return messages

    def warnings(self) -> list[str]:
        """One sentence per problem that affects the interpretation of the accuracies."""
        messages, faded = [], self.num_faded
        if self.has_faded:
            messages.append(
                f"lambda is below 1e-6 for {faded} of {self.clients} clients since round {self.silent_since}: for "
                "them this is Local training, and nothing here tells of collaboration"
            )
        if self.has_self_training:
            messages.append(
                f"lambda is above 1 for {self.self_training_clients} of {self.clients} clients while their private "
                "loss rises: they follow pseudo-labels that they memorised (self-training)"
            )
        return messages

    def to_dict(self) -> dict[str, Any]:
        """The entry of the summary, including the warnings."""
        return {**self.model_dump(), "warnings": self.warnings()}


def diagnose_trust(rows: LogRows, is_loss_based: bool) -> TrustDiagnosis | None:
    """Diagnose a co-training run.

    Args:
        rows: Lines of the log, ordered by round.
        is_loss_based: Whether lambda is computed from two training losses.

    Returns:
        The diagnosis, or None if no client received a consensus.

    Raises:
        KeyError, TypeError, ValueError: The rows are not lines of a log.
    """
    rows_by_client: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if (finite_metric(row, "bits_down") or 0) > 0 and finite_metric(row, "lambda") is not None:
            rows_by_client.setdefault(row["client"], []).append(row)
    if not rows_by_client:
        return None
    exchanged = [row for client_rows in rows_by_client.values() for row in client_rows]
    last_lambdas = [client_rows[-1]["lambda"] for client_rows in rows_by_client.values()]
    decisions = gate_outcomes(rows)
    starts = {client: silent_since_round(client_rows) for client, client_rows in rows_by_client.items()}
    silent_since = {client: start for client, start in starts.items() if start is not None}
    gated = {decision.client for decision in decisions if not decision.on} & silent_since.keys()
    return TrustDiagnosis(
        clients=len(rows_by_client),
        rounds=len({row["round"] for row in exchanged}),
        by_losses=is_loss_based,
        median_lambda=float(median(last_lambdas)),
        least_lambda=float(min(last_lambdas)),
        largest_lambda=float(max(last_lambdas)),
        silent_share=fmean(row["lambda"] < MIN_EFFECTIVE_TRUST for row in exchanged),
        silent_clients=len(silent_since),
        silent_by_gate=len(gated),
        silent_since=max((start for client, start in silent_since.items() if client not in gated), default=None),
        self_training_clients=sum(map(is_self_training, rows_by_client.values())),
        vote_agreement=mean_metric(rows, "vote_agreement"),
        votes_differ=mean_metric(rows, "votes_differ"),
        # Sites do not send it, unless it is 0.
        public_share=None
        if any("public_share" in row and row["public_share"] is None for row in exchanged)
        else mean_metric(exchanged, "public_share"),
        oracle=VoteAccuracy(
            weighted=last_metric(rows, "weighted_accuracy"), majority=last_metric(rows, "majority_accuracy")
        ),
        gate=decisions,
    )


def silent_since_round(client_rows: LogRows) -> int | None:
    """The round since which lambda is below MIN_EFFECTIVE_TRUST; None if the last lambda is not."""
    start = None
    for row in reversed(client_rows):
        if row["lambda"] >= MIN_EFFECTIVE_TRUST:
            break
        start = row["round"]
    return start


def is_self_training(client_rows: LogRows) -> bool:
    """True if a client is self-training; see `TrustDiagnosis`."""
    first, private = finite_metric(client_rows[0], "loss_private"), finite_metric(client_rows[-1], "loss_private")
    public = finite_metric(client_rows[-1], "loss_public")
    if first is None or private is None or public is None:
        return False
    return bool(client_rows[-1]["lambda"] > 1) and private > first and public < private


def gate_outcomes(rows: LogRows) -> list[GateOutcome]:
    """The last decision of every client's gate. The agreement may be logged in an earlier round."""
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
    """A value of a row; None unless it is a number of usable size."""
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -MAX_LOGGED_VALUE <= value <= MAX_LOGGED_VALUE else None
