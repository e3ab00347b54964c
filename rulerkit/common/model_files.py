"""The mapping behind the name of a model: files of params/models, bases and variants, names.

`read_spec` takes whatever a user writes for a model and returns its checked mapping.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rulerkit.common.errors import UserError, shortened, unknown
from rulerkit.common.hidden import hide_address
from rulerkit.common.hub import is_hub_id
from rulerkit.common.lengths import parse_length
from rulerkit.common.paths import project_file, project_files, resolve
from rulerkit.common.settings import (
    ENGINE_KEYS,
    ENGINE_OF,
    JSON,
    Spec,
    check,
    engine_keys,
    key_words,
)
from rulerkit.common.urls import is_address
from rulerkit.common.yaml_files import read_yaml

FILES = ("params/models", ".yaml")
_WINDOW_READER = r"reader-\d+[kKmM]?"


def read_spec(spec: str | Spec) -> JSON:
    """The checked mapping of a model, with `name` and `engine` set and `base` merged in.

    A string is a file `params/models/<name>.yaml`, a path to such a file or to a model folder, a
    reader (`reader-<tokens>` for any window), or a hub id `org/name`, in this order. A mapping may
    name a `base` and say what differs; it keeps the name of the base unless it has a `name`,
    `path`, `entry` or `window` of its own.
    """
    full = _expand(spec, ())
    checked = check_spec(full, str(full.get("name") or full.get("path", "of a mapping")))
    engine = checked["engine"]
    needed = "entry" if engine == "function" else "path"
    # An engine of a plug-in says itself what it needs.
    needs_one = engine in ENGINE_KEYS and engine != "reader"
    if needs_one and needed not in checked:
        words = key_words(ENGINE_KEYS[engine].model_fields[needed])
        raise UserError(f"model {checked['name']}: `{needed}` is missing; it takes {words}")
    return checked


def check_spec(spec: Spec, who: str) -> JSON:
    """A mapping without a base, checked, with `engine` and `name` set.

    `who` names the model in messages.
    """
    # A notebook of a batch, which asks nobody, is given *** in the place of keys.
    spec = {key: value for key, value in spec.items() if value != "***"}
    engine = spec.get("engine")
    if engine is None:
        # A key that only one engine has says which it is.
        engines = [engine for key, engine in ENGINE_OF.items() if key in spec]
        engine = engines[0] if engines else None
    if engine is None:
        raise UserError(
            f"model {who}: nothing says who answers: give one of path, entry, window or engine"
        )

    keys = engine_keys(str(engine), who)
    what = f"key of the model {who} (engine {engine})"
    checked = check(keys, spec, f"model {who}: ", what)
    values = {"engine": engine, **checked.model_dump(exclude_unset=True)}
    return values | {"name": _name(values)}


def known_models() -> list[str]:
    """The names that need no path: the files of params/models/, and readers of any window."""
    return sorted({*project_files(*FILES), "reader-<tokens>"})


def is_known_model(name: str) -> bool:
    """Whether a name alone says which model is meant."""
    return bool(re.fullmatch(_WINDOW_READER, name)) or name in known_models()


def _expand(spec: Any, files: tuple[Path, ...]) -> JSON:
    """The mapping behind a name or a mapping, bases merged; `files` are those that led to it."""
    if isinstance(spec, Mapping):
        return _merge(spec, files)
    if isinstance(spec, Path):
        spec = str(spec)
    if not isinstance(spec, str):
        raise UserError(
            "a model is a name, a path, a hub id or a mapping (several stand in `models`); seen: "
            f"{shortened(spec)}; a "
            "function or a loaded checkpoint becomes a model by rulerkit.model(it, name=...)"
        )
    file = project_file("params/models", spec, ".yaml")
    if file:
        return _from_file(file, files)
    if spec.endswith((".yaml", ".yml")):
        return _from_file(resolve(spec), files)
    if re.fullmatch(_WINDOW_READER, spec):
        window = parse_length(spec.removeprefix("reader-"), least=0)
        return {"engine": "reader", "window": window}

    if is_address(spec):
        shown = hide_address(spec)
        raise UserError(f"model {shown}: in a file, an address stands under `base_url`")
    place = resolve(spec)
    if os.path.isdir(place) or is_hub_id(spec):
        return {"path": spec}
    if "/" in spec or os.path.exists(place):
        raise UserError(
            f"model {spec}: there is no folder {place}: a path counts from the working directory "
            "or the project root; a hub id reads org/name; `rulerkit models` lists the names"
        )
    hint = "A path to a model folder or to a YAML file, or a hub id (org/name), may stand here too"
    raise unknown("model", spec, known_models(), hint, "rulerkit models")


def _from_file(path: Path, files: tuple[Path, ...]) -> JSON:
    """What stands under the only key of a model file."""
    if path in files:
        raise UserError(f"model file {path}: it is its own base; name another model as its `base`")
    content = read_yaml(path)
    if list(content) != ["model"]:
        raise UserError(
            f"model file {path}: it holds one key, `model:` (a name, or a mapping), and nothing "
            "else"
        )
    return _expand(content["model"], (*files, path))


def _merge(spec: Spec, files: tuple[Path, ...]) -> JSON:
    """A mapping over its `base`; `null` takes a key of the base away."""
    given = dict(spec)
    base: JSON = {}
    if "base" in given:
        base = _expand(given.pop("base"), files)
        if given.get("base_url") not in (None, base.get("base_url")):
            # A key is for the server that it was given for.
            base.pop("api_key_env", None)
            base.pop("headers", None)

    # Another model takes neither the name nor the label of its base.
    for key in ("name", "path", "entry", "window"):
        if key in given and given[key] != base.get(key):
            base.pop("name", None)
            base.pop("label", None)

    merged = base | given
    return {key: value for key, value in merged.items() if value is not None}


def _name(spec: Spec) -> str:
    """The name of a checked spec, which is also a folder's name in outputs/."""
    if "name" in spec:
        name: str = spec["name"]
    elif "window" in spec:
        name = f"reader-{spec['window']}"
    elif "path" in spec:
        name = resolve(spec["path"]).name
    else:
        answers = spec.get("entry", f"engine {spec['engine']}")
        raise UserError(f"the model of {answers} needs a name: add `name:`")

    # The name becomes a folder, part of a job's name, and a word of a shell script.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise UserError(
            f"model name {name!r} cannot name a folder: give one of at most 100 letters, digits, "
            "'.', '_' and '-' that begins with a letter or digit, such as "
            f"model: {{path: {spec.get('path', 'PATH')!r}, name: mine}}"
        )
    return name
