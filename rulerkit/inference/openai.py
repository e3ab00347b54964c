"""Any server or service that speaks OpenAI's protocol.

A prompt is sent in one of three ways (`prompt_path`): as token `ids`, as `text`, or as a `chat` of
one message, the paper's form for GPT-4. The answers may differ, so the path is part of a model's
identity. What a server takes is found out by a few tiny requests before the first prompt.
"""

import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil

from rulerkit.common.errors import ModelError, UserError, remark
from rulerkit.common.hidden import hide
from rulerkit.common.paths import resolve
from rulerkit.common.settings import JSON, Spec
from rulerkit.generation.example import Example
from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.inference.access import Address, about_model, address_of
from rulerkit.inference.http import Connection
from rulerkit.inference.model import Answer, cut, refuse_echo, with_reasoning
from rulerkit.inference.refusals import SERVER_WORDS, RequestError
from rulerkit.inference.reply import Reply
from rulerkit.inference.server_counts import SAMPLE, ServerCounts
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
_SHOWN = ("owned_by", "root")  # what records say of the list of models
_FRAME_TOKENS = 16  # that a chat service adds unseen, at most
_MARK_TOKENS = 16  # of the marks around a thought, which a server takes off and does not count


@dataclass
class ServerFacts:
    """What a few tiny requests find out about a server and the model behind it."""

    model: str
    """The model's name in requests."""
    limit: int | None = None
    """The tokens of prompt and answer together that it takes, where it says so."""
    path: str = ""
    adds_bos: bool = True
    """Whether it puts a BOS before a text (or ids), so that ours must stay away."""
    counts: ServerCounts = field(default_factory=ServerCounts)
    """How it counts the tokens of prompts."""
    limit_name: str = "max_tokens"
    takes_sampling: bool = True
    """Whether it takes a temperature other than its own."""
    about: JSON = field(default_factory=dict)


