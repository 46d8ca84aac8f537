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

from fedmosaic_cli.cotraining.crossfit import brier_scores, stratified_folds, verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from fedmosaic_cli.cotraining.crossfit import Verdict
    from fedmosaic_cli.engine.method import Client, Term

    Terms = Callable[[Tensor, Tensor], Sequence[Term]]
    """The terms that pseudo-labels add for a client with these training labels."""

FOLDS, ALONE, TOGETHER, CANDIDATE, WITHOUT = "folds", "fold-alone", "fold-together", "candidate", "without"
OPTIMIZER = ".optimizer"


@dataclass(frozen=True)
class Gate:
    """Collaboration is kept where it gains more than `strictness` standard errors out of so many `folds`."""

    folds: int
    strictness: float
    prior_variance: float

    def prepare(self, client: Client) -> None:
        """Cut the client's data, and give every fold a model. Who has too little data stays alone."""
        if len(client.labels) < 2 * self.folds:
            return
        client.state[FOLDS] = stratified_folds(client.labels, self.folds, client.noise("folds"))
        for fold in range(self.folds):
            client.state[f"{ALONE}-{fold}"] = client.init

    def is_open(self, client: Client) -> bool:
        """Whether the client has yet to decide."""
        return FOLDS in client.state

    def has_candidate(self, client: Client) -> bool:
        return CANDIDATE in client.state

    def begin(self, client: Client, without: Tensor) -> None:
        """From here on all models are there twice. `without` is what the others say."""
        client.state[WITHOUT] = without
        copy_of(client, "model", CANDIDATE)
        for fold in range(self.folds):
            copy_of(client, f"{ALONE}-{fold}", f"{TOGETHER}-{fold}")

    def train(self, client: Client, terms: Terms) -> None:
        """A round of every fold's models."""
        folds = client.state[FOLDS]
        for fold in range(self.folds):
            seen = (folds != fold).nonzero()[:, 0]
            client.train(f"{ALONE}-{fold}", only=seen)
            if self.has_candidate(client):
                added = terms(client.state[WITHOUT], client.labels[seen])
                client.train(f"{TOGETHER}-{fold}", added, only=seen)

    def decide(self, client: Client) -> Verdict:
        """Let every fold judge the two models that have not seen it."""
        import torch

        gains = torch.empty(len(client.labels), dtype=torch.float64)
        for fold in range(self.folds):
            judges = client.state[FOLDS] == fold
            alone, together = (
                brier_scores(client.predict_private(client.state[f"{way}-{fold}"]).cpu()[judges], client.labels[judges])
                for way in (ALONE, TOGETHER)
            )
            gains[judges] = alone - together
        return verdict(gains, self.strictness, self.prior_variance)

    def close(self, client: Client, keep: bool) -> None:
        """Go on with one model."""
        if keep:
            for entry in ("", OPTIMIZER):
                if CANDIDATE + entry in client.state:
                    client.state["model" + entry] = client.state[CANDIDATE + entry]
        for name in list(client.state):
            if name.startswith((FOLDS, ALONE, TOGETHER, CANDIDATE, WITHOUT)):
                del client.state[name]


def copy_of(client: Client, model: str, name: str) -> None:
    """Remember a copy of a model, and of what its optimizer remembers, under another name."""
    for entry in ("", OPTIMIZER):
        if model + entry in client.state:
            client.state[name + entry] = deepcopy(client.state[model + entry])
