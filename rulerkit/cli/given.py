"""What is given on the command line: a model, tasks, lengths, files and values, as one study."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import rulerkit as rk
from rulerkit.common.errors import UserError, shortened
from rulerkit.common.lengths import parse_length

if TYPE_CHECKING:
    from rulerkit.common.settings import JSON
    from rulerkit.evaluation.study import Study

_WAYS = (
    "give a name (`rulerkit models` lists them), a folder, a hub id (org/name), an address "
    "(http://localhost:8000), or a file (-f params/models/x.yaml)"
)


MODELS = ("plugins", "model", "models")
EXAMPLES = (*MODELS, *["tasks", "lengths", "seed", "corpora", "protocol"])
"""The parameters that say which models are meant, and which examples."""


class Given(NamedTuple):
    """The words behind a command that say what is asked of which model, as typer gives them."""

    models: Sequence[str] | None = None
    tasks: Sequence[str] | None = None
    lengths: Sequence[str] | None = None
    num_examples: int | None = None
    files: Sequence[Path] | None = None
    settings: Sequence[str] | None = None

    def study(self, default: str = "", uses: Collection[str] = (), **more: Any) -> "Study":
        """The study that is meant; `more` are parameters that hold where none are given, `uses` as
        in `parameters`.

        Raises `UserError` where no model is named and there is no default, and where two models
        are named for one.
        """
        values, changes = self.parameters(uses)
        named = self._model_of(values) or default
        if named:
            values["model"] = model_of(named, changes)
        elif values.get("models"):
            values["models"] = models_of(values["models"], changes)
        else:
            raise UserError(f"no model is named: {_WAYS}")
        return rk.study(more | values)

    def parameters(self, uses: Collection[str] = ()) -> "tuple[JSON, JSON]":
        """The parameters of the study (files, then -y, then options), and the keys of a model
        that -y sets beside them.

        `uses` are the parameters that the command has a use for, by default all of a study: another
        one is a `UserError` in -y; in a file, which several commands may share, it is left alone.
        """
        from rulerkit.common.settings import MODEL_KEYS, Parameters
        from rulerkit.evaluation.study import check_used

        given = settings_of(self.settings)
        changes = {
            key: given.pop(key)
            for key in list(given)
            if key in MODEL_KEYS and key not in Parameters.model_fields
        }
        values = rk.load_files(self.files or ()) | given
        uses = uses or Parameters.model_fields
        check_used(given, values, uses, "this command", " and keys of the model")
        if self.tasks:
            values["tasks"] = tasks_of(self.tasks)
        if self.lengths:
            values["lengths"] = lengths_of(self.lengths)
        if self.num_examples:
            is_adaptive = values.get("num_examples") == "adaptive"
            key = "max_examples" if is_adaptive else "num_examples"
            values[key] = self.num_examples
        return values, changes

    def _model_of(self, values: "JSON") -> Any:
        """The one model that is named, as an argument or among the parameters; else None."""
        models = self.models or ()
        if len(models) > 1:
            raise UserError(
                f"one MODEL is meant, seen: {' and '.join(models)}; several tasks or lengths "
                "have commas between them, `rulerkit gate` and `compare` take two models, and a "
                "batch many"
            )
        named = {key for key in ("model", "models") if values.get(key) is not None}
        if models:
            if named:
                key = named.pop()
                raise UserError(
                    f"two models are named: {models[0]} as an argument, and `{key}: "
                    f"{shortened(values[key])}` in -y or -f; leave one of the two out"
                )
            return models[0]
        return values.get("model") if "models" not in named else None


def one_model(study: "Study") -> Any:
    """The only model of a study; `UserError` where there are several."""
    from rulerkit.evaluation.study import name_of

    if len(study.models) > 1:
        names = ", ".join(name_of(one) for one in study.models)
        raise UserError(f"one MODEL is meant, seen: {names}; name one of them")
    return study.models[0]


def settings_of(settings: Sequence[str] | None) -> "JSON":
    """The values given as YAML on the command line, later ones over earlier ones."""
    from rulerkit.common.yaml_files import parse_yaml

    merged: JSON = {}
    for text in settings or []:
        content = parse_yaml(text, f"-y {text!r}")
        if not isinstance(content, dict):
            # The sign that other programs take is the likeliest mistake.
            fixed = text.replace("=", ": ", 1) if "=" in text else "num_examples: 5"
            raise UserError(f"-y {text!r} holds no `name: value`; write it like -y '{fixed}'")
        merged |= content
    return merged


def models_of(described: Sequence[Any], changes: "JSON | None" = None) -> list[Any]:
    """As `model_of`, for several models. A key or headers that -y names are for one server:
    `UserError` where there are several models."""
    changes = changes or {}
    keys = [key for key in ("api_key_env", "headers") if key in changes]
    if keys and len(described) > 1:
        raise UserError(
            f"-y '{keys[0]}: ...' would go to {len(described)} models: write it into the mapping "
            f"of the one that it is for, such as '{{base: MODEL, {keys[0]}: ...}}'"
        )
    return [model_of(one, changes) for one in described]


def model_of(described: Any, changes: "JSON | None" = None) -> Any:
    """A model given on the command line: a folder or file of the working directory by its whole
    path, the address of a server by what it serves, with the keys that -y changes."""
    from rulerkit.common.model_files import is_known_model
    from rulerkit.common.urls import is_address
    from rulerkit.common.yaml_files import parse_yaml
    from rulerkit.inference.access import model_at
    from rulerkit.inference.model import with_server

    changes = changes or {}
    if isinstance(described, str) and described.lstrip().startswith("{"):
        described = parse_yaml(described, f"MODEL {described!r}")
    is_mapping = isinstance(described, dict)
    if is_mapping and "base_url" in described and not {"base", "path"} & described.keys():
        # What is served there says which model is meant.
        described = {"base": described["base_url"], **described}
        del described["base_url"]
    if is_address(described):
        return model_at(described, changes) | changes
    if isinstance(described, dict) and is_address(described.get("base")):
        return with_server(described | changes)

    if isinstance(described, str) and not is_known_model(described):
        described = _absolute(described)
    elif isinstance(described, dict) and isinstance(described.get("path"), str):
        described = described | {"path": _absolute(described["path"])}
    return {"base": described} | changes if changes else described


def _absolute(path: str) -> str:
    """A path as it is seen from the working directory, where something is there."""
    place = Path(path).expanduser().absolute()
    return str(place) if place.exists() else path


def tasks_of(texts: Sequence[str]) -> list[Any]:
    """Tasks given on the command line: names with commas between, or mappings in YAML."""
    from rulerkit.common.yaml_files import parse_yaml
    from rulerkit.generation.tasks import without_suites

    tasks: list[Any] = []
    for text in texts:
        if text.lstrip().startswith(("{", "[")):
            content = parse_yaml(text, f"--tasks {text!r}")
            tasks += content if isinstance(content, list) else [content]
            continue
        for name in filter(None, re.split(r"[,\s]+", text)):
            tasks += without_suites(["ruler" if name == "all" else name])
    return tasks


def lengths_of(texts: Sequence[str]) -> list[int]:
    """Lengths given on the command line, in tokens."""
    words = (word for text in texts for word in re.split(r"[,\s\[\]]+", text))
    return [parse_length(word) for word in words if word]


def is_folder_of_answers(name: str, outputs: str = "outputs") -> bool:
    """Whether a name means answers that are stored, as a folder or as RUN/MODEL, and not a model
    that may be asked."""
    from rulerkit.common.paths import resolve_file

    if is_checkpoint(name):
        return False
    stored = resolve_file(outputs) / "predictions" / name
    if "/" in name and stored.is_dir():
        return True
    place = resolve_file(name)
    files = (place.glob(pattern) for pattern in ("*.jsonl", "*/*.jsonl", "*/*/*.jsonl"))
    return place.is_dir() and any(next(found, None) for found in files)


def is_checkpoint(name: str) -> bool:
    """Whether a name is that of a folder with a model, whatever answers lie elsewhere under it."""
    from rulerkit.common.paths import holds_checkpoint, resolve_file

    return holds_checkpoint(resolve_file(name))
