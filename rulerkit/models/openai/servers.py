"""What a server takes and how it counts, found out with a few tiny requests before the first prompt is sent.

A prompt reaches a server by one of four paths: as token `ids`, as `text`, as a chat whose last message is the answer's
first words (`prefill`), or as a `chat` of one message, the paper's form for GPT-4. They are not equal, so the path in
use is part of a model's identity.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rulerkit.errors import UserError
from rulerkit.example import Example
from rulerkit.models.openai.sending import Line, NoAnswerError, Reply
from rulerkit.prompt_format import PromptFormat
from rulerkit.tokenizers import Tokenizer

PATHS = ("ids", "text", "prefill", "chat")
CHATS = ("prefill", "chat")
PREFILL = {"continue_final_message": True, "add_generation_prompt": False}
"""What vLLM and its like need to go on with the last message; `null` in `extra_body` takes one away."""

_WORDS = (
    "One of the special magic numbers for long-context is: 4812093. Say: dd5f8f4c-2c8b-4a2e-9c37-5f0d7a3b1e66.\n"
    "VAR XQZPL = 97331, then VAR KJHWB = VAR XQZPL.\nThe grass is green; the sky is blue: the sun is yellow! "
    "Ünïcödé, 東京, 1.5 % of 1,048,576 tokens?\n1. apple 2. banana 3. cherry"
)
"""What another tokenizer would count otherwise."""
_SHORT = "Hello"
_PREFIX = "Answer"


class Prompt(NamedTuple):
    """One prompt in all the ways in which it can be sent."""

    ids: list[int]
    text: str
    user: str
    prefix: str
    system: str | None = None


@dataclass(frozen=True)
class Server:
    """What is known of a server and the model behind it."""

    path: str
    adds_bos: bool = True
    """Whether it puts a BOS before a text (or ids), so that ours must stay away."""
    exact: bool = False
    """Whether it counts tokens as the run's tokenizer does."""
    limit: int | None = None
    """The tokens of prompt and answer together that it takes, where it says so."""
    limit_name: str = "max_tokens"
    about: dict[str, Any] = field(default_factory=dict)


def request(path: str, model: str, prompt: Prompt, extra: Mapping[str, Any], **limit: int) -> dict[str, Any]:
    """The JSON of a request; what `extra` sets to None is left out."""
    body: dict[str, Any] = {"temperature": 0, **limit}
    if path in ("ids", "text"):
        body["prompt"] = prompt.ids if path == "ids" else prompt.text
    else:
        system = [{"role": "system", "content": prompt.system}] if prompt.system else []
        body["messages"] = [*system, {"role": "user", "content": prompt.user}]
    if path == "prefill":
        body["messages"].append({"role": "assistant", "content": prompt.prefix})
        body |= PREFILL
    return {"model": model, **{key: value for key, value in (body | dict(extra)).items() if value is not None}}


def written(example: Example, server: Server, form: PromptFormat, system: str | None = None) -> Prompt:
    """An example as its path takes it: one BOS, whoever adds it; as messages, without the template."""
    token = form.tokenizer
    if server.path in CHATS:
        before = form.around[0]
        user = "".join(block.text for block in example.blocks if block.role not in ("template", "answer_prefix"))
        user = user[len(before) - len(before.rstrip(" ")) :]  # blanks of the template that stand with the content
        closing = example.answer_prefix if server.path == "chat" else ""
        return Prompt([], "", user + closing, example.answer_prefix, system)
    if server.path == "ids":
        ours = server.adds_bos and len(example.ids) > 0 and example.ids[0] == token.bos_id
        return Prompt(example.ids[int(ours) :].tolist(), "", "", "")
    text, opening = example.prompt, token.bos_token or ""
    if server.adds_bos:
        text = text.removeprefix(opening)
    elif form.bos:
        text = opening + text
    return Prompt([], text, "", "")


