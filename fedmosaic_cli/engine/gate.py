"""A client's own test of whether collaboration helps it: cross-fitted, before it takes part in any.

Its data is cut into folds. For every fold a model learns without it, beside the client's own, as long as everybody is
alone. When the first consensus is there, each of these models goes on in two ways: alone, and with the pseudo-labels
that the others would give without the client. All of this is done a round at a time, so a run can stop in the middle.
Then each fold judges its two models, which have not seen it, and neither have the pseudo-labels.

Meanwhile the client has two models itself. The one that never heard of a consensus is what it has to show, and votes;
if the test is passed, the other takes its place. If not, the client has been alone all the time, bit for bit.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmosaic_cli.cotraining.crossfit import brier_scores, gate_decision, stratified_folds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from fedmosaic_cli.cotraining.crossfit import GateDecision
    from fedmosaic_cli.engine.method import Client, LossTerm

    LossTermsFactory = Callable[[Tensor, Tensor], Sequence[LossTerm]]
    """The terms that pseudo-labels add for a client with these training labels."""

FOLDS_KEY, LOCAL_FOLD_PREFIX, COLLABORATIVE_FOLD_PREFIX, CANDIDATE_KEY, PEER_LABELS_KEY = (
    "folds",
    "fold-alone",
    "fold-together",
    "candidate",
    "without",
)
OPTIMIZER_SUFFIX = ".optimizer"


@dataclass(frozen=True)
class CrossFitGate:
    """Collaboration is kept where it gains more than `strictness` standard errors out of so many `folds`."""

    num_folds: int
    z_threshold: float
    prior_variance: float

    def init_folds(self, client: Client) -> None:
        """Cut the client's data, and give every fold a model. Who has too little data stays alone."""
        if len(client.train_labels) < 2 * self.num_folds:
            return
        client.state[FOLDS_KEY] = stratified_folds(client.train_labels, self.num_folds, client.rng("folds"))
        for fold in range(self.num_folds):
            client.state[f"{LOCAL_FOLD_PREFIX}-{fold}"] = client.initial_model

    def is_undecided(self, client: Client) -> bool:
        """Whether the client has yet to decide."""
        return FOLDS_KEY in client.state

    def has_candidate(self, client: Client) -> bool:
        return CANDIDATE_KEY in client.state

    def start_test(self, client: Client, peer_labels: Tensor) -> None:
        """From here on all models are there twice. `without` is what the others say."""
        client.state[PEER_LABELS_KEY] = peer_labels
        copy_model_state(client, "model", CANDIDATE_KEY)
        for fold in range(self.num_folds):
            copy_model_state(client, f"{LOCAL_FOLD_PREFIX}-{fold}", f"{COLLABORATIVE_FOLD_PREFIX}-{fold}")

    def train_folds(self, client: Client, make_loss_terms: LossTermsFactory) -> None:
        """A round of every fold's models."""
        folds = client.state[FOLDS_KEY]
        for fold in range(self.num_folds):
            seen = (folds != fold).nonzero()[:, 0]
            client.train(f"{LOCAL_FOLD_PREFIX}-{fold}", examples=seen)
            if self.has_candidate(client):
                added = make_loss_terms(client.state[PEER_LABELS_KEY], client.train_labels[seen])
                client.train(f"{COLLABORATIVE_FOLD_PREFIX}-{fold}", added, examples=seen)

    def decide(self, client: Client) -> GateDecision:
        """Let every fold judge the two models that have not seen it."""
        import torch

        gains = torch.empty(len(client.train_labels), dtype=torch.float64)
        for fold in range(self.num_folds):
            judges = client.state[FOLDS_KEY] == fold
            alone, together = (
                brier_scores(
                    client.predict_private(client.state[f"{way}-{fold}"]).cpu()[judges], client.train_labels[judges]
                )
                for way in (LOCAL_FOLD_PREFIX, COLLABORATIVE_FOLD_PREFIX)
            )
            gains[judges] = alone - together
        return gate_decision(gains, self.z_threshold, self.prior_variance)

    def finish(self, client: Client, is_accepted: bool) -> None:
        """Go on with one model."""
        if is_accepted:
            for entry in ("", OPTIMIZER_SUFFIX):
                if CANDIDATE_KEY + entry in client.state:
                    client.state["model" + entry] = client.state[CANDIDATE_KEY + entry]
        for name in list(client.state):
            if name.startswith(
                (FOLDS_KEY, LOCAL_FOLD_PREFIX, COLLABORATIVE_FOLD_PREFIX, CANDIDATE_KEY, PEER_LABELS_KEY)
            ):
                del client.state[name]


def copy_model_state(client: Client, source: str, target: str) -> None:
    """Remember a copy of a model, and of what its optimizer remembers, under another name."""
    for entry in ("", OPTIMIZER_SUFFIX):
        if source + entry in client.state:
            client.state[target + entry] = deepcopy(client.state[source + entry])
