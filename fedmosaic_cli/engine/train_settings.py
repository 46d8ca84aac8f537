"""The `train` section of a configuration."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fedmosaic_cli.schema import ConfigSection

PositiveInt = Annotated[int, Field(ge=1, le=1_000_000)]
AggregationWeighting = Literal["samples", "uniform"]
BatchNormStatistics = Literal["average", "local", "drop"]
AugmentMode = Literal["none", "flip", "crop", "crop-flip"]

# Settings added later: omitted at their defaults, so that the files of older runs stay the same.
OMITTED_IF_DEFAULT = (
    *("augment", "tf32", "cudnn_benchmark", "deterministic", "stacked_convolution", "cuda_streams"),
    *("eval_every", "client_state", "cuda_graphs"),
)


class TrainSettings(ConfigSection):
    """Training options, the same for every method, so that a table compares methods and nothing else.

    Attributes:
        rounds: Number of communication rounds.
        local_epochs: Epochs over a client's data per round.
        local_steps: Optimizer steps per round (the paper's b). Replaces `local_epochs` if given.
        clients_per_round: Number of clients sampled per round. None selects all clients.
        augment: Augmentation of the images of training batches: none, random horizontal flips, random crops of the
            padded image, or both. It does not apply to scikit-learn models.
        optimizer_state: Whether optimizer state is kept between rounds or reset.
        init: Whether clients start from different initial models or from one.
        aggregation: Weights of the clients where models are averaged: their number of examples, or equal.
        bn_buffers: What happens to batch-normalisation statistics where models are averaged: they are averaged too,
            stay with the client, or are dropped after each round and recomputed from the client's data for
            evaluation. FedBN keeps its own in any case.
        on_nan: Whether a client with NaN or infinite values stops the run, or is rolled back and skipped.
        checkpoint_every: Rounds between two checkpoints.
        eval_every: Rounds between two evaluations of all clients; the last round is always evaluated.
        client_state: Whether the states of clients that do not compute are in memory or on disk.
        workers, execution, precision, images: How to compute; see docs/performance.md.
        stacked_convolution: How stacked clients compute convolutions; see `engine.execution.stacked`.
        cuda_streams: Number of streams per GPU for clients that are trained one by one.
        cuda_graphs: Whether training steps of stacked clients are replayed as CUDA graphs; see
            `engine.execution.step_graph`.
        tf32, cudnn_benchmark, deterministic: Options of torch for CUDA; see `runner.accelerator_options`.
    """

    rounds: PositiveInt = 100
    local_epochs: PositiveInt = 1
    local_steps: PositiveInt | None = None
    clients_per_round: PositiveInt | None = None
    batch_size: PositiveInt = 32
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: Annotated[float, Field(gt=0, le=1e30)] = 0.001
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    augment: AugmentMode = "none"
    optimizer_state: Literal["keep", "reset"] = "keep"
    init: Literal["per-client", "common"] = "per-client"
    aggregation: AggregationWeighting = "samples"
    bn_buffers: BatchNormStatistics = "average"
    on_nan: Literal["stop", "skip"] = "stop"
    checkpoint_every: PositiveInt = 10
    eval_every: PositiveInt = 1
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    execution: Literal["auto", "threads", "stacked"] = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    images: Literal["auto", "device", "host"] = "auto"
    tf32: bool = False
    cudnn_benchmark: bool = False
    deterministic: bool = False
    stacked_convolution: Literal["grouped", "matmul"] = "grouped"
    cuda_streams: Annotated[int, Field(ge=1, le=32)] = 1
    cuda_graphs: bool = False
    client_state: Literal["memory", "disk"] = "memory"

    @model_validator(mode="after")
    def require_sgd_for_momentum(self) -> TrainSettings:
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum {self.momentum} has no effect with {self.optimizer}: use optimizer sgd")
        return self

    @model_validator(mode="after")
    def require_fixed_algorithms(self) -> TrainSettings:
        if self.deterministic and self.cudnn_benchmark:
            raise ValueError("cudnn_benchmark varies the algorithms that deterministic fixes: use one of them")
        return self

    def steps_per_round(self, num_examples: int) -> int:
        """Return the number of optimizer steps that a client with `num_examples` training examples takes per round."""
        return self.local_steps or self.local_epochs * -(-num_examples // self.batch_size)

    @property
    def num_optimizer_copies(self) -> int:
        """How many tensors of a model's size the optimizer keeps."""
        return 2 if self.optimizer == "adam" else int(self.momentum > 0)

    def to_record(self) -> dict[str, Any]:
        """Return the settings for config.yaml; later ones only if they differ from the default."""
        fields = type(self).model_fields
        omitted = {name for name in OMITTED_IF_DEFAULT if getattr(self, name) == fields[name].default}
        return self.model_dump(mode="json", exclude=omitted)
