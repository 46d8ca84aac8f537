"""Clients that do not play by the rules, simulated: what reaches the server in place of their honest opinions.

An attacker trains like everybody else, and lies about what came of it. All of them know what the honest ones send
(`least_likely`, `class_prior`) or what their accomplices would have said (`collude_flip`). Lies that are told in good
form go through the same code as honest opinions do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.labels import wire
from fedmosaic_cli.labels.codecs import label_bits
from fedmosaic_cli.labels.sharing import with_label_sharing
from fedmosaic_cli.labels.voting import Ballot, ReportingRates, VoteTally
from fedmosaic_cli.labels.wire import ExpertiseEncoding, LabelEncoding
from fedmosaic_cli.seeds import derive_rng

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from fedmosaic_cli.engine.method import FederationInfo
    from fedmosaic_cli.labels.label_settings import AttackSettings
    from fedmosaic_cli.labels.privacy.privatize import LabelClient
    from fedmosaic_cli.labels.wire import MessageSpec

    LabelArray = NDArray[Any]
    FloatArray = NDArray[np.float64]

INFLATION_FACTOR = 1e30


@dataclass(frozen=True)
class UploadDelivery:
    """Something that reaches the server, in time or too late."""

    sender_id: int
    data: bytes
    is_late: bool = False


@dataclass(frozen=True)
class AttackContext:
    """What attackers can know in a round: the opinions that all clients formed, honestly, and what went before."""

    round: int
    uploads: Mapping[int, bytes]
    previous_uploads: Mapping[int, bytes]
    """What attackers would have sent in the round before, if they took part."""
    consensus: LabelArray | None


@dataclass(frozen=True)
class LabelAttack:
    """The attackers of a run. `unlike` is, for each class, the one that is least similar to it."""

    settings: AttackSettings
    spec: MessageSpec
    seed: int
    rates: ReportingRates = ReportingRates()  # noqa: RUF009 - frozen
    least_similar_classes: LabelArray | None = None

    def is_active(self, round_number: int) -> bool:
        return self.settings.kind not in ("none", "poison_data") and round_number >= self.settings.from_round

    @property
    def replay_clients(self) -> set[int]:
        """Who needs to know in a round what it had to say in the one before."""
        return set(self.settings.clients) if self.settings.kind == "replay" else set()

    def context_for_client(self, client: LabelClient, ctx: FederationInfo) -> FederationInfo:
        """Return what a client knows about the federation. An attacker that fabricates its upload adds no noise."""
        lying = self.settings.fabricates_uploads and client.id in self.settings.clients and self.is_active(client.round)
        return with_label_sharing(ctx, is_attacker=True) if lying else ctx

    def delivered_uploads(self, context: AttackContext) -> list[UploadDelivery]:
        """What reaches the server in a round."""
        attackers = set(self.settings.clients) & context.uploads.keys() if self.is_active(context.round) else set()
        found = []
        for client, data in context.uploads.items():
            if client not in attackers:
                found.append(UploadDelivery(client, data))
            elif self.settings.kind == "late":
                found.append(UploadDelivery(client, data, is_late=True))
            else:
                sent = self.attacker_upload(client, context)
                found += [] if sent is None else [UploadDelivery(client, sent)]
        return found

    def attacker_upload(self, client_id: int, context: AttackContext) -> bytes | None:
        """What an attacker sends; None for nothing."""
        if self.settings.kind == "missing":
            return None
        if self.settings.kind == "replay":
            return context.previous_uploads.get(client_id)
        if self.settings.kind == "malformed":
            return self.malformed_upload(client_id, context)
        labels = self.attack_labels(client_id, context)
        if labels is None:
            return None
        envelope = wire.parse_header(context.uploads[client_id])
        shape = (
            labels if self.spec.label_encoding is LabelEncoding.INDEX else one_hot_labels(labels, self.spec.num_classes)
        )
        return wire.encode_label_upload(envelope, self.spec, shape, self.claimed_expertise(client_id, labels, context))

    def attack_labels(self, client_id: int, context: AttackContext) -> LabelArray | None:
        """The labels that an attacker sends; None where it has nothing to say yet."""
        stream = derive_rng(self.seed, "attack", client_id, context.round)
        size, classes = self.spec.public_size, self.spec.num_classes
        ways: dict[str, Callable[[], LabelArray | None]] = {
            "random": lambda: stream.integers(0, classes, size),
            "constant": lambda: np.full(size, derive_rng(self.seed, "attack").integers(classes)),
            "flip": lambda: next_class(self.honest_labels(client_id, context), classes),
            "collude_flip": lambda: next_class(
                self.vote_scores(context, set(self.settings.clients)).argmax(axis=1), classes
            ),
            "least_likely": lambda: self.vote_scores(context, self.honest_clients(context)).argmin(axis=1),
            "class_prior": lambda: self.least_similar_labels(
                self.vote_scores(context, self.honest_clients(context)).argmax(axis=1)
            ),
            "inflate": lambda: self.inflated_labels(client_id, context),
            "free_rider": lambda: None if context.consensus is None else np.maximum(context.consensus, 0),
        }
        return ways[self.settings.kind]()

    def claimed_expertise(self, client_id: int, labels: LabelArray, context: AttackContext) -> FloatArray | None:
        """The expertise that goes with these labels: as much as can be said, or as much as passes the checks."""
        if self.spec.expertise_encoding is ExpertiseEncoding.NONE:
            return None
        by_class, honest = (
            self.spec.expertise_encoding is ExpertiseEncoding.HISTOGRAM,
            self.honest_expertise(client_id, context),
        )
        if self.settings.kind == "flip":
            return honest
        if self.settings.adaptive and self.spec.is_distribution:
            told = np.unique(labels)
            shares = np.zeros(self.spec.num_classes)
            shares[told] = 1 / len(told)
            return shares if by_class else shares[labels]
        if self.settings.kind == "inflate" and honest is not None and not self.settings.adaptive:
            return honest * INFLATION_FACTOR
        return np.full(self.spec.num_classes if by_class else self.spec.public_size, self.spec.max_expertise)

    def malformed_upload(self, client_id: int, context: AttackContext) -> bytes:
        """The honest opinion, spoilt in one of the ways in which messages are."""
        data, stream = context.uploads[client_id], derive_rng(self.seed, "attack", client_id, context.round)
        envelope = wire.parse_header(data)
        spoilt = MALFORMED_VARIANTS[stream.integers(len(MALFORMED_VARIANTS))]
        if isinstance(spoilt, float):
            form = replace(self.spec, label_encoding=LabelEncoding.INDEX, expertise_encoding=ExpertiseEncoding.FLOATS)
            labels = self.honest_labels(client_id, context)
            return wire.encode_label_upload(envelope, form, labels, np.full(form.public_size, spoilt))
        room = self.spec.label_encoding is LabelEncoding.INDEX and self.spec.num_classes < 1 << label_bits(
            self.spec.num_classes
        )
        if spoilt == "label" and room:
            return wire.encode_message(envelope, self.spec, b"\xff" * self.spec.payload_bytes)
        if spoilt == "longer":
            return data + bytes(stream.integers(1, 9))
        if spoilt == "shorter":
            return data[: stream.integers(len(data))]
        place = int(stream.integers(8 * len(data)))
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        return bytes(flipped)

    def honest_labels(self, client_id: int, context: AttackContext) -> LabelArray:
        labels = wire.decode_labels(context.uploads[client_id], self.spec)
        return labels if labels.ndim == 1 else labels.argmax(axis=1)

    def honest_expertise(self, client_id: int, context: AttackContext) -> FloatArray | None:
        return wire.decode_expertise(context.uploads[client_id], self.spec)

    def inflated_labels(self, client_id: int, context: AttackContext) -> LabelArray:
        labels = self.honest_labels(client_id, context)
        return next_class(labels, self.spec.num_classes) if self.settings.flipped else labels

    def honest_clients(self, context: AttackContext) -> set[int]:
        return context.uploads.keys() - set(self.settings.clients)

    def vote_scores(self, context: AttackContext, client_ids: set[int]) -> FloatArray:
        """The scores [examples, classes] that the honest opinions of these clients come to."""
        tally = VoteTally(self.spec.public_size, self.spec.num_classes)
        for client in sorted(client_ids & context.uploads.keys()):
            ballot = Ballot(client, context.uploads[client], self.spec)
            tally.add_votes(ballot.labels(), ballot.weights())
        return tally.scores(self.rates)

    def least_similar_labels(self, labels: LabelArray) -> LabelArray:
        if self.least_similar_classes is None:
            raise ValueError("nobody said which classes are alike")
        return self.least_similar_classes[labels]


# What expertise is replaced with, or what else is wrong.
MALFORMED_VARIANTS: tuple[float | str, ...] = (np.nan, np.inf, -1.0, "label", "longer", "shorter", "flipped")


def next_class(labels: LabelArray, num_classes: int) -> LabelArray:
    """Each class's next one."""
    return (labels.astype(np.int64) + 1) % num_classes


def one_hot_labels(labels: LabelArray, num_classes: int) -> LabelArray:
    return np.eye(num_classes, dtype=np.uint8)[labels]


def least_similar_classes(images: NDArray[np.uint8], labels: LabelArray, num_classes: int) -> LabelArray:
    """For each class the one whose mean image is least like its own, by the cosine after the mean is taken off."""
    pixels = images.reshape(len(images), -1).astype(np.float64)
    groups = [pixels[labels == label] for label in range(num_classes)]
    means = np.stack([(group if len(group) else pixels).mean(axis=0) for group in groups])
    beyond = means - means.mean(axis=0)
    beyond /= np.maximum(np.linalg.norm(beyond, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return np.asarray((beyond @ beyond.T).argmin(axis=1))
