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
    expertise_of,
    frequency_expertise,
    highest_expertise,
)
from fedmosaic_cli.cotraining.logit_adjustment import prior_shift
from fedmosaic_cli.cotraining.trust import LEAST_TRUST, TRUST_RULES, agreement_trust, weighted_agreement
from fedmosaic_cli.engine.gate import CANDIDATE, Gate, copy_of
from fedmosaic_cli.engine.losses import AdjustedPseudoLabels, Doubt, labelled, mean_cross_entropy
from fedmosaic_cli.engine.messages import Consensus
from fedmosaic_cli.engine.method import hyperparameters
from fedmosaic_cli.labels.privacy.privatize import expertise_code, rates_of, rules_of
from fedmosaic_cli.labels.voting import NO_LABEL, votes_without
from fedmosaic_cli.labels.wire import ExpertiseCode
from fedmosaic_cli.methods.fedct import FedCT, as_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fedmosaic_cli.engine.messages import Message
    from fedmosaic_cli.engine.method import Client, Learners, Parameters, Received, State, Term, World
    from fedmosaic_cli.labels.privacy.privatize import Speaker
    from fedmosaic_cli.labels.wire import Form


LEVEL_BITS = 8
VOTER = "voter"


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
    expertise_bits: Literal["float32"] | Annotated[int, Field(ge=1, le=32)] = LEVEL_BITS
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
    def idle(cls, values: Mapping[str, Any]) -> frozenset[str]:
        trust = values.get("trust")
        names = {
            "gate_": trust != "gated",
            "trust_": trust not in ("gated", "agreement"),
            "prior_": values.get("public_loss") != "prior-adjusted",
            "doubt": values.get("votes_from") != "doubting",
        }
        return frozenset(name for name in values for start, idle in names.items() if idle and name.startswith(start))

    @property
    def plays_with(self) -> Learners:
        plain = self.trust != "gated" and self.public_loss == "plain" and self.votes_from != "doubting"
        return self.learners if plain else "any network"

    @property
    def looks_ahead(self) -> bool:
        return self.trust == "gated" or self.warmup_share > 0

    @property
    def gate(self) -> Gate:
        return Gate(self.gate_folds, self.gate_z, self.gate_prior_var)

    def alone(self, rounds: int) -> int:
        return max(self.warmup_rounds, round(self.warmup_share * rounds))

    def gate_closes(self, rounds: int) -> int:
        """The round at the end of which clients decide."""
        return max(self.alone(rounds) + 1, round(self.gate_budget * rounds))

    @property
    def most_models(self) -> tuple[int, int]:
        voters = int(self.votes_from != "self")
        at_once = (2 + 2 * self.gate_folds if self.trust == "gated" else 1) + voters
        return at_once, at_once

    def passes(self, rounds: int) -> int:
        gated = self.trust == "gated"
        alone, closed = (min(number, rounds) for number in (self.alone(rounds), self.gate_closes(rounds)))
        at_the_gate = self.gate_folds * alone + (1 + 2 * self.gate_folds) * (closed - alone) if gated else 0
        voting = {"self": 0, "shadow": rounds - (closed if gated else alone), "doubting": rounds}[self.votes_from]
        return rounds + at_the_gate + voting

    def cost(self, rounds: int) -> str:
        if self.trust != "gated":
            return ""
        last = min(self.gate_closes(rounds), rounds)
        return (
            f"{self.title}: clients first find out whether collaboration helps them, which takes "
            f"{self.passes(rounds) / rounds:.1f} times the steps of Local at most, most of them until round {last}"
        )

    def enter(self, client: Client, world: World) -> None:
        super().enter(client, world)
        if self.votes_from == "doubting":
            client.state[VOTER] = client.init
        if self.trust == "gated":
            self.gate.prepare(client)

    def learn(self, client: Client, consensus: Tensor | None, received: Received, world: World) -> None:
        undecided = self.trust == "gated" and self.gate.is_open(client)
        if self.votes_from == "shadow" and consensus is not None and VOTER not in client.state and not undecided:
            copy_of(client, "model", VOTER)
        apart = VOTER in client.state
        if undecided:
            self.learn_at_the_gate(client, consensus, received, world)
        else:
            super().learn(client, consensus, received, world)
        if apart:
            client.train(VOTER, self.doubts(world) if self.votes_from == "doubting" else [])

    def learn_at_the_gate(self, client: Client, consensus: Tensor | None, received: Received, world: World) -> None:
        """A round of a client that has yet to find out whether collaboration helps it; so far it is Local."""
        gate = self.gate
        if consensus is not None and not gate.has_candidate(client):
            # Who missed the round after the first exchange had no part in the consensus that it gets now.
            without = received.get("without", consensus)
            if self.agreed_trust(consensus, client) and (without != NO_LABEL).any():
                gate.begin(client, without)
            else:
                gate.close(client, keep=False)
                client.note(gate_trust=client.state["trust"], gate_on=0)
                client.state["trust"] = 0.0
        client.note(trust=0.0, public_share=0.0)
        client.train("model")
        if not gate.is_open(client):
            return
        trust, counts = client.state.get("trust", 0.0), client.class_counts
        if gate.has_candidate(client):
            client.train(CANDIDATE, [] if consensus is None else self.terms(consensus, trust, counts))
        gate.train(client, lambda labels, own: self.terms(labels, trust, own.bincount(minlength=len(counts))))
        if gate.has_candidate(client) and client.round >= self.gate_closes(world.rounds):
            found = gate.decide(client)
            client.note(gate_trust=trust, gate_gain=found.gain, gate_error=found.error, gate_on=int(found.keep))
            client.state["trust"] = trust if found.keep else 0.0
            if found.keep and self.votes_from == "shadow":
                copy_of(client, "model", VOTER)
            gate.close(client, found.keep)

    def terms(self, consensus: Tensor, trust: float, class_counts: Tensor) -> list[Term]:
        if self.public_loss == "plain" or not self.prior_strength or trust <= LEAST_TRUST:
            return super().terms(consensus, trust, class_counts)
        shift = prior_shift(class_counts, consensus, self.prior_strength, self.prior_smoothing)
        return [AdjustedPseudoLabels.of(consensus, shift, trust)]

    def doubts(self, world: World) -> list[Term]:
        """What a voter learns beside its own data."""
        import torch

        return [Doubt(torch.zeros(world.public_size, dtype=torch.int64), self.doubt)] if self.doubt else []

    def voter(self, client: Client) -> Parameters:
        return client.state[VOTER] if VOTER in client.state else super().voter(client)

    def trust_in(self, consensus: Tensor | None, client: Client) -> float:
        if self.trust == "gated":
            return 0.0 if consensus is None else client.state.get("trust", 0.0)
        if self.trust == "agreement":
            return 0.0 if consensus is None else self.agreed_trust(consensus, client)
        if isinstance(self.trust, float):
            return 0.0 if consensus is None else self.trust
        private_loss = client.private_loss(client.state["model"])
        client.note(loss_private=private_loss, agreement=None)
        if consensus is None:
            return 0.0
        view = self.view_of("model", client) if VOTER in client.state else self.last_opinion(client)
        log_probs, consensus = labelled(view, consensus)
        public_loss = mean_cross_entropy(log_probs, consensus)
        agreement = (log_probs.argmax(dim=1) == consensus).double().mean().item()
        client.note(loss_public=public_loss, agreement=agreement)
        return TRUST_RULES[self.trust](private_loss, public_loss)

    def agreed_trust(self, consensus: Tensor, client: Client) -> float:
        """Trust by agreement, found at the first consensus: by then nobody's model has learned from another's."""
        if "trust" not in client.state:
            log_probs, consensus = labelled(self.last_opinion(client), consensus)
            labels, counts = log_probs.argmax(dim=1), client.class_counts
            knows = frequency_expertise(labels, counts) * entropy_expertise(log_probs)
            agreement = weighted_agreement(labels, consensus, knows)
            client.note(gate_agreement=agreement)
            client.state["trust"] = agreement_trust(agreement, len(counts), self.trust_power, self.trust_min)
        trust: float = client.state["trust"]
        return trust

    def last_opinion(self, client: Client) -> Tensor:
        """What the voter thinks of the public set: it has not changed since it gave its opinion, if it gave one."""
        log_probs: Tensor | None = client.state.get("log_probs")
        return self.view_of(VOTER if VOTER in client.state else "model", client) if log_probs is None else log_probs

    def view_of(self, model: str, client: Client) -> Tensor:
        """Log probabilities of a model on the public set."""
        return client.predict_public(client.state[model]).log_softmax(dim=1)

    def expertise_in(self, log_probs: Tensor, labels: Tensor, client: Speaker) -> NDArray[np.float64]:
        client.state["log_probs"] = log_probs
        return expertise_of(self.expertise, log_probs, labels, client.class_counts).numpy()

    def broadcast(self, server: State, client_id: int, world: World) -> Message:
        message = super().broadcast(server, client_id, world)
        without = server.get("without", {}).get(str(client_id))
        return message if without is None else {**message, "without": Consensus(without, world.num_classes)}

    def aggregate(self, server: State, uploads: Mapping[int, Received], world: World) -> State:
        state = super().aggregate(server, uploads, world)
        if self.trust == "gated" and "labels" not in server:
            ballots = [upload["opinion"] for upload in uploads.values()]
            without = votes_without(ballots, rules_of(world, len(ballots)), None, rates_of(world))
            state["without"] = {str(client): as_tensor(labels) for client, labels in without.items()}
        return state

    def opinion_form(self, world: World) -> Form:
        bits = self.expertise_bits
        code = expertise_code(world, ExpertiseCode.FLOATS if bits == "float32" else ExpertiseCode.LEVELS)
        return replace(
            super().opinion_form(world),
            expertise=code,
            expertise_bits=LEVEL_BITS if bits == "float32" else bits,
            high=highest_expertise(self.expertise, world.num_classes, max(world.sizes.values(), default=1)),
            share=self.expertise == "frequency" and (world.noise is None or code is ExpertiseCode.HISTOGRAM),
        )
