"""A comparison as JUnit XML, which every CI shows.

One suite for the verdict and one for each level; a test case for each row of the comparison. A loss
beyond the margin is a `failure`. A row where a loss is seen but the margin cannot be excluded, or
with too few examples to find any, is `skipped`; the verdict *cannot tell* is an `error`, because a
skipped verdict would be green.
"""

import math
import os
import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from typing import Any

from rulerkit.analysis.compare import CANNOT_TELL, WORSE, Comparison, Decision
from rulerkit.analysis.differences import interval_text
from rulerkit.common.errors import listed, points_text
from rulerkit.common.lengths import length_name

_LEVELS = {"cell": "cell", "task": "task", "length": "length", "all": "mean"}
_MOST_FLIPS = 12
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold."""


def junit_text(
    comparison: Comparison, verdict: Decision, command: str, name: str = "rulerkit compare"
) -> str:
    """The whole file. `command` is the one that repeats the comparison."""
    root = ET.Element("testsuites", name=name)
    file = _relative_folder(comparison)
    a, b = comparison.a.name, comparison.b.name

    suite = _suite(root, "verdict")
    _add_properties(suite, comparison)
    case = _case(suite, f"ruler: {b} against {a}", "verdict", file)
    if verdict.word == WORSE:
        _add(case, "failure", verdict.text, verdict.text, "worse")
    elif verdict.word == CANNOT_TELL:
        _add(case, "error", verdict.text, verdict.text, "cannot tell")
    _output(case, f"{verdict.text}\n{command}")

    for level, title in _LEVELS.items():
        rows = comparison.rows[comparison.rows["level"] == level]
        if len(rows):
            suite = _suite(root, title)
        for _, row in rows.iterrows():
            place = os.path.join(file, row["task"]) if row["task"] else file
            case = _case(suite, f"ruler: {title}", _name_of(row), place)
            _judge(case, comparison, row)
            _output(case, command)
    return _text_of(root)


def junit_error(message: str, name: str = "rulerkit compare", kind: str = "wrong use") -> str:
    """The file of a comparison that could not be made: one case with an error of a kind."""
    root = ET.Element("testsuites", name=name)
    suite = _suite(root, "verdict")
    _add(_case(suite, "ruler", "verdict", ""), "error", message, message, kind)
    return _text_of(root)


def _judge(case: ET.Element, comparison: Comparison, row: Any) -> None:
    """What a row of the comparison is as a test: failed, skipped with the reason, or passed."""
    p = f", p {row['p']:.5f}"
    sentence = f"{_name_of(row)} {interval_text(row)}{p}"
    may_be_larger = row["low"] <= -comparison.margin
    if row["beyond_margin"]:
        _add(case, "failure", sentence, _details(comparison, row, sentence), "worse")
    elif row["loss"] and may_be_larger:
        said = f"a loss is seen, and whether it exceeds the margin cannot be told: {sentence}"
        _add(case, "skipped", said, said)
    elif math.isnan(row["smallest_loss"]):
        _add(case, "skipped", *[f"too few examples: {row['n']}"] * 2)


def _details(comparison: Comparison, row: Any, sentence: str) -> str:
    """The numbers of a row, and the examples that flipped there."""
    lines = [
        sentence,
        f"A {row['a']:.2f}, B {row['b']:.2f}, difference {interval_text(row)}",
        f"n {row['n']}, better {row['better']}, worse {row['worse']}, p {row['p']:.5f} (adjusted), "
        f"margin {comparison.margin:g}",
    ]
    flips = comparison.flips
    if row["task"]:
        flips = flips[flips["task"] == row["task"]]
    if row["length"]:
        flips = flips[flips["length"] == row["length"]]
    groups: Any = flips.groupby(["task", "length"], sort=False)
    for (task, length), of_cell in groups:
        indices = listed(of_cell["index"], _MOST_FLIPS)
        lines.append(f"answers that changed: {task} at {length_name(length)}: {indices}")
    return "\n".join(lines)


def _name_of(row: Any) -> str:
    """The name of a row, such as `vt at 64K`; unique in its level."""
    at = f"at {length_name(int(row['length']))}" if row["length"] else ""
    if not row["task"]:
        return f"all tasks {at}" if at else "mean"
    return f"{row['task']} {at}".strip()


# --- XML ------------------------------------------------------------------------------------------


def _suite(root: ET.Element, title: str) -> ET.Element:
    return ET.SubElement(root, "testsuite", name=title, timestamp=_now())


def _add_properties(suite: ET.Element, comparison: Comparison) -> None:
    """How it was compared; in one suite only, as some readers put all suites together."""
    properties = ET.SubElement(suite, "properties")
    values = {
        "a": comparison.a.name,
        "b": comparison.b.name,
        "margin": points_text(comparison.margin),
        "confidence": f"{comparison.confidence:g}",
        "paired_by": comparison.by,
    }
    for key, value in values.items():
        ET.SubElement(properties, "property", name=key, value=_clean(value))


def _case(suite: ET.Element, group: str, name: str, file: str) -> ET.Element:
    # Jenkins cuts the name of a class at its last dot, and names of models have dots.
    group = _clean(group).replace(".", "·")
    attributes = {"classname": group, "name": _clean(name), "time": "0"}
    if file:
        attributes["file"] = _clean(file)
    return ET.SubElement(suite, "testcase", attributes)


def _add(case: ET.Element, kind: str, message: str, text: str, of_type: str = "") -> None:
    element = ET.SubElement(case, kind, message=_clean(message))
    if of_type:
        element.set("type", of_type)
    # GitLab shows the text alone where there is one.
    element.text = _clean(text)


def _output(case: ET.Element, text: str) -> None:
    ET.SubElement(case, "system-out").text = _clean(text)


def _text_of(root: ET.Element) -> str:
    """The file, with the counts of each suite and their sums."""
    counted = {"tests": "testcase", "failures": "failure", "errors": "error"}
    counted["skipped"] = "skipped"
    for element in (*root.findall("testsuite"), root):
        for attribute, tag in counted.items():
            element.set(attribute, str(len(list(element.iter(tag)))))
        element.set("time", "0")
    ET.indent(root)
    body = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", str(text))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _relative_folder(comparison: Comparison) -> str:
    """The folder of B's predictions, from the working directory."""
    paths = [cell.path.parents[1] for cell in comparison.b.cells]
    return os.path.relpath(paths[0]) if paths else ""
