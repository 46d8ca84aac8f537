"""Gated co-training: FedMosaic's exchange, used only by clients that it helps. Not in the paper; see docs/trust.md.

A client uses the consensus only if a cross-fitted test on its training data shows a gain. A client that fails the test
equals Local, bit for bit, and still votes. Votes come from outlier-exposed models and are weighted by the client's
number of examples of the class and its confidence. The public loss accounts for the difference between the client's
class distribution and that of the public set.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedmosaic_cli.cotraining import NO_LABEL
from fedmosaic_cli.cotraining.crossfit import brier_scores, gate_decision, stratified_folds
from fedmosaic_cli.cotraining.expertise import entropy_expertise, frequency_expertise
from fedmosaic_cli.cotraining.logit_adjustment import shift_to_public_set
from fedmosaic_cli.cotraining.trust import MIN_TRUST, agreement_trust, weighted_agreement
from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.context import OPTIMIZER_SUFFIX, Training
from fedmosaic_cli.engine.losses import AdjustedPseudoLabelLoss, UniformTargetLoss, select_labelled
from fedmosaic_cli.engine.method import Costs, Needs, UsedIf, hyperparameters
from fedmosaic_cli.labels.label_messages import ConsensusLabels
from fedmosaic_cli.labels.leave_one_out import leave_one_out_votes
from fedmosaic_cli.labels.sharing import reporting_rates, voting_rules
from fedmosaic_cli.methods.fedmosaic import ConstantTrust, ExpertiseName, FedMosaic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from fedmosaic_cli.cotraining.crossfit import GateDecision
    from fedmosaic_cli.engine.context import (
        Client,
        FederationInfo,
        LossTerm,
        Message,
        Parameters,
        ReceivedMessage,
        Server,
    )
    from fedmosaic_cli.engine.messages import Part

    LossTermsFactory = Callable[[Tensor, Tensor], Sequence[LossTerm]]
    """Returns the loss terms for pseudo-labels and the training labels of a client."""

# Keys of models and data in the state of a client.
VOTING_MODEL_KEY = "voter"
FOLDS_KEY, CANDIDATE_KEY, PEER_LABELS_KEY = "folds", "candidate", "without"
LOCAL_FOLD_PREFIX, COLLABORATIVE_FOLD_PREFIX = "fold-alone", "fold-together"

TrustName = Literal["paper", "stabilised", "agreement", "gated"]


@hyperparameters
class GatedCoTraining(FedMosaic):
    """FedMosaic with a gate, separate voting models and a prior-adjusted public loss.

    Attributes:
        trust: `agreement` computes lambda once, from the client's agreement with the first consensus. `gated` is the
            same for clients that pass the gate, and 0 for all others. Otherwise as in FedMosaic.
        warmup_share: `warmup_fraction` in configurations. The first upload comes after this fraction of all rounds, or
            after `warmup_rounds` if later.
        public_loss: `prior-adjusted` corrects for the difference between the class distributions of the client and of
            the public set.
        prior_strength: Strength of that correction, from 0 (none) to 1 (full).
        prior_smoothing: Added to every class count.
        votes_from: `voter` in configurations. The model that votes: the trained model (`self`), a copy that never sees
            the consensus (`shadow`), or such a copy that is also trained to be uncertain on the public set (`doubting`,
            outlier exposure). Configurations say `model`, `local` and `outlier-exposed`.
        doubt: `outlier_weight` in configurations. Weight of the uniform-target loss of `doubting` models.
        trust_power: Exponent of the agreement.
        trust_min: Smaller values of lambda become 0.
        gate_folds: Folds of the cross-fitted test.
        gate_budget: Fraction of all rounds until the gate decides.
        gate_z: Standard errors that the gain must exceed.
        gate_prior_var: Prior variance of the gain, which matters for few examples.
    """

    expertise: ExpertiseName = "count-confidence"
    trust: TrustName | ConstantTrust = "gated"  # type: ignore[assignment]  # more rules than FedMosaic has
    warmup_share: Annotated[float, Field(ge=0, le=1)] = 0.2
    public_loss: Literal["plain", "prior-adjusted"] = "prior-adjusted"
    prior_strength: Annotated[float, Field(ge=0, le=10), UsedIf("public_loss", "prior-adjusted")] = 1.0
    prior_smoothing: Annotated[float, Field(gt=0, le=1e6), UsedIf("public_loss", "prior-adjusted")] = 1.0
    votes_from: Literal["self", "shadow", "doubting"] = "doubting"
    doubt: Annotated[float, Field(ge=0, le=1e30), UsedIf("votes_from", "doubting")] = 1.0
    trust_power: Annotated[float, Field(gt=0, le=100), UsedIf("trust", "gated", "agreement")] = 2.0
    trust_min: Annotated[float, Field(ge=0, le=1), UsedIf("trust", "gated", "agreement")] = 0.01
    gate_folds: Annotated[int, Field(ge=2, le=20), UsedIf("trust", "gated")] = 2
    gate_budget: Annotated[float, Field(gt=0, le=1), UsedIf("trust", "gated")] = 0.35
    gate_z: Annotated[float, Field(ge=-1e30, le=1e30), UsedIf("trust", "gated")] = 1.0
    gate_prior_var: Annotated[float, Field(ge=0, le=1e30), UsedIf("trust", "gated")] = 0.25

    info = replace(FedMosaic.info, name="gated", title="Gated co-training", citation="docs/trust.md")

    @property
    def variant(self) -> str:
        return self.info.name

    @property
    def is_gated(self) -> bool:
        return self.trust == "gated"

    @property
    def gate(self) -> CrossFitGate:
        return CrossFitGate(self.gate_folds, self.gate_z, self.gate_prior_var)

    @property
    def needs(self) -> Needs:
        needs_network = self.is_gated or self.public_loss != "plain" or self.votes_from == "doubting"
        return replace(
            super().needs,
            learners="any network" if needs_network else "anything",
            total_rounds=self.is_gated or self.warmup_share > 0,
        )

    @property
    def downloads(self) -> Mapping[str, Part]:
        return (
            {**super().downloads, PEER_LABELS_KEY: ConsensusLabels(sent_once=True)}
            if self.is_gated
            else super().downloads
        )

    def num_warmup_rounds(self, num_rounds: int) -> int:
        return max(self.warmup_rounds, round(self.warmup_share * num_rounds))

    def gate_decision_round(self, num_rounds: int) -> int:
        """Return the round at the end of which clients decide."""
        return max(self.num_warmup_rounds(num_rounds) + 1, round(self.gate_budget * num_rounds))

    def costs(self, ctx: FederationInfo) -> Costs:
        num_rounds = ctx.num_rounds
        warmup = min(self.num_warmup_rounds(num_rounds), num_rounds)
        decided = min(self.gate_decision_round(num_rounds), num_rounds)
        gate = self.gate_folds * warmup + (1 + 2 * self.gate_folds) * (decided - warmup) if self.is_gated else 0
        voting = {"self": 0, "shadow": num_rounds - (decided if self.is_gated else warmup), "doubting": num_rounds}
        local_rounds = num_rounds + gate + voting[self.votes_from]
        num_models = (2 + 2 * self.gate_folds if self.is_gated else 1) + int(self.votes_from != "self")
        note = (
            f"{self.info.title}: clients first test whether collaboration helps them; this takes up to "
            f"{local_rounds / num_rounds:.1f} times the steps of Local, mostly until round {decided}"
        )
        return Costs(num_models, num_models, local_rounds, note if self.is_gated else "")

    def init_client(self, client: Client, ctx: FederationInfo) -> None:
        super().init_client(client, ctx)
        if self.votes_from == "doubting":
            client.state[VOTING_MODEL_KEY] = client.initial_model
        if self.is_gated:
            self.gate.init_folds(client)

    def train_with_consensus(
        self, client: Client, consensus: Tensor | None, received: ReceivedMessage, ctx: FederationInfo
    ) -> None:
        is_undecided = self.is_gated and self.gate.is_undecided(client)
        needs_copy = self.votes_from == "shadow" and consensus is not None and VOTING_MODEL_KEY not in client.state
        if needs_copy and not is_undecided:
            copy_model_state(client, "model", VOTING_MODEL_KEY)
        has_voting_model = VOTING_MODEL_KEY in client.state
        if is_undecided:
            self.train_gate_round(client, consensus, received, ctx)
        else:
            super().train_with_consensus(client, consensus, received, ctx)
        if has_voting_model:
            client.train(VOTING_MODEL_KEY, self.voting_model_terms(ctx))

    def train_gate_round(
        self, client: Client, consensus: Tensor | None, received: ReceivedMessage, ctx: FederationInfo
    ) -> None:
        """Run a round of a client that has not decided yet. Its model is trained as in Local."""
        gate = self.gate
        if consensus is not None and not gate.has_candidate(client):
            # A client that missed the round after the first vote was not part of the consensus that it gets now.
            peer_labels = received.get(PEER_LABELS_KEY, consensus)
            if self.trust_from_agreement(consensus, client) and (peer_labels != NO_LABEL).any():
                gate.start_test(client, peer_labels)
            else:
                gate.finish(client, is_accepted=False)
                client.log(gate_trust=client.state["trust"], gate_on=0)
                client.state["trust"] = 0.0
        client.log(trust=0.0, public_share=0.0)
        if not gate.is_undecided(client):
            client.train("model")
            return
        trust, counts = client.state.get("trust", 0.0), client.class_counts
        trainings = [Training("model")]
        if gate.has_candidate(client):
            terms = [] if consensus is None else self.loss_terms(consensus, trust, counts)
            trainings.append(Training(CANDIDATE_KEY, terms))
        trainings += gate.fold_trainings(
            client, lambda labels, own: self.loss_terms(labels, trust, own.bincount(minlength=len(counts)))
        )
        client.train_all(trainings)
        if gate.has_candidate(client) and client.round >= self.gate_decision_round(ctx.num_rounds):
            decision = gate.decide(client)
            is_accepted = decision.is_accepted
            client.log(
                gate_trust=trust, gate_gain=decision.gain, gate_error=decision.standard_error, gate_on=int(is_accepted)
            )
            client.state["trust"] = trust if is_accepted else 0.0
            if is_accepted and self.votes_from == "shadow":
                copy_model_state(client, "model", VOTING_MODEL_KEY)
            gate.finish(client, is_accepted)

    def loss_terms(self, consensus: Tensor, trust: float, class_counts: Tensor) -> list[LossTerm]:
        if self.public_loss == "plain" or not self.prior_strength or trust <= MIN_TRUST:
            return super().loss_terms(consensus, trust, class_counts)
        shift = shift_to_public_set(class_counts, consensus, self.prior_strength, self.prior_smoothing)
        return [AdjustedPseudoLabelLoss.from_labels(consensus, shift, trust)]

    def voting_model_terms(self, ctx: FederationInfo) -> list[LossTerm]:
        """Return the loss terms of the voting model: outlier exposure on the public set, or none."""
        import torch

        if self.votes_from != "doubting" or not self.doubt:
            return []
        return [UniformTargetLoss(torch.zeros(ctx.public_size, dtype=torch.int64), self.doubt)]

    def voting_model(self, client: Client) -> Parameters:
        return client.state[VOTING_MODEL_KEY] if VOTING_MODEL_KEY in client.state else super().voting_model(client)

    def compute_trust(self, consensus: Tensor | None, client: Client) -> float:
        if self.is_gated:
            return 0.0 if consensus is None else client.state.get("trust", 0.0)
        if self.trust == "agreement":
            return 0.0 if consensus is None else self.trust_from_agreement(consensus, client)
        return super().compute_trust(consensus, client)

    def trust_from_agreement(self, consensus: Tensor, client: Client) -> float:
        """Return lambda from the agreement with the first consensus, when no model had seen a consensus yet."""
        if "trust" not in client.state:
            log_probs, labels = select_labelled(self.voting_log_probs(client), consensus)
            votes, counts = log_probs.argmax(dim=1), client.class_counts
            weights = frequency_expertise(votes, counts) * entropy_expertise(log_probs)
            agreement = weighted_agreement(votes, labels, weights)
            client.log(gate_agreement=agreement)
            client.state["trust"] = agreement_trust(agreement, len(counts), self.trust_power, self.trust_min)
        trust: float = client.state["trust"]
        return trust

    def public_log_probs(self, client: Client) -> Tensor:
        if VOTING_MODEL_KEY in client.state:
            return client.predict_public(client.state["model"]).log_softmax(dim=1)
        return super().public_log_probs(client)

    def voting_log_probs(self, client: Client) -> Tensor:
        """Return the voting model's log-probabilities on the public set: those of the last upload, if there was one."""
        log_probs: Tensor | None = client.state.get("log_probs")
        return client.predict_public(self.voting_model(client)).log_softmax(dim=1) if log_probs is None else log_probs

    def broadcast(self, server: Server, client_id: int, ctx: FederationInfo) -> Message:
        message = super().broadcast(server, client_id, ctx)
        peer_labels = server.state.get(PEER_LABELS_KEY, {}).get(str(client_id))
        return message if peer_labels is None else {**message, PEER_LABELS_KEY: peer_labels}

    def aggregate(self, server: Server, uploads: Mapping[int, ReceivedMessage], ctx: FederationInfo) -> None:
        """Vote as FedCT does. After the first vote, also compute for each client the consensus without its vote."""
        from torch import as_tensor

        is_first = "labels" not in server.state
        super().aggregate(server, uploads, ctx)
        if self.is_gated and is_first:
            ballots = [upload["opinion"] for upload in uploads.values()]
            votes = leave_one_out_votes(ballots, voting_rules(ctx, len(ballots)), reporting_rates(ctx))
            server.state[PEER_LABELS_KEY] = {str(client): as_tensor(labels) for client, labels in votes.items()}


