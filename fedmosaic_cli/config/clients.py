"""The `clients` section: what some clients do differently, e.g. `0-4: {model: cnn}` or `5: {lr: 0.1}`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.settings import Section

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.engine.method import Method
    from fedmosaic_cli.models.settings import ModelSettings


class ClientSettings(Section):
    """What is not said is as in the sections `model` and `train`.

    `model` is a name, or several keys of that section.
    """

    model: dict[str, Any] = Field(default_factory=dict)
    optimizer: Literal["adam", "sgd"] | None = None
    lr: float | None = None
    momentum: float | None = None

    @field_validator("model", mode="before")
    @classmethod
    def a_name_is_enough(cls, model: Any) -> Any:
        return {"name": model} if isinstance(model, str) else model

    def training(self) -> dict[str, Any]:
        """The keys of the section `train` that it changes."""
        return self.model_dump(include={"optimizer", "lr", "momentum"}, exclude_none=True)


def members(text: str, clients: int) -> range:
    """The clients that `4` or `0-4` stands for, of so many."""
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text)
    if not match:
        raise RequestError(f"cannot read clients '{text}' (clients): write a number or a range, e.g. 4 or 0-4")
    first, last = int(match[1]), int(match[2] or match[1])
    if not first <= last < clients:
        raise RequestError(f"no clients {text} (clients): they are numbered from 0 to {clients - 1}")
    return range(first, last + 1)


def spread(sections: Mapping[str, ClientSettings], clients: int) -> dict[int, ClientSettings]:
    """The settings by client; nobody may be named twice."""
    settings: dict[int, ClientSettings] = {}
    for text, section in sections.items():
        for client in members(text, clients):
            if client in settings:
                raise RequestError(f"client {client} is named twice (clients.{text}): let ranges not overlap")
            settings[client] = section
    return settings


@dataclass(frozen=True)
class Misfit:
    """What a method needs, why that is not there, and what to do."""

    needs: str
    but: str
    way_out: str


def misfit(method: Method, models: Mapping[int, ModelSettings]) -> Misfit | None:
    """Why a method cannot be played by clients with these models; None where it can."""
    if method.learners == "anything":
        return None
    way_out = "use fedmosaic, fedct or local"
    one = method.learners == "one network"
    needs = "needs the same network for all clients" if one else "needs networks"
    strangers = [f"client {client} has a {model.name}" for client, model in models.items() if not model.is_network]
    if strangers:
        return Misfit(needs, f"{strangers[0]} (clients)", way_out)
    if not one or len(set(models.values())) == 1:
        return None
    names = list(dict.fromkeys(model.name for model in models.values()))
    but = f"theirs are {', '.join(names)}" if len(names) > 1 else f"not all are the same {names[0]}"
    return Misfit(needs, f"{but} (clients)", way_out)
