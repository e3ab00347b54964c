"""The command that starts a model once for all that asks it on this machine."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from rulerkit.cli.options import echo, settings_of
from rulerkit.errors import UserError


def serve(
    model: Annotated[
        str, typer.Argument(help="A model's name, path or hub id, or its parameter file.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-y", metavar="YAML", help="A key of the model: -y 'replicas: 2'. Repeatable."
        ),
    ] = None,
    node: Annotated[
        int, typer.Option(hidden=True, help="The rank of this node, of several that share a model.")
    ] = 0,
) -> None:
    """Start a model's servers and leave them running until Ctrl-C: evaluate, papermill, JupyterLab
    and batches use them.

    All visible GPUs are used, one server for each group that the model needs (`replicas`). Whoever
    asks the same model, with the same parameters, on this machine and as this user, finds them.
    Without this command a model is loaded by the process that asks it, a notebook's kernel for
    instance, and ends with it.
    """
    from rulerkit.batch.queue import Places
    from rulerkit.gpus import visible_gpus
    from rulerkit.models import gpus_and_nodes, load_model
    from rulerkit.models.process import find_servers, registered
    from rulerkit.models.server import ServerEngine, Vllm

    engine = load_model(_spec(model, settings_of(settings)))
    if node and isinstance(engine, Vllm):
        command = engine.follow(node)
        os.execvpe(command[0], command, os.environ | engine.variables())
    if not isinstance(engine, ServerEngine) or not engine.startable:
        raise UserError(
            f"model {engine.name} (engine {engine.engine}) is no server that can be started: use "
            "`engine: vllm`, or "
            "`engine: openai` with `serve: COMMAND`"
        )
    if there := find_servers(engine.about_server):
        raise UserError(f"model {engine.name} is served already, at {there[0].url}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    visible = visible_gpus()
    places, needed = Places(visible, None), gpus_and_nodes(engine.spec)[0]
    try:
        gpus = places.hold(needed or 1, max(1, len(visible))) if visible else []
        if gpus is None:
            raise UserError(
                f"model {engine.name} needs {needed} GPUs: other processes hold "
                f"{', '.join(visible)}"
            )
        if visible:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        engine.start()
        engine.wait_until_ready()
        addresses = [replica.address for replica in engine.alive()]
        with registered(engine.about_server(), addresses):
            for address in addresses:
                echo(f"{engine.name} answers at {address.url}")
            echo("Ctrl-C ends it.")
            while engine.alive():
                time.sleep(1)
    except KeyboardInterrupt:
        echo(f"{engine.name}: ended")
    finally:
        engine.close()
        places.close()


def _spec(model: str, settings: dict[str, Any]) -> Any:
    """A model's name with changes, or the model of a parameter file or of a job."""
    from rulerkit.paths import resolve_file
    from rulerkit.settings import read_yaml
    from rulerkit.studies import load_files

    if model.endswith((".yaml", ".yml")):
        path = resolve_file(Path(model))
        job = read_yaml(path)
        base = job["model"] if "asks" in job else load_files([path]).get("model")
        if base is None:
            raise UserError(f"{path} names no model: it must hold `model: ...`")
    else:
        base = model
    return {"base": base, **settings} if settings else base
