"""Turn validation errors into one-line messages with key, value, origin and allowed values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from fedmosaic_cli.config.key_names import display_choices, display_key, display_value
from fedmosaic_cli.errors import RequestError, unknown_name_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T")


def build_validated(
    factory: Callable[..., T],
    values: Mapping[str, Any],
    known_keys: Iterable[str],
    section: str,
    origins: Mapping[str, str],
) -> T:
    """Return `factory(**values)`; turn a validation error into a RequestError."""
    reject_unknown_keys(values, known_keys, section)
    try:
        return factory(**values)
    except ValidationError as error:
        raise RequestError(validation_error_message(error, section, origins)) from None


def reject_unknown_keys(values: Mapping[str, Any], known_keys: Iterable[str], section: str) -> None:
    """Raise RequestError for the first unknown key."""
    options = list(known_keys)
    for key in values:
        if key not in options:
            raise unknown_name_error(
                "key",
                display_key(f"{section}.{key}" if section else key),
                [display_key(f"{section}.{k}" if section else k) for k in options],
                "configuration",
            )


def validation_error_message(error: ValidationError, section: str, origins: Mapping[str, str]) -> str:
    """Describe the first invalid field, its value and the allowed ones."""
    problems = error.errors(include_url=False)
    if not problems[0]["loc"]:
        problem, _, remedy = str(problems[0]["ctx"]["error"]).partition(": ")
        return f"{problem} ({section}): {remedy}"
    field = problems[0]["loc"][0]
    own = [problem for problem in problems if problem["loc"][0] == field]
    key = f"{section}.{field}"
    allowed = display_choices(key, " or ".join(dict.fromkeys(expectation(problem) for problem in own)))
    value = display_value(key, own[0]["input"])
    return f"{display_key(key)} is {value!r} ({origins.get(key, 'configuration')}): it must be {allowed}"


def expectation(problem: Any) -> str:
    context = problem.get("ctx", {})
    kinds: dict[str, Callable[[], str]] = {
        "literal_error": lambda: context["expected"],
        "greater_than": lambda: f"greater than {context['gt']}",
        "greater_than_equal": lambda: f"at least {context['ge']}",
        "less_than": lambda: f"less than {context['lt']}",
        "less_than_equal": lambda: f"at most {context['le']}",
        "float_type": lambda: "a number",
        "int_type": lambda: "a whole number",
        "string_type": lambda: "a text",
        "tuple_type": lambda: f"a list, e.g. [{problem['input']}]",
        "int_from_float": lambda: "a whole number",
        "list_type": lambda: f"a list, e.g. [{problem['input']}]",
        "model_type": lambda: "a mapping",
        "bool_type": lambda: "true or false",
        "dict_type": lambda: "a name or a mapping",
        "finite_number": lambda: "finite",
        "none_required": lambda: "null",
        "value_error": lambda: str(context["error"]),
    }
    kind = problem["type"]
    return kinds[kind]() if kind in kinds else "another value"