@dataclass
class Probe:
    """Tiny requests to one server; `wanted` is a path or `auto`: ids, else text, else chat."""

    who: str
    line: Line
    model: str
    tokenizer: Tokenizer
    timeout: float
    extra: Mapping[str, Any]
    limit_name: str = "max_tokens"
    last: dict[str, Any] = field(default_factory=dict)

    def find(self, wanted: str) -> Server:
        """The server as it is found; `UserError` where it cannot be reached, refuses, or counts unlike the tokenizer."""
        listed = self._listed()
        ways: list[Callable[[], Server]] = [self._ids, self._text, self._chat]
        if wanted != "auto":
            ways = [{"ids": self._ids, "text": self._text, "prefill": self._prefill, "chat": self._chat}[wanted]]
        for number, way in enumerate(ways, 1):
            try:
                found = way()
                break
            except NoAnswerError as failure:
                # a chat service may say 404 to a completion, so only the last word counts
                if number == len(ways) or failure.kind in ("away", "late") or failure.reason.startswith("HTTP 401"):
                    raise self._error(failure) from None
        limit = listed.get("max_model_len")
        about = {key: listed[key] for key in ("owned_by", "root", "max_model_len") if listed.get(key)}
        about |= {key: self.last[key] for key in ("model", "system_fingerprint") if self.last.get(key)}
        return Server(
            found.path,
            found.adds_bos,
            found.exact,
            limit if isinstance(limit, int) else None,
            self.limit_name,
            about,
        )

    # --- the four paths -----------------------------------------------------------------------------------------------

    def _text(self) -> Server:
        count = self._count("text", self._prompt(_WORDS))
        return Server("text", self._bos(count, "text"), count is not None)

    def _ids(self) -> Server:
        """Ids mean something only to a server that cuts texts into the same ones."""
        count = self._count("ids", self._prompt(_WORDS))
        try:
            self._bos(self._count("text", self._prompt(_WORDS)), "ids")
        except NoAnswerError as failure:
            if failure.kind in ("away", "late"):
                raise
        # without a count: ids are taken as they are
        return Server("ids", count is not None and self._bos(count, "ids"), count is not None)

    def _chat(self) -> Server:
        short, long = (self._count("chat", self._prompt(text)) for text in (_SHORT, _WORDS))
        return Server("chat", exact=self._same_step(short, long))

    def _prefill(self) -> Server:
        """The answer's first words must add their own tokens to a chat, and not those that close a turn."""
        plain = self._count("chat", self._prompt(_SHORT))
        short, long = (self._count("prefill", self._prompt(text)) for text in (_SHORT, _WORDS))
        added = self.tokenizer.count(_PREFIX)
        if plain is not None and short is not None and short > plain + added + 1:
            raise UserError(
                f"model {self.who}: {self.line.base_url} does not go on with the assistant's words: {added} tokens of them "
                f"make its prompt {short - plain} tokens longer, so it closes the turn; use `prompt_path: text`, ids or "
                "chat, or give in `extra_body` what this server needs to continue a message"
            )
        return Server("prefill", exact=self._same_step(short, long))

    def _same_step(self, short: int | None, long: int | None) -> bool:
        if short is None or long is None:
            return False
        return abs((long - short) - (self.tokenizer.count(_WORDS) - self.tokenizer.count(_SHORT))) <= 1

    def _bos(self, count: int | None, path: str) -> bool:
        """Whether the server adds a BOS; `UserError` where its count has nothing to do with ours."""
        ours = self.tokenizer.count(_WORDS)
        if count is None or count == ours + 1:
            return self.tokenizer.bos_id is not None
        if count == ours:
            return False
        raise UserError(
            f"model {self.who}: {self.line.base_url} counts {count} tokens where the tokenizer {self.tokenizer.name} counts "
            f"{ours}: `tokenizer` must be the model's own for `prompt_path: {path}`; if it is, the server puts something "
            "around the prompt: use `prompt_path: chat`"
        )

    # --- asking -------------------------------------------------------------------------------------------------------

    def _listed(self) -> dict[str, Any]:
        """What /models says of the model; nothing where the server has no such list, or does not know folders."""
        try:
            models = self.line.models(self.timeout)
        except NoAnswerError as failure:
            if failure.kind in ("away", "late") or failure.reason.startswith("HTTP 401"):
                raise self._error(failure) from None
            return {}
        return next((entry for entry in models if entry.get("id") == self.model), {})

    def _prompt(self, text: str) -> Prompt:
        return Prompt(self.tokenizer.encode(text).tolist(), text, text, _PREFIX)

    def _count(self, path: str, prompt: Prompt) -> int | None:
        """The tokens of a prompt by the server's own count; None where it tells none."""
        try:
            reply = self._ask(path, prompt)
        except NoAnswerError as failure:
            if "max_completion_tokens" not in failure.reason or self.limit_name == "max_completion_tokens":
                raise
            self.limit_name = "max_completion_tokens"  # the name that newer models of OpenAI insist on
            reply = self._ask(path, prompt)
        self.last = reply.body
        count = (reply.body.get("usage") or {}).get("prompt_tokens")
        return count if isinstance(count, int) and count > 0 else None

    def _ask(self, path: str, prompt: Prompt) -> Reply:
        body = request(path, self.model, prompt, self.extra, **{self.limit_name: 16})
        return self.line.send(body, self.timeout, patient=False).result()

    def _error(self, failure: NoAnswerError) -> UserError:
        return refusal(self.who, self.line.base_url, self.model, failure)


def refusal(who: str, base_url: str, model: str, failure: NoAnswerError) -> UserError:
    """A failure that holds for all requests, in one line, with the way on."""
    if failure.kind == "away":
        return UserError(
            f"model {who}: nothing answers at {base_url} ({failure.reason}): start the server, or correct `base_url`, which "
            "mostly ends in /v1"
        )
    if failure.kind == "late":
        return UserError(
            f"model {who}: {base_url} gives {failure.reason}: is it busy or still loading? `timeout: SECONDS` waits longer"
        )
    if failure.reason.startswith(("HTTP 401", "HTTP 403")):
        hint = "set the environment variable that `api_key_env` names to a key that the server knows"
    elif failure.reason.startswith("HTTP 404"):
        hint = f"does it know the model {model!r} (`path`), and does `base_url` end where it should (mostly in /v1)?"
    else:
        hint = "change the model's mapping or the server, and the same command goes on"
    return UserError(f"model {who}: {base_url} refuses: {failure.reason.rstrip('.')}: {hint}")
