"""Models behind HTTP: what the engines share that ask servers.

`ServerEngine.answer` is the way of a prompt: `Connection.send` asks the server, and `read` of the
engine turns its reply into an answer. An example that cannot be answered is a `Failure`, never an
empty answer; what would fail for every example is one `UserError`, after the answers that were
under way. `vllm` and `openai` are the two engines.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import cached_property, partial
from itertools import islice
from typing import Any, ClassVar

from rulerkit.common.errors import UserError, remark
from rulerkit.common.settings import JSON, Spec
from rulerkit.generation.example import Example
from rulerkit.inference.access import Address
from rulerkit.inference.http import Connection
from rulerkit.inference.model import Answer, Answers, Failure, Model
from rulerkit.inference.process import ServerProcess
from rulerkit.inference.refusals import RequestError, fatal_words
from rulerkit.inference.reply import Reply

MOST_TOKENS = 4 * 2**20  # under way, and as many made ahead, for each copy of the model
_WAIT = 1.0  # seconds between two looks at a server that loads


class ServerEngine(Model):
    """What the engines share that ask a server: starting and ending it, sending prompts, and
    handling failures."""

    default_concurrency: ClassVar[int]

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.path: str = spec["path"]
        self.connection: Connection | None = None
        self.process: ServerProcess | None = None
        """The server, where this process started it."""
        self._end = ""
        """Why no more is asked."""

    def address(self) -> Address | None:
        """Where the server listens; None where this process starts one."""
        raise NotImplementedError

    def command(self, address: Address) -> list[str]:
        """The command line of a server that listens at an address."""
        raise NotImplementedError

    def variables(self) -> dict[str, str]:
        """Environment variables of a server that is started."""
        return {}

    def copies(self) -> int:
        """How many copies of the model a server holds, each on GPUs of its own."""
        return 1

    def request(self, example: Example) -> JSON:
        """The JSON of the next request."""
        raise NotImplementedError

    def read(self, example: Example, reply: Reply) -> Answer:
        """The answer in a reply; raises `RequestError` where there is none."""
        raise NotImplementedError

    def check_fits(self, example: Example) -> None:
        """Raises `TooLong` for an example that no server of this model takes, where that is
        known."""

    # --- starting and ending ----------------------------------------------------------------------

    def open(self) -> Connection:
        """The connection to the server, which is started where none is named; it may still be
        loading."""
        if self.connection:
            return self.connection
        address = self.address()
        if address is None:
            self.process = ServerProcess(self.name, self.command, self.variables())
            address = self.process.address
            remark(f"starting the server of {self.name}; its log is {self.process.log}")
        concurrency = self.spec.get("concurrency", self.default_concurrency * self.copies())
        self.connection = Connection(address, concurrency, self.spec.get("max_retries", 5))
        return self.connection

    def wait_until_ready(self) -> Connection:
        """Wait until the server is healthy. Raises `UserError` where it does not get healthy."""
        connection = self.open()
        while not self.is_ready():
            time.sleep(_WAIT)
        return connection

    def is_ready(self) -> bool:
        """Whether the server is healthy. Raises `UserError` where its process has ended."""
        return self.process is None or self.process.is_ready()

    def close(self) -> None:
        """End the server if this process started it; the next answer starts it again."""
        if self.connection:
            self.connection.close()
        if self.process:
            self.process.close()
        self.connection = self.process = None

    # --- answering --------------------------------------------------------------------------------

    def answer(self, examples: Iterable[Example]) -> Answers:
        """Examples with their answers, or why they have none, as they finish. Examples are made
        ahead while the server loads and computes.

        Where every request would fail, no more are sent, and a `UserError` is raised after the
        answers that were under way; at once where a server that this process started is gone.
        """
        source, under_way = iter(examples), dict[Future[Answer], Example]()
        made = deque(islice(source, 1))  # and not sent yet
        if not made:
            return
        # What does not fit is said before a server is started.
        self.check_fits(made[0])
        self.open()
        self._end = ""
        try:
            while True:
                is_ready = self.is_ready()
                while is_ready and made and self._takes_more(under_way):
                    example = made.popleft()
                    under_way[self._start(example)] = example

                # While nothing has come back, the time goes into making examples.
                if not any(future.done() for future in under_way) and self._make(source, made):
                    continue
                if is_ready and not under_way:
                    break
                yield from self._finished(under_way)
        finally:
            # The server sees the connections close, and stops.
            for future in under_way:
                future.cancel()
        if self._end:
            raise UserError(f"{self._end}; all answers so far are kept")

    def _make(self, source: Iterator[Example], made: deque[Example]) -> bool:
        """Make one more example; False where there is none, or no more is needed now."""
        tokens = sum(example.num_tokens for example in made)
        if self._end or tokens >= self._most_tokens:
            return False
        before = len(made)
        made.extend(islice(source, 1))
        return len(made) > before

    def _finished(self, under_way: "dict[Future[Answer], Example]") -> Answers:
        """What has come back, after a moment at most."""
        if not under_way:
            time.sleep(_WAIT)
        for future in wait(under_way, _WAIT, FIRST_COMPLETED).done:
            example = under_way.pop(future)
            outcome = self._outcome(future)
            if outcome:
                yield example, outcome

    def _takes_more(self, under_way: "dict[Future[Answer], Example]") -> bool:
        """Whether another prompt may be sent."""
        if self._end or len(under_way) >= self.open().concurrency:
            return False
        tokens = sum(example.num_tokens for example in under_way.values())
        return len(under_way) < 2 or tokens <= self._most_tokens

    @cached_property
    def _most_tokens(self) -> int:
        """The prompt tokens that may be under way; of more a server would choose its own order."""
        return MOST_TOKENS * self.copies()

    def send(self, example: Example, **body: Any) -> Answer | Failure:
        """Send one example now and wait for its answer: for callers that choose the order of their
        requests, as a check of a server's cache does.

        `body` are fields of the request beside those of the engine, which they override, such as
        `cache_salt="a"`, or `messages=[...]` with several turns. What the server counted is in the
        answer's `usage`: `prompt_tokens`, `cached_tokens`, `completion_tokens`, `seconds`. Requests
        of several threads are under way at the same time, once the first answer is there. Raises
        UserError where every request would fail.
        """
        self.wait_until_ready()
        outcome = self._outcome(self._start(example, **body))
        if outcome is None:
            raise UserError(self._end)
        return outcome

    def _start(self, example: Example, **more: Any) -> "Future[Answer]":
        """Send a prompt. At least 1000 tokens of all prompts that may be under way, and 5 of an
        answer, are expected in a second; a tenth of that from a server that we have started, whose
        process we can see."""
        self.check_fits(example)
        connection, tokens = self.open(), example.num_tokens
        before_it = min(connection.concurrency * tokens, self._most_tokens + tokens)
        seconds = before_it / 1000 + self.most_tokens(example) / 5
        if self.process:
            seconds *= 10
        timeout = self.spec.get("timeout", 60 + seconds)
        return connection.send(self.request(example) | more, timeout, partial(self.read, example))

    def _outcome(self, future: "Future[Answer]") -> Answer | Failure | None:
        """The answer to an example, or why there is none; None where the failure ends the model:
        what is under way is still waited for."""
        try:
            return future.result()
        except RequestError as failure:
            if not failure.ends:
                return Failure(failure.reason, refused=failure.kind == "declined")
            self._end = self._end or self.why_it_ends(failure)
            return None

    def why_it_ends(self, failure: RequestError) -> str:
        """A failure that holds for all requests, in one line, with what to do."""
        address = self.open().address
        return f"model {self.name}: {fatal_words(address, failure.kind, failure.reason)}"
