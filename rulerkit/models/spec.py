"""What a parameter file says of a model, read and checked: a name, path, hub id or mapping, made into one dict."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rulerkit.errors import UserError, unknown
from rulerkit.models import ENGINES, engine_module
from rulerkit.paths import home, resolve


class Key(NamedTuple):
    """A key of a model's mapping: what it takes, in words, and what reads its value (or raises ValueError)."""

    help: str
    read: Callable[[Any], Any]


def text(value: Any) -> str:
    """A string, not empty; a number or a path is taken as written."""
    if isinstance(value, str | int | float | Path) and not isinstance(value, bool) and str(value).strip():
        return str(value)
    raise ValueError


def words(value: Any) -> str:
    """A string as it is, empty or not."""
    if isinstance(value, str):
        return value
    raise ValueError


def flag(value: Any) -> bool:
    """True or false."""
    if isinstance(value, bool):
        return value
    raise ValueError


def whole(value: Any) -> int:
    """A whole number of at least 1."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ValueError


def tokens(value: Any) -> int:
    """A number of tokens, 0 or more: 8192, 8K, 1M."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and (match := re.fullmatch(r"(\d+)([kKmM]?)", value)):
        return int(match[1]) * {"": 1, "k": 1024, "m": 1024 * 1024}[match[2].lower()]
    raise ValueError


