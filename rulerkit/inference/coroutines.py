"""Calls of coroutine functions from code that is none: requests to servers, and functions of the
user's that are `async def`."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from rulerkit.common.errors import UserError
from rulerkit.common.settings import JSON

Key = TypeVar("Key")


@cache
def event_loop(name: str) -> asyncio.AbstractEventLoop:
    """An event loop in a thread of its own, one for each name: a notebook has a running loop
    already, which cannot be waited for."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=f"rulerkit-{name}", daemon=True).start()
    return loop


def results_of(
    function: Callable[..., Any], calls: Iterable[tuple[Key, list[Any], JSON]], most: int
) -> Iterator[tuple[Key, Any]]:
    """Each key of `calls` with what the coroutine function returns for it, or the exception that
    it raises, as the calls end; at most so many calls are under way at once.

    A call is a key, the arguments, and those that are named. A `UserError` is raised.
    """

    async def call(arguments: list[Any], options: JSON) -> Any:
        return await function(*arguments, **options)

    # One loop for all calls: connections that the function keeps belong to it.
    loop, source = event_loop("functions"), iter(calls)
    waiting: dict[Future[Any], Key] = {}
    try:
        while True:
            for key, arguments, options in islice(source, most - len(waiting)):
                future = asyncio.run_coroutine_threadsafe(call(arguments, options), loop)
                waiting[future] = key
            if not waiting:
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                yield waiting.pop(future), _outcome(future)
    finally:
        for future in waiting:
            future.cancel()


def _outcome(call: Future[Any]) -> Any:
    """What a call returned, or the exception that ended it; a `UserError` is raised."""
    error = CancelledError() if call.cancelled() else call.exception()
    if isinstance(error, UserError):
        raise error
    return error or call.result()
