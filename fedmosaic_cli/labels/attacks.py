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
from fedmosaic_cli.labels.voting import Ballot, Rates, Tally
from fedmosaic_cli.labels.wire import ExpertiseCode, LabelCode
from fedmosaic_cli.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from fedmosaic_cli.engine.method import World
    from fedmosaic_cli.engine.train_settings import AttackSettings
    from fedmosaic_cli.labels.wire import Form

    Labels = NDArray[Any]
    Floats = NDArray[np.float64]

INFLATION = 1e30


@dataclass(frozen=True)
class Delivery:
    """Something that reaches the server, in time or too late."""

    sender: int
    data: bytes
    late: bool = False


@dataclass(frozen=True)
class Scene:
    """What attackers can know in a round: the opinions that all clients formed, honestly, and what went before."""

    round: int
    opinions: Mapping[int, bytes]
    last_opinions: Mapping[int, bytes]
    """What attackers would have sent in the round before, if they took part."""
    consensus: Labels | None


@dataclass(frozen=True)
class Attack:
    """The attackers of a run. `unlike` is, for each class, the one that is least similar to it."""

    settings: AttackSettings
    form: Form
    seed: int
    rates: Rates = Rates()  # noqa: RUF009 - frozen
    unlike: Labels | None = None

    def is_on(self, number: int) -> bool:
        return self.settings.kind not in ("none", "poison_data") and number >= self.settings.from_round

    @property
    def remembering(self) -> set[int]:
        """Who needs to know in a round what it had to say in the one before."""
        return set(self.settings.clients) if self.settings.kind == "replay" else set()

    def seen_by(self, client: int, number: int, world: World) -> World:
        """The world as a client sees it that may be going to lie in a round."""
        lying = self.settings.lies and client in self.settings.clients and self.is_on(number)
        return replace(world, lying=True) if lying else world

    def deliveries(self, scene: Scene) -> list[Delivery]:
        """What reaches the server in a round."""
        attackers = set(self.settings.clients) & scene.opinions.keys() if self.is_on(scene.round) else set()
        found = []
        for client, data in scene.opinions.items():
            if client not in attackers:
                found.append(Delivery(client, data))
            elif self.settings.kind == "late":
                found.append(Delivery(client, data, late=True))
            else:
                sent = self.sent_by(client, scene)
                found += [] if sent is None else [Delivery(client, sent)]
        return found

    def sent_by(self, client: int, scene: Scene) -> bytes | None:
        """What an attacker sends; None for nothing."""
        if self.settings.kind == "missing":
            return None
        if self.settings.kind == "replay":
            return scene.last_opinions.get(client)
        if self.settings.kind == "malformed":
            return self.malformed(client, scene)
        labels = self.lies(client, scene)
        if labels is None:
            return None
        envelope = wire.envelope_of(scene.opinions[client])
        shape = labels if self.form.labels is LabelCode.INDEX else one_hot(labels, self.form.num_classes)
        return wire.write_opinion(envelope, self.form, shape, self.claims(client, labels, scene))

    def lies(self, client: int, scene: Scene) -> Labels | None:
        """The labels that an attacker sends; None where it has nothing to say yet."""
        stream = generator(self.seed, "attack", client, scene.round)
        size, classes = self.form.public_size, self.form.num_classes
        ways: dict[str, Callable[[], Labels | None]] = {
            "random": lambda: stream.integers(0, classes, size),
            "constant": lambda: np.full(size, generator(self.seed, "attack").integers(classes)),
            "flip": lambda: following(self.honest_labels(client, scene), classes),
            "collude_flip": lambda: following(self.vote(scene, set(self.settings.clients)).argmax(axis=1), classes),
            "least_likely": lambda: self.vote(scene, self.others(scene)).argmin(axis=1),
            "class_prior": lambda: self.least_similar(self.vote(scene, self.others(scene)).argmax(axis=1)),
            "inflate": lambda: self.inflated_labels(client, scene),
            "free_rider": lambda: None if scene.consensus is None else np.maximum(scene.consensus, 0),
        }
        return ways[self.settings.kind]()

    def claims(self, client: int, labels: Labels, scene: Scene) -> Floats | None:
        """The expertise that goes with these labels: as much as can be said, or as much as passes the checks."""
        if self.form.expertise is ExpertiseCode.NONE:
            return None
        by_class, honest = self.form.expertise is ExpertiseCode.HISTOGRAM, self.expertise_of(client, scene)
        if self.settings.kind == "flip":
            return honest
        if self.settings.adaptive and self.form.share:
            told = np.unique(labels)
            shares = np.zeros(self.form.num_classes)
            shares[told] = 1 / len(told)
            return shares if by_class else shares[labels]
        if self.settings.kind == "inflate" and honest is not None and not self.settings.adaptive:
            return honest * INFLATION
        return np.full(self.form.num_classes if by_class else self.form.public_size, self.form.high)

    def malformed(self, client: int, scene: Scene) -> bytes:
        """The honest opinion, spoilt in one of the ways in which messages are."""
        data, stream = scene.opinions[client], generator(self.seed, "attack", client, scene.round)
        envelope = wire.envelope_of(data)
        spoilt = SPOILT[stream.integers(len(SPOILT))]
        if isinstance(spoilt, float):
            form = replace(self.form, labels=LabelCode.INDEX, expertise=ExpertiseCode.FLOATS)
            labels = self.honest_labels(client, scene)
            return wire.write_opinion(envelope, form, labels, np.full(form.public_size, spoilt))
        room = self.form.labels is LabelCode.INDEX and self.form.num_classes < 1 << label_bits(self.form.num_classes)
        if spoilt == "label" and room:
            return wire.seal(envelope, self.form, b"\xff" * self.form.payload_bytes)
        if spoilt == "longer":
            return data + bytes(stream.integers(1, 9))
        if spoilt == "shorter":
            return data[: stream.integers(len(data))]
        place = int(stream.integers(8 * len(data)))
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        return bytes(flipped)

    def honest_labels(self, client: int, scene: Scene) -> Labels:
        labels = wire.read_labels(scene.opinions[client], self.form)
        return labels if labels.ndim == 1 else labels.argmax(axis=1)

    def expertise_of(self, client: int, scene: Scene) -> Floats | None:
        return wire.read_expertise(scene.opinions[client], self.form)

    def inflated_labels(self, client: int, scene: Scene) -> Labels:
        labels = self.honest_labels(client, scene)
        return following(labels, self.form.num_classes) if self.settings.flipped else labels

    def others(self, scene: Scene) -> set[int]:
        return scene.opinions.keys() - set(self.settings.clients)

    def vote(self, scene: Scene, clients: set[int]) -> Floats:
        """The scores [examples, classes] that the honest opinions of these clients come to."""
        tally = Tally(self.form.public_size, self.form.num_classes)
        for client in sorted(clients & scene.opinions.keys()):
            ballot = Ballot(client, scene.opinions[client], self.form)
            tally.add(ballot.labels(), ballot.weights())
        return tally.scores(self.rates)

    def least_similar(self, labels: Labels) -> Labels:
        if self.unlike is None:
            raise ValueError("nobody said which classes are alike")
        return self.unlike[labels]


# What expertise is replaced with, or what else is wrong.
SPOILT: tuple[float | str, ...] = (np.nan, np.inf, -1.0, "label", "longer", "shorter", "flipped")


def following(labels: Labels, num_classes: int) -> Labels:
    """Each class's next one."""
    return (labels.astype(np.int64) + 1) % num_classes


def one_hot(labels: Labels, num_classes: int) -> Labels:
    return np.eye(num_classes, dtype=np.uint8)[labels]


def unlike_classes(images: NDArray[np.uint8], labels: Labels, num_classes: int) -> Labels:
    """For each class the one whose mean image is least like its own, by the cosine after the mean is taken off."""
    pixels = images.reshape(len(images), -1).astype(np.float64)
    groups = [pixels[labels == label] for label in range(num_classes)]
    means = np.stack([(group if len(group) else pixels).mean(axis=0) for group in groups])
    beyond = means - means.mean(axis=0)
    beyond /= np.maximum(np.linalg.norm(beyond, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return np.asarray((beyond @ beyond.T).argmin(axis=1))
