"""The `train` section: how long, in what steps, by which optimizer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedmosaic_cli.settings import Section

Positive = Annotated[int, Field(ge=1, le=1_000_000)]
Aggregation = Literal["samples", "uniform"]
Statistics = Literal["average", "local", "drop"]


class TrainSettings(Section):
    """The same for every method, so that a table compares methods and nothing else.

    A round is `local_epochs` passes over a client's data or, where given, `local_steps` steps (the paper's b).
    `clients_per_round` of the clients take part in a round, drawn anew each time; None is all of them. `aggregation`
    says what a client counts where models are averaged, `bn_buffers` what becomes of batch normalisation's running
    statistics there: averaged with the rest, kept by each client, or forgotten after
    every round, and then taken from a client's own data to examine a model (FedBN keeps its own in any case).
    `on_nan` says what becomes of a client whose numbers are none any more: the run stops, or the client is as it was
    before the round, and left out of it.
    The last four say how to compute: see docs/performance.md.
    """

    rounds: Positive = 100
    local_epochs: Positive = 1
    local_steps: Positive | None = None
    clients_per_round: Positive | None = None
    batch_size: Positive = 32
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: Annotated[float, Field(gt=0, le=1e30)] = 0.001
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    optimizer_state: Literal["keep", "reset"] = "keep"
    init: Literal["per-client", "common"] = "per-client"
    aggregation: Aggregation = "samples"
    bn_buffers: Statistics = "average"
    on_nan: Literal["stop", "skip"] = "stop"
    checkpoint_every: Positive = 10
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    execution: Literal["auto", "threads", "stacked"] = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    images: Literal["auto", "device", "host"] = "auto"

    @model_validator(mode="after")
    def momentum_goes_with_sgd(self) -> TrainSettings:
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum {self.momentum} has no effect with {self.optimizer}: use optimizer sgd")
        return self
