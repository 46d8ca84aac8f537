"""The server of a federation, in the process of the training loop; and training on the public set for clients."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.execution.cuda_streams import wait_for_current_stream
from fedmosaic_cli.engine.execution.lockstep import without_group
from fedmosaic_cli.engine.round_log import require_loggable
from fedmosaic_cli.errors import FedMosaicError
from fedmosaic_cli.seeds import derive_rng

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import torch
    from torch import Tensor

    from fedmosaic_cli.engine.client import InProcessClient
    from fedmosaic_cli.engine.context import Parameters, Server, State, TrainResult

T = TypeVar("T")
SERVER_STREAM = "server"
"""The name of the server in random streams, where a client has its number."""
PUBLIC_STREAM = "public-trainer"
"""The name in random streams of what every client computes on the public set."""


class InProcessServer:
    """Implements `engine.context.Server`.

    Args:
        seed: Seed of the run.
        device: Where the server's models are.
        worker: Trains and predicts on the public set for methods with `Needs.server_compute`: a client whose training
            data is the public set, without its labels.
    """

    def __init__(self, seed: int, device: torch.device, worker: InProcessClient | None = None) -> None:
        self.device = device
        self.metrics: dict[str, Any] = {}
        self._seed = seed
        self._worker = worker
        self.round = 0
        self._state: State = {}
        self.state = {}

    @property
    def state(self) -> State:
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state
        if self._worker is not None:
            self._worker.state = state

    def begin_round(self, round_number: int) -> None:
        """Start a round with an empty log."""
        self.round = round_number
        self.metrics = {}
        if self._worker is not None:
            self._worker.begin_round(round_number)

    def finish_round(self) -> None:
        """Discard optimizer state that is not kept between rounds."""
        if self._worker is not None:
            self._worker.finish_round()

    def on_device(self, device: torch.device) -> State:
        """Return the state for a client on `device`. On the server's device it is the state itself, not a copy."""
        return self.state if device == self.device else params.models_to_device(self.state, device)

    def with_state(self, state: State) -> InProcessServer:
        """Return this server with a copy of its state that is on another device; without a worker."""
        if state is self.state:
            return self
        other = InProcessServer(self._seed, self.device)
        other.state, other.round = state, self.round
        return other

    @property
    def lr(self) -> float:
        return self.worker.lr

    @property
    def initial_model(self) -> Parameters:
        return self.worker.initial_model

    def initial_network(self, network: str) -> Parameters:
        return self.worker.initial_network(network)

    def train(self, model: str, *args: Any, **options: Any) -> TrainResult:
        return self.worker.train(model, *args, **{**options, "private_weight": 0.0})

    def optimizer_step(self, model: str, gradient: Parameters, lr: float | None = None) -> None:
        self.worker.optimizer_step(model, gradient, lr)

    def predict_public(self, parameters: Parameters, network: str | None = None) -> Tensor:
        return self.worker.predict_public(parameters, network)

    def rng(self, purpose: str) -> np.random.Generator:
        return derive_rng(self._seed, purpose, SERVER_STREAM, self.round)

    def log(self, **values: Any) -> None:
        require_loggable(values, "server.log")
        self.metrics.update(values)

    @property
    def worker(self) -> InProcessClient:
        """The client that computes for the server."""
        if self._worker is None:
            raise FedMosaicError("the server cannot train or predict: declare Needs(server_compute=True) in the method")
        return self._worker


class PublicTrainer:
    """Computes what is the same for all clients with the same network, once; see `Client.shared_result`.

    Args:
        seed: Seed of the run.
        worker: A client whose training data is the public set, without its labels.
    """

    def __init__(self, seed: int, worker: InProcessClient) -> None:
        self._server = InProcessServer(seed, worker.device, worker)
        self._results: dict[tuple[int, str], Any] = {}
        self._lock = threading.Lock()

    @property
    def worker(self) -> InProcessClient:
        """The client that trains."""
        return self._server.worker

    def result(self, round_number: int, key: str, compute: Callable[[Server], T]) -> T:
        """Return `compute(trainer)`, from the first call with this round and key."""
        with self._lock, without_group():
            if (round_number, key) not in self._results:
                # Clients use the results of the current round only.
                self._results = {own: value for own, value in self._results.items() if own[0] == round_number}
                self._server.begin_round(round_number)
                self._server.state = {}
                self._results[round_number, key] = compute(self._server)
                self._server.finish_round()
                wait_for_current_stream(self._server.device)
            result: T = self._results[round_number, key]
            return result
