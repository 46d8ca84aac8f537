"""The sections `train` (how long, in what steps), `privacy`, `attack` and `defence` of a configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedmosaic_cli.schema import ConfigSection, IntTuple

PositiveInt = Annotated[int, Field(ge=1, le=1_000_000)]
AggregationWeighting = Literal["samples", "uniform"]
BatchNormStatistics = Literal["average", "local", "drop"]
EpsilonBudget = Literal["inf"] | Annotated[float, Field(gt=0, le=1e30)]


class TrainSettings(ConfigSection):
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

    rounds: PositiveInt = 100
    local_epochs: PositiveInt = 1
    local_steps: PositiveInt | None = None
    clients_per_round: PositiveInt | None = None
    batch_size: PositiveInt = 32
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: Annotated[float, Field(gt=0, le=1e30)] = 0.001
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    optimizer_state: Literal["keep", "reset"] = "keep"
    init: Literal["per-client", "common"] = "per-client"
    aggregation: AggregationWeighting = "samples"
    bn_buffers: BatchNormStatistics = "average"
    on_nan: Literal["stop", "skip"] = "stop"
    checkpoint_every: PositiveInt = 10
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    execution: Literal["auto", "threads", "stacked"] = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    images: Literal["auto", "device", "host"] = "auto"

    @model_validator(mode="after")
    def require_sgd_for_momentum(self) -> TrainSettings:
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum {self.momentum} has no effect with {self.optimizer}: use optimizer sgd")
        return self


class PrivacySettings(ConfigSection):
    """Noise in what leaves a client, for methods that share labels on the public set: see docs/privacy.md.

    With `labels` off there is none. `epsilon` is the whole budget of a client, over all rounds and all that it sends,
    and the noise follows from it; or the noise is given, as the budget of one label (`label_epsilon`) and as the
    standard deviation of Gaussian noise in units of the sensitivity (`noise_multiplier`). `label_share` of a budget
    goes to labels. The `unit` of the guarantee is the whole data of a client; or, on the word of whoever
    says that one record changes at most `changed_rows` public labels, a record. A run that would spend more than
    `max_epsilon` is refused.
    """

    labels: Literal["off", "krr", "xor"] = "off"
    expertise: Literal["auto", "none", "gaussian", "histogram"] = "auto"
    unit: Literal["client", "record-assumed"] = "client"
    changed_rows: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    epsilon: EpsilonBudget | None = None
    label_share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    label_epsilon: EpsilonBudget | None = None
    noise_multiplier: Literal[0] | Annotated[float, Field(ge=1e-6, le=1e30)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    max_epsilon: Annotated[float, Field(gt=0, le=1e30)] | None = None

    @property
    def is_enabled(self) -> bool:
        """Whether there is any noise to speak of."""
        return self.labels != "off"

    @model_validator(mode="after")
    def reject_unused_options(self) -> PrivacySettings:
        """Refuse what would have no effect."""
        said = [key for key, value in self if value != type(self).model_fields[key].default]
        for reason, without_effect in (
            ("labels are off", [] if self.is_enabled else said),
            ("expertise is none", ["noise_multiplier", "label_share"] if self.expertise == "none" else []),
            ("there is no epsilon to share", ["label_share"] if self.epsilon is None else []),
        ):
            for key in without_effect:
                if key in said:
                    raise ValueError(f"{key} has no effect while {reason}: leave it out, or change that")
        return self

    @model_validator(mode="after")
    def require_one_noise_level(self) -> PrivacySettings:
        """Refuse a request from which no noise follows, or two."""
        direct = [key for key in ("label_epsilon", "noise_multiplier") if getattr(self, key) is not None]
        if not self.is_enabled:
            return self
        if self.epsilon is not None and direct:
            raise ValueError(f"epsilon and {direct[0]} are both given: the noise follows from one of them, choose")
        if self.epsilon is None and self.label_epsilon is None:
            raise ValueError(
                f"labels are {self.labels}, but neither epsilon nor label_epsilon says how much noise: set epsilon "
                "(the whole budget), or label_epsilon and noise_multiplier"
            )
        return self

    @model_validator(mode="after")
    def require_valid_unit(self) -> PrivacySettings:
        """Refuse half a word about what the guarantee is for."""
        if self.unit == "record-assumed" and self.changed_rows is None:
            raise ValueError(
                "unit record-assumed without changed_rows: say how many public labels one record changes at most, or "
                "use unit client"
            )
        if self.unit == "client" and self.changed_rows is not None:
            raise ValueError(
                f"changed_rows {self.changed_rows} has no effect with unit client, where all labels may change: "
                "leave it out, or use unit record-assumed"
            )
        return self


class AttackSettings(ConfigSection):
    """Clients that do not play by the rules, and what they do, from a round on.

    `adaptive` ones claim no more expertise than passes the server's checks. Those who inflate theirs do so with
    `flipped` labels or honest ones.
    """

    kind: Literal[
        "none",
        "random",
        "constant",
        "flip",
        "collude_flip",
        "least_likely",
        "class_prior",
        "inflate",
        "poison_data",
        "malformed",
        "replay",
        "late",
        "missing",
        "free_rider",
    ] = "none"
    clients: IntTuple = ()
    from_round: PositiveInt = 1
    adaptive: bool = False
    flipped: bool = True

    @model_validator(mode="after")
    def require_attackers(self) -> AttackSettings:
        if (self.kind == "none") != (not self.clients):
            raise ValueError(f"kind {self.kind} with clients {list(self.clients)} is no attack: name both or neither")
        if len(set(self.clients)) < len(self.clients):
            raise ValueError(f"clients {list(self.clients)} are not all different: name each once")
        if self.kind == "poison_data" and self.from_round > 1:
            raise ValueError(f"from_round {self.from_round} has no effect on poison_data: leave it out")
        if self.kind != "inflate" and not self.flipped:
            raise ValueError(f"flipped has no effect on {self.kind}: leave it out")
        return self

    @property
    def fabricates_uploads(self) -> bool:
        """Whether attackers make up what they send, instead of sending what they found or nothing of use."""
        return self.kind not in ("none", "poison_data", "malformed", "replay", "late", "missing")


class DefenceSettings(ConfigSection):
    """What the server does against voters that it cannot trust; as it stands, nothing but check their messages.

    In this order: `normalise` gives every client the same total weight, `cap_share` (`auto`: 0.2 with ten clients or
    more) cuts what a client holds of the weight in a row, `reputation` weighs clients by how well they agreed with the
    others so far, and never by less than `reputation_floor`. The `vote` is weighted by expertise, a plain majority, or
    `trimmed`: without the share `trim` of the heaviest votes for each class.
    A round needs valid messages from `min_clients`, or from more than half of those who take part.
    """

    normalise: bool = False
    cap_share: Literal["auto"] | Annotated[float, Field(gt=0, le=1)] | None = None
    vote: Literal["weighted", "majority", "trimmed"] = "weighted"
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    reputation: bool = False
    reputation_floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    min_clients: PositiveInt | None = None

    @property
    def depends_on_labels(self) -> bool:
        """Whether what a client's votes weigh depends on what they are."""
        return self.normalise or self.cap_share is not None or self.reputation

    @model_validator(mode="after")
    def reject_unused_options(self) -> DefenceSettings:
        if self.trim != type(self).model_fields["trim"].default and self.vote != "trimmed":
            raise ValueError(f"trim has no effect on a {self.vote} vote: leave it out, or use vote trimmed")
        if self.reputation_floor and not self.reputation:
            raise ValueError("reputation_floor has no effect without reputation: leave it out, or keep reputations")
        weighs = [name for name in ("normalise", "cap_share") if getattr(self, name)]
        if self.vote == "majority" and weighs:
            raise ValueError(f"{weighs[0]} has no effect on a majority vote: leave it out, or use another vote")
        return self