def hours(value: Any) -> float:
    """Hours, above 0 and at most a month: YAML reads 12:00:00 as 43200, which is refused here."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 744:
        return float(value)
    raise ValueError


def one_of(*allowed: str) -> Key:
    """A key with a fixed choice of values."""

    def read(value: Any) -> str:
        if value in allowed:
            return str(value)
        raise ValueError

    return Key(f"one of {', '.join(allowed)}", read)


COMMON = {
    "name": Key("letters, digits, '.', '_' and '-'", text),
    "label": Key("a text", text),
    "engine": Key(f"one of {', '.join(ENGINES)}", text),
    "tokenizer": Key("`builtin`, a folder, a file, a hub name or a tiktoken encoding", text),
    "template": Key("`auto`, `base` or the name of a prompt format", text),
    "system_prompt": Key("a text", words),
    "prefix_in": one_of("assistant", "user"),
    "thinking_tokens": Key("a number of tokens", tokens),
    "enable_thinking": Key("true or false", flag),
    "claimed_length": Key("a number of tokens, such as 131072 or 128K", tokens),
    "aligned": one_of("chat", "base"),
    "parameters": Key("a text, such as 8B", text),
    "slug": Key("the paper's key of the model, such as llama3-1-8b", text),
    "gpus": Key("the number of GPUs it takes on each node, 0 or more (default: what its engine needs)", tokens),
    "nodes": Key("the number of nodes that it is spread over (default 1)", whole),
    "hours": Key("the hours that a job of a batch may take, such as 8 or 0.5, at most 744", hours),
}
"""The keys that every engine understands; `base`, the model to start from, stands beside them."""

_DESCRIPTIVE = {
    "name",
    "label",
    "claimed_length",
    "aligned",
    "parameters",
    "slug",
    "gpus",
    "nodes",
    "hours",
    "device",
    "batch_size",
    "max_memory",
    "base_url",
    "api_key_env",
    "concurrency",
    "timeout",
    "max_retries",
    "prices",
}
_WHO = {"path", "entry", "window"}  # another one of these is another model, not a variant
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def read_spec(spec: str | Mapping[str, Any]) -> dict[str, Any]:
    """The checked mapping of a model, with `name` and `engine` set and `base` merged in.

    A string is a file `params/models/<name>.yaml`, a path to such a file or to a model folder, `perfect`, `mute`,
    `reader-<tokens>` for any window, or a hub id `org/name`, in this order. A mapping may name a `base` and say what
    differs; without a `name` of its own such a variant is named after what differs.
    """
    if not isinstance(spec, str | Mapping):
        raise UserError(f"a model is a name, a path or a mapping; seen: {spec!r}")
    who = spec if isinstance(spec, str) else str(spec.get("name", spec.get("base", spec.get("path", "of a mapping"))))
    return check_spec(_expand(spec, ()), who)


def check_spec(spec: Mapping[str, Any], who: str) -> dict[str, Any]:
    """Every value of a spec read and checked, the engine inferred and the name derived where they are not given."""
    engine = spec.get("engine") or next((e for key, e in _INFER if key in spec), None)
    if engine is None:
        raise UserError(f"model {who}: nothing says who answers: give one of path, entry, window or engine")
    if engine not in ENGINES:
        raise unknown(f"engine of the model {who}", engine, ENGINES)
    keys = COMMON | engine_module(engine).KEYS
    read: dict[str, Any] = {"engine": engine}
    for key, value in spec.items():
        if key not in keys:
            raise unknown(f"key of the model {who} (engine {engine})", key, keys)
        try:
            read[key] = keys[key].read(value)
        except ValueError:
            raise UserError(f"model {who}: {key}: {value!r} is not allowed; it takes {keys[key].help}") from None
    read["name"] = _safe_name(read)
    return read


_INFER = (("entry", "function"), ("base_url", "openai"), ("path", "transformers"), ("window", "reader"))


def known_models() -> list[str]:
    """The names that need no path: the files of params/models/, and the readers."""
    files = sorted(path.stem for path in (home() / "params" / "models").glob("*.yaml"))
    return [*files, *(name for name in ("perfect", "mute") if name not in files), "reader-<tokens>"]


def _expand(spec: str | Mapping[str, Any], seen: tuple[Path, ...]) -> dict[str, Any]:
    """The mapping behind a name or a mapping, bases merged; `seen` are the files that lead here."""
    if isinstance(spec, Mapping):
        return _merge(spec, seen)
    if not isinstance(spec, str) or not spec.strip():
        raise UserError(f"model: {spec!r} is neither a name nor a mapping; a model is a name, a path or a mapping")
    listed = home() / "params" / "models" / f"{spec}.yaml"
    if listed.is_file() and listed not in seen:
        return _from_file(listed, seen)
    if spec.endswith((".yaml", ".yml")):
        return _from_file(resolve(spec), seen)
    if (reader := _reader(spec)) is not None:
        return reader
    if resolve(spec).is_dir() or _HUB_ID.fullmatch(spec):
        return {"path": spec}
    hint = "A path to a model folder or to a YAML file, or a hub id (org/name), may stand here too"
    raise unknown("model", spec, known_models(), hint)


def _reader(name: str) -> dict[str, Any] | None:
    """The spec of `perfect`, `mute` or `reader-<tokens>`; None for any other name."""
    if name in ("perfect", "mute"):
        return {"engine": "reader", "name": name} | ({"window": 0} if name == "mute" else {})
    if match := re.fullmatch(r"reader-(\d+[kKmM]?)", name):
        return {"engine": "reader", "window": tokens(match[1])}
    return None


def _from_file(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """The one key `model:` of a parameter file."""
    if path in seen:
        raise UserError(f"model file {path}: it is its own base, through {' -> '.join(p.name for p in (*seen, path))}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"model file {path}: {error.strerror}; known models: {', '.join(known_models())}") from error
    except yaml.YAMLError as error:
        raise UserError(f"model file {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, Mapping) or list(content) != ["model"]:
        raise UserError(f"model file {path}: it holds one key, `model:` (a name, or a mapping), and nothing else")
    return _expand(content["model"], (*seen, path))


def _merge(own: Mapping[str, Any], seen: tuple[Path, ...]) -> dict[str, Any]:
    """A mapping over its `base`; `null` takes a key of the base away."""
    known = ["base", *COMMON, *(key for engine in ENGINES for key in engine_module(engine).KEYS)]
    for key in own:
        if key not in known:
            raise unknown("key of a model", key, dict.fromkeys(known))
    given = {key: value for key, value in own.items() if key != "base"}
    if "base" not in own:
        return {key: value for key, value in given.items() if value is not None}
    base = _expand(own["base"], seen)
    merged = {key: value for key, value in (base | given).items() if value is not None}
    if "name" not in given:
        if any(given.get(key) is not None and given[key] != base.get(key) for key in _WHO):
            for key in {"name", "label", "slug"} - given.keys():
                merged.pop(key, None)
        else:
            differs = {k: v for k, v in given.items() if k not in _DESCRIPTIVE and v != base.get(k)}
            merged["name"] = _safe_name(check_spec(base, str(own["base"]))) + "".join(map(_part, differs.items()))
            if differs and "label" not in given:
                merged.pop("label", None)
    return merged


def _part(item: tuple[str, Any]) -> str:
    """`-template_base`: how a variant's name tells what differs; long values by their digest."""
    key, value = item
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", str(value)).strip("-")
    short = plain if plain and len(plain) <= 24 else hashlib.sha256(str(value).encode()).hexdigest()[:8]
    return f"-{key}_{short}"


def _safe_name(spec: Mapping[str, Any]) -> str:
    """The name of a checked spec, which is a folder's name in outputs/."""
    if "name" in spec:
        name = str(spec["name"])
    elif spec["engine"] == "reader":
        name = {None: "perfect", 0: "mute"}.get(spec.get("window"), f"reader-{spec.get('window')}")
        name += "".join(
            _part((key, spec[key])) for key in engine_module("reader").KEYS if key in spec.keys() - {"window"}
        )
    elif "path" in spec:
        name = resolve(spec["path"]).name
    else:
        raise UserError(f"the model of {spec.get('entry', 'a function')} needs a name: add `name:`")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise UserError(
            f"model name {name!r} cannot name a folder: give a `name:` of letters, digits, '.', '_' and '-' "
            "that begins with a letter or digit"
        )
    return name


def mapping_of(allowed: Iterable[type]) -> Callable[[Any], dict[Any, Any]]:
    """Reads a mapping whose values are of the types allowed."""
    types = tuple(allowed)

    def read(value: Any) -> dict[Any, Any]:
        if isinstance(value, Mapping) and value and all(isinstance(v, types) for v in value.values()):
            return dict(value)
        raise ValueError

    return read
