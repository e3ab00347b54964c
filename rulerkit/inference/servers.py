"""Models behind HTTP: what the engines share that ask servers.

`ServerEngine.answer` is the way of a prompt: `PromptQueue` puts examples in an order in which
neighbours share what a server has cached, `Replica.send` asks one of the servers, and `read` of the
engine turns its reply into an answer. An example that cannot be answered is a `Failure`, never an
empty answer; what would fail for every example is one `UserError`, after the answers that were
under way. `vllm` and `openai` are the two engines.
"""

import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import ClassVar

from rulerkit.common.descriptors import describe_lack, left_for_connections, raise_limit
from rulerkit.common.errors import UserError, remark
from rulerkit.common.gpus import visible_gpus, visible_to_child
from rulerkit.common.settings import JSON, Spec
from rulerkit.generation.example import Example
from rulerkit.inference.http import OTHER_PROMPT, Replica, Reply, RequestError, is_too_long
from rulerkit.inference.model import Answer, Answers, Engine, Failure, load_model
from rulerkit.inference.process import START_TIMEOUT, Address, ServerProcess, find_servers
from rulerkit.inference.prompt_queue import PromptQueue
from rulerkit.inference.refusals import fatal_words

MASTER = "RULERKIT_MASTER"
"""Environment variable: HOST:PORT of the first of several nodes that share one vLLM server."""

_WAIT = 1.0  # seconds between two looks at servers that load
_NEXT_LINE = 10.0  # seconds between two lines about what they load


