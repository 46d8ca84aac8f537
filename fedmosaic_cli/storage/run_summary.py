"""What is read of a run's summary, which may be anybody's: a digest tells of damage, not of sense."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.trust_diagnosis import TrustDiagnosis
from fedmosaic_cli.storage.privacy_section import PrivacySection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

T = TypeVar("T")

SUMMARY_SCHEMA = 1
MAX_JSON_DEPTH = 20
# Sums in another order round differently; a mean that is further off was not taken of these numbers.
MEAN_TOLERANCE = 1e-9


class NotASummaryError(RequestError):
    """A file of that name which is none of ours."""


class NewerSummaryError(RequestError):
    """A summary that a newer version wrote."""


def require_printable(content: T) -> T:
    """The content, if no text in it would steer a terminal or could not be written."""
    for text in iter_strings(content):
        if not text.isprintable():
            raise ValueError(f"{ascii(text)[:80]} cannot be printed")
    return content


def iter_strings(value: Any, depth: int = 0) -> Iterator[str]:
    """All text inside a value of JSON, which may not be deeper than any of ours."""
    if depth > MAX_JSON_DEPTH:
        raise ValueError("values lie too deep inside each other")
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from iter_strings(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from iter_strings(inner, depth + 1)


Fraction = Annotated[float, Field(ge=0, le=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PrintableStr = Annotated[str, AfterValidator(require_printable)]
NonEmptyStr = Annotated[PrintableStr, Field(min_length=1)]
PrintableDict = Annotated[dict[str, Any], AfterValidator(require_printable)]


class SummaryRecord(BaseModel):
    """A part of a summary; what it holds beyond this is read by nobody here."""

    model_config = ConfigDict(strict=True, extra="allow")


class AccuracySummary(SummaryRecord):
    """How right the clients are: the mean, and each of them where it was written down."""

    client_mean: Fraction
    per_client: Annotated[list[Fraction], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def check_client_mean(self) -> AccuracySummary:
        """The two tell the same."""
        if self.per_client and abs(sum(self.per_client) / len(self.per_client) - self.client_mean) > MEAN_TOLERANCE:
            raise ValueError("client_mean is not the mean of per_client")
        return self


class ShardsSummary(SummaryRecord):
    """What the clients held."""

    digest: str = ""
    parameters: PrintableDict
    clients: Annotated[int, Field(ge=1)] | None = None


class TrafficSummary(SummaryRecord):
    """What all clients sent and received; null where raw data moved."""

    up: NonNegativeInt | None = None
    down: NonNegativeInt | None = None


class EvaluationSummary(SummaryRecord):
    """What the numbers were taken on."""

    clients: NonEmptyStr


class RunSummary(SummaryRecord):
    """A finished run."""

    preset: NonEmptyStr
    dataset: NonEmptyStr
    scheme: NonEmptyStr
    method: NonEmptyStr
    variant: NonEmptyStr
    hyperparameters: PrintableDict
    seed: NonNegativeInt
    rounds: Annotated[int, Field(ge=1)]
    model: PrintableDict
    train: PrintableDict
    clients: PrintableDict = Field(default_factory=dict)
    privacy: PrivacySection | None = None
    privacy_settings: PrintableDict = Field(default_factory=dict)
    attack: PrintableDict = Field(default_factory=dict)
    defence: PrintableDict = Field(default_factory=dict)
    shards: ShardsSummary
    accuracy: AccuracySummary
    bits: TrafficSummary = Field(default_factory=TrafficSummary)
    evaluation: EvaluationSummary
    device: PrintableStr = ""
    diagnosis: TrustDiagnosis | None = None

    @model_validator(mode="after")
    def check_privacy_sections(self) -> RunSummary:
        """Whoever asked for noise says what it came to, and the other way round."""
        if (self.privacy is None) == bool(self.privacy_settings):
            raise ValueError("privacy and privacy_settings belong together")
        return self


def check_summary_schema(content: Any, path: Path) -> None:
    """Refuse what is no summary of ours, or a newer one."""
    schema = content.get("schema") if isinstance(content, dict) else None
    if type(schema) is not int or schema < 1:
        raise NotASummaryError(f"not the summary of a run ({path}): it was made by others")
    if schema > SUMMARY_SCHEMA:
        raise NewerSummaryError(f"written by a newer fedmosaic, schema {schema} ({path}): update fedmosaic to read it")


def validate_summary(content: dict[str, Any], path: Path) -> None:
    """Refuse a summary in which something is missing or cannot be."""
    try:
        RunSummary.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise RequestError(f"the summary is damaged, {where}: {first['msg']} ({path}): run it again") from None
