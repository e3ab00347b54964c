"""Soft scores: how likely a model writes the right answer, by the tokens of the references.

The engine `transformers` tells it in one forward pass over prompt and reference, a vLLM server by
one request for each token. `evaluation` stores what they say beside the answers.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from inspect import signature
from itertools import islice, pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from rulerkit.common.errors import UserError, counted, remark
from rulerkit.common.gpus import torch_module
from rulerkit.common.lengths import length_name
from rulerkit.common.settings import JSON
from rulerkit.generation.example import Example
from rulerkit.generation.generate import Examples
from rulerkit.generation.pieces import piece_encoder
from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.inference.model import Model, errors_of_model
from rulerkit.store.cells import Cell, soft_file
from rulerkit.store.comparable import check_digests
from rulerkit.store.files import Log
from rulerkit.store.locks import Lock

if TYPE_CHECKING:
    from rulerkit.inference.servers import ServerEngine
    from rulerkit.inference.transformers import Transformers

_AHEAD = 16  # examples whose references a server is asked for at a time


class Token(NamedTuple):
    """How likely a model goes on with a token: the natural logarithm of its probability, and
    whether none is likelier."""

    logprob: float
    greedy: bool


Pairs = Iterable[tuple[Example, list[list[int]]]]
"""Examples with the token ids of each reference."""
Golds = Iterator[tuple[Example, list[list[Token]]]]
"""Examples with the tokens of each reference."""


def gold_logprobs(model: Model, examples: Iterable[Example]) -> Golds:
    """How likely a model writes the references of examples. Any model may tell it by a method
    `gold_logprobs` that takes `Pairs` and returns `Golds`.

    `UserError`, before any is asked, for a model that does not tell, or that thinks first.
    """
    form = model.prompt_format
    engine: Any = model
    pairs = ((example, reference_ids(example, form)) for example in examples)

    # The reference stands behind the prompt, where a thinking model would begin to think.
    tells = not form.thinking_tokens
    if tells and hasattr(engine, "gold_logprobs"):
        golds: Golds = engine.gold_logprobs(pairs)
        return golds
    if tells and engine.engine == "transformers":
        if "generate" in getattr(engine._network, "__dict__", {}):
            raise UserError(
                f"model {model.name}: its `generate` was replaced, and soft scores come from a "
                "forward pass, which is not what answers: leave `soft` out"
            )
        return _by_forward_passes(engine, pairs)
    if tells and (engine.engine == "vllm" or _is_vllm_with_ids(engine)):
        return _by_requests(engine, pairs)
    raise UserError(
        f"model {model.name} (engine {model.engine}) does not tell how likely a given answer "
        "is right behind the prompt, as soft scores need it: leave `soft` out, or ask a model "
        "that does not think, with the engine transformers or vllm, or openai with token ids "
        "at a vLLM server"
    )


def add_soft_scores(model: Model, cells: Sequence[Cell], questions: Sequence[Examples]) -> None:
    """Append the soft scores that are missing to the file beside each cell.

    Of the likeliest reference: `gold_probability` (the geometric mean over its tokens, 0 to 1),
    `gold_product` and `num_tokens`; `gold_greedy` says whether greedy decoding writes one of the
    references.
    """
    missing = list[tuple[Examples, int]]()
    writer_of = dict[str, tuple[Lock, Log]]()
    result_of = dict[str, str]()
    with ExitStack() as stack:
        for cell, examples in zip(cells, questions, strict=True):
            indices = [index for index in cell.without_soft if index < len(examples)]
            if not indices:
                continue
            lock = stack.enter_context(Lock(cell.path.with_suffix(".lock")))
            check_digests(cell, examples)
            log = stack.enter_context(Log(soft_file(cell.path)))
            writer_of[cell.task] = lock, log
            result_of[cell.task] = cell.result
            missing += [(examples, index) for index in indices]
            del cell.soft  # it is read again

        if missing:
            number = counted(len(missing), "example")
            length = length_name(cells[0].length)
            remark(f"{model.name}: soft scores of {number} at {length}")
        golds = gold_logprobs(model, (examples[index] for examples, index in missing))
        for example, references in errors_of_model(golds):
            lock, log = writer_of[example.task]
            lock.check()
            row = {"index": example.index, **_soft_score(references)}
            log.append({**row, "result": result_of[example.task]})


def _soft_score(references: list[list["Token"]]) -> JSON:
    """The soft score of one example."""
    logprobs = [[token.logprob for token in tokens] for tokens in references]
    likeliest = max(logprobs, key=fmean)
    return {
        "gold_probability": math.exp(fmean(likeliest)),
        "gold_product": math.exp(sum(likeliest)),
        "gold_greedy": any(all(token.greedy for token in tokens) for tokens in references),
        "num_tokens": len(likeliest),
    }


def _is_vllm_with_ids(engine: Any) -> bool:
    """Whether a server that somebody else started is vLLM, and is sent token ids."""
    if engine.engine != "openai":
        return False
    server = engine.server
    return bool(server.about.get("owned_by") == "vllm" and server.path == "ids")


def reference_ids(example: Example, form: PromptFormat) -> list[list[int]]:
    """The token ids of each reference as it stands behind the prompt, after a blank unless the
    prompt ends in white space.

    They are those of prompt and reference as one text, where these begin with the prompt's; else
    those of the reference alone, since a model goes on behind the ids that it was sent.
    """
    blank = "" if example.prompt[-1:].isspace() else " "
    rows = []
    for reference in dict.fromkeys(example.references):
        text = form.tokenizer.encode(example.prompt + blank + reference)
        ids = [*form.bos, *text.tolist()]
        if ids[: example.num_tokens] == example.ids.tolist():
            rows.append(ids[example.num_tokens :])
        else:
            alone = piece_encoder(form.tokenizer).encode([blank + reference], ends=True)
            rows.append(alone[0].tolist())
    return rows


# --- transformers ---------------------------------------------------------------------------------


def _by_forward_passes(engine: "Transformers", pairs: Pairs) -> Golds:
    for example, rows in pairs:
        engine.check_fits(example)
        chunk = engine.spec.get("prefill_chunk_size", example.num_tokens)
        yield (example, [_forward(engine.load(), example, ids, chunk) for ids in rows])


def _forward(network: Any, example: Example, reference: list[int], chunk: int) -> list[Token]:
    """A pass over prompt and reference, the prompt in chunks; logits of the last tokens only."""
    torch = torch_module()
    row = torch.tensor([[*example.ids.tolist(), *reference]], device=network.device)
    # The last prompt token tells the first token of the reference.
    last = len(reference) + 1
    cuts = [0, *range(chunk, example.num_tokens, chunk), row.shape[1]]
    options: JSON = {}
    if "logits_to_keep" in signature(network.forward).parameters:
        # The logits of all tokens of a long prompt would fill the memory.
        options["logits_to_keep"] = last

    training = network.training
    network.eval()
    try:
        with torch.inference_mode():
            for start, end in pairwise(cuts):
                out = network(input_ids=row[:, start:end], **options)
                options["past_key_values"] = out.get("past_key_values")
    finally:
        network.train(training)

    logprobs = out.logits[0, -last:-1].float().log_softmax(-1)
    chosen = logprobs.gather(1, row[0, 1 - last :, None])[:, 0]
    likeliest = (chosen >= logprobs.amax(1)).tolist()
    return list(map(Token, chosen.tolist(), likeliest))


# --- vLLM -----------------------------------------------------------------------------------------


def _by_requests(engine: "ServerEngine", pairs: Pairs) -> Golds:
    """One request for each token of a reference, behind the prompt and the tokens before it,
    which the server has cached by then."""
    from rulerkit.inference.http import RequestError
    from rulerkit.inference.servers import fatal_message

    def send(example: Example, ids: list[int], place: int) -> Any:
        """vLLM gives raw log-probabilities, whatever the sampling."""
        body = engine.body(example)
        body |= {
            "prompt": body["prompt"] + ids[:place],
            "max_tokens": 1,
            "temperature": 0,
            "allowed_token_ids": [ids[place]],
            "logprobs": 1,
            "return_tokens_as_token_ids": True,
        }
        replica = engine.replicas[example.index % len(engine.replicas)]
        timeout = engine.spec.get("timeout", 3600.0)
        return replica.send(body, timeout, partial(_read_token, ids[place]))

    def token(future: Any) -> Token:
        try:
            found: Token = future.result()
        except RequestError as failure:
            raise UserError(fatal_message(engine, engine.replicas[0].address, failure)) from None
        return found

    source = iter(pairs)
    while batch := list(islice(source, _AHEAD)):
        engine.open()
        engine.wait_until_ready()
        sent = [
            [[send(example, ids, place) for place in range(len(ids))] for ids in rows]
            for example, rows in batch
        ]
        for (example, _), futures in zip(batch, sent, strict=True):
            yield (example, [list(map(token, row)) for row in futures])


def _read_token(token: int, reply: Any) -> Token:
    """The token that was allowed, beside the likeliest one."""
    (top,) = reply.choice.logprobs["top_logprobs"]
    logprob = top[f"token_id:{token}"]
    if math.isnan(logprob):
        raise ValueError("a log-probability that is no number")
    return Token(logprob, logprob == max(top.values()))
