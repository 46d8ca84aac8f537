"""Student: one exchange of labels with confidence, and a mixture of the client's own model with a student of them.

Not in the paper; see docs/trust.md. Every client trains as in Local. After the last round it labels the public set,
once, with a second model that is also trained to be uncertain there (outlier exposure). The server sums the votes to
class shares. `methods.student_mixture` says what a client does with them. A client that keeps its own model equals
Local, bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from fedmosaic_cli.cotraining.expertise import entropy_expertise
from fedmosaic_cli.cotraining.label_noise import denoised_mean, uniform_fraction
from fedmosaic_cli.cotraining.vote_shares import (
    MIN_Z,
    ConfidenceVotes,
    agreement_z_by_client,
    contradicts_others,
    effective_classes,
    holdout_z,
    sharpened_shares,
    vote_reputations,
    vote_sums,
)
from fedmosaic_cli.engine.losses import RandomisedLabelLoss, SoftLabelLoss, UniformTargetLoss
from fedmosaic_cli.engine.messages import Scalars
from fedmosaic_cli.engine.method import Costs, MethodInfo, UsedIf, hyperparameters
from fedmosaic_cli.labels import wire
from fedmosaic_cli.labels.label_messages import ClassShares, ConsensusLabels, LabelUpload, LabelVotes
from fedmosaic_cli.labels.privacy.privatize import privatize
from fedmosaic_cli.labels.sharing import (
    VOTE_LOG_KEY,
    SharesLabels,
    VoteLog,
    expertise_encoding,
    label_encoding,
    reporting_rates,
)
from fedmosaic_cli.labels.voting import agreement_rate
from fedmosaic_cli.methods.student_mixture import STEPS_KEY, STUDENT_NETWORK, StudentMixture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedmosaic_cli.engine.context import Client, FederationInfo, Message, ReceivedMessage, Server
    from fedmosaic_cli.engine.messages import Part
    from fedmosaic_cli.engine.method import RunFacts
    from fedmosaic_cli.labels.voting import Ballot

VOTER_KEY = "voter"
VOTES_KEY = "votes"
"""Where the server state keeps the votes, which `fedmosaic forecast` reads."""
HOLDOUT_FRACTION = 0.2
MIN_PUBLIC_SIZE, RECOMMENDED_PUBLIC_SIZE = 250, 500


@hyperparameters
class Student(StudentMixture, SharesLabels):
    """A student of the clients' votes, mixed with the client's own model.

    Attributes:
        sharpen: Power of the vote sums, after which they become shares. With randomised labels the server sends shares
            without it, and the loss of the student applies it.
        downlink: What the server sends: shares of all classes, or the leading class.
        share_bits: Bits per share.
        confidence_bits: Bits per confidence in an upload.
        outlier_weight: Weight of the uniform-target loss of voting models. 0 votes with the client's own model.
        check_agreement: Keep the own model of clients that contradict the others on the public set and, with the gate
            `safe`, of all clients if they do not agree with each other.
        check_shares: Keep all own models if a student cannot predict the votes on held-out public examples.
        robust: Weigh voters by their agreement with the others.
    """

    sharpen: Annotated[float, Field(gt=0, le=100)] = 2.0
    downlink: Literal["shares", "labels"] = "shares"
    share_bits: Annotated[int, Field(ge=1, le=16), UsedIf("downlink", "shares")] = 4
    confidence_bits: Annotated[int, Field(ge=1, le=16)] = 8
    outlier_weight: Annotated[float, Field(ge=0, le=1e30)] = 1.0
    check_agreement: bool = True
    check_shares: bool = True
    robust: bool = False

    uses_defence: ClassVar[bool] = False
    claims_privacy: ClassVar[bool] = False
    info = MethodInfo(
        "student",
        "Student",
        family="co-training",
        exchanges="labels and confidence up, class shares down, once",
        citation="docs/trust.md",
        evaluates="the client's own model, mixed with the student if a test shows a gain",
        shares_labels=True,
    )

    @property
    def uploads(self) -> Mapping[str, Part]:
        return {"opinion": LabelUpload(self.message_spec, sent_once=True)}

    @property
    def downloads(self) -> Mapping[str, Part]:
        shares: Part = ConsensusLabels(sent_once=True)
        if self.downlink == "shares":
            shares = ClassShares(self.share_bits, sent_once=True)
        return {"shares": shares, "agreement": Scalars(("z", "median_z"), sent_once=True)}

    def message_spec(self, ctx: FederationInfo) -> wire.MessageSpec:
        return wire.MessageSpec(
            ctx.public_size,
            ctx.num_classes,
            label_encoding=label_encoding(ctx),
            expertise_encoding=expertise_encoding(ctx, wire.ExpertiseEncoding.LEVELS),
            expertise_bits=self.confidence_bits,
        )

    def num_warmup_rounds(self, num_rounds: int) -> int:
        return num_rounds

    def init_client(self, client: Client, ctx: FederationInfo) -> None:
        super().init_client(client, ctx)
        if self.has_voter(client):
            client.state[VOTER_KEY] = client.initial_model

    def has_voter(self, client: Client) -> bool:
        """Whether the client votes with a separate model. A scikit-learn client has no outlier exposure."""
        return self.outlier_weight > 0 and client.has_network

    def local_round(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Message:
        import torch

        super().local_round(client, received, ctx)
        if STEPS_KEY not in client.state:
            return {}
        if self.has_voter(client):
            uniform = UniformTargetLoss(torch.zeros(ctx.public_size, dtype=torch.int64), self.outlier_weight)
            client.log(public_share=0.0)  # that of the client's own model, not of the voting model
            client.train(VOTER_KEY, [uniform])
        return self.make_upload(client, ctx) if client.round == ctx.num_rounds else {}

    def make_upload(self, client: Client, ctx: FederationInfo) -> Message:
        """Label the public set. Confidence is relative to the client's highest one, so that few bits suffice."""
        voter = client.state[VOTER_KEY if self.has_voter(client) else "model"]
        log_probs = client.predict_public(voter).log_softmax(dim=1)
        confidence = entropy_expertise(log_probs)
        client.log(confidence=confidence.mean().item() / math.log(ctx.num_classes))
        relative = (confidence / confidence.max().clamp(min=1e-30)).numpy()
        votes = privatize(log_probs.argmax(dim=1).numpy(), relative, client, ctx, self.message_spec(ctx))
        return {"opinion": LabelVotes(*votes)}

    def aggregate(self, server: Server, uploads: Mapping[int, ReceivedMessage], ctx: FederationInfo) -> None:
        """Sum the votes to class shares, and compute how well each client agrees with the others."""
        import torch

        votes = {client: confidence_votes(upload["opinion"]) for client, upload in uploads.items()}
        sums = vote_sums(votes, ctx.num_classes)
        z = agreement_z_by_client(votes, sums)
        reputation = vote_reputations(votes, ctx.num_classes) if self.robust else None
        if reputation is not None:
            sums = vote_sums(votes, ctx.num_classes, reputation)
        noise = noise_fraction(ctx)
        shares = torch.as_tensor(sharpened_shares(sums, 1.0 if noise else self.sharpen))
        labels = shares.argmax(dim=1)
        server.state = {
            "labels": labels,
            "shares": shares if self.downlink == "shares" else labels,
            "z": {str(client): value for client, value in z.items()},
            VOTES_KEY: stored_votes(votes),
            VOTE_LOG_KEY: vote_log(votes, labels, reputation),
        }
        num_effective = effective_classes(denoised_mean(shares, noise).numpy())
        server.log(median_z=median(z.values()), class_coverage=num_effective / ctx.num_classes)

    def broadcast(self, server: Server, client_id: int, ctx: FederationInfo) -> Message:
        if "shares" not in server.state or server.round > ctx.num_rounds:
            return {}
        z: dict[str, float] = server.state["z"]
        # A client that has not voted cannot contradict the others.
        agreement = {"z": z.get(str(client_id), median(z.values())), "median_z": median(z.values())}
        return {"shares": server.state["shares"], "agreement": agreement}

    def student_targets(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Tensor | None:
        from torch.nn.functional import one_hot

        if "shares" not in received:
            client.log(exchanged=0)
            return None
        if not self.has_agreement(client, received["agreement"]):
            return None
        shares: Tensor = received["shares"]
        if self.downlink == "labels":
            shares = one_hot(shares.clamp(min=0), ctx.num_classes).double()
        if self.check_shares and not self.has_predictable_shares(client, shares, self.label_noise(ctx)):
            return None
        return shares

    def label_noise(self, ctx: FederationInfo) -> float:
        # Noise that is uniform over the classes does not change which class leads on average.
        return noise_fraction(ctx) if self.downlink == "shares" else 0.0

    def student_loss(self, targets: Tensor, noise: float) -> SoftLabelLoss:
        # Noisy shares arrive as they are: a power of them would not be what the loss corrects for.
        return RandomisedLabelLoss(targets, 1.0, noise, self.sharpen) if noise else super().student_loss(targets, noise)

    def has_agreement(self, client: Client, agreement: Mapping[str, float]) -> bool:
        """Whether the votes of the client, and those of all clients, agree enough to use the shares."""
        z, median_z = agreement["z"], agreement["median_z"]
        client.log(agreement_z=z)
        if not self.check_agreement:
            return True
        return not contradicts_others(z, median_z) and (median_z >= MIN_Z or self.gate != "safe")

    def has_predictable_shares(self, client: Client, shares: Tensor, noise: float) -> bool:
        """Whether a student predicts the votes on public examples that it has not seen; if not, they are noise."""
        z = client.shared_result("holdout", lambda trainer: self.holdout_test(trainer, shares, noise))
        client.log(holdout_z=z)
        return z >= MIN_Z

    def holdout_test(self, trainer: Server, shares: Tensor, noise: float) -> float:
        """Return how well a student predicts the votes on public examples that it has not seen; see `holdout_z`."""
        import torch

        order = torch.as_tensor(trainer.rng("holdout").permutation(len(shares)))
        num_held_out = round(HOLDOUT_FRACTION * len(shares))
        held_out, seen = order[:num_held_out], order[num_held_out:]
        student = self.train_student(trainer, shares, seen, noise)
        predicted = trainer.predict_public(student, STUDENT_NETWORK).argmax(dim=1)
        return holdout_z(predicted[held_out].numpy(), shares.argmax(dim=1)[held_out].numpy(), shares.shape[1])

    def temporary_keys(self) -> set[str]:
        return super().temporary_keys() | {VOTER_KEY}

    def costs(self, ctx: FederationInfo) -> Costs:
        costs = super().costs(ctx)
        # A step of the voting model has a private and a public batch.
        local_rounds = (costs.local_rounds or 0) + (2 * ctx.num_rounds if self.outlier_weight else 0)
        note = (
            f"{self.info.title}: {local_rounds / max(ctx.num_rounds, 1):.2g} times the steps of Local, and "
            f"{(1 + self.check_shares) * self.steps} steps on the public set, which a simulation takes once and every "
            "remote site takes itself"
        )
        num_voters = int(self.outlier_weight > 0)
        return replace(
            costs,
            state_models=costs.state_models + num_voters,
            trained_models=costs.trained_models + num_voters,
            local_rounds=local_rounds,
            note="; ".join(filter(None, (note, costs.note))),
        )

    def warnings(self, facts: RunFacts) -> list[str]:
        title, warnings = self.info.title, super().warnings(facts)
        if facts.public_size < RECOMMENDED_PUBLIC_SIZE:
            needed = f"{MIN_PUBLIC_SIZE} are needed, " if facts.public_size < MIN_PUBLIC_SIZE else ""
            warnings.append(
                f"{title} has {facts.public_size} public examples (data.public_size): at least {needed}"
                f"{RECOMMENDED_PUBLIC_SIZE} are recommended"
            )
        if facts.num_participants < facts.num_clients:
            warnings.append(
                f"only the {facts.num_participants} clients of the last round vote for {title} "
                "(train.clients_per_round): the others only use the shares"
            )
        return warnings


def confidence_votes(ballot: Ballot) -> ConfidenceVotes:
    """Return the votes of a ballot.

    Every confidence is at least `voting.MIN_VOTE_WEIGHT`, so that an example in which no client has confidence gets
    nearly the votes of the majority.
    """
    labels = ballot.labels()
    return ConfidenceVotes(labels.astype("int64") if labels.ndim == 1 else labels, ballot.weights())


def noise_fraction(ctx: FederationInfo) -> float:
    """Return the fraction of uniform labels in the votes, which follows from the noise of the run."""
    rates = reporting_rates(ctx)
    return uniform_fraction(rates.true_positive, rates.false_positive, ctx.num_classes)


def stored_votes(votes: Mapping[int, ConfidenceVotes]) -> dict[str, dict[str, Tensor]]:
    """Return votes as tensors for a checkpoint."""
    import torch

    return {
        str(client): {"labels": torch.as_tensor(own.labels), "confidence": torch.as_tensor(own.confidence)}
        for client, own in votes.items()
    }


def vote_log(votes: Mapping[int, ConfidenceVotes], labels: Tensor, reputation: Mapping[int, float] | None) -> VoteLog:
    """Return what the log records about a vote."""
    metrics = {c: {"vote_agreement": agreement_rate(own.labels, labels.numpy())} for c, own in votes.items()}
    for client, value in (reputation or {}).items():
        metrics[client]["reputation"] = value
    return VoteLog(client_metrics=metrics, labels={"weighted": labels})
