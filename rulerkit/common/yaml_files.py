"""YAML files, read so that every version of YAML would read the same."""

import os
import re
from pathlib import Path
from typing import Any

import yaml

from rulerkit.common.errors import UserError, shortened
from rulerkit.common.paths import KIT, home

_PLAIN = {
    "null": r"|~|null|Null|NULL",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(0|[1-9][0-9]{0,17})",
    "float": r"[-+]?([0-9]{1,17}\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,2})?",
    "str": r"[^\0\ud800-\udfff]*",
    "merge": "<<",
}
"""How a scalar of each type may be written: as every version of YAML reads it."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, and scalars that versions of YAML read in different ways
    (no, 010, dates)."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        names = set()
        for key, _ in node.value:
            if key.value in names:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value!r} stands twice", problem_mark=key.start_mark
                )
            names.add(key.value)
        return node

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if not re.fullmatch(_PLAIN.get(node.tag.rpartition(":")[2], "(?!)"), node.value):
            problem = (
                f"{shortened(node.value)} is not a plain value: write numbers as 10 or 0.5, truth "
                "as true or false, and "
                "any other text in quotes"
            )
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return node


def parse_yaml(text: str | bytes, where: object) -> Any:
    """What a YAML text says; `where` begins the message about a text that is not YAML."""
    try:
        if isinstance(text, str) and re.search("[\ud800-\udfff]", text):
            # Words of a command line whose letters the locale does not have: their bytes.
            text = os.fsencode(text)
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        problem = " ".join(str(error.problem).split())
        raise UserError(f"{where} is not YAML that can be used: {line}{problem}") from error
    except Exception as error:  # PyYAML passes on what malformed numbers and nesting raise
        raise UserError(f"{where} is not YAML: {' '.join(str(error).split())}") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping."""
    try:
        content = parse_yaml(path.read_bytes(), path)
    except OSError as error:
        # The project's files, and those of the kit.
        folders = dict.fromkeys(root / "params" for root in (home(), KIT))
        places = " and ".join(str(folder) for folder in folders if folder.is_dir())
        raise UserError(
            f"cannot read {path}: {error.strerror}; parameter files lie in {places}"
        ) from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(
            f"{path} holds a {type(content).__name__}: it must hold `name: value` lines, such as "
            "`num_examples: 20`"
        )
    return content
