"""The sections `privacy`, `attack` and `defence` of a configuration: options of methods that share labels."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedmosaic_cli.schema import ConfigSection, IntTuple

EpsilonBudget = Literal["inf"] | Annotated[float, Field(gt=0, le=1e30)]


class PrivacySettings(ConfigSection):
    """Differential privacy for shared labels; see docs/privacy.md.

    Attributes:
        labels: Mechanism for labels: off, k-ary randomized response, or randomized one-hot bits.
        expertise: Mechanism for expertise; `auto` follows the expertise rule.
        unit: Unit of the guarantee: all data of a client, or one record under the assumption `changed_rows`.
        changed_rows: The assumed number of public labels that one record can change.
        epsilon: Total budget of a client over all rounds and messages, as zCDP. The noise level follows from it; the
            exact total is lower.
        label_share: Fraction of `epsilon` spent on labels.
        label_epsilon: Budget of a single label, instead of `epsilon`.
        noise_multiplier: Standard deviation of the Gaussian noise in units of the sensitivity.
        max_epsilon: A run that would spend more is refused.
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
        """Whether labels are privatized."""
        return self.labels != "off"

    @model_validator(mode="after")
    def reject_unused_options(self) -> PrivacySettings:
        """Reject options without effect."""
        given = [key for key, value in self if value != type(self).model_fields[key].default]
        for reason, without_effect in (
            ("labels are off", [] if self.is_enabled else given),
            ("expertise is none", ["noise_multiplier", "label_share"] if self.expertise == "none" else []),
            ("there is no epsilon to share", ["label_share"] if self.epsilon is None else []),
        ):
            for key in without_effect:
                if key in given:
                    raise ValueError(f"{key} has no effect while {reason}: leave it out, or change that")
        return self

    @model_validator(mode="after")
    def require_one_noise_level(self) -> PrivacySettings:
        """Reject a missing or an ambiguous noise level."""
        direct = [key for key in ("label_epsilon", "noise_multiplier") if getattr(self, key) is not None]
        if not self.is_enabled:
            return self
        if self.epsilon is not None and direct:
            raise ValueError(f"epsilon and {direct[0]} are both given: use one of them")
        if self.epsilon is None and self.label_epsilon is None:
            raise ValueError(
                f"labels are {self.labels}, but neither epsilon nor label_epsilon is given: set epsilon "
                "(the total budget), or label_epsilon and noise_multiplier"
            )
        return self

    @model_validator(mode="after")
    def require_valid_unit(self) -> PrivacySettings:
        """Require `changed_rows` for, and only for, the unit record-assumed."""
        if self.unit == "record-assumed" and self.changed_rows is None:
            raise ValueError(
                "unit record-assumed without changed_rows: set how many public labels one record can change, or "
                "use unit client"
            )
        if self.unit == "client" and self.changed_rows is not None:
            raise ValueError(
                f"changed_rows {self.changed_rows} has no effect with unit client, where all labels can change: "
                "leave it out, or use unit record-assumed"
            )
        return self


class AttackSettings(ConfigSection):
    """Simulated attackers among the clients.

    Attributes:
        kind: What attackers send instead of their labels.
        clients: Ids of the attackers.
        from_round: First round of the attack.
        adaptive: Claim only as much expertise as the server's checks accept.
        flipped: Whether `inflate` sends flipped labels or honest ones.
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
    from_round: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    adaptive: bool = False
    flipped: bool = True

    @model_validator(mode="after")
    def require_attackers(self) -> AttackSettings:
        if (self.kind == "none") != (not self.clients):
            raise ValueError(
                f"kind {self.kind} with clients {list(self.clients)} is not an attack: set both or neither"
            )
        if len(set(self.clients)) < len(self.clients):
            raise ValueError(f"clients {list(self.clients)} contain duplicates: name each client once")
        if self.kind == "poison_data" and self.from_round > 1:
            raise ValueError(f"from_round {self.from_round} has no effect on poison_data: leave it out")
        if self.kind != "inflate" and not self.flipped:
            raise ValueError(f"flipped has no effect on {self.kind}: leave it out")
        return self

    @property
    def fabricates_uploads(self) -> bool:
        """Whether attackers send fabricated labels, rather than delayed, damaged or no messages."""
        return self.kind not in ("none", "poison_data", "malformed", "replay", "late", "missing")


class DefenceSettings(ConfigSection):
    """What the server does against untrusted voters, in the order of the fields. By default it only validates messages.

    Attributes:
        normalise: Give every client the same total weight.
        cap_share: Maximum fraction of the weight per example that one client holds. `auto` is 0.2 with ten or more
            clients, and no limit with fewer.
        vote: Weighted by expertise, plain majority, or `trimmed`.
        trim: Fraction of the heaviest votes per class that `trimmed` drops.
        reputation: Weigh clients by how well they agreed with the others so far.
        reputation_floor: Minimum reputation.
        min_clients: Valid messages that a round needs. None requires more than half of the selected clients.
    """

    normalise: bool = False
    cap_share: Literal["auto"] | Annotated[float, Field(gt=0, le=1)] | None = None
    vote: Literal["weighted", "majority", "trimmed"] = "weighted"
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    reputation: bool = False
    reputation_floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    min_clients: Annotated[int, Field(ge=1, le=1_000_000)] | None = None

    @property
    def depends_on_labels(self) -> bool:
        """Whether the weight of a vote depends on the label voted for."""
        return self.normalise or self.cap_share is not None or self.reputation

    @model_validator(mode="after")
    def reject_unused_options(self) -> DefenceSettings:
        if self.trim != type(self).model_fields["trim"].default and self.vote != "trimmed":
            raise ValueError(f"trim has no effect on a {self.vote} vote: leave it out, or use vote trimmed")
        if self.reputation_floor and not self.reputation:
            raise ValueError("reputation_floor has no effect without reputation: leave it out, or set reputation")
        weighs = [name for name in ("normalise", "cap_share") if getattr(self, name)]
        if self.vote == "majority" and weighs:
            raise ValueError(f"{weighs[0]} has no effect on a majority vote: leave it out, or use another vote")
        return self
