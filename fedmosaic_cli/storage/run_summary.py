"""The content of summary.json. A valid digest does not prove that the content makes sense, so it is validated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.certificates import Certificate, ExchangeDiagnosis
from fedmosaic_cli.labels.trust_diagnosis import TrustDiagnosis
from fedmosaic_cli.schema import Fraction, Record
from fedmosaic_cli.storage.privacy_summary import PrivacySection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

T = TypeVar("T")

SUMMARY_SCHEMA = 1
MAX_JSON_DEPTH = 20
# A sum in another order rounds differently; a larger deviation is an error.
MEAN_TOLERANCE = 1e-9


class NotASummaryError(RequestError):
    """Raised for a summary.json that is not from fedmosaic."""


class NewerSummaryError(RequestError):
    """Raised for a summary of a newer version."""


def require_printable(content: T) -> T:
    """Return the content unless a text in it contains control characters or cannot be encoded."""
    for text in iter_strings(content):
        if not text.isprintable():
            raise ValueError(f"{ascii(text)[:80]} cannot be printed")
    return content


def iter_strings(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield all keys and texts inside a JSON value of limited depth."""
    if depth > MAX_JSON_DEPTH:
        raise ValueError("values are nested too deeply")
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from iter_strings(inner, depth + 1)


NonNegativeInt = Annotated[int, Field(ge=0)]
PrintableStr = Annotated[str, AfterValidator(require_printable)]
NonEmptyStr = Annotated[PrintableStr, Field(min_length=1)]
PrintableDict = Annotated[dict[str, Any], AfterValidator(require_printable)]


class AccuracySummary(Record):
    client_mean: Fraction | None
    """None if remote sites do not report it."""
    per_client: Annotated[list[Fraction], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def check_client_mean(self) -> AccuracySummary:
        if not self.per_client:
            return self
        mean = sum(self.per_client) / len(self.per_client)
        if self.client_mean is None or abs(mean - self.client_mean) > MEAN_TOLERANCE:
            raise ValueError("client_mean is not the mean of per_client")
        return self


class ShardsSummary(Record):
    digest: str = ""
    parameters: PrintableDict
    clients: Annotated[int, Field(ge=1)] | None = None


class TrafficSummary(Record):
    """Bits that all clients sent and received; None for centralized training."""

    up: NonNegativeInt | None = None
    down: NonNegativeInt | None = None


class EvaluationSummary(Record):
    clients: NonEmptyStr


class RunSummary(Record):
    """The summary of a finished run."""

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
    certificates: list[Certificate] = Field(default_factory=list)
    exchange: ExchangeDiagnosis | None = None

    @model_validator(mode="after")
    def check_privacy_sections(self) -> RunSummary:
        if (self.privacy is None) == bool(self.privacy_settings):
            raise ValueError("privacy and privacy_settings belong together")
        return self


def check_summary_schema(content: Any, path: Path) -> None:
    """Raise an error for content that is not a summary or comes from a newer version."""
    schema = content.get("schema") if isinstance(content, dict) else None
    if type(schema) is not int or schema < 1:
        raise NotASummaryError(f"not the summary of a run ({path}): it was not written by fedmosaic")
    if schema > SUMMARY_SCHEMA:
        raise NewerSummaryError(f"written by a newer fedmosaic, schema {schema} ({path}): update fedmosaic to read it")


def validate_summary(content: dict[str, Any], path: Path) -> None:
    """Raise `RequestError` for a summary with missing or impossible values."""
    try:
        RunSummary.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise RequestError(f"the summary is damaged, {key}: {first['msg']} ({path}): run it again") from None
