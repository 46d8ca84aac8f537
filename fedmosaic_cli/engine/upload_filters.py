"""Filters between the clients' uploads and `Method.aggregate`: checks, simulated attacks, validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmosaic_cli.errors import DivergenceError, RunFailedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.engine.client_pool import ClientHandle, ClientResult
    from fedmosaic_cli.engine.federation import Federation

    Results = dict[int, ClientResult]


class UploadFilter:
    """One step between the clients' uploads and the server. The base class changes nothing."""

    def apply(self, federation: Federation, clients: Sequence[ClientHandle], results: Results) -> Results:
        """Check or replace the results of a round before the server aggregates them.

        Args:
            federation: The federation; its state is that of before the aggregation.
            clients: The clients that were selected for the round.
            results: The results by client id. A lost client has none.

        Returns:
            The results to aggregate. A result with an empty upload counts its traffic but is not aggregated.
        """
        return results

    def after_aggregate(self, federation: Federation) -> None:
        """Log what the aggregation produced. Called once per round."""

    def round_metrics(self, federation: Federation) -> dict[str, float]:
        """Return metrics of the round that are logged for every client."""
        return {}


@dataclass(frozen=True)
class QuorumFilter(UploadFilter):
    """Stops the run when too few clients took part in a round.

    Attributes:
        quorum: The number of results that a round needs. None requires all selected clients.
    """

    quorum: int | None = None

    def apply(self, federation: Federation, clients: Sequence[ClientHandle], results: Results) -> Results:
        number = clients[0].round
        needed = min(self.quorum or len(clients), len(clients))
        if len(results) < needed:
            lost = "; ".join(f"client {c.id}: {c.metrics.get('lost', 'lost')}" for c in clients if c.id not in results)
            raise RunFailedError(
                f"{len(results)} of {len(clients)} clients took part in round {number}, {needed} are required "
                f"(--quorum), {lost}: repeat the command when they are back"
            )
        if all(client.is_skipped for client in federation.state.clients):
            raise DivergenceError(clients[0].id, number, "the training loss of every client")
        return results
