"""The key and the headers that a model's mapping gives for its server. They stand in environment
variables, and go to this server alone."""

import os
import re
from urllib.parse import urlsplit

from rulerkit.common.errors import UserError
from rulerkit.common.hidden import secrets_in
from rulerkit.common.settings import Spec
from rulerkit.inference.process import Address

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*))")
_FAULTS = {
    r"[\r\n]": "a line end",
    r"[^\S\r\n]": "a blank",
    "[‘’‚‛“”„‟«»‹›′″]": "a typographic quote",
    r"^[\"'`].*[\"'`]$": "quotes at both ends",
    r"[^\s!-~‘’‚‛“”„‟«»‹›′″]": "a character that no header takes",
}
"""What a key cannot hold."""


def address_of(url: str, spec: Spec, who: str = "") -> Address:
    """The address of a server, with the key and the headers of a mapping. `who` begins messages.

    Raises `UserError` where a variable is not set, or holds what no header takes.
    """
    parts = urlsplit(url)
    headers, values = list[tuple[str, str]](), dict[str, str]()
    for header, value in spec.get("headers", {}).items():
        where = f"{who}headers: {header}: "
        filled, used = _filled(value, where)
        values |= used
        if not filled.isascii() or not filled.isprintable():
            raise UserError(
                f"{where}its value holds a character that no header takes: write it anew"
            )
        headers.append((header, filled))

    has_own = any(header.lower() == "authorization" for header, _ in headers)
    name = spec.get("api_key_env") or ("" if has_own else _usual_key(url))
    if name and has_own:
        raise UserError(
            f"{who}headers: Authorization would be sent in place of the key in {name}: leave "
            "`api_key_env` out, or the header"
        )
    key = ""
    if name and "@" in parts.netloc:
        raise UserError(
            f"{who}base_url names a user, which would be sent in place of the key in {name}: take "
            "the user out of the address, or leave `api_key_env` out"
        )
    if name:
        key = _value_of(name, who)
        values = {name: key} | values
    given = [spec.get("extra_body"), dict(headers)]
    others = {*secrets_in(given), *values.values()}
    return Address(url, key, tuple(sorted(others)), tuple(headers), ", ".join(values))


def _filled(value: str, who: str) -> tuple[str, dict[str, str]]:
    """A text with the values of the environment variables in it, and these by their names."""
    values: dict[str, str] = {}

    def of_variable(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        values[name] = _value_of(name, who, is_header=True)
        return values[name]

    return _VARIABLE.sub(of_variable, value), values


def _usual_key(url: str) -> str:
    """The variable of OpenAI's own service, for it alone."""
    parts = urlsplit(url)
    is_openai = (parts.scheme, parts.hostname) == ("https", "api.openai.com")
    return "OPENAI_API_KEY" if is_openai else ""


def _value_of(name: str, who: str, is_header: bool = False) -> str:
    """The key, or part of a header, in an environment variable; `UserError` where it is none that a
    header takes."""
    variable = f"{who}the environment variable {name}, which holds the key,"
    value = os.environ.get(name)
    if value is None:
        raise UserError(f"{variable} is not set: export it")
    if not value.strip():
        raise UserError(f"{variable} is empty: set it to the key")
    # A header has blanks between words, such as those of "Bearer KEY".
    checked = re.sub(r"(?<=\S) +(?=\S)", "", value) if is_header else value
    faults = [words for pattern, words in _FAULTS.items() if re.search(pattern, checked, re.DOTALL)]
    if faults:
        raise UserError(f"{variable} holds {' and '.join(faults)}: set it to the key alone")
    return value
