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
EXAMPLES = (*MODELS, *["tasks", "lengths", "seed", "corpora", "protocol", "edition"])
"""The parameters that say which models are meant, and which examples."""


class Given(NamedTuple):
    """The words behind a command that say what is asked of which model."""

    models: Sequence[str] = ()
    tasks: Sequence[str] = ()
    lengths: Sequence[str] = ()
    num_examples: int | None = None
    files: Sequence[Path] = ()
    settings: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        models: list[str] | None = None,
        tasks: list[str] | None = None,
        lengths: list[str] | None = None,
        num_examples: int | None = None,
        files: list[Path] | None = None,
        settings: list[str] | None = None,
    ) -> "Given":
        """What typer gives, with nothing for None."""
        return cls(
            models or (), tasks or (), lengths or (), num_examples, files or (), settings or ()
        )

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
        from rulerkit.evaluation.notebook import check_used

        given = settings_of(self.settings)
        changes = {
            key: given.pop(key)
            for key in list(given)
            if key in MODEL_KEYS and key not in Parameters.model_fields
        }
        values = rk.load_files(self.files) | given
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
        if len(self.models) > 1:
            raise UserError(
                f"one MODEL is meant, seen: {' and '.join(self.models)}; several tasks or lengths "
                "have commas between them, `rulerkit gate` and `compare` take two models, and a "
                "batch many"
            )
        named = {key for key in ("model", "models") if values.get(key) is not None}
        if self.models:
            if named:
                key = named.pop()
                raise UserError(
                    f"two models are named: {self.models[0]} as an argument, and `{key}: "
                    f"{shortened(values[key])}` in -y or -f; leave one of the two out"
                )
            return self.models[0]
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
    `UserError` where the models have several."""
    changes = changes or {}
    keys = {key: changes[key] for key in ("api_key_env", "headers") if key in changes}
    if not keys or len(described) < 2:
        return [model_of(one, changes) for one in described]

    origins = [_origins(one) for one in described]
    servers = sorted(set[str]().union(*origins))
    if len(servers) > 1:
        raise UserError(
            f"-y '{next(iter(keys))}: ...' would go to {len(servers)} servers ({', '.join(servers)}"
            "): write it into the mapping of the one that it is for, such as '{base: "
            f"{servers[-1]}, api_key_env: NAME}}'"
        )
    others = {key: changes[key] for key in changes if key not in keys}
    return [
        model_of(one, changes if places else others)
        for one, places in zip(described, origins, strict=True)
    ]


def _origins(described: Any) -> set[str]:
    """The servers that are sent what a model is asked: scheme, host and port of each."""
    from rulerkit.common.model_files import read_spec
    from rulerkit.common.urls import is_address, origin_of, url_of
    from rulerkit.inference.openai import OPENAI

    if isinstance(described, str) and described.lstrip().startswith("{"):
        described = mapping_of(described, "MODEL")
    if isinstance(described, dict) and is_address(described.get("base")):
        described = described.get("base_url") or described["base"]
    if is_address(described):
        return {origin_of(url_of(described))}
    if not isinstance(described, str | dict):
        return set()
    spec = read_spec(described)
    if spec["engine"] != "openai" or "serve" in spec:
        return set()
    urls = spec.get("base_url", OPENAI)
    return {origin_of(url) for url in ([urls] if isinstance(urls, str) else urls)}


def model_of(described: Any, changes: "JSON | None" = None) -> Any:
    """A model given on the command line: a folder or file of the working directory by its whole
    path, the address of a server by what it serves, with the keys that -y changes."""
    from rulerkit.common.model_files import is_known_model
    from rulerkit.common.urls import is_address
    from rulerkit.inference.address import model_at, with_server

    changes = changes or {}
    if isinstance(described, str) and described.lstrip().startswith("{"):
        described = mapping_of(described, "MODEL")
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


def mapping_of(text: str, what: str) -> "JSON":
    """A mapping that is written in YAML in place of a name."""
    from rulerkit.common.yaml_files import parse_yaml

    content = parse_yaml(text, f"{what} {text!r}")
    if not isinstance(content, dict):
        raise UserError(f"{what} {text!r} is no mapping: write '{{base: NAME, ...}}'")
    return content


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
    return place.is_dir() and _holds_answers(place)


def is_checkpoint(name: str) -> bool:
    """Whether a name is that of a folder with a model, whatever answers lie elsewhere under it."""
    from rulerkit.common.paths import holds_checkpoint, resolve_file

    return holds_checkpoint(resolve_file(name))


def _holds_answers(folder: Path) -> bool:
    return any(
        next(folder.glob(pattern), None) for pattern in ("*.jsonl", "*/*.jsonl", "*/*/*.jsonl")
    )
