"""What is given on the command line: a model, tasks, lengths, files and values, as one study."""

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rulerkit as rk
from rulerkit.common.errors import UserError, shortened
from rulerkit.common.lengths import parse_length

if TYPE_CHECKING:
    from rulerkit.common.settings import JSON
    from rulerkit.evaluation.study import Study

EXAMPLES = ("plugins", "model", "models", "tasks", "lengths", "seed", "corpora", "protocol")
"""The parameters that say which models are meant, and which examples."""


def study_of(
    models: Sequence[str] | None,
    tasks: Sequence[str] | None,
    lengths: Sequence[str] | None,
    num_examples: int | None,
    files: Sequence[Path] | None,
    settings: Sequence[str] | None,
    first: "JSON | None" = None,
    uses: Collection[str] = (),
) -> "Study":
    """The study that the words behind a command mean, as typer gives them. `first` are parameters
    that hold where none are given, `model` among them; `uses` as in `parameters_of`.

    Raises `UserError` where no model is named, and where two are named for one.
    """
    values, changes = parameters_of(tasks, lengths, num_examples, files, settings, uses)
    named = list(models or ())
    for key in ("model", "models"):
        if values.get(key) is not None:
            named.append(f"`{key}: {shortened(values[key])}`")
    if len(named) > 1:
        raise UserError(f"one MODEL is meant, seen: {' and '.join(named)}; name one of them")

    values = (first or {}) | values
    model = models[0] if models else values.get("model")
    if values.get("models"):
        values["models"] = models_of(values["models"], changes)
    elif model:
        values["model"] = model_of(model, changes)
    else:
        raise UserError(
            "no model is named: give a name (`rulerkit models` lists them), a folder, a hub id "
            "(org/name), an address (http://localhost:8000), or a file, -f params/models/x.yaml"
        )
    return rk.study(values)


def parameters_of(
    tasks: Sequence[str] | None,
    lengths: Sequence[str] | None,
    num_examples: int | None,
    files: Sequence[Path] | None,
    settings: Sequence[str] | None,
    uses: Collection[str] = (),
) -> "tuple[JSON, JSON]":
    """The parameters of a study (files, then -y, then options), and the keys of a model that -y
    sets beside them.

    `uses` are the parameters that the command has a use for, by default all of a study: another
    one is a `UserError` in -y; in a file, which several commands may share, it is left alone.
    """
    from rulerkit.common.settings import MODEL_KEYS, Parameters
    from rulerkit.evaluation.study import check_used

    given = settings_of(settings)
    of_model = MODEL_KEYS - Parameters.model_fields.keys()
    changes = {key: given.pop(key) for key in list(given) if key in of_model}
    values = rk.load_files(files or ()) | given
    check_used(
        given, values, uses or Parameters.model_fields, "this command", " and keys of the model"
    )
    if tasks:
        values["tasks"] = tasks_of(tasks)
    if lengths:
        values["lengths"] = lengths_of(lengths)
    if num_examples:
        is_adaptive = values.get("num_examples") == "adaptive"
        values["max_examples" if is_adaptive else "num_examples"] = num_examples
    return values, changes


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
            raise UserError(
                f"-y {text!r} holds no `name: value`; write it like -y 'num_examples: 5'"
            )
        merged |= content
    return merged


def models_of(described: Sequence[Any], changes: "JSON") -> "list[JSON]":
    """As `model_of`, for several models. A key or headers that -y names are for one server:
    `UserError` where there are several models."""
    keys = [key for key in ("api_key_env", "headers") if key in changes]
    if keys and len(described) > 1:
        raise UserError(
            f"-y '{keys[0]}: ...' would go to {len(described)} models: write it into the mapping "
            f"of the one that it is for, such as '{{base: MODEL, {keys[0]}: ...}}'"
        )
    return [model_of(one, changes) for one in described]


def model_of(described: Any, changes: "JSON") -> "JSON":
    """The mapping of a model given on the command line: a folder or file of the working directory
    by its whole path, with the keys that -y changes."""
    from rulerkit.common.model_files import is_known_model
    from rulerkit.common.yaml_files import parse_yaml

    if isinstance(described, str) and described.lstrip().startswith("{"):
        described = parse_yaml(described, f"MODEL {described!r}")
    mapping = dict(described) if isinstance(described, dict) else {"base": described}
    if "base_url" in mapping and not {"base", "path"} & mapping.keys():
        # What is served there says which model is meant.
        mapping["base"] = mapping.pop("base_url")

    for key in ("base", "path"):
        place = mapping.get(key)
        if not isinstance(place, str) or (key == "base" and is_known_model(place)):
            continue
        absolute = Path(place).expanduser().absolute()
        if os.path.exists(absolute):
            mapping[key] = str(absolute)
    return mapping | changes


def tasks_of(texts: Sequence[str]) -> list[Any]:
    """Tasks given on the command line: names with commas between, or mappings in YAML."""
    from rulerkit.common.yaml_files import parse_yaml
    from rulerkit.generation.tasks import without_suites

    tasks: list[Any] = []
    for text in texts:
        is_list = text.lstrip().startswith("[")
        tasks += parse_yaml(text if is_list else f"[{text}]", f"--tasks {text!r}")
    return without_suites("ruler" if task == "all" else task for task in tasks)


def lengths_of(texts: Sequence[str]) -> list[int]:
    """Lengths given on the command line, in tokens."""
    words = (word for text in texts for word in re.split(r"[,\s\[\]]+", text))
    return [parse_length(word) for word in words if word]
