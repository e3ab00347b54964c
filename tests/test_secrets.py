"""Nothing that others can read tells a secret: what is hidden of texts and mappings, and what a run
with keys in seven places leaves behind."""

import pytest

from rulerkit.common.errors import redact

REPEATED = [
    "https://",
    "---a",
    "eyJ-",
    "key ",
    "Bearer ",
    "password",
    "--api-key",
]
"""Beginnings of what is looked for: from each a scan may go to the end of the text."""


@pytest.mark.parametrize("part", REPEATED)
def test_a_long_text_is_read_once(part):
    """Once for each repetition would take half an hour."""
    assert redact(part * 100_000 + "\nand so it stops").endswith("stops")


def test_values_within_values_are_bounded():
    """All of them would be 2**60."""
    doubled, deep = ["sk-1234567890"], "sk-1234567890"
    for _ in range(60):
        doubled, deep = [doubled, doubled], {"a": deep}
    assert "sk-1234567890" not in str(redact(doubled))
    assert "sk-1234567890" not in str(redact(deep))
    shared = {"a": ["x", "https://host/?q"]}
    for _ in range(30):
        shared = [shared, shared]
    shown = redact(shared)
    while isinstance(shown, list):
        shown = shown[0]
    assert shown == {"a": ["x", "https://host/?***"]}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a https://h/?x=1 b", "a https://h/?*** b"),
        ("'https://h/?x=1', why?", "'https://h/?***', why?"),
        ("what?https://h/p?x#y", "what?https://h/p?***#y"),
        ("https://h/https://g/?x=1", "https://h/https://g/?***"),
        ("run --api-key abc --port 1", "run --api-key *** --port 1"),
        ("ftp://u:p@h/x", "ftp://***@h/x"),
        ("why? nothing", "why? nothing"),
    ],
)
def test_what_is_hidden_of_a_text(text, shown):
    assert redact(text) == shown
