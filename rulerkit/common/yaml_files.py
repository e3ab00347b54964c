"""YAML files: a mapping of names to values, or one line that says what is wrong."""

import re
from pathlib import Path
from typing import Any

import yaml

from rulerkit.common.errors import UserError
from rulerkit.common.paths import home


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, and numbers that mean others in YAML: 010 is 8, 1:30 is
    90."""

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
        is_number = node.tag.endswith((":int", ":float"))
        if is_number and re.match(r"[+-]?(0\d|.*:)", node.value):
            problem = f"{node.value} would be another number: write it in decimal digits alone"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return node


def parse_yaml(text: str | bytes, where: object) -> Any:
    """What a YAML text says; `where` begins the message about a text that is not YAML."""
    try:
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
        raise UserError(
            f"cannot read {path}: {error.strerror}; files of parameters lie in {home() / 'params'}"
        ) from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        seen = "is empty" if content is None else f"holds a {type(content).__name__}"
        raise UserError(
            f"{path} {seen}: it must hold `name: value` lines, such as `num_examples: 20`"
        )
    return content
