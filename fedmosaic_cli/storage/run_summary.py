"""What is read of a run's summary, which may be anybody's: a digest tells of damage, not of sense."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.trust_diagnosis import Diagnosis
from fedmosaic_cli.storage.privacy_section import PrivacyBlock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

T = TypeVar("T")

SCHEMA = 1
MOST_DEPTH = 20
# Sums in another order round differently; a mean that is further off was not taken of these numbers.
ROUNDING = 1e-9


class ForeignSummaryError(RequestError):
    """A file of that name which is none of ours."""


class NewerSummaryError(RequestError):
    """A summary that a newer version wrote."""


def printable(content: T) -> T:
    """The content, if no text in it would steer a terminal or could not be written."""
    for text in texts_in(content):
        if not text.isprintable():
            raise ValueError(f"{ascii(text)[:80]} cannot be printed")
    return content


def texts_in(value: Any, depth: int = 0) -> Iterator[str]:
    """All text inside a value of JSON, which may not be deeper than any of ours."""
    if depth > MOST_DEPTH:
        raise ValueError("values lie too deep inside each other")
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from texts_in(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_in(inner, depth + 1)


Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Text = Annotated[str, AfterValidator(printable)]
Name = Annotated[Text, Field(min_length=1)]
Section = Annotated[dict[str, Any], AfterValidator(printable)]


class Part(BaseModel):
    """A part of a summary; what it holds beyond this is read by nobody here."""

    model_config = ConfigDict(strict=True, extra="allow")


class Accuracy(Part):
    """How right the clients are: the mean, and each of them where it was written down."""

    client_mean: Share
    per_client: Annotated[list[Share], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def mean_of_clients(self) -> Accuracy:
        """The two tell the same."""
        if self.per_client and abs(sum(self.per_client) / len(self.per_client) - self.client_mean) > ROUNDING:
            raise ValueError("client_mean is not the mean of per_client")
        return self


class Shards(Part):
    """What the clients held."""

    digest: str = ""
    parameters: Section
    clients: Annotated[int, Field(ge=1)] | None = None


class Bits(Part):
    """What all clients sent and received; null where raw data moved."""

    up: Count | None = None
    down: Count | None = None


class Evaluation(Part):
    """What the numbers were taken on."""

    clients: Name


class Summary(Part):
    """A finished run."""

    preset: Name
    dataset: Name
    scheme: Name
    method: Name
    variant: Name
    hyperparameters: Section
    seed: Count
    rounds: Annotated[int, Field(ge=1)]
    model: Section
    train: Section
    clients: Section = Field(default_factory=dict)
    privacy: PrivacyBlock | None = None
    privacy_settings: Section = Field(default_factory=dict)
    attack: Section = Field(default_factory=dict)
    defence: Section = Field(default_factory=dict)
    shards: Shards
    accuracy: Accuracy
    bits: Bits = Field(default_factory=Bits)
    evaluation: Evaluation
    device: Text = ""
    diagnosis: Diagnosis | None = None

    @model_validator(mode="after")
    def noise_is_told_of(self) -> Summary:
        """Whoever asked for noise says what it came to, and the other way round."""
        if (self.privacy is None) == bool(self.privacy_settings):
            raise ValueError("privacy and privacy_settings belong together")
        return self


def check_schema(content: Any, path: Path) -> None:
    """Refuse what is no summary of ours, or a newer one."""
    schema = content.get("schema") if isinstance(content, dict) else None
    if type(schema) is not int or schema < 1:
        raise ForeignSummaryError(f"not the summary of a run ({path}): it was made by others")
    if schema > SCHEMA:
        raise NewerSummaryError(f"written by a newer fedmosaic, schema {schema} ({path}): update fedmosaic to read it")


def check_sense(content: dict[str, Any], path: Path) -> None:
    """Refuse a summary in which something is missing or cannot be."""
    try:
        Summary.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise RequestError(f"the summary is damaged, {where}: {first['msg']} ({path}): run it again") from None