@hyperparameters
class ExtendedFedMosaic(GatedCoTraining):
    """FedMosaic with the options of gated co-training, which version 0.1.0 accepted under `methods.fedmosaic`."""

    expertise: ExpertiseName = "frequency"
    trust: TrustName | ConstantTrust = "paper"
    warmup_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    public_loss: Literal["plain", "prior-adjusted"] = "plain"
    votes_from: Literal["self", "shadow", "doubting"] = "self"

    info = FedMosaic.info

    @property
    def variant(self) -> str:
        return f"{self.info.name}-{self.expertise}"


@dataclass(frozen=True)
class CrossFitGate:
    """A client's cross-fitted test of whether collaboration helps it.

    The training data is split into folds. For every fold, one model is trained without it. After the first vote each
    of these models continues in two copies: one on private data only, one also with the pseudo-labels of the other
    clients. Neither copy nor the pseudo-labels have seen the fold, so the fold compares them fairly. This takes several
    rounds and can be checkpointed in between.

    Until the decision, the client is evaluated and votes with a model trained as in Local, and trains a candidate with
    the consensus. If the test is passed, the candidate replaces the model.

    Attributes:
        num_folds: Number of folds.
        z_threshold: Standard errors that the gain must exceed.
        prior_variance: Prior variance of the gain.
    """

    num_folds: int
    z_threshold: float
    prior_variance: float

    def init_folds(self, client: Client) -> None:
        """Split the training data and initialise one model per fold. A client with too little data gets no folds."""
        if len(client.train_labels) < 2 * self.num_folds:
            return
        client.state[FOLDS_KEY] = stratified_folds(client.train_labels, self.num_folds, client.rng("folds"))
        for fold in range(self.num_folds):
            client.state[f"{LOCAL_FOLD_PREFIX}-{fold}"] = client.initial_model

    def is_undecided(self, client: Client) -> bool:
        """Whether the client has not decided yet."""
        return FOLDS_KEY in client.state

    def has_candidate(self, client: Client) -> bool:
        """Whether the comparison has started."""
        return CANDIDATE_KEY in client.state

    def start_test(self, client: Client, peer_labels: Tensor) -> None:
        """Copy all models. `peer_labels` is the consensus of the other clients."""
        client.state[PEER_LABELS_KEY] = peer_labels
        copy_model_state(client, "model", CANDIDATE_KEY)
        for fold in range(self.num_folds):
            copy_model_state(client, f"{LOCAL_FOLD_PREFIX}-{fold}", f"{COLLABORATIVE_FOLD_PREFIX}-{fold}")

    def fold_trainings(self, client: Client, make_loss_terms: LossTermsFactory) -> list[Training]:
        """Return the trainings of one round for the models of every fold."""
        folds, trainings = client.state[FOLDS_KEY], []
        for fold in range(self.num_folds):
            seen = (folds != fold).nonzero()[:, 0]
            trainings.append(Training(f"{LOCAL_FOLD_PREFIX}-{fold}", examples=seen))
            if self.has_candidate(client):
                terms = make_loss_terms(client.state[PEER_LABELS_KEY], client.train_labels[seen])
                trainings.append(Training(f"{COLLABORATIVE_FOLD_PREFIX}-{fold}", terms, examples=seen))
        return trainings

    def decide(self, client: Client) -> GateDecision:
        """Compare both models of every fold on the fold's examples."""
        import torch

        gains = torch.empty(len(client.train_labels), dtype=torch.float64)
        for fold in range(self.num_folds):
            held_out = client.state[FOLDS_KEY] == fold
            labels = client.train_labels[held_out]
            local, collaborative = (
                brier_scores(client.predict_private(client.state[f"{prefix}-{fold}"]).cpu()[held_out], labels)
                for prefix in (LOCAL_FOLD_PREFIX, COLLABORATIVE_FOLD_PREFIX)
            )
            gains[held_out] = local - collaborative
        return gate_decision(gains, self.z_threshold, self.prior_variance)

    def finish(self, client: Client, is_accepted: bool) -> None:
        """Keep the candidate if it is accepted, and delete everything else that belongs to the test."""
        if is_accepted:
            for suffix in ("", OPTIMIZER_SUFFIX):
                if CANDIDATE_KEY + suffix in client.state:
                    client.state["model" + suffix] = client.state[CANDIDATE_KEY + suffix]
        prefixes = (FOLDS_KEY, LOCAL_FOLD_PREFIX, COLLABORATIVE_FOLD_PREFIX, CANDIDATE_KEY, PEER_LABELS_KEY)
        for key in [key for key in client.state if key.startswith(prefixes)]:
            del client.state[key]


def copy_model_state(client: Client, source: str, target: str) -> None:
    """Copy a model and its optimizer state to another key."""
    for suffix in ("", OPTIMIZER_SUFFIX):
        if source + suffix in client.state:
            client.state[target + suffix] = params.copy_state(client.state[source + suffix])
