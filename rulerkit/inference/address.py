"""A model that is known by the address of its server alone: what is served there.

`http://localhost:8000` stands for the one model that `/v1/models` lists; of several,
`http://localhost:8000#ID` is one.
"""

import re
from urllib.parse import urlsplit

from rulerkit.common.errors import UserError, listed, unknown
from rulerkit.common.hidden import hide_address
from rulerkit.common.hub import is_hub_id
from rulerkit.common.paths import resolve
from rulerkit.common.settings import JSON, Spec
from rulerkit.common.urls import url_of
from rulerkit.inference.access import Address, address_of

_MOST_NAMED = 5


def model_at(address: str, given: Spec | None = None) -> JSON:
    """The mapping of the model that a server offers, of the engine `openai`, with the key and the
    headers of the mapping that is `given`.

    Its name is that of the model with host and port behind it, so that two servers of one model
    are two models here. Raises `UserError` where nothing answers, where the answer is no list of
    models, and where several models are served and the address names none.
    """
    keys = {
        key: value
        for key, value in (given or {}).items()
        if key in ("api_key_env", "headers") and value is not None
    }
    place, served_as, entries = _find(address, keys)
    host = urlsplit(place.url).netloc.rpartition("@")[2]
    model = served_as.rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^A-Za-z0-9._]+", "-", f"{model}-{host}").strip("-._")
    described = {
        "engine": "openai",
        "base_url": place.url,
        "path": served_as,
        "name": name[:100],
        "label": f"{model} at {host}",
        **keys,
    }

    # vLLM says under `root` what it has loaded, also where it serves it under another name.
    root = str(entries[served_as].get("root") or "")
    is_known = is_hub_id(served_as) or resolve(served_as).is_dir()
    if root and not is_known and (is_hub_id(root) or resolve(root).is_dir()):
        described["tokenizer"] = root
    return described


def served_models(address: str) -> tuple[Address, str]:
    """The address of a server below which its pages lie, and the one model that it serves, or that
    is named behind a #. Errors: as of `model_at`."""
    place, served_as, _ = _find(address, {})
    return place, served_as


def _find(address: str, keys: Spec) -> tuple[Address, str, dict[str, JSON]]:
    """Where a server listens, the model that is meant, and all that it lists."""
    url, _, wanted = url_of(address).partition("#")
    # The address of a server alone: OpenAI's protocol lies below /v1.
    if not urlsplit(url).path:
        before, mark, query = url.partition("?")
        url = f"{before}/v1{mark}{query}"
    place = address_of(url, keys)
    entries = {str(entry["id"]): entry for entry in place.models()}

    named = hide_address(address.partition("#")[0])
    if wanted and wanted not in entries:
        raise unknown(f"model at {named}", wanted, entries)
    if not entries:
        raise UserError(f"{named} lists no model: load one in the server")
    if not wanted and len(entries) != 1:
        served = listed(entries, _MOST_NAMED)
        raise UserError(
            f"{named} serves {len(entries)} models ({served}): name one behind a #, such as "
            f"'{named}#{next(iter(entries))}'"
        )
    (served_as,) = [wanted] if wanted else entries
    return place, served_as, entries