class OpenAI(ServerEngine):
    """A server or service that speaks OpenAI's protocol, at `base_url`. Answers are greedy unless
    `sampling` says otherwise."""

    on_gpu = False
    default_concurrency = 8

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.base_url: str = spec.get("base_url", OPENAI).rstrip("/")
        self._ignores_limits = self._has_doubts = False
        self.is_approximate = False
        """Whether the tokenizer may be another one than the server's, as a caller says who compares
        answers to the same prompts: texts are sent, and lengths are approximate."""
        self._extra: JSON = dict(spec.get("extra_body", {}))
        kwargs = self.given(("enable_thinking",)) | spec.get("chat_template_kwargs", {})
        if kwargs and spec.get("prompt_path") == "chat":
            # The server renders the template of a chat.
            self._extra.setdefault("chat_template_kwargs", kwargs)
        if spec.get("prompt_path") == "chat" and spec.get("prefix_in") == "assistant":
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
        if self._listed:
            identity["server"] = self._listed
        return identity

    @cached_property
    def _listed(self) -> JSON:
        """What the server lists of its model; {} where it does not answer, as stored answers are
        read without it."""
        with suppress(UserError):
            return about_model(self._entry(self.address()))
        return {}

    def _entry(self, address: Address) -> JSON:
        """What a server lists of the model; {} where it does not list it. A server with one model
        may call it by another name than ours."""
        entries: list[JSON] = []
        with suppress(UserError):
            entries = address.models()
        named = [entry for entry in entries if entry["id"] == self.path]
        if named or len(entries) == 1:
            return (named or entries)[0]
        return {}

    def environment(self) -> JSON:
        """The server's address, and what it says of itself."""
        counts = self.server.counts
        about = {"exact_tokenizer": counts.exact, **self.server.about}
        if counts.frame:
            about["frame_tokens"] = counts.frame
        return {**hide({"base_url": self.base_url}), "server": about}

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
        return self.make_format(self.tokenizer(), **settings)

    def tokenizer_name(self) -> str:
        """The spec's, else that of the folder or hub id that `path` is, else the one known for a
        model of OpenAI."""
        if "tokenizer" in self.spec or resolve(self.path).is_dir():
            return str(self.spec.get("tokenizer", self.path))
        from tiktoken.model import encoding_name_for_model

        with suppress(KeyError):
            return encoding_name_for_model(self.path)
        if re.fullmatch(r"[\w.-]+/[\w.-]+", self.path):
            return self.path
        raise UserError(
            f"model {self.name}: `tokenizer` is missing: name the folder, file or hub id "
            f"(org/name) of the tokenizer of {self.path}, on a command line with -y 'tokenizer: "
            "NAME'; for a closed API, one with a vocabulary of similar size (cl100k_base)"
        )

    def too_long(self, length: int) -> str | None:
        """Whether a length is beyond `max_length`, or beyond what the server says it takes."""
        limit = self.spec.get("max_length") or self.server.limit
        if self.is_approximate:
            length = ceil(length * max(1, self.server.counts.ratio))
        # A service puts a frame around a chat that nobody sees, and a thought comes beside it.
        unseen = self.beside
        if self.prompt_path == "chat" and not any(self.prompt_format.around):
            unseen += max(_FRAME_TOKENS, self.server.counts.frame)
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
        of ids, text and chat that the server accepts.

        Errors: `UserError` where it cannot be reached, refuses, or counts unlike the tokenizer.
        """
        connection = self.wait_until_ready()
        entry = self._entry(connection.address)
        self.longest = entry.get("max_model_len")
        about: JSON = {key: value for key, value in about_model(entry).items() if key in _SHOWN}
        if self.longest:
            about["max_model_len"] = self.longest
        facts = ServerFacts(entry.get("id", self.path), self.longest, about=about)

        wanted = self.spec.get("prompt_path", "auto")
        paths = ["ids", "text", "chat"] if wanted == "auto" else [str(wanted)]
        if self.is_approximate and wanted == "auto":
            # Ids of another vocabulary would be other words.
            paths.remove("ids")
        for path in paths:
            facts.path = path
            try:
                self._find_out(connection, facts)
                break
            except RequestError as failure:
                # A chat service may say 404 to a completion, so only the last word counts.
                is_final = failure.kind in ("unreachable", "late") or "HTTP 401" in failure.reason
                if path == paths[-1] or is_final:
                    raise ModelError(self.ended_by(failure)) from None
        return facts

    def _find_out(self, connection: Connection, facts: ServerFacts) -> None:
        """How a server counts what is sent by a path; `RequestError` where it refuses the path, and
        `UserError` where the counts show that the tokenizer is another one."""
        if facts.path == "chat":
            self._find_out_chat(connection, facts)
            return

        tokenizer, path, counts = self.tokenizer(), facts.path, facts.counts
        ours = tokenizer.count(_WORDS)
        # Ids mean nothing to a server that cuts texts into other ones: a text tells first.
        for way in dict.fromkeys(("text", path)):
            try:
                count = self._count(connection, facts, way, _WORDS)
            except RequestError:
                if way == path:
                    raise
                continue
            added = len(tokenizer.leading_ids)
            if self.is_approximate:
                counts.known, counts.ratio = count is not None, (count or ours) / ours
                continue
            if count not in (None, ours, ours + max(1, added)):
                raise UserError(
                    f"model {self.name}: its server counts {count} tokens where the tokenizer "
                    f"{tokenizer.name} counts {ours}: `tokenizer` must be the model's own for "
                    f"`prompt_path: {path}`; if it is, the server puts something around the "
                    "prompt: use `prompt_path: chat`"
                )
            counts.known = counts.exact = count is not None
            counts.frame = 0 if count is None else count - ours
            # Without a count, ids are taken as they are.
            adds_one = count != ours if counts.exact else way == "text"
            facts.adds_bos = adds_one and added > 0
        if facts.adds_bos and self._format_for(path).lacks_bos:
            raise UserError(
                f"model {self.name}: its server puts {''.join(tokenizer.leading_tokens)} before "
                "each prompt, and the chat template writes none: use `prompt_path: chat` or ids, "
                "or tell the server in `extra_body` to add none (vLLM: add_special_tokens: false)"
            )

    def _find_out_chat(self, connection: Connection, facts: ServerFacts) -> None:
        """How a server counts the tokens of a chat."""
        tokenizer, counts = self.tokenizer(), facts.counts
        short = self._count(connection, facts, facts.path, _SHORT)
        long = self._count(connection, facts, facts.path, _WORDS)
        if not short or not long or long <= short:
            facts.about["counts"] = False
            return

        # The frame of the chat is in both counts.
        ours = tokenizer.count(_WORDS) - tokenizer.count(_SHORT)
        counts.known = True
        counts.exact = abs(long - short - ours) <= 1
        counts.ratio = 1.0 if counts.exact else max(1, long - short) / ours
        counts.frame = max(0, short - tokenizer.count(_SHORT))

    def _count(
        self, connection: Connection, facts: ServerFacts, path: str, text: str
    ) -> int | None:
        """The server's own count of the tokens of a prompt; None where it gives none."""
        if path == "chat":
            prompt = self._messages(text)
        elif path == "ids":
            prompt = {"prompt": self.tokenizer().encode(text).tolist()}
        else:
            prompt = {"prompt": text}

        # Some servers load the model at the first request.
        timeout = self.spec.get("timeout", 300.0)
        sampling = self.spec.get("sampling", {"temperature": 0})
        body = self._request(facts, prompt, _PROBE_TOKENS, sampling)
        try:
            reply = connection.send(body, timeout, lambda reply: reply, patient=False).result()
        except RequestError as failure:
            if not self._adapt(facts, failure):
                raise
            return self._count(connection, facts, path, text)
        count: int | None = reply.prompt_tokens
        if count is None:
            facts.about["counts"] = False
            return None
        # Some services count apart what they had cached.
        cached = reply.cached_tokens or 0
        return count + cached if cached > count else count

    def _adapt(self, facts: ServerFacts, failure: RequestError) -> bool:
        """Whether a request may succeed in another form: reasoning models of services insist on a
        newer name for the limit, and on their own temperature."""
        newer = "max_completion_tokens"
        if newer in failure.reason and facts.limit_name != newer:
            facts.limit_name = newer
        elif "temperature" in failure.reason and facts.takes_sampling:
            facts.takes_sampling = False
        else:
            return False
        temperature = "temperature 0" if facts.takes_sampling else "no temperature"
        facts.about["sent"] = f"{facts.limit_name}, {temperature}"
        return True

    # --- answering --------------------------------------------------------------------------------

    def _request(self, facts: ServerFacts, prompt: Spec, limit: int, sampling: Spec) -> JSON:
        """The JSON of a request; what `extra_body` sets to null is left out."""
        request: JSON = {"model": facts.model}
        if facts.takes_sampling:
            request |= sampling
        request[facts.limit_name] = limit
        request |= prompt
        request |= self._extra
        return {key: value for key, value in request.items() if value is not None}

    def request(self, example: Example, connection: Connection) -> JSON:
        """The prompt by the server's path: one BOS, whoever adds it; as messages, without the
        template. Before the first prompt of a task the server counts a part of it, where its counts
        are not exact."""
        facts, counts = self.server, self.server.counts
        if counts.known and not counts.exact and example.task not in counts.ratios:
            part = example.input[:SAMPLE]
            counts.ratios[example.task] = counts.ratio
            with suppress(RequestError):
                count = self._count(connection, facts, facts.path, part) or 0
                if count > counts.frame:
                    ratio = (count - counts.frame) / self.tokenizer().count(part)
                    counts.ratios[example.task] = ratio

        sampling = self.sampling(example)
        # Services may refuse one.
        sampling.pop("seed", None)
        prompt = self._prompt(example)
        return self._request(facts, prompt, self.most_tokens(example), sampling)

    def _prompt(self, example: Example) -> JSON:
        form, path = self.prompt_format, self.server.path
        if path == "chat":
            # Blanks that the template would put before it stand with the content.
            return self._messages(example.input.lstrip(" ") + example.answer_prefix)

        adds_bos = self.server.adds_bos
        if path == "ids":
            ids = example.ids.tolist()
            return {"prompt": ids[len(form.leading_ids) :] if adds_bos else ids}

        text = example.prompt.removeprefix(form.leading_text)
        return {"prompt": text if adds_bos else form.leading_text + text}

    def _messages(self, text: str) -> JSON:
        """The part of a chat's request that holds the prompt."""
        roles = {"system": self.spec.get("system_prompt"), "user": text}
        said = [{"role": role, "content": content} for role, content in roles.items() if content]
        return {"messages": said}

    @cached_property
    def _num_unsent(self) -> int:
        """The tokens of a prompt that its server puts around it."""
        form = self.prompt_format
        if self.server.path == "chat":
            return len(form.bos) + sum(map(form.tokenizer.count, form.around))
        return len(form.leading_ids) if self.server.adds_bos else 0

    def read(self, example: Example, reply: Reply) -> Answer:
        """The text, why it ended, its tokens (the server's count, else ours) and what it took.

        Raises `RequestError` where the service declined; where the reply is no answer: no text, an
        empty one for which nothing was generated, or an end that is neither the model's own nor the
        limit; and where the server did not read the whole prompt. An answer that is longer than its
        limit is cut there.
        """
        form, text, thought = self.prompt_format, reply.text, reply.thought
        reason = str(reply.server_finish_reason).lower()
        if reason in SERVER_WORDS["refused"] or reply.refusal:
            declined = f"the service declined ({reply.refusal or reason})"
            raise RequestError(declined[:300], "declined")

        counts = self.server.counts
        counts.check(example, example.num_tokens - self._num_unsent, reply)
        if counts.known and reply.prompt_tokens is None and not self._has_doubts:
            self._has_doubts = True
            remark(
                f"{self.name}: its server leaves out how many tokens it read of some prompts: a "
                "cut prompt would go unseen"
            )
        finish, written = reply.finish(), reply.completion_tokens
        was_cut = not text and finish == "length"
        # Some services count the tokens of a thought that they do not show.
        has_thought = bool(thought or reply.reasoning_tokens)
        if has_thought and not text and not form.thinking_tokens:
            raise RequestError(
                f"it thinks, and its answer of at most {self.most_tokens(example)} tokens ended "
                "in the thought",
                "thinks",
            )
        if text is None and thought and not was_cut:
            raise RequestError("a thought, and no answer behind it", "rejected")
        if form.thinking_tokens and (thought or was_cut):
            # As a model writes it: a thought that was cut has no end.
            ending = "" if was_cut else f"</think>{text}"
            text = f"<think>{thought}{ending}"
        if text is None or (not text and (finish != "stop" or written == 0)):
            raise RequestError(f"an answer without text (finish_reason {reason})", "temporary")

        refuse_echo(self.name, example, text)  # before it is cut
        limit = self.most_tokens(example)
        if thought:
            limit += _MARK_TOKENS
        # A server whose tokenizer is another one may write more tokens of ours than of its own, but
        # not twice as many.
        is_believed = not counts.exact if written is None else written <= limit
        if form.tokenizer.count(text) > limit * (2 if is_believed else 1):
            text, finish, written, _ = cut(text, form.tokenizer, limit)
            if not self._ignores_limits:
                remark(
                    f"{self.name}: its server writes more than the {limit} tokens that it was "
                    f"asked for ({self.server.limit_name}): its answers are cut there"
                )
            self._ignores_limits = True
        if written is None:
            written = form.tokenizer.count(text)
        usage = with_reasoning(text, form, reply.about())
        return Answer(text, finish, written, usage)
