"""The `clients` section: values for some clients, e.g. `0-4: {model: cnn}` or `5: {lr: 0.1}`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import Field

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.schema import ConfigSection

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fedmosaic_cli.engine.method import Method
    from fedmosaic_cli.models.model_settings import ModelSettings


T = TypeVar("T")


class ClientOverrides(ConfigSection):
    """Overrides of the sections `model` and `train` for some clients."""

    model: dict[str, Any] = Field(default_factory=dict)
    optimizer: Literal["adam", "sgd"] | None = None
    lr: float | None = None
    momentum: float | None = None

    def train_overrides(self) -> dict[str, Any]:
        return self.model_dump(include={"optimizer", "lr", "momentum"}, exclude_none=True)


def parse_client_range(text: str, num_clients: int) -> range:
    """Return the client ids that `4` or `0-4` names."""
    match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", text)
    if not match:
        raise RequestError(f"cannot read clients '{text}' (clients): write a number or a range, e.g. 4 or 0-4")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise RequestError(f"invalid range {text} (clients): write {last}-{first}")
    if last >= num_clients:
        raise RequestError(f"unknown clients {text} (clients): they are numbered from 0 to {num_clients - 1}")
    return range(first, last + 1)


def expand_client_ranges(sections: Mapping[str, T], num_clients: int) -> dict[int, T]:
    """Map client ids to the sections of their ranges; ranges must not overlap."""
    settings: dict[int, T] = {}
    for text, section in sections.items():
        for client in parse_client_range(text, num_clients):
            if client in settings:
                raise RequestError(f"client {client} is in two ranges (clients.{text}): make the ranges disjoint")
            settings[client] = section
    return settings


@dataclass(frozen=True)
class Incompatibility:
    """A requirement of a method that the configuration does not meet, and the remedy."""

    requirement: str
    problem: str
    remedy: str


def find_incompatibility(
    method: Method, models: Mapping[int, ModelSettings], overridden_clients: Collection[int]
) -> Incompatibility | None:
    """Return why a method does not support these clients, or None.

    Args:
        models: One model per group of equal clients, by the id of its first client.
        overridden_clients: Clients whose model is set in the section `clients`.
    """
    if method.needs.learners == "anything":
        return None
    remedy = "use fedmosaic, fedct or local"
    one = method.needs.learners == "one network"
    needs = "needs the same network for all clients" if one else "needs networks"
    estimators = [client for client, model in models.items() if not model.is_network]
    if estimators:
        where = "clients" if estimators[0] in overridden_clients else "model.name"
        return Incompatibility(needs, f"client {estimators[0]} has a {models[estimators[0]].name} ({where})", remedy)
    if not one or len(set(models.values())) == 1:
        return None
    names = list(dict.fromkeys(model.name for model in models.values()))
    problem = f"theirs are {', '.join(names)}" if len(names) > 1 else f"not all are the same {names[0]}"
    return Incompatibility(needs, f"{problem} (clients)", remedy)
