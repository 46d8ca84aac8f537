"""The `clients` section: what some clients do differently, e.g. `0-4: {model: cnn}` or `5: {lr: 0.1}`."""

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
    """What is not said is as in the sections `model` and `train`."""

    model: dict[str, Any] = Field(default_factory=dict)
    optimizer: Literal["adam", "sgd"] | None = None
    lr: float | None = None
    momentum: float | None = None

    def train_overrides(self) -> dict[str, Any]:
        """The keys of the section `train` that it changes."""
        return self.model_dump(include={"optimizer", "lr", "momentum"}, exclude_none=True)


def parse_client_range(text: str, num_clients: int) -> range:
    """The clients that `4` or `0-4` stands for, of so many."""
    match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", text)
    if not match:
        raise RequestError(f"cannot read clients '{text}' (clients): write a number or a range, e.g. 4 or 0-4")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise RequestError(f"no clients {text} (clients): write {last}-{first}")
    if last >= num_clients:
        raise RequestError(f"no clients {text} (clients): they are numbered from 0 to {num_clients - 1}")
    return range(first, last + 1)


def expand_client_ranges(sections: Mapping[str, T], num_clients: int) -> dict[int, T]:
    """What is said of clients, by client; nobody may be named twice."""
    settings: dict[int, T] = {}
    for text, section in sections.items():
        for client in parse_client_range(text, num_clients):
            if client in settings:
                raise RequestError(f"client {client} is named twice (clients.{text}): let ranges not overlap")
            settings[client] = section
    return settings


@dataclass(frozen=True)
class Incompatibility:
    """What a method needs, why that is not there, and what to do."""

    requirement: str
    problem: str
    remedy: str


def find_incompatibility(
    method: Method, models: Mapping[int, ModelSettings], overridden_clients: Collection[int]
) -> Incompatibility | None:
    """Why a method cannot be played by clients with these models, some of them their `own`; None where it can."""
    if method.supported_learners == "anything":
        return None
    way_out = "use fedmosaic, fedct or local"
    one = method.supported_learners == "one network"
    needs = "needs the same network for all clients" if one else "needs networks"
    strangers = [client for client, model in models.items() if not model.is_network]
    if strangers:
        where = "clients" if strangers[0] in overridden_clients else "model.name"
        return Incompatibility(needs, f"client {strangers[0]} has a {models[strangers[0]].name} ({where})", way_out)
    if not one or len(set(models.values())) == 1:
        return None
    names = list(dict.fromkeys(model.name for model in models.values()))
    but = f"theirs are {', '.join(names)}" if len(names) > 1 else f"not all are the same {names[0]}"
    return Incompatibility(needs, f"{but} (clients)", way_out)
