"""Any server that speaks OpenAI's protocol: vLLM, transformers serve, GPT-4, Gemini's compatible address.

Many requests are under way at once and answers come as they finish. How a prompt is sent (`prompt_path`) is part of the
model's identity, because paths differ in what the model reads: see `servers.py`. What cannot be answered is
no empty answer: nothing is given back for it, and an error in the end says how many and why.
"""

import os
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rulerkit.errors import UserError
from rulerkit.example import Example
from rulerkit.models import FORMAT_KEYS, Answer, Engine
from rulerkit.models.openai.replies import REFUSED, read_reply
from rulerkit.models.openai.sending import Line, NoAnswerError, Reply, client_version
from rulerkit.models.openai.servers import CHATS, PATHS, Probe, Server, refusal, request, written
from rulerkit.models.spec import Key, mapping_of, one_of, text, tokens, whole
from rulerkit.paths import resolve
from rulerkit.prompt_format import PromptFormat, prompt_format

OPENAI = "https://api.openai.com/v1"


def _seconds(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    raise ValueError


KEYS = {
    "path": Key("the model's name, as the server knows it", text),
    "base_url": Key(f"the server's address, such as http://localhost:8000/v1 (default {OPENAI})", text),
    "api_key_env": Key("the name of the environment variable that holds the key", text),
    "prompt_path": one_of("auto", *PATHS),
    "concurrency": Key("how many requests are under way at once, at least 1 (default 8)", whole),
    "timeout": Key("seconds for one answer (default: grows with the prompt)", _seconds),
    "max_retries": Key("how often a failed request is sent again, 0 or more (default 5)", tokens),
    "extra_body": Key("a mapping of further fields of a request; null takes one away", mapping_of((object,))),
    "prices": Key(
        "a mapping: dollars per million tokens, {prompt: 10, completion: 30, cached: 5}", mapping_of((int, float))
    ),
    "max_length": Key("the tokens of prompt and answer together that the model takes, such as 128000", tokens),
    "overhead_tokens": Key("a number of tokens that a chat service adds unseen, at most (default 16)", tokens),
}


@dataclass(frozen=True)
class Ask:
    """An example on its way; `late` counts how often it had no answer in time."""

    example: Example
    late: int = 0


class OpenAI(Engine):
    """Asks a server, `concurrency` requests at a time; greedy."""

    on_gpu = False

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec)
        if "path" not in spec:
            raise UserError(f"model {self.name}: `path` is missing; it takes {KEYS['path'].help}")
        self.path: str = spec["path"]
        self.base_url: str = spec.get("base_url", OPENAI)
        self.overhead: int = spec.get("overhead_tokens", 16)
        self.concurrency: int = spec.get("concurrency", 8)
        self.retries: int = spec.get("max_retries", 5)
        self._extra: dict[str, Any] = dict(spec.get("extra_body", {}))
        if "enable_thinking" in spec and spec.get("prompt_path") in CHATS:
            self._extra.setdefault("chat_template_kwargs", {"enable_thinking": spec["enable_thinking"]})
        self._check()

    def identity(self) -> dict[str, Any]:
        """The model's name, the path of its prompts, and what its requests say beside them; not where it is served."""
        extra = {"extra_body": self._extra} if self._extra else {}
        return {"engine": "openai", "path": self.path, "prompt_path": self.prompt_path, **extra}

    def environment(self) -> dict[str, Any]:
        """The client's version, the server's address, and what it says of itself."""
        about = {"exact_tokenizer": self.server.exact, **self.server.about}
        return {"packages": {"openai": client_version()}, "base_url": self.base_url, "server": about}

    @property
    def aligned(self) -> str:
        """As the spec says, else `chat` where prompts are messages or stand in a template."""
        chat = self.prompt_path in CHATS or self.prompt_format.form != "base"
        return str(self.spec.get("aligned") or ("chat" if chat else "base"))

    @property
    def prompt_path(self) -> str:
        """How prompts are sent; for `auto` the server is asked once."""
        wanted = str(self.spec.get("prompt_path", "auto"))
        return self.server.path if wanted == "auto" else wanted

    @cached_property
    def server(self) -> Server:
        """What a few tiny requests find out, at first use."""
        with self._line() as line:
            patience = self.spec.get("timeout", 300.0)  # some servers load the model at the first request
            probe = Probe(self.name, line, self.path, self._tokenizer, patience, self._extra)
            return probe.find(self.spec.get("prompt_path", "auto"))

    @cached_property
    def prompt_format(self) -> PromptFormat:
        """As the spec says; for the path `chat` the paper's form for GPT-4, unless it says otherwise."""
        given: dict[str, Any] = {key: self.spec[key] for key in FORMAT_KEYS if key in self.spec}
        if self.prompt_path == "chat":
            given = {"template": "gpt-4"} | given | {"prefix_in": "user"}
        return prompt_format(self._tokenizer, **given)

    def tokenizer(self) -> Any:
        """The spec's, else that of the folder or hub id that `path` is, else the one known for a model of OpenAI."""
        return self._tokenizer

    def too_long(self, length: int) -> str | None:
        """Whether a length is beyond `max_length`, or beyond what the server says it takes."""
        limit = self.spec.get("max_length") or self.server.limit
        unseen = self.overhead if self.prompt_path in CHATS and not any(self.prompt_format.around) else 0
        if limit is None or length + unseen <= limit:
            return None
        more = f", of which a chat service takes up to {unseen} for itself (overhead_tokens)" if unseen else ""
        return (
            f"its limit is {limit} tokens{more}: lengths up to {limit - unseen} fit, or serve it with a larger "
            "context and set `max_length` in its mapping"
        )

    # --- answering ----------------------------------------------------------------------------------------------------

    def answer(self, examples: Iterable[Example]) -> Iterator[tuple[Example, Answer]]:
        """As they finish. A request that timed out is sent again when all others have been, with more time. When as many
        as two rounds of requests fail in a row no more are sent; an error in the end tells what failed."""
        server, asks = self.server, _Asks(self, examples)
        under_way: dict[Future[Reply], Ask] = {}
        with self._line() as line:
            while True:
                while len(under_way) < self.concurrency + 2 and (ask := asks.next()):  # two wait for a free place
                    under_way[self._send(line, server, ask)] = ask
                if not under_way:
                    break
                for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                    ask = under_way.pop(future)
                    try:
                        answer = self._read(server, ask.example, future.result())
                    except NoAnswerError as failure:
                        if failure.code not in REFUSED:
                            asks.failed(ask, failure)
                            continue
                        answer = Answer("", "refused", 0, {"server_says": failure.reason})
                    asks.in_a_row = 0
                    yield ask.example, answer
        asks.finish()

    def _send(self, line: Line, server: Server, ask: Ask) -> "Future[Reply]":
        example, most = ask.example, self.most_tokens(ask.example)
        prompt = written(example, server, self.prompt_format, self.spec.get("system_prompt"))
        body = request(server.path, self.path, prompt, self._extra, **{server.limit_name: most})
        # at least 1000 tokens of all prompts under way, and 5 of an answer, are expected in a second
        usual = 60 + example.num_tokens * self.concurrency / 1000 + most / 5
        return line.send(body, self.spec.get("timeout", usual) * (1 + ask.late))

    def _read(self, server: Server, example: Example, reply: Reply) -> Answer:
        """The answer; a `NoAnswerError` where the server did not read the whole prompt. One whose tokenizer is not ours may
        count fewer tokens, but not half as many."""
        answer = read_reply(reply, self.prompt_format, self.most_tokens(example), self.spec.get("prices"))
        counted = (answer.usage or {}).get("prompt_tokens")
        least = example.num_tokens - self.overhead if server.exact else example.num_tokens // 2
        if counted is not None and counted < least:
            reason = f"the server cut the prompt: it read {counted} of {example.num_tokens} tokens"
            raise NoAnswerError(f"{reason} (length {example.length})", "for all")
        return answer

    # --- what a spec says ---------------------------------------------------------------------------------------------

    @cached_property
    def _tokenizer(self) -> Any:
        from rulerkit.tokenizers import load_tokenizer

        return load_tokenizer(self.tokenizer_name())

    def tokenizer_name(self) -> str:
        """Whose tokens a length is counted in."""
        if named := self.spec.get("tokenizer"):
            return str(named)
        if resolve(self.path).is_dir():
            return self.path
        from tiktoken.model import encoding_name_for_model

        try:
            return encoding_name_for_model(self.path)
        except KeyError:
            if re.fullmatch(r"[\w.-]+/[\w.-]+", self.path):
                return self.path
        raise UserError(
            f"model {self.name}: `tokenizer` is missing: name the folder, file or hub id (org/name) of the tokenizer of "
            f"{self.path}; for a service that keeps its own, one of like size (cl100k_base)"
        )

    def _line(self) -> Line:
        return Line(self.base_url, self._key(), self.concurrency, self.retries)

    def _key(self) -> str:
        """The key, from the environment; servers of one's own mostly want none."""
        name = self.spec.get("api_key_env") or ("OPENAI_API_KEY" if self.base_url == OPENAI else None)
        if name is None:
            return "none"
        if key := os.environ.get(name):
            return key
        raise UserError(
            f"model {self.name}: the environment variable {name}, which holds the key, is not set: export it"
        )

    def _check(self) -> None:
        """What can be said of a spec before anything is asked."""
        path, place, wrong = self.spec.get("prompt_path", "auto"), self.spec.get("prefix_in"), ""
        prices = set(self.spec.get("prices", ("prompt", "completion")))
        if not re.fullmatch(r"https?://[^\s/]+.*", self.base_url):
            wrong = f"base_url: {self.base_url!r} is no address; it takes {KEYS['base_url'].help}"
        elif not re.fullmatch(r"[A-Za-z_]\w{0,63}", self.spec.get("api_key_env", "x")):
            wrong = f"api_key_env takes {KEYS['api_key_env'].help}, never the key itself"
        elif path == "chat" and place == "assistant":
            wrong = "prompt_path: chat has no assistant's turn for the answer prefix: use prefix_in: user, or prefill"
        elif path == "prefill" and (place == "user" or self.spec.get("template") == "gpt-4"):
            wrong = "prompt_path: prefill puts the answer prefix into the assistant's turn; else use prompt_path: chat"
        elif not {"prompt", "completion"} <= prices <= {"prompt", "completion", "cached"}:
            wrong = f"prices takes {KEYS['prices'].help}"
        if wrong:
            raise UserError(f"model {self.name}: {wrong}")


