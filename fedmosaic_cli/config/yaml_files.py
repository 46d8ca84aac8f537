"""Reading YAML that people write: safely, with numbers as they mean them, and with no key twice."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

LARGEST = 1 << 20


class Loader(yaml.SafeLoader):
    """YAML 1.1 takes 1e-3 for a text and lets the last of two equal keys win; here neither happens."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        for position, key in enumerate(keys):
            if key in keys[:position]:
                raise yaml.YAMLError(
                    f"key '{key}' stands twice, the second time in line {node.value[position][0].start_mark.line + 1}"
                )
        return super().construct_mapping(node, deep=deep)


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def parse(text: str, where: str) -> Any:
    """The value of a YAML text; `where` names it in errors."""
    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}, line {mark.line + 1}" if mark else where
        problem = getattr(error, "problem", None) or str(error)
        raise RequestError(f"not valid YAML: {problem} ({place}): mend the file") from None


def read(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RequestError(f"cannot read configuration: {error.strerror} ({path}): check the path") from None
    if len(data) > LARGEST:
        raise RequestError(f"{len(data)} bytes are too many for a configuration ({path}): at most {LARGEST}")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise RequestError(f"not a text file ({path}): a configuration is YAML in UTF-8") from None
    content = parse(text, str(path))
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise RequestError(f"a configuration is a mapping of names ({path}): see 'fedmosaic presets show quickstart'")
    return content
