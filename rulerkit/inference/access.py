"""Addresses of servers: where one listens, the key and the headers that it is sent, and the models
that it lists. `http://localhost:8000` stands for the one model that is served there; of several,
`path` names one.

Keys stand in environment variables, and go to their server alone.
"""

import os
import re
from base64 import b64encode
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import httpx2

from rulerkit.common.errors import ModelError, UserError, first_line, listed, unknown
from rulerkit.common.hidden import hide_address, secrets_in
from rulerkit.common.json_text import at, parse_json
from rulerkit.common.settings import JSON, SENDABLE, Spec
from rulerkit.common.urls import is_on_this_machine, url_of
from rulerkit.inference.refusals import fatal_words, message_in, status_words, why_unreachable


class Address(NamedTuple):
    """Where a server listens, such as http://127.0.0.1:8000/v1, the key that it asks for ("" for
    none), what else of a request is secret, and further headers. `key_from` names the environment
    variables of key and headers."""

    url: str
    key: str = ""
    others: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    key_from: str = ""

    def __str__(self) -> str:
        """The URL as messages and records show it."""
        return hide_address(self.url)

    @property
    def port(self) -> str:
        """The port of a server on this machine."""
        return self.url.removesuffix("/v1").rpartition(":")[2]

    def without_secrets(self, text: str) -> str:
        """What a server wrote, without the key and the other secrets that it was sent."""
        url = httpx2.URL(self.url)
        # User and password of an address are sent in this form.
        pair = b64encode(f"{url.username}:{url.password}".encode()).decode()
        secrets = {self.key, url.password, pair, *url.params.values(), *self.others}
        for secret in sorted(secrets, key=len, reverse=True):
            # Shorter ones are parts of words.
            if len(secret) > 6:
                text = text.replace(secret, "***")
        return text

    def client(self, kind: Any, **options: Any) -> Any:
        """A client of httpx2 (`kind`), which sends the key and the headers to this server alone,
        and goes through no proxy to this machine. `UserError` where a proxy cannot be used."""
        headers = dict(self.headers)
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            return kind(
                headers=headers,
                # Elsewhere the client takes off the key, but not further headers.
                follow_redirects=not self.headers,
                trust_env=not is_on_this_machine(self.url),
                # Also where the rest of the environment is not read, SSL_CERT_FILE is.
                verify=httpx2.create_ssl_context(),
                **options,
            )
        except (ImportError, ValueError, httpx2.InvalidURL) as error:
            raise UserError(
                f"a proxy of the environment cannot be used ({first_line(error)}): correct it "
                f"(http://HOST:PORT), or lead around it with NO_PROXY={httpx2.URL(self.url).host}"
            ) from None

    def page(self, name: str) -> Any:
        """The URL of a page: below the address, but for `/metrics`, which lies beside its `/v1`."""
        url = httpx2.URL(self.url)
        path = url.path.rstrip("/")
        if name == "/metrics":
            path = path.removesuffix("/v1")
        return url.copy_with(path=path + name)

    def get(self, name: str, timeout: float = 2.0) -> tuple[int, str]:
        """The status and the text of a page; 0, and why, where nothing answers."""
        try:
            with self.client(httpx2.Client) as client:
                reply = client.get(self.page(name), timeout=timeout)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = why_unreachable(self.url, error)
            return 0, self.without_secrets(reason)
        return reply.status_code, self.without_secrets(reply.text)

    def healthy(self) -> bool:
        """Whether the server lists its models, as one does that has loaded."""
        return self.get("/models")[0] == 200

    def models(self) -> list[JSON]:
        """The models that the server lists, with an `id` and, where it says a number of tokens, a
        `max_model_len`. `ModelError` where it does not answer, refuses or has no list."""
        status, text = self.get("/models", 30)
        content: Any = text
        with suppress(ValueError):
            content = parse_json(text.encode("utf-8", "surrogatepass"), any_number=True)
        entries = content.get("data") if isinstance(content, dict) else content
        if not isinstance(entries, list):
            kind, words = "no list", status_words(status, message_in(content))
            if status == 0:
                kind, words = "unreachable", text
            elif status >= 500:
                kind = "temporary"
            raise ModelError(fatal_words(self, kind, words))

        models: list[JSON] = []
        for entry in entries:
            name = at(entry, "id")
            if name and isinstance(name, str):
                # A limit of 0 is none.
                limit = count_in(entry.get("max_model_len")) or None
                models.append(entry | {"max_model_len": limit})
        return models


