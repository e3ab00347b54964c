"""`rulerkit serve`: the servers of one model, running until they are ended."""

import os
import time
from collections.abc import Callable

from rulerkit.batch.gpu_pool import GpuPool
from rulerkit.common.errors import UserError
from rulerkit.common.gpus import visible_gpus, visible_to_child
from rulerkit.inference.model import Model, gpus_and_nodes
from rulerkit.inference.process import find_servers, registered
from rulerkit.inference.servers import ServerEngine
from rulerkit.inference.vllm import Vllm


def follow(engine: Model, node: int) -> None:
    """Become the process that follows the first node, on another node of several that share a
    model. Does not return."""
    if isinstance(engine, Vllm):
        command = engine.follow(node)
        os.execvpe(command[0], command, os.environ | engine.variables())


def serve(engine: Model, say: Callable[[str], None]) -> None:
    """Start the servers of a model on all GPUs that are free here, and wait until they end.

    Other processes of this user find them by the register. `say` is told each address. Raises
    `UserError` for a model that cannot be started as a server, that is served already, or whose
    GPUs are held by others; KeyboardInterrupt ends the servers and passes on.
    """
    if not isinstance(engine, ServerEngine) or not engine.startable:
        raise UserError(
            f"model {engine.name} (engine {engine.engine}) is no server that can be started: use "
            "`engine: vllm`, or `engine: openai` with `serve: COMMAND`"
        )
    running = find_servers(engine.about_server)
    if running:
        raise UserError(f"model {engine.name} is served already, at {running[0].url}")

    # One server for each group of GPUs that the model needs, on as many groups as are free. The
    # pool keeps its locks until this process ends.
    visible = visible_gpus()
    pool = GpuPool(visible)
    needed, _ = gpus_and_nodes(engine.spec)
    held = pool.hold(needed or 1, len(visible)) if visible else []
    if held is None:
        raise UserError(
            f"model {engine.name} needs {needed} GPUs: other processes hold {', '.join(visible)}"
        )
    os.environ |= visible_to_child(held)

    try:
        engine.start()
        engine.wait_until_ready()
        addresses = [replica.address for replica in engine.alive()]
        with registered(engine.about_server(), addresses):
            for address in addresses:
                say(f"{engine.name} answers at {address.url}")
            say("Ctrl-C ends it.")
            while engine.alive():
                time.sleep(1)
    finally:
        engine.close()
