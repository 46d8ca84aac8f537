"""Simulated attackers: what reaches the server in place of their honest labels.

An attacker trains like any other client and replaces its upload. `least_likely` and `class_prior` assume that attackers
know the honest uploads, `collude_flip` that they know each other's. Well-formed attacks pass the same validation as
honest uploads.
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

    from fedmosaic_cli.engine.context import FederationInfo
    from fedmosaic_cli.labels.label_settings import AttackSettings
    from fedmosaic_cli.labels.privacy.privatize import LabelClient
    from fedmosaic_cli.labels.wire import MessageSpec

    LabelArray = NDArray[Any]
    FloatArray = NDArray[np.float64]

INFLATION_FACTOR = 1e30


@dataclass(frozen=True)
class UploadDelivery:
    """A message that reaches the server, in time or late."""

    sender_id: int
    data: bytes
    is_late: bool = False


@dataclass(frozen=True)
class AttackContext:
    """What attackers know in a round: all honest uploads, their previous uploads, and the last consensus."""

    round: int
    uploads: Mapping[int, bytes]
    previous_uploads: Mapping[int, bytes]
    """The attackers' honest uploads of the previous round."""
    consensus: LabelArray | None


@dataclass(frozen=True)
class LabelAttack:
    """The attackers of a run.

    Attributes:
        settings: The `attack` section of the configuration.
        spec: The encoding of uploads.
        seed: The seed of the run.
        rates: How often labels are reported correctly under privacy noise.
        least_similar_classes: For each class the least similar one; needed by `class_prior`.
    """

    settings: AttackSettings
    spec: MessageSpec
    seed: int
    rates: ReportingRates = ReportingRates()  # noqa: RUF009 - frozen
    least_similar_classes: LabelArray | None = None

    def is_active(self, round_number: int) -> bool:
        """Whether attackers replace their uploads in this round."""
        return self.settings.kind not in ("none", "poison_data") and round_number >= self.settings.from_round

    @property
    def replay_clients(self) -> set[int]:
        """The attackers that store their uploads to send them in the next round."""
        return set(self.settings.clients) if self.settings.kind == "replay" else set()

    def context_for_client(self, client: LabelClient, ctx: FederationInfo) -> FederationInfo:
        """Return what a client knows about the federation. An attacker that fabricates its upload adds no noise."""
        is_attacker = (
            self.settings.fabricates_uploads and client.id in self.settings.clients and self.is_active(client.round)
        )
        return with_label_sharing(ctx, is_attacker=True) if is_attacker else ctx

    def delivered_uploads(self, context: AttackContext) -> list[UploadDelivery]:
        """Return the messages that reach the server in a round."""
        attackers = set(self.settings.clients) & context.uploads.keys() if self.is_active(context.round) else set()
        deliveries = []
        for client, data in context.uploads.items():
            if client not in attackers:
                deliveries.append(UploadDelivery(client, data))
            elif self.settings.kind == "late":
                deliveries.append(UploadDelivery(client, data, is_late=True))
            else:
                upload = self.attacker_upload(client, context)
                deliveries += [] if upload is None else [UploadDelivery(client, upload)]
        return deliveries

    def attacker_upload(self, client_id: int, context: AttackContext) -> bytes | None:
        """Return the upload of an attacker; None if it sends nothing."""
        if self.settings.kind == "missing":
            return None
        if self.settings.kind == "replay":
            return context.previous_uploads.get(client_id)
        if self.settings.kind == "malformed":
            return self.malformed_upload(client_id, context)
        labels = self.attack_labels(client_id, context)
        if labels is None:
            return None
        header = wire.parse_header(context.uploads[client_id])
        expertise = self.claimed_expertise(client_id, labels, context)
        if self.spec.label_encoding is not LabelEncoding.INDEX:
            labels = np.eye(self.spec.num_classes, dtype=np.uint8)[labels]
        return wire.encode_label_upload(header, self.spec, labels, expertise)

    def attack_labels(self, client_id: int, context: AttackContext) -> LabelArray | None:
        """Return the labels that an attacker sends; None if it has none yet."""
        rng = derive_rng(self.seed, "attack", client_id, context.round)
        size, classes = self.spec.public_size, self.spec.num_classes
        attacks: dict[str, Callable[[], LabelArray | None]] = {
            "random": lambda: rng.integers(0, classes, size),
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
        return attacks[self.settings.kind]()

    def claimed_expertise(self, client_id: int, labels: LabelArray, context: AttackContext) -> FloatArray | None:
        """Return the expertise sent with these labels: the maximum, or what an adaptive attacker can claim."""
        if self.spec.expertise_encoding is ExpertiseEncoding.NONE:
            return None
        per_class = self.spec.expertise_encoding is ExpertiseEncoding.HISTOGRAM
        honest = wire.decode_expertise(context.uploads[client_id], self.spec)
        if self.settings.kind == "flip":
            return honest
        if self.settings.adaptive and self.spec.is_distribution:
            used = np.unique(labels)
            shares = np.zeros(self.spec.num_classes)
            shares[used] = 1 / len(used)
            return shares if per_class else shares[labels]
        if self.settings.kind == "inflate" and honest is not None and not self.settings.adaptive:
            return honest * INFLATION_FACTOR
        return np.full(self.spec.num_classes if per_class else self.spec.public_size, self.spec.max_expertise)

    def malformed_upload(self, client_id: int, context: AttackContext) -> bytes:
        """Return the honest upload, damaged in one of several ways."""
        data, rng = context.uploads[client_id], derive_rng(self.seed, "attack", client_id, context.round)
        header, num_classes = wire.parse_header(data), self.spec.num_classes
        variant = MALFORMED_VARIANTS[rng.integers(len(MALFORMED_VARIANTS))]
        if isinstance(variant, float):
            spec = replace(self.spec, label_encoding=LabelEncoding.INDEX, expertise_encoding=ExpertiseEncoding.FLOATS)
            labels = self.honest_labels(client_id, context)
            return wire.encode_label_upload(header, spec, labels, np.full(spec.public_size, variant))
        is_index = self.spec.label_encoding is LabelEncoding.INDEX
        if variant == "label" and is_index and num_classes < 1 << label_bits(num_classes):
            return wire.encode_message(header, self.spec, b"\xff" * self.spec.payload_bytes)
        if variant == "longer":
            return data + bytes(rng.integers(1, 9))
        if variant == "shorter":
            return data[: rng.integers(len(data))]
        position = int(rng.integers(8 * len(data)))
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        return bytes(flipped)

    def honest_labels(self, client_id: int, context: AttackContext) -> LabelArray:
        labels = wire.decode_labels(context.uploads[client_id], self.spec)
        return labels if labels.ndim == 1 else labels.argmax(axis=1)

    def inflated_labels(self, client_id: int, context: AttackContext) -> LabelArray:
        labels = self.honest_labels(client_id, context)
        return next_class(labels, self.spec.num_classes) if self.settings.flipped else labels

    def honest_clients(self, context: AttackContext) -> set[int]:
        return context.uploads.keys() - set(self.settings.clients)

    def vote_scores(self, context: AttackContext, client_ids: set[int]) -> FloatArray:
        """Return the vote scores [examples, classes] of these clients' honest uploads."""
        tally = VoteTally(self.spec.public_size, self.spec.num_classes)
        for client in sorted(client_ids & context.uploads.keys()):
            ballot = Ballot(client, context.uploads[client], self.spec)
            tally.add_votes(ballot.labels(), ballot.weights())
        return tally.scores(self.rates)

    def least_similar_labels(self, labels: LabelArray) -> LabelArray:
        if self.least_similar_classes is None:
            raise ValueError("class_prior needs least_similar_classes")
        return self.least_similar_classes[labels]


# A value that replaces all expertise, or another kind of damage.
MALFORMED_VARIANTS: tuple[float | str, ...] = (np.nan, np.inf, -1.0, "label", "longer", "shorter", "flipped")


def next_class(labels: LabelArray, num_classes: int) -> LabelArray:
    """Return the following class for each label."""
    return (labels.astype(np.int64) + 1) % num_classes


def least_similar_classes(images: NDArray[np.uint8], labels: LabelArray, num_classes: int) -> LabelArray:
    """Return for each class the one with the least similar mean image, by cosine similarity of centred means."""
    pixels = images.reshape(len(images), -1).astype(np.float64)
    groups = [pixels[labels == label] for label in range(num_classes)]
    means = np.stack([(group if len(group) else pixels).mean(axis=0) for group in groups])
    centred = means - means.mean(axis=0)
    centred /= np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return np.asarray((centred @ centred.T).argmin(axis=1))
