"""A model that is known by the address of its server alone: what is served there.

`http://localhost:8000` stands for the one model that `/v1/models` lists; of several,
`http://localhost:8000#ID` is one.
"""

import json
import os
import re
from urllib.parse import urlsplit

from rulerkit.common.errors import UserError, listed, redact, unknown
from rulerkit.common.hub import is_hub_id
from rulerkit.common.paths import resolve
from rulerkit.common.settings import JSON
from rulerkit.inference.process import Address

_OPENAI = "https://api.openai.com/v1"
_TIMEOUT = 30.0  # seconds for the list of models
_MOST_NAMED = 5


def is_address(text: object) -> bool:
    """Whether a model is given by the address of its server."""
    return isinstance(text, str) and text.startswith(("http://", "https://"))


def model_at(address: str, api_key_env: str | None = None) -> JSON:
    """The mapping of the model that a server offers, of the engine `openai`.

    Its name is that of the model with host and port behind it, so that two servers of one model
    are two models here. Raises `UserError` where nothing answers, where the answer is no list of
    models, and where several models are served and the address names none.
    """
    url, _, served_as, entries = _find(address, api_key_env)
    host = urlsplit(url).netloc.rpartition("@")[2]
    model = served_as.rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^A-Za-z0-9._]+", "-", f"{model}-{host}").strip("-._")
    described = {
        "engine": "openai",
        "base_url": url,
        "path": served_as,
        "name": name[:100],
        "label": f"{model} at {host}",
    }
    if api_key_env:
        described["api_key_env"] = api_key_env

    # vLLM says under `root` what it has loaded, also where it serves it under another name.
    root = str(entries[served_as].get("root") or "")
    is_known = is_hub_id(served_as) or resolve(served_as).is_dir()
    if root and not is_known and (is_hub_id(root) or resolve(root).is_dir()):
        described["tokenizer"] = root
    return described


def served_models(address: str) -> tuple[Address, str]:
    """The address of a server below which its pages lie, and the one model that it serves, or that
    is named behind a #. Errors: as of `model_at`."""
    url, key, served_as, _ = _find(address, None)
    return Address(url, key), served_as


def _find(
    address: str, api_key_env: str | None
) -> tuple[str, str, str, dict[str, JSON]]:
    """The URL of a server, the key for it, the model that is meant, and all that it lists."""
    place, _, wanted = address.partition("#")
    url = place.rstrip("/")
    # The address of a server alone: OpenAI's protocol lies below /v1.
    if not urlsplit(url).path:
        url += "/v1"
    default = "OPENAI_API_KEY" if url == _OPENAI else ""
    key = os.environ.get(api_key_env or default) or "none"
    entries = {str(entry["id"]): entry for entry in _served(url, key)}

    if wanted and wanted not in entries:
        raise unknown(f"model at {redact(place)}", wanted, entries)
    if not wanted and len(entries) != 1:
        served = listed(entries, _MOST_NAMED) or "none"
        raise UserError(
            f"{redact(place)} serves {len(entries)} models ({served}): name one behind a #, such "
            f"as '{redact(place)}#{next(iter(entries), 'ID')}'"
        )
    (served_as,) = [wanted] if wanted else entries
    return url, key, served_as, entries


def _served(url: str, key: str) -> list[JSON]:
    """The models that a server lists."""
    who = redact(url)
    status, text = Address(url, key).get("/models", _TIMEOUT)
    if status == 0:
        raise UserError(
            f"nothing answers at {who}: start the server (such as `vllm serve MODEL`), or correct "
            "the address"
        )
    if status in (401, 403):
        raise UserError(
            f"{who} wants a key (HTTP {status}): name the environment variable that holds it, -y "
            "'api_key_env: NAME'"
        )
    try:
        entries = json.loads(text)["data"]
        return [entry for entry in entries if isinstance(entry["id"], str)]
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{who}/models is no list of models (HTTP {status}): the address of a server that "
            "speaks OpenAI's protocol ends in /v1 mostly, such as http://localhost:8000/v1"
        ) from None
