"""Any server or service that speaks OpenAI's protocol.

A prompt is sent in one of three ways (`prompt_path`): as token `ids`, as `text`, or as a `chat` of
one message, the paper's form for GPT-4. The answers may differ, so the path is part of a model's
identity. What a server takes is found out by a few tiny requests before the first prompt.
"""

import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from math import ceil
from typing import Any

from rulerkit.common.errors import ModelError, UserError
from rulerkit.common.hidden import hide
from rulerkit.common.hub import is_hub_id
from rulerkit.common.paths import resolve
from rulerkit.common.settings import JSON, Spec
from rulerkit.generation.example import Example
from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.inference.access import Address, about_model, address_of
from rulerkit.inference.model import Answer, cut, refuse_echo, with_reasoning
from rulerkit.inference.refusals import SERVER_WORDS, RequestError
from rulerkit.inference.reply import Reply
from rulerkit.inference.servers import ServerEngine

OPENAI = "https://api.openai.com/v1"

# A text that another tokenizer would count otherwise.
_WORDS = (
    "One of the special magic numbers for long-context is: 4812093. Say: "
    "dd5f8f4c-2c8b-4a2e-9c37-5f0d7a3b1e66.\n"
    "VAR XQZPL = 97331, then VAR KJHWB = VAR XQZPL.\nThe grass is green; the sky is blue: the sun "
    "is yellow! Ünïcödé, 東京, 1.5 % of 1,048,576 tokens?\n1. apple 2. banana 3. cherry"
)
_SHORT = "Hello"
_PROBE_TOKENS = 16
_SAMPLE = 2000  # characters of a prompt of each task that a server with another tokenizer counts
_SLACK = 3  # tokens: a template may trim a text, and tokens may join at its ends
_LEAST_SHARE = 0.75
"""Of the tokens that an estimate expects. Over the thirteen tasks at 2K and 16K and six tokenizers,
estimates were at most 9 % too high (and in cwe up to 20 % too low)."""
_FRAME_TOKENS = 16  # that a chat service adds unseen, at most


@dataclass
class ServerFacts:
    """What a few tiny requests find out about a server and the model behind it.

    A server counts the tokens of each prompt. Where it counts as our tokenizer does, the count says
    exactly whether the whole prompt was read. Where its tokenizer is another one, its count of a
    part of a task's prompt says how many tokens the whole one should have.
    """

    model: str
    """The model's name in requests."""
    max_model_len: int | None
    """The tokens of prompt and answer together that it takes, where it says so."""
    path: str = ""
    adds_bos: bool = True
    """Whether it puts a BOS before a text (or ids), so that ours must stay away."""
    limit_name: str = "max_tokens"
    takes_sampling: bool = True
    """Whether it takes a temperature other than its own."""
    counts: bool = True
    """Whether it says of all prompts how many tokens it read."""
    exact_tokenizer: bool = False
    """Whether it counts tokens as the run's tokenizer does."""
    frame_tokens: int = 0
    """Tokens that it adds to each prompt."""
    ratio: float = 0.0
    """How many tokens it counts for one of ours; 0 where it does not count."""