class _Asks:
    """What is still to be asked, and what went wrong."""

    def __init__(self, engine: OpenAI, examples: Iterable[Example]) -> None:
        self.engine = engine
        self.in_a_row = 0  # failures since the last answer
        self._source, self._late = iter(examples), deque[Ask]()
        self._asked, self._failed, self._stop = 0, Counter[str](), ""

    def next(self) -> Ask | None:
        """A new example, else one that timed out; None where there is none, or no use in asking."""
        if self._stop:
            return None
        if example := next(self._source, None):
            self._asked += 1
            return Ask(example)
        return self._late.popleft() if self._late else None

    def failed(self, ask: Ask, failure: NoAnswerError) -> None:
        """To the end of the queue if it was late and may be so again, else for good."""
        who = self.engine
        again = failure.kind == "late" and ask.late < who.retries
        if again:
            self._late.append(Ask(ask.example, ask.late + 1))
        else:
            self._failed[failure.reason.rstrip(".")] += 1
        self.in_a_row += not again or ask.late == 0
        if failure.kind == "for all":
            self._stop = self._stop or str(refusal(who.name, who.base_url, who.path, failure))
        elif self.in_a_row >= 2 * who.concurrency + 2:
            self._stop = self._stop or (
                f"model {who.name}: {self.in_a_row} requests to {who.base_url} in a row had no answer ({failure.reason}), "
                "so no more were sent"
            )

    def finish(self) -> None:
        """Raises `UserError` where anything was left without an answer."""
        if self._stop:
            raise UserError(f"{self._stop}; all answers so far are kept")
        if self._failed:
            why = "; ".join(f"{count} times {reason}" for reason, count in self._failed.most_common(3))
            raise UserError(
                f"model {self.engine.name}: {self._failed.total()} of {self._asked} requests to {self.engine.base_url} "
                f"failed ({why}): nothing is stored for these, all other answers are kept, and the same command asks for "
                "these again"
            )
