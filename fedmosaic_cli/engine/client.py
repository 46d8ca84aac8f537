"""A simulated client: its data, its memory, and the services a method may ask of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from fedmosaic_cli.engine import batches, evaluation, params
from fedmosaic_cli.engine.objective import mean_cross_entropy
from fedmosaic_cli.engine.training import Draw, fit
from fedmosaic_cli.errors import FedMosaicError
from fedmosaic_cli.seeds import derive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Generator, Tensor

    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.method import Parameters, State, Term
    from fedmosaic_cli.engine.workspace import Workspace


class SimulatedClient:
    """Implements `engine.method.Client`. `merged` says how many clients' data it holds (1, unless pooled)."""

    def __init__(
        self, client_id: int, seed: int, private: Examples, public: Examples, workspace: Workspace, merged: int = 1
    ) -> None:
        self.id = client_id
        self.round = 0
        self.state: State = {}
        self.notes: dict[str, float | None] = {}
        self.private = private
        self.public = public
        self.merged = merged
        self._seed = seed
        self._workspace = workspace

    def begin_round(self, number: int) -> None:
        """Turn to a new page of the log."""
        self.round = number
        self.notes = {}

    @property
    def init(self) -> Parameters:
        names: tuple[str | int, ...] = ("init",)
        if self._workspace.train.init == "per-client":
            names = ("init", self.id)
        return self._workspace.initial_parameters(derive(self._seed, *names))

    @property
    def class_counts(self) -> Tensor:
        return torch.bincount(self.private.targets.cpu(), minlength=self._workspace.num_classes)

    def train(self, model: str, terms: Sequence[Term] = ()) -> None:
        settings = self._workspace.train
        # What is forgotten after the round is not kept until then either: it is twice the model, for every client.
        forgets = settings.optimizer_state == "reset"
        optimizer_state: State = {} if forgets else self.state.setdefault(f"{model}.optimizer", {})
        private_loss, term_losses = fit(
            self._workspace,
            self.state[model],
            optimizer_state,
            self.private,
            self.public,
            self._draw(bool(terms)),
            terms,
        )
        if not all(map(math.isfinite, (private_loss, *term_losses))) or not params.finite(self.state[model]):
            raise diverged(self.id, self.round)
        # A loss that the method measured itself is the one to log.
        self.notes.setdefault("loss_private", private_loss)
        for term, loss in zip(terms, term_losses, strict=True):
            self.notes.setdefault(term.log_as, loss)

    def private_loss(self, parameters: Parameters) -> float:
        log_probs = evaluation.log_probabilities(self._workspace, parameters, self.private)
        return mean_cross_entropy(log_probs, self.private.targets)

    def predict_public(self, parameters: Parameters) -> Tensor:
        # What a client says of the public set leaves the device anyway, and needs float64, which not every GPU has.
        return evaluation.log_probabilities(self._workspace, parameters, self.public).cpu()

    def note(self, **values: float | None) -> None:
        self.notes.update(values)

    def _draw(self, with_public: bool) -> Draw:
        """This round's batches. The private ones are the same whether or not public ones are drawn."""
        settings, device = self._workspace.train, self._workspace.device
        if settings.local_steps is None:
            private = batches.epochs(
                len(self.private), settings.batch_size, settings.local_epochs, self._stream("private")
            )
        else:
            private = batches.steps(
                len(self.private), settings.batch_size, settings.local_steps * self.merged, self._stream("private")
            )
        public: list[Tensor] = []
        if with_public:
            public = batches.steps(len(self.public), settings.batch_size, len(private), self._stream("public"))
        return Draw(batches.on_device(private, device), batches.on_device(public, device))

    def _stream(self, purpose: str) -> Generator:
        return torch.Generator().manual_seed(derive(self._seed, purpose, self.id, self.round))


def diverged(client: int, number: int) -> FedMosaicError:
    """The end of a run that would go on with noise."""
    return FedMosaicError(f"client {client} diverged in round {number} (train.lr): lower the learning rate")
