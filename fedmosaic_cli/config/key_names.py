"""Names of configuration keys that differ between what users write and what runs store.

Files on disk keep the keys and values of version 0.1.0, so that results stay comparable and runs can be resumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

STORED_KEYS = {
    "data": {"fraction": "share", "public_pool_size": "public_from"},
    "train": {"image_device": "images"},
    "methods": {"voter": "votes_from", "outlier_weight": "doubt", "warmup_fraction": "warmup_share"},
}
"""The stored key of each renamed one, by section."""
STORED_VALUES = {"voter": {"model": "self", "local": "shadow", "outlier-exposed": "doubting"}}


def to_stored_keys(
    section: str, values: Mapping[str, Any], known_keys: Collection[str]
) -> tuple[dict[str, Any], list[str]]:
    """Translate the keys and values of a section to those that runs store.

    Args:
        section: `data`, `methods.fedct` and the like.
        values: Content of the section, with new or old keys.
        known_keys: The stored keys of the section. A section may store the new name, such as `methods.student`.

    Returns:
        The content with stored keys, and a notice for each old spelling.
    """
    renamed = STORED_KEYS.get(section.partition(".")[0], {})
    stored_keys = {new: stored for new, stored in renamed.items() if new not in known_keys}
    new_keys = {stored: new for new, stored in stored_keys.items()}
    content: dict[str, Any] = {}
    notices = []
    for key, value in values.items():
        new = new_keys.get(key, key)
        stored = stored_keys.get(key, key)
        if stored in content:
            raise RequestError(f"both {new} and {stored} are given ({section}): use {new}")
        if new != key:
            notices.append(f"{section}.{key} is now {section}.{new}")
        stored_values = STORED_VALUES.get(new, {}) if stored in new_keys else {}
        if isinstance(value, str) and value in stored_values.values():
            notices.append(f"{section}.{new} {value} is now {display_value(f'{section}.{stored}', value)}")
        content[stored] = stored_values.get(value, value) if isinstance(value, str) else value
    return content, notices


def display_key(key: str) -> str:
    """Return the new name of a stored key such as `data.share`; other keys are unchanged."""
    section, _, name = key.rpartition(".")
    for new, stored in STORED_KEYS.get(section.partition(".")[0], {}).items():
        if name == stored:
            return f"{section}.{new}"
    return key


def display_value(key: str, value: Any) -> Any:
    """Return the new spelling of the value of a stored key."""
    return next((new for new, stored in renamed_values(key).items() if value == stored), value)


def display_choices(key: str, text: str) -> str:
    """Replace the quoted values of a stored key in a text by their new spelling."""
    for new, stored in renamed_values(key).items():
        text = text.replace(f"'{stored}'", f"'{new}'")
    return text


def renamed_values(key: str) -> dict[str, str]:
    return STORED_VALUES.get(display_key(key).rpartition(".")[2], {})


def display_assignment(assignment: str) -> str:
    """Return `section.key=value` with the new names of a stored key and value."""
    key, _, value = assignment.partition("=")
    return f"{display_key(key)}={display_value(key, value)}"


def stored_key(key: str) -> str:
    """Return the stored name of a key such as `data.fraction`; other keys are unchanged."""
    section, _, name = key.rpartition(".")
    return f"{section}.{STORED_KEYS.get(section.partition('.')[0], {}).get(name, name)}"