def count_in(value: Any) -> int | None:
    """A number of tokens as servers write it, also 12.0 or, as a text, 131072; None for what is
    none, such as -1."""
    written = re.fullmatch(r"([0-9]{1,10})(\.0)?", str(value))
    return int(written[1]) if written else None


def about_model(entry: JSON) -> JSON:
    """What a server says of a model that tells it from another one of its name: the folder that
    vLLM has loaded (`root`) and an adapter's base (`parent`), and the size that llama.cpp gives."""
    told: JSON = {}
    for name in ("id", "root", "parent", "owned_by"):
        value = entry.get(name)
        if isinstance(value, str):
            # A folder is the same with a slash behind it.
            told[name] = value.rstrip("/")
    for name in ("size", "n_params"):
        value = at(entry, "meta", name)
        if isinstance(value, int):
            told[f"meta.{name}"] = value
    return told


# --- a model that is known by the address of its server alone ------------------------------------


def model_at(address: str, given: Spec | None = None) -> JSON:
    """The mapping of the model that a server offers, of the engine `openai`, with the key and the
    headers of the mapping that is `given`, and of several models the one that is its `path`.

    Its name is that of the model with host and port behind it, so that two servers of one model
    are two models here. Raises `UserError` where nothing answers, where the answer is no list of
    models, and where several models are served and `path` is none of them.
    """
    own = given or {}
    url = url_of(address)
    parts = urlsplit(url)
    if parts.hostname == "huggingface.co":
        name = "/".join(parts.path.split("/")[1:3])
        raise UserError(f"{url} is a page of the Hugging Face hub, no server: give {name} alone")
    # The address of a server alone: OpenAI's protocol lies below /v1.
    if not parts.path:
        url = urlunsplit(parts._replace(path="/v1"))
    keys = {key: own[key] for key in ("api_key_env", "headers") if own.get(key) is not None}
    place = address_of(url, keys)
    entries = {str(entry["id"]): entry for entry in place.models()}

    served_as = own.get("path") or next(iter(entries), "")
    if not entries:
        raise UserError(f"{place} lists no model: load one in the server")
    if "path" in own and served_as not in entries:
        raise unknown(f"model at {place}", served_as, entries)
    if "path" not in own and len(entries) > 1:
        raise UserError(
            f"{place} serves {len(entries)} models ({listed(entries, 5)}): name one, on a command "
            f"line with -y 'path: {served_as}'"
        )

    label = f"{served_as.rstrip('/').rpartition('/')[2]} at {parts.netloc.rpartition('@')[2]}"
    name = re.sub(r"[^A-Za-z0-9._]+", "-", label.replace(" at ", "-")).strip("-._")
    return {
        "engine": "openai",
        "base_url": url,
        "path": served_as,
        "name": name[:100],
        "label": label,
        **keys,
    }


# --- keys and headers -----------------------------------------------------------------------------


def address_of(url: str, spec: Spec, who: str = "") -> Address:
    """The address of a server, with the key and the headers of a mapping. `who` begins messages.

    Raises `UserError` where a variable is not set, or holds what no header takes.
    """
    url = url.rstrip("/")
    values: dict[str, str] = {}
    headers: dict[str, str] = {}
    for header, text in spec.get("headers", {}).items():
        headers[header] = text
        if text.startswith("$"):
            name = text.removeprefix("$")
            headers[header] = values[name] = _value_of(name, who)

    key, name = "", spec.get("api_key_env", "")
    # The variable of OpenAI's own service is for it alone.
    if not name and url.startswith("https://api.openai.com/"):
        name = "OPENAI_API_KEY"
    if name:
        key = _value_of(name, who)
        values = {name: key} | values
    others = {*secrets_in([spec.get("extra_body"), headers]), *values.values()}
    return Address(url, key, tuple(sorted(others)), tuple(headers.items()), ", ".join(values))


def _value_of(name: str, who: str) -> str:
    """The key, or a header, in an environment variable; `UserError` where it is none that a header
    takes."""
    value = os.environ.get(name, "")
    if not re.fullmatch(SENDABLE, value):
        raise UserError(
            f"{who}the environment variable {name}, which holds the key, is not set, or holds what "
            "no header takes, such as a blank at its end, a line end or a typographic quote: "
            "export the key alone"
        )
    return value
