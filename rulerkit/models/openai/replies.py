"""A server's reply as an answer: why it ended, what it cost, and refusals as what they are."""

from collections.abc import Mapping
from typing import Any

from rulerkit.models import Answer
from rulerkit.models.openai.sending import NoAnswerError, Reply
from rulerkit.prompt_format import PromptFormat

REFUSED = {"content_filter", "content_policy_violation", "safety", "recitation", "refusal", "prohibited_content"}
"""The words, as an answer's end or an error's code, by which services decline."""
_CUT = {"length", "max_tokens", "max_output_tokens", "model_length"}
_BROKEN = {"error", "abort"}


def read_reply(reply: Reply, form: PromptFormat, most: int, prices: Mapping[str, float] | None = None) -> Answer:
    """The text, why it ended, its tokens (the server's count, else ours) and what it took.

    `most` is how many tokens were asked for, `prices` are dollars per million tokens. An empty text is one only where
    the model ended by itself. Raises `NoAnswerError` where the server broke off.
    """
    usage, choice = reply.body.get("usage") or {}, reply.body["choices"][0]
    message = choice.get("message") or {}
    text, declined = message.get("content", choice.get("text")), message.get("refusal")
    said = str(choice.get("finish_reason") or "").lower()
    if said in _BROKEN:
        raise NoAnswerError(f"the server broke off (finish_reason {said})", "late")
    thought = message.get("reasoning_content") or message.get("reasoning")
    if thought and form.thinking_tokens:  # as a model writes it where the server does not take it apart
        text = f"<think>{thought}</think>{text}" if text else f"<think>{thought}"
    num_tokens = usage.get("completion_tokens")
    if num_tokens is None:
        num_tokens = form.tokenizer.count(text or "")
    if said in REFUSED or declined:
        reason = "refused"
    elif said in _CUT or (not said and num_tokens >= most):
        reason = "length"
    else:
        reason = "stop"
    return Answer(text or declined or "", reason, int(num_tokens), _usage(usage, reply.seconds, prices))


def _usage(usage: Mapping[str, Any], seconds: float, prices: Mapping[str, float] | None) -> dict[str, Any]:
    """The server's own counts, the seconds it took, and dollars where prices are given."""
    within, beside = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    counts = {
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "cached_tokens": within.get("cached_tokens"),
        "reasoning_tokens": beside.get("reasoning_tokens"),
    }
    kept: dict[str, Any] = {key: value for key, value in counts.items() if value is not None}
    if prices and {"prompt_tokens", "completion_tokens"} <= kept.keys():
        cached = kept.get("cached_tokens", 0)
        cost = (kept["prompt_tokens"] - cached) * prices["prompt"] + cached * prices.get("cached", prices["prompt"])
        kept["cost"] = round((cost + kept["completion_tokens"] * prices["completion"]) / 1e6, 8)
    return kept | {"seconds": seconds}