class OpenAI(ServerEngine):
    """A server or service that speaks OpenAI's protocol, at `base_url`. Answers are greedy unless
    `sampling` says otherwise."""

    on_gpu = False
    default_concurrency = 8

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.base_url: str = spec.get("base_url", OPENAI).rstrip("/")
        self.is_approximate = False
        """Whether the tokenizer may be another one than the server's, as a caller says who compares
        answers to the same prompts: texts are sent, and lengths are approximate."""
        self._ratios: dict[str, float] = {}
        """How many tokens the server counts for one of ours, by task, where its counts are not
        exact."""
        self._extra: JSON = dict(spec.get("extra_body", {}))
        if spec.get("prompt_path") == "ids" and spec.get("tokenizer") == "builtin":
            raise UserError(
                f"model {self.name}: the ids of `tokenizer: builtin` mean nothing to a server: "
                "name the model's own, or use `prompt_path: text` or chat"
            )
        if spec.get("prompt_path") == "chat":
            # The server renders the template of a chat.
            kwargs = self.given(("enable_thinking",)) | spec.get("chat_template_kwargs", {})
            if kwargs:
                self._extra.setdefault("chat_template_kwargs", kwargs)
            if spec.get("prefix_in") == "assistant":
                raise UserError(
                    f"model {self.name}: prompt_path: chat has no assistant's turn for the answer "
                    "prefix: use prefix_in: user"
                )

    def identity(self) -> JSON:
        """The model's name, the path of its prompts, and what its requests say beside them; not
        where it is served."""
        identity = {
            "engine": "openai",
            "path": self.path,
            "prompt_path": self.prompt_path,
            **self.given(("sampling",)),
        }
        if self._extra:
            identity["extra_body"] = hide(self._extra)
        listed = about_model(self._entry)
        if listed:
            identity["server"] = listed
        return identity

    @cached_property
    def _entry(self) -> JSON:
        """What the server lists of the model; {} where it does not list it, and where it does not
        answer, as stored answers are read without it. A server with one model may call it by
        another name than ours."""
        entries: list[JSON] = []
        with suppress(UserError):
            address = self.connection.address if self.connection else self.address()
            entries = address.models() if address else []
        for entry in entries:
            if entry["id"] == self.path:
                return entry
        return entries[0] if len(entries) == 1 else {}

    def environment(self) -> JSON:
        """The server's address, and what was found out about it."""
        return {**hide({"base_url": self.base_url}), "server": asdict(self.server)}

    @property
    def prompt_path(self) -> str:
        """How prompts are sent; for `auto` the server is asked once."""
        wanted = str(self.spec.get("prompt_path", "auto"))
        return self.server.path if wanted == "auto" else wanted

    @cached_property
    def prompt_format(self) -> PromptFormat:
        """As the spec says; for the path `chat` the paper's form for GPT-4, unless it says
        otherwise."""
        # The path may ask the server, which wants the key, before a tokenizer is downloaded.
        return self._format_for(self.prompt_path)

    def _format_for(self, path: str) -> PromptFormat:
        settings: JSON = {}
        if path == "chat":
            place = "none" if self.spec.get("thinking_tokens") else "user"
            settings = {"template": "gpt-4", "prefix_in": place}
        return self.make_format(**settings)

    def tokenizer_name(self) -> str:
        """The spec's, else that of the folder or hub id that `path` is, else the one known for a
        model of OpenAI."""
        if "tokenizer" in self.spec:
            return str(self.spec["tokenizer"])
        # vLLM says under `root` what it has loaded, also where it serves it under another name.
        for name in (self.path, str(self._entry.get("root"))):
            if is_hub_id(name) or os.path.isdir(resolve(name)):
                return name
        from tiktoken.model import encoding_name_for_model

        with suppress(KeyError):
            return encoding_name_for_model(self.path)
        raise UserError(
            f"model {self.name}: `tokenizer` is missing: name the folder, file or hub id "
            f"(org/name) of the tokenizer of {self.path}, on a command line with -y 'tokenizer: "
            "NAME'; for a closed API, one with a vocabulary of similar size (cl100k_base)"
        )

    def too_long(self, length: int) -> str | None:
        """Whether a length is beyond `max_length`, or beyond what the server says it takes."""
        limit = self.spec.get("max_length") or self.server.max_model_len
        if self.is_approximate:
            length = ceil(length * max(1, self.server.ratio))
        # A service puts a frame around a chat that nobody sees, and a thought comes beside it.
        unseen = self.beside
        if self.prompt_path == "chat" and not any(self.prompt_format.around):
            unseen += max(_FRAME_TOKENS, self.server.frame_tokens)
        if limit is None or length + unseen <= limit:
            return None

        share = f", {unseen} of them for a thought and a chat's frame" if unseen else ""
        return (
            f"{length + unseen} tokens are needed{share}, its limit is {limit} tokens: lengths up "
            f"to {limit - unseen} fit, or serve it with a larger context and set `max_length` in "
            "its mapping"
        )

    # --- the server -------------------------------------------------------------------------------

    def address(self) -> Address:
        """The server at `base_url`."""
        spec = {**self.spec, "extra_body": self._extra}
        return address_of(self.base_url, spec, f"model {self.name}: ")

    @cached_property
    def server(self) -> ServerFacts:
        """What a few tiny requests find out, at first use. `prompt_path: auto` stands for the first
        of ids, text and chat that the server accepts; for ids only where it counts tokens.

        Errors: `UserError` where it cannot be reached, refuses, or counts unlike the tokenizer.
        """
        self.wait_until_ready()
        # It may have been away when it was looked at before.
        vars(self).pop("_entry", None)
        entry = self._entry
        facts = ServerFacts(entry.get("id", self.path), entry.get("max_model_len"))
        paths = [self.spec.get("prompt_path", "auto")]
        if paths == ["auto"]:
            # Ids of another vocabulary would be other words.
            is_other = self.is_approximate or self.tokenizer_name() == "builtin"
            paths = ["text", "chat"] if is_other else ["ids", "text", "chat"]
        for path in paths:
            facts.path = path
            try:
                self._find_out(facts)
                # Where nothing is counted, nobody knows whether ids stand for the same words.
                if facts.counts or path != "ids" or path == paths[-1]:
                    break
            except RequestError as failure:
                # A chat service may say 404 to a completion, so only the last word counts.
                is_final = failure.kind in ("unreachable", "late") or "HTTP 401" in failure.reason
                if path == paths[-1] or is_final:
                    raise ModelError(self.why_it_ends(failure)) from None
        return facts

    def _find_out(self, facts: ServerFacts) -> None:
        """Whether a server takes the path of the facts, and how it counts there. `RequestError`
        where it does not, and `UserError` where ids or texts would be other ones to its model."""
        path, leading = facts.path, self.tokenizer().leading_tokens
        # Ids mean nothing to a server that cuts texts into other ones: a text tells first.
        if path == "ids":
            with suppress(RequestError):
                self._measure(facts, "text")
        self._measure(facts, path)
        if path != "chat" and facts.adds_bos and self._format_for(path).lacks_bos:
            raise UserError(
                f"model {self.name}: its server puts {''.join(leading)} before each prompt, and "
                "the chat template writes none: use `prompt_path: chat` or ids, or tell the server "
                "in `extra_body` to add none (vLLM: add_special_tokens: false)"
            )

    def _measure(self, facts: ServerFacts, path: str) -> None:
        """How a server counts two texts that are sent by a path: what it adds to each is in both
        counts. Errors as of `_find_out`."""
        tokenizer = self.tokenizer()
        our_short, our_long = map(tokenizer.count, (_SHORT, _WORDS))
        added = len(tokenizer.leading_ids)
        short, long = (self._count(facts, path, text) for text in (_SHORT, _WORDS))
        # Without a count, ids are taken as they are.
        facts.adds_bos = path == "text" and added > 0
        facts.counts, facts.ratio = False, 0.0
        if short is None or long is None or long <= short:
            return

        facts.counts = True
        facts.exact_tokenizer = abs((long - short) - (our_long - our_short)) <= 1
        facts.ratio = (long - short) / (our_long - our_short)
        if facts.exact_tokenizer:
            facts.ratio = 1.0
        facts.frame_tokens = max(0, short - our_short)
        if path == "chat" or self.is_approximate:
            return

        facts.adds_bos = facts.frame_tokens > 0 and added > 0
        if not facts.exact_tokenizer or facts.frame_tokens not in (0, added or 1):
            raise UserError(
                f"model {self.name}: its server counts {long} tokens where the tokenizer "
                f"{tokenizer.name} counts {our_long}: `tokenizer` must be the model's own for "
                f"`prompt_path: {facts.path}`; if it is, the server puts something around the "
                "prompt: use `prompt_path: chat`"
            )

    def _count(self, facts: ServerFacts, path: str, text: str) -> int | None:
        """The server's own count of the tokens of a prompt; None where it gives none."""
        prompt = self.tokenizer().encode(text).tolist() if path == "ids" else text
        sampling = self.spec.get("sampling", {"temperature": 0})
        body = self._body(facts, path, prompt, _PROBE_TOKENS, sampling)
        # Some servers load the model at the first request.
        timeout = self.spec.get("timeout", 300.0)
        asked = self.open().send(body, timeout, lambda reply: reply, is_probe=True)
        try:
            counted: int | None = asked.result().usage.get("prompt_tokens")
        except RequestError as failure:
            # Reasoning models of services insist on a newer name, and on their own temperature.
            if "max_completion_tokens" in failure.reason and facts.limit_name == "max_tokens":
                facts.limit_name = "max_completion_tokens"
            elif "temperature" in failure.reason and facts.takes_sampling:
                facts.takes_sampling = False
            else:
                raise
            return self._count(facts, path, text)
        return counted

    # --- answering --------------------------------------------------------------------------------

    def _body(self, facts: ServerFacts, path: str, prompt: Any, limit: int, sampling: Spec) -> JSON:
        """The JSON of a request for at most `limit` tokens; `prompt` is a text, or ids where that
        is the path. What `extra_body` sets to null is left out."""
        body: JSON = {"model": facts.model, facts.limit_name: limit}
        if facts.takes_sampling:
            body |= sampling
        if path == "chat":
            body["messages"] = [{"role": "user", "content": prompt}]
            system = self.spec.get("system_prompt")
            if system:
                body["messages"].insert(0, {"role": "system", "content": system})
        else:
            body["prompt"] = prompt
        body |= self._extra
        return {key: value for key, value in body.items() if value is not None}

    def request(self, example: Example) -> JSON:
        """The prompt by the server's path: one BOS, whoever adds it; as messages, without the
        template. Before the first prompt of a task the server counts a part of it, where its counts
        are not exact."""
        facts, form = self.server, self.prompt_format
        if facts.ratio and not facts.exact_tokenizer and example.task not in self._ratios:
            part = example.input[:_SAMPLE]
            self._ratios[example.task] = facts.ratio
            with suppress(RequestError):
                count = self._count(facts, facts.path, part) or 0
                if count > facts.frame_tokens:
                    ratio = (count - facts.frame_tokens) / self.tokenizer().count(part)
                    self._ratios[example.task] = ratio

        prompt: Any
        if facts.path == "chat":
            # Blanks that the template would put before it stand with the content.
            prompt = example.input.lstrip(" ") + example.answer_prefix
        elif facts.path == "ids":
            ids = example.ids.tolist()
            prompt = ids[len(form.leading_ids) :] if facts.adds_bos else ids
        else:
            text = example.prompt.removeprefix(form.leading_text)
            prompt = text if facts.adds_bos else form.leading_text + text

        sampling = self.sampling(example)
        # Services may refuse one.
        sampling.pop("seed", None)
        return self._body(facts, facts.path, prompt, self.most_tokens(example), sampling)

    def read(self, example: Example, reply: Reply) -> Answer:
        """The text, why it ended, its tokens (the server's count, else ours) and what it took.

        Raises `RequestError` where the service declined; where the reply is no answer: no text, an
        empty one for which nothing was generated, or an end that is neither the model's own nor the
        limit; and where the server did not read the whole prompt. An answer that is longer than its
        limit is cut there.
        """
        form, text, thought = self.prompt_format, reply.text, reply.thought
        if reply.reason in SERVER_WORDS["refused"] or reply.refusal:
            declined = f"the service declined ({reply.refusal or reply.reason})"
            raise RequestError(declined[:300], "declined")

        self._check_read(example, reply)
        finish, written = reply.finish(), reply.usage.get("completion_tokens")
        # Some services count the tokens of a thought that they do not show.
        has_thought = thought or reply.usage.get("reasoning_tokens")
        if has_thought and not text and not form.thinking_tokens:
            raise RequestError(
                f"it thinks, and its answer of at most {self.most_tokens(example)} tokens ended "
                "in the thought",
                "thinks",
            )
        if form.thinking_tokens and not text and finish == "length":
            # As a model writes it: a thought that was cut has no end.
            text = f"<think>{thought}"
        elif form.thinking_tokens and thought and text is not None:
            text = f"<think>{thought}</think>{text}"
        if text is None and thought:
            raise RequestError("a thought, and no answer behind it", "rejected")
        if text is None or (not text and (finish != "stop" or written == 0)):
            raise RequestError(f"an answer without text (finish_reason {finish})", "temporary")

        refuse_echo(self.name, example, text)  # before it is cut
        limit, length = self.most_tokens(example), form.tokenizer.count(text)
        written = length if written is None else written
        # A server whose tokenizer is another one may write more tokens of ours than of its own, but
        # not twice as many.
        if written > limit or length > 2 * limit:
            text, finish, written, _ = cut(text, form.tokenizer, limit)
        return Answer(text, finish, written, with_reasoning(text, form, reply.usage))

    def _check_read(self, example: Example, reply: Reply) -> None:
        """Raise `RequestError` where the server read fewer tokens than it was sent."""
        facts, form = self.server, self.prompt_format
        counted = reply.usage.get("prompt_tokens")
        if counted is None:
            facts.counts = False
        if counted is None or not facts.ratio:
            return
        # What the server puts around a prompt is not sent.
        unsent = len(form.leading_ids) if facts.adds_bos else 0
        if facts.path == "chat":
            unsent = len(form.bos) + sum(map(form.tokenizer.count, form.around))
        ratio = self._ratios.get(example.task, facts.ratio)
        expected = round(facts.frame_tokens + ratio * (example.num_tokens - unsent))
        slack = _SLACK if facts.exact_tokenizer else (1 - _LEAST_SHARE) * expected

        # The cached ones may be counted apart; `read_reply` sees it where they are the larger part.
        with_cached = counted + reply.usage.get("cached_tokens", 0)
        is_sum_right = facts.exact_tokenizer and abs(with_cached - expected) <= slack
        if counted < expected - slack and not is_sum_right:
            raise RequestError(
                f"the server cut the prompt: it read {counted} of {expected} tokens "
                f"(length {example.length})",
                "cut",
            )