class ServerEngine(Engine):
    """What the engines share that ask servers: starting and stopping them, sending prompts, and
    handling failures."""

    startable = True
    """Whether the kit starts the servers, rather than somebody else."""
    default_concurrency: ClassVar[int]
    _running: ClassVar["ServerEngine | None"] = None
    """The engine whose servers run: two would not share a GPU."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.path: str = spec["path"]
        self.concurrency: int = spec.get("concurrency", self.default_concurrency)
        self.gpus: int = spec.get("gpus", 0)
        """The GPUs of one server; 0 where the spec does not say."""
        self.budget: float | None = spec.get("budget")
        self.spent = 0.0
        """Dollars, by the tokens that the service counted."""
        self.replicas: list[Replica] = []
        self._queue = PromptQueue()
        self._next_line = 0.0

    def command(self, address: Address) -> list[str]:
        """The command line of a server that listens at an address."""
        raise NotImplementedError

    def variables(self) -> dict[str, str]:
        """Environment variables of a server that is started."""
        return {}

    def about_server(self) -> JSON:
        """All that decides what a server of this model answers, JSON-able; sends no request."""
        raise NotImplementedError

    def body(self, example: Example) -> JSON:
        """The JSON of a request."""
        raise NotImplementedError

    def request(self, example: Example, replica: Replica) -> JSON:
        """The JSON of the next request to a server."""
        return self.body(example)

    def read(self, example: Example, reply: Reply) -> Answer:
        """The answer in a reply; raises `RequestError` where there is none."""
        raise NotImplementedError

    def check_fits(self, example: Example) -> None:
        """Raises `TooLong` for an example that no server of this model takes, where that is
        known."""

    # --- starting and ending ----------------------------------------------------------------------

    def addresses(self) -> list[Address]:
        """The servers of this model that run already."""
        running = find_servers(self.about_server)
        if running:
            remark(f"{self.name}: asks the server that runs at {running[0].url}")
        return running

    def open(self) -> None:
        """Find the servers, or start them where none run; those that are started may still be
        loading."""
        if self.replicas:
            return
        raise_limit()
        addresses = self.addresses()
        if not addresses:
            self.start()
        # A server alone has no number.
        first_number = 1 if len(addresses) > 1 else 0
        for number, address in enumerate(addresses, first_number):
            self._add(address, number)
        self._share_connections()

    def _share_connections(self) -> None:
        """Send no server more requests at a time than this process may have connections open."""
        each = max(1, left_for_connections() // max(1, len(self.replicas)))
        if each >= self.concurrency:
            return
        for replica in self.replicas:
            replica.concurrency = each
        remark(
            f"{self.name}: {each} requests at a time to each of its servers in place of "
            f"{self.concurrency}: {describe_lack()}"
        )

    def start(self) -> None:
        """Start a server for each group of GPUs, whatever runs already."""
        # Two engines would not share a GPU.
        if ServerEngine._running:
            ServerEngine._running.close()
        ServerEngine._running = self

        groups = self._gpu_groups()
        timeout = self.spec.get("start_timeout", START_TIMEOUT)
        first_number = 1 if len(groups) > 1 else 0
        for number, gpus in enumerate(groups, first_number):
            name = f"{self.name}-replica{number}" if number else self.name
            variables = self.variables()
            if gpus:
                variables |= visible_to_child(gpus)
            process = ServerProcess(name, self.command, variables, timeout)
            self._add(process.address, number, process)

    def _add(self, address: Address, number: int = 0, process: ServerProcess | None = None) -> None:
        retries = self.spec.get("max_retries", 5)
        self.replicas.append(Replica(address, self.concurrency, retries, number, process))

    def _gpu_groups(self) -> list[list[str]]:
        """The GPUs of each server: as many groups as `replicas` says or the visible ones allow;
        empty groups without GPUs."""
        visible = visible_gpus()
        wanted = self.spec.get("replicas", "auto")
        count = 1 if wanted == "auto" else int(wanted)
        # Over several nodes the launcher gives each its GPUs.
        if not visible or self.spec.get("nodes", 1) > 1:
            return [[]] * count

        size = self.gpus or len(visible) // count
        if wanted == "auto":
            count = max(1, len(visible) // size)
        if not 0 < size * count <= len(visible):
            raise UserError(
                f"model {self.name}: {count} x {size} GPUs do not fit on the {len(visible)} "
                f"visible ones ({', '.join(visible)}): lower `replicas` or tensor_parallel_size, "
                "or make more visible (CUDA_VISIBLE_DEVICES)"
            )
        return [visible[n * size : (n + 1) * size] for n in range(count)]

    def wait_until_ready(self) -> None:
        """Wait until all servers that were started are healthy, and print what they load. Raises
        `UserError` where none gets healthy."""
        while self._loading():
            time.sleep(_WAIT)

    def _loading(self) -> bool:
        """Whether a server is not healthy yet. Prints every few seconds what is being loaded."""
        loading = [
            replica.process for replica in self.alive() if replica.process and replica.loading
        ]
        if loading and time.monotonic() > self._next_line:
            text = loading[0].progress()
            if text:
                remark(f"loading {self.name}: {text[:120]}")
            self._next_line = time.monotonic() + _NEXT_LINE
        return bool(loading)

    def alive(self) -> list[Replica]:
        """The servers that have not ended. Prints the end of one; raises `UserError` where all have
        ended."""
        for replica in list(self.replicas):
            try:
                if replica.process:
                    replica.process.poll()
            except UserError as error:
                self._lose(replica, str(error))
        return self.replicas

    def _lose(self, replica: Replica, reason: str) -> None:
        """A server is gone: the others take over its work; raises where there are none."""
        # The others answer what it was asked.
        for example in replica.under_way.values():
            self._queue.add(example)
        replica.close()
        self.replicas.remove(replica)
        if not self.replicas:
            self.close()
            raise UserError(reason)
        remark(f"{reason}; the other servers take over its work")

    def close(self) -> None:
        """End the servers that this process started; the next answer starts them again."""
        for replica in self.replicas:
            replica.close()
        self.replicas = []
        if ServerEngine._running is self:
            ServerEngine._running = None

    # --- answering --------------------------------------------------------------------------------

    def answer(self, examples: Iterable[Example]) -> Answers:
        """Examples with their answers, or why they have none, as they finish. Examples are made
        ahead while servers load and compute.

        Where every request would fail, no more are sent, and a `UserError` is raised after the
        answers that were under way. A server that does not answer is given up.
        """
        self._queue = queue = PromptQueue(examples)
        if not queue.make():
            return
        self._check_budget()
        # What does not fit is said before a server is started.
        _, first = queue.waiting[0]
        self.check_fits(first)
        self.open()
        try:
            while self._work_is_left():
                # While nothing has come back, the time goes into making examples.
                if not self._any_done() and queue.make():
                    continue
                yield from self._finished()
        finally:
            for replica in self.replicas:
                replica.drop()
        if queue.stop:
            raise UserError(f"{queue.stop}; all answers so far are kept")

    def _work_is_left(self) -> bool:
        """Send what the servers can take; whether anything is under way, or a server still
        loads."""
        loading = self._loading()
        if not loading:
            replica = self._least_busy()
            while replica and self._queue.ready():
                self._send(replica)
                replica = self._least_busy()
        return loading or any(replica.under_way for replica in self.replicas)

    def _any_done(self) -> bool:
        return any(future.done() for replica in self.replicas for future in replica.under_way)

    def _finished(self) -> Answers:
        """What has come back, after a moment at most."""
        under_way = {future: replica for replica in self.replicas for future in replica.under_way}
        if not under_way:
            time.sleep(_WAIT)
            return
        done = wait(under_way, timeout=_WAIT, return_when=FIRST_COMPLETED).done
        for future in done:
            replica = under_way[future]
            # Where its server was lost meanwhile, the example is in the queue again.
            example = replica.under_way.pop(future, None)
            if example is None:
                continue
            outcome = self._outcome(future, replica, example)
            if outcome:
                yield example, outcome

    def _least_busy(self) -> Replica | None:
        """The server with the fewest tokens under way, if it can take another request, and if what
        is under way leaves something of the budget."""
        replica = min(self.replicas, key=lambda replica: replica.tokens)
        num_requests = len(replica.under_way)
        if num_requests >= replica.concurrency:
            return None
        if num_requests > 1 and replica.tokens > replica.most_tokens:
            return None

        # About one request crosses the budget, whatever is under way.
        if self.budget is not None:
            tokens = sum(one.tokens for one in self.replicas)
            expected = self.spent + tokens * self.spec["prices"]["prompt"] / 1e6
            if tokens > 0 and expected >= self.budget:
                return None
        return replica

    def _send(self, replica: Replica) -> None:
        """Send the next prompt. At least 1000 tokens of all prompts that may be under way, and 5 of
        an answer, are expected in a second; a tenth of that from a server whose process we can
        see."""
        example = self._queue.take(replica.last, replica.number / len(self.replicas))
        self.check_fits(example)

        tokens = example.num_tokens
        before_it = min(replica.concurrency * tokens, replica.most_tokens + tokens)
        seconds = before_it / 1000 + self.most_tokens(example) / 5
        if replica.process:
            seconds *= 10
        timeout = self.spec.get("timeout", 60 + seconds)

        replica.last = example
        read = partial(self.read, example)
        future = replica.send(self.request(example, replica), timeout, read)
        replica.num_sent += 1
        replica.under_way[future] = example

    def _outcome(
        self, future: "Future[Answer]", replica: Replica, example: Example
    ) -> Answer | Failure | None:
        """The answer to an example, or why there is none; None where another server is sent it, or
        nothing more is sent."""
        try:
            answer = future.result()
        except RequestError as failure:
            return self._handle(failure, replica, example)
        usage = dict(answer.usage or {})
        self.spent += usage.get("cost", 0.0)
        self._check_budget()
        if replica.number:
            usage["replica"] = replica.number
        return answer._replace(usage=usage)

    def _handle(self, failure: RequestError, replica: Replica, example: Example) -> Failure | None:
        """What a failed request means: for its example, its server, or the whole run."""
        reason = failure.reason
        # It was tried again with growing pauses; another server can answer what it was asked.
        is_gone = failure.kind == "unreachable" and (self.startable or len(self.replicas) > 1)
        if is_gone or failure.kind == "storm":
            # The example goes back first: another server answers it.
            self._queue.add(example)
            if is_gone:
                reason = f"its server at {replica.address} does not answer ({reason})"
            # Raises, or prints it, where the server's process has ended.
            self.alive()
            if replica in self.replicas:
                self._lose(
                    replica,
                    f"model {self.name}: {reason}: look into the server's log, give a slow one "
                    "more time (`timeout: SECONDS`), and run the same command again; answers so "
                    "far are kept",
                )
            return None

        if failure.kind in ("fatal", *OTHER_PROMPT):
            # It holds for every other request too: what is under way is still waited for.
            message = fatal_message(self, replica.address, failure)
            self._queue.stop = self._queue.stop or message
            return None
        if failure.kind == "final" and is_too_long(reason):
            reason += f"; {self._both_lengths(replica, example)}"
        return Failure(reason, refused=failure.kind == "refused")

    def _both_lengths(self, replica: Replica, example: Example) -> str:
        """What a prompt that is too long needs, and what is served."""
        answer = self.most_tokens(example)
        need = example.num_tokens + answer
        served = self.served_length(replica)
        limit = f"{served} tokens" if served else "a length that it does not tell"
        return (
            f"needed are {need} tokens ({example.num_tokens} of the prompt, {answer} of the "
            f"answer), served are {limit}"
        )

    def served_length(self, replica: Replica) -> int | None:
        """The tokens of prompt and answer together that a server takes, where it says so."""
        return replica.longest

    def _check_budget(self) -> None:
        """Send no more once the budget is spent."""
        if self.budget is not None and self.spent >= self.budget:
            self._queue.stop = self._queue.stop or (
                f"model {self.name}: its budget of ${self.budget:g} is spent (${self.spent:.2f} by "
                "the service's own counts): raise `budget` and run the same command again to resume"
            )


def is_served(spec: Spec) -> bool:
    """Whether `rulerkit serve` runs a model on this machine."""
    model = load_model(spec)
    return isinstance(model, ServerEngine) and bool(find_servers(model.about_server))


def fatal_message(engine: ServerEngine, address: Address, failure: RequestError) -> str:
    """A failure that holds for all requests, in one line, with what to do."""
    words = fatal_words(address, failure.kind, failure.reason, engine.path)
    return f"model {engine.name}: {words}"
