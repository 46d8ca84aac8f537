"""Read YAML files strictly: no tags, no duplicate keys, no surprising numbers, limited size."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any

import yaml

from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MAX_YAML_BYTES = 1 << 20
MAX_YAML_DEPTH = 20
MAX_YAML_ALIASES = 100
MAX_YAML_VALUES = 10_000


class StrictYamlLoader(yaml.SafeLoader):
    """Unlike YAML 1.1, reads 1e-3 as a number and 3:20 as text, and refuses duplicate keys and tags.

    Limits on size and depth apply while the text is parsed.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - how yaml declares it
    num_aliases = num_values = depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            self.num_aliases += 1
        elif event.tag is not None:
            raise yaml.MarkedYAMLError(problem=f"tag '{event.tag}' has no meaning here", problem_mark=event.start_mark)
        self.num_values += 1
        self.depth += 1
        require_at_most(MAX_YAML_ALIASES, self.num_aliases, "aliases")
        require_at_most(MAX_YAML_VALUES, self.num_values, "values")
        require_at_most(MAX_YAML_DEPTH, self.depth, "levels")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.YAMLError(f"key '{key.value}' is repeated in line {key.start_mark.line + 1}")
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        require_at_most(MAX_YAML_VALUES, len(node.value), "values, once merged")


def require_at_most(limit: int, count: int, unit: str) -> None:
    if count > limit:
        raise yaml.YAMLError(f"more than {limit} {unit}")


FLOAT_PATTERN = r"[-+]?((\d+\.\d*|\.\d+)([eE][-+]?\d+)?|\d+[eE][-+]?\d+)"
for tag, pattern, starts in (
    ("bool", "true|false|True|False|TRUE|FALSE", "tfTF"),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?(0|[1-9]\d*)", "-+0123456789"),
    ("float", rf"{FLOAT_PATTERN}|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+.0123456789"),
    ("merge", "<<", "<"),
):
    StrictYamlLoader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), list(starts))


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML; `where` names the source in errors."""
    try:
        content = yaml.load(text, StrictYamlLoader)
        check_yaml_size(content)
        return content
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        location = f"{where}, line {mark.line + 1}" if mark else where
        problem = getattr(error, "problem", None) or str(error)
        raise RequestError(f"not valid YAML: {problem} ({location}): correct it") from None


def check_yaml_size(content: Any) -> None:
    """Refuse content that is nested too deeply or too large once its aliases are expanded."""
    level, seen = [content], 0
    for _ in range(MAX_YAML_DEPTH):
        level = list(islice((part for value in level for part in child_values(value)), MAX_YAML_VALUES + 1))
        seen += len(level)
        require_at_most(MAX_YAML_VALUES, seen, "values")
        if not level:
            return
    raise yaml.YAMLError(f"nested more than {MAX_YAML_DEPTH} deep")


def child_values(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that contains a mapping."""
    try:
        if path.exists() and not path.is_file():
            raise RequestError(f"not a file ({path}): a configuration is YAML in UTF-8")
        with path.open("rb") as file:
            data = file.read(MAX_YAML_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"cannot read configuration: {reason} ({path}): check the path") from None
    if len(data) > MAX_YAML_BYTES:
        raise RequestError(f"the file is too large for a configuration ({path}): at most {MAX_YAML_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise RequestError(f"not a text file ({path}): a configuration is YAML in UTF-8") from None
    content = parse_yaml(text, str(path))
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise RequestError(f"a configuration is a mapping of names ({path}): see 'fedmosaic presets show quickstart'")
    return content
