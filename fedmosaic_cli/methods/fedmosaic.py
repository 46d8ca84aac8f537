"""FedMosaic: co-training in which each client weighs how far to trust the crowd, and the crowd weighs each client.

Abourayya et al., Whom to Trust? Adaptive Collaboration in Personalized Federated Learning. FedCT with two points filled
in: the trust lambda in the consensus and the expertise behind every vote. What the paper leaves open is chosen here:
lambda is computed once a round, on full sets in evaluation mode, before training, and receives no gradient; the
entropy-based expertise is log C - H; the server adds a little to every vote; expertise travels in 8 bits a value.

Not in the paper: the rules `agreement` and `gated`, a loss that knows the client's own mix of classes, expertise from
counts, votes from a model that never co-trains. docs/trust.md tells what they are for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from fedmosaic_cli.cotraining.expertise import (
    entropy_expertise,
    expertise_scores,
    expertise_upper_bound,
    frequency_expertise,
)
from fedmosaic_cli.cotraining.logit_adjustment import prior_logit_shift
from fedmosaic_cli.cotraining.trust import MIN_TRUST, TRUST_RULES, agreement_trust, weighted_agreement
from fedmosaic_cli.engine.gate import CANDIDATE_KEY, CrossFitGate, copy_model_state
from fedmosaic_cli.engine.losses import AdjustedPseudoLabelLoss, UniformTargetLoss, mean_cross_entropy, select_labelled
from fedmosaic_cli.engine.messages import ConsensusLabels
from fedmosaic_cli.engine.method import hyperparameters
from fedmosaic_cli.labels.privacy.privatize import expertise_encoding, reporting_rates, voting_rules
from fedmosaic_cli.labels.voting import NO_LABEL, leave_one_out_votes
from fedmosaic_cli.labels.wire import ExpertiseEncoding
from fedmosaic_cli.methods.fedct import FedCT, labels_to_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fedmosaic_cli.engine.messages import Message
    from fedmosaic_cli.engine.method import (
        Client,
        FederationInfo,
        LearnerSupport,
        LossTerm,
        Parameters,
        ReceivedMessage,
        State,
    )
    from fedmosaic_cli.labels.privacy.privatize import LabelClient
    from fedmosaic_cli.labels.wire import MessageSpec


DEFAULT_EXPERTISE_BITS = 8
VOTING_MODEL_KEY = "voter"


@hyperparameters
class FedMosaic(FedCT):
    """`trust` is a rule's name or a constant: 0 is Local, 1 with `uniform` expertise is FedCT, bit for bit.

    `paper` and `stabilised` compare a client's losses in every round. `agreement` looks once, at the first consensus,
    at how far the client says what the crowd says: to the power of `trust_power`, and 0 below `trust_min`. `gated` is
    the same for clients that it helps in a test of their own, and 0 for all others. The test takes the rounds until
    `gate_budget` of all are played, with so many `gate_folds`, and is passed by what gains more than `gate_z` standard
    errors, to which `gate_prior_var` adds where examples are few.

    With the `prior-adjusted` loss a client takes into account that its classes are not mixed as the public set's are:
    fully with a `prior_strength` of 1, not at all with 0; `prior_smoothing` is added to every count.

    Votes come from the model that is trained (`self`), from a `shadow` of it that never co-trains, or from one that is
    `doubting`: it never co-trains either and, beside the client's own examples, learns to be unsure of the public ones,
    with a weight of `doubt`. So it is sure of nothing but what the client's own examples are like. The first exchange
    comes after `warmup_rounds`, or after `warmup_share` of all rounds if that is later.
    """

    expertise: Literal["frequency", "entropy", "count", "count-confidence", "uniform"] = "frequency"
    trust: Literal["paper", "stabilised", "agreement", "gated"] | Annotated[float, Field(ge=0, le=1e30)] = "paper"
    expertise_bits: Literal["float32"] | Annotated[int, Field(ge=1, le=32)] = DEFAULT_EXPERTISE_BITS
    warmup_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    public_loss: Literal["plain", "prior-adjusted"] = "plain"
    prior_strength: Annotated[float, Field(ge=0, le=10)] = 1.0
    prior_smoothing: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    votes_from: Literal["self", "shadow", "doubting"] = "self"
    doubt: Annotated[float, Field(ge=0, le=1e30)] = 1.0
    trust_power: Annotated[float, Field(gt=0, le=100)] = 2.0
    trust_min: Annotated[float, Field(ge=0, le=1)] = 0.01
    gate_folds: Annotated[int, Field(ge=2, le=20)] = 2
    gate_budget: Annotated[float, Field(gt=0, le=1)] = 0.35
    gate_z: Annotated[float, Field(ge=-1e30, le=1e30)] = 1.0
    gate_prior_var: Annotated[float, Field(ge=0, le=1e30)] = 0.25

    name = "fedmosaic"
    title = "FedMosaic"
    family = "co-training"
    travels = "hard labels and expertise up, consensus labels down"
    citation = "Abourayya et al., 2026"

    @property
    def variant(self) -> str:
        return f"{self.name}-{self.expertise}"

    @classmethod
    def unused_hyperparameters(cls, values: Mapping[str, Any]) -> frozenset[str]:
        trust = values.get("trust")
        names = {
            "gate_": trust != "gated",
            "trust_": trust not in ("gated", "agreement"),
            "prior_": values.get("public_loss") != "prior-adjusted",
            "doubt": values.get("votes_from") != "doubting",
        }
        return frozenset(name for name in values for start, idle in names.items() if idle and name.startswith(start))

    @property
    def supported_learners(self) -> LearnerSupport:
        plain = self.trust != "gated" and self.public_loss == "plain" and self.votes_from != "doubting"
        return self.learners if plain else "any network"

    @property
    def depends_on_total_rounds(self) -> bool:
        return self.trust == "gated" or self.warmup_share > 0

    @property
    def gate(self) -> CrossFitGate:
        return CrossFitGate(self.gate_folds, self.gate_z, self.gate_prior_var)

    def num_warmup_rounds(self, num_rounds: int) -> int:
        return max(self.warmup_rounds, round(self.warmup_share * num_rounds))

    def gate_decision_round(self, num_rounds: int) -> int:
        """The round at the end of which clients decide."""
        return max(self.num_warmup_rounds(num_rounds) + 1, round(self.gate_budget * num_rounds))

    @property
    def peak_model_counts(self) -> tuple[int, int]:
        voters = int(self.votes_from != "self")
        at_once = (2 + 2 * self.gate_folds if self.trust == "gated" else 1) + voters
        return at_once, at_once

    def local_passes(self, num_rounds: int) -> int:
        gated = self.trust == "gated"
        alone, closed = (
            min(number, num_rounds)
            for number in (self.num_warmup_rounds(num_rounds), self.gate_decision_round(num_rounds))
        )
        at_the_gate = self.gate_folds * alone + (1 + 2 * self.gate_folds) * (closed - alone) if gated else 0
        voting = {"self": 0, "shadow": num_rounds - (closed if gated else alone), "doubting": num_rounds}[
            self.votes_from
        ]
        return num_rounds + at_the_gate + voting

    def cost_note(self, num_rounds: int) -> str:
        if self.trust != "gated":
            return ""
        last = min(self.gate_decision_round(num_rounds), num_rounds)
        return (
            f"{self.title}: clients first find out whether collaboration helps them, which takes "
            f"{self.local_passes(num_rounds) / num_rounds:.1f} times the steps of Local at most, most of them until round {last}"
        )

    def init_client(self, client: Client, ctx: FederationInfo) -> None:
        super().init_client(client, ctx)
        if self.votes_from == "doubting":
            client.state[VOTING_MODEL_KEY] = client.initial_model
        if self.trust == "gated":
            self.gate.init_folds(client)

    def train_with_consensus(
        self, client: Client, consensus: Tensor | None, received: ReceivedMessage, ctx: FederationInfo
    ) -> None:
        undecided = self.trust == "gated" and self.gate.is_undecided(client)
        if (
            self.votes_from == "shadow"
            and consensus is not None
            and VOTING_MODEL_KEY not in client.state
            and not undecided
        ):
            copy_model_state(client, "model", VOTING_MODEL_KEY)
        apart = VOTING_MODEL_KEY in client.state
        if undecided:
            self.train_gate_round(client, consensus, received, ctx)
        else:
            super().train_with_consensus(client, consensus, received, ctx)
        if apart:
            client.train(VOTING_MODEL_KEY, self.voting_model_terms(ctx) if self.votes_from == "doubting" else [])

    def train_gate_round(
        self, client: Client, consensus: Tensor | None, received: ReceivedMessage, ctx: FederationInfo
    ) -> None:
        """A round of a client that has yet to find out whether collaboration helps it; so far it is Local."""
        gate = self.gate
        if consensus is not None and not gate.has_candidate(client):
            # Who missed the round after the first exchange had no part in the consensus that it gets now.
            without = received.get("without", consensus)
            if self.trust_from_agreement(consensus, client) and (without != NO_LABEL).any():
                gate.start_test(client, without)
            else:
                gate.finish(client, is_accepted=False)
                client.log(gate_trust=client.state["trust"], gate_on=0)
                client.state["trust"] = 0.0
        client.log(trust=0.0, public_share=0.0)
        client.train("model")
        if not gate.is_undecided(client):
            return
        trust, counts = client.state.get("trust", 0.0), client.class_counts
        if gate.has_candidate(client):
            client.train(CANDIDATE_KEY, [] if consensus is None else self.loss_terms(consensus, trust, counts))
        gate.train_folds(
            client, lambda labels, own: self.loss_terms(labels, trust, own.bincount(minlength=len(counts)))
        )
        if gate.has_candidate(client) and client.round >= self.gate_decision_round(ctx.num_rounds):
            found = gate.decide(client)
            client.log(
                gate_trust=trust, gate_gain=found.gain, gate_error=found.standard_error, gate_on=int(found.is_accepted)
            )
            client.state["trust"] = trust if found.is_accepted else 0.0
            if found.is_accepted and self.votes_from == "shadow":
                copy_model_state(client, "model", VOTING_MODEL_KEY)
            gate.finish(client, found.is_accepted)

    def loss_terms(self, consensus: Tensor, trust: float, class_counts: Tensor) -> list[LossTerm]:
        if self.public_loss == "plain" or not self.prior_strength or trust <= MIN_TRUST:
            return super().loss_terms(consensus, trust, class_counts)
        shift = prior_logit_shift(class_counts, consensus, self.prior_strength, self.prior_smoothing)
        return [AdjustedPseudoLabelLoss.from_labels(consensus, shift, trust)]

    def voting_model_terms(self, ctx: FederationInfo) -> list[LossTerm]:
        """What a voter learns beside its own data."""
        import torch

        return [UniformTargetLoss(torch.zeros(ctx.public_size, dtype=torch.int64), self.doubt)] if self.doubt else []

    def voting_model(self, client: Client) -> Parameters:
        return client.state[VOTING_MODEL_KEY] if VOTING_MODEL_KEY in client.state else super().voting_model(client)

    def compute_trust(self, consensus: Tensor | None, client: Client) -> float:
        if self.trust == "gated":
            return 0.0 if consensus is None else client.state.get("trust", 0.0)
        if self.trust == "agreement":
            return 0.0 if consensus is None else self.trust_from_agreement(consensus, client)
        if isinstance(self.trust, float):
            return 0.0 if consensus is None else self.trust
        private_loss = client.private_loss(client.state["model"])
        client.log(loss_private=private_loss, agreement=None)
        if consensus is None:
            return 0.0
        view = (
            self.public_log_probs("model", client)
            if VOTING_MODEL_KEY in client.state
            else self.last_public_log_probs(client)
        )
        log_probs, consensus = select_labelled(view, consensus)
        public_loss = mean_cross_entropy(log_probs, consensus)
        agreement = (log_probs.argmax(dim=1) == consensus).double().mean().item()
        client.log(loss_public=public_loss, agreement=agreement)
        return TRUST_RULES[self.trust](private_loss, public_loss)

    def trust_from_agreement(self, consensus: Tensor, client: Client) -> float:
        """Trust by agreement, found at the first consensus: by then nobody's model has learned from another's."""
        if "trust" not in client.state:
            log_probs, consensus = select_labelled(self.last_public_log_probs(client), consensus)
            labels, counts = log_probs.argmax(dim=1), client.class_counts
            knows = frequency_expertise(labels, counts) * entropy_expertise(log_probs)
            agreement = weighted_agreement(labels, consensus, knows)
            client.log(gate_agreement=agreement)
            client.state["trust"] = agreement_trust(agreement, len(counts), self.trust_power, self.trust_min)
        trust: float = client.state["trust"]
        return trust

    def last_public_log_probs(self, client: Client) -> Tensor:
        """What the voter thinks of the public set: it has not changed since it gave its opinion, if it gave one."""
        log_probs: Tensor | None = client.state.get("log_probs")
        return (
            self.public_log_probs(VOTING_MODEL_KEY if VOTING_MODEL_KEY in client.state else "model", client)
            if log_probs is None
            else log_probs
        )

    def public_log_probs(self, model: str, client: Client) -> Tensor:
        """Log probabilities of a model on the public set."""
        return client.predict_public(client.state[model]).log_softmax(dim=1)

    def compute_expertise(self, log_probs: Tensor, labels: Tensor, client: LabelClient) -> NDArray[np.float64]:
        client.state["log_probs"] = log_probs
        return expertise_scores(self.expertise, log_probs, labels, client.class_counts).numpy()

    def broadcast(self, server: State, client_id: int, ctx: FederationInfo) -> Message:
        message = super().broadcast(server, client_id, ctx)
        without = server.get("without", {}).get(str(client_id))
        return message if without is None else {**message, "without": ConsensusLabels(without, ctx.num_classes)}

    def aggregate(self, server: State, uploads: Mapping[int, ReceivedMessage], ctx: FederationInfo) -> State:
        state = super().aggregate(server, uploads, ctx)
        if self.trust == "gated" and "labels" not in server:
            ballots = [upload["opinion"] for upload in uploads.values()]
            without = leave_one_out_votes(ballots, voting_rules(ctx, len(ballots)), None, reporting_rates(ctx))
            state["without"] = {str(client): labels_to_tensor(labels) for client, labels in without.items()}
        return state

    def message_spec(self, ctx: FederationInfo) -> MessageSpec:
        bits = self.expertise_bits
        code = expertise_encoding(ctx, ExpertiseEncoding.FLOATS if bits == "float32" else ExpertiseEncoding.LEVELS)
        return replace(
            super().message_spec(ctx),
            expertise_encoding=code,
            expertise_bits=DEFAULT_EXPERTISE_BITS if bits == "float32" else bits,
            max_expertise=expertise_upper_bound(
                self.expertise, ctx.num_classes, max(ctx.client_sizes.values(), default=1)
            ),
            is_distribution=self.expertise == "frequency"
            and (ctx.privacy_noise is None or code is ExpertiseEncoding.HISTOGRAM),
        )
