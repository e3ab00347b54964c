"""RULER as a task of inspect_ai, for any of its model providers:
`inspect eval rulerkit_inspect/ruler`.

An example is one user message, which ends in the answer prefix: a chat message cannot be continued
with every provider. `logs` reads them back. Only inspect_ai imports this module.

Paper: https://arxiv.org/abs/2404.06654
"""

from collections.abc import Iterator
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageUser, get_model
from inspect_ai.scorer import Score, Scorer, Target, ci, grouped, mean, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver

from rulerkit.common.errors import UserError
from rulerkit.common.lengths import parse_length
from rulerkit.generation.corpora import choices
from rulerkit.generation.generate import generate
from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.generation.tasks import recorded_task, without_suites
from rulerkit.generation.tasks import task as family_task
from rulerkit.generation.tokenizers import load_tokenizer
from rulerkit.scoring.scores import answer_of
from rulerkit.store.records import plain

_MOST_BYTES = 10**9
_BYTES_PER_TOKEN = 4.5


@scorer(metrics=[grouped(mean(), "cell"), ci()])
def string_match() -> Scorer:
    """The match rule of each task. A thought that the provider does not take apart is taken apart
    here; one that has no end leaves no answer."""

    async def score(state: TaskState, target: Target) -> Score:
        asked = state.metadata["asked"]
        answer, _ = answer_of(
            state.output.completion, {"result": asked}, state.metadata["answer_prefix"]
        )
        judge = recorded_task(asked["task"])
        value = judge.score(answer, [*target])
        cut_off = state.output.stop_reason in ("max_tokens", "model_length")
        return Score(value=value, answer=answer, metadata={"cut_off": cut_off})

    return score


@solver
def ask() -> Solver:
    """Generate with the room of each task, and that of a thought beside it, without drawing."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        about = state.metadata
        room = about["max_new_tokens"] + about["thinking_tokens"]
        if str(state.model.api) != "hf":
            return await generate(state, max_tokens=room, temperature=0.0)
        # transformers refuses a temperature of 0; the likeliest token alone is the same.
        _check_template(get_model().api)
        return await generate(state, max_tokens=room, top_k=1)

    return solve


def _check_template(provider: Any) -> None:
    """Raises UserError where inspect would write "user: " before a prompt without a word."""
    template = provider.chat_template or provider.tokenizer.chat_template
    if not template or provider.use_chat_template is False:
        raise UserError(
            f"{provider.model_name} has no chat template, and inspect would write 'user: ' before "
            "each prompt: give -T prefix_in=assistant and "
            """-M 'chat_template="{{ messages[0].content }}"'"""
        )


@task
def ruler(
    tasks: str | list[str] = "niah_multivalue,vt",
    lengths: str | int | list[str | int] = "4K",
    num_examples: int = 20,
    seed: int = 42,
    tokenizer: str = "builtin",
    corpora: str = "builtin",
    protocol: str = "clean",
    thinking_tokens: int = 0,
    prefix_in: str = "",
    template: str = "base",
) -> Task:
    """The examples of rulerkit, one user message each.

    `tasks` are names, or `ruler` for the thirteen; `lengths` count the tokens of prompt and answer
    with the `tokenizer`, without the template of the provider. With `thinking_tokens` the answer
    prefix is left out and a thought has so many tokens beside the answer.

    `prefix_in` is `user` or `none`; or `assistant`, where the provider sends the message as it is:
    then the prompt is that of rulerkit's own engines, written with the `template` (`base`, or
    `auto` for the chat template of the `tokenizer`). Raises UserError for more prompts than fit
    into a gigabyte.
    """
    names = without_suites(_listed(tasks))
    sizes = [parse_length(length) for length in _listed(lengths)]
    most = sum(sizes) * len(names) * num_examples * _BYTES_PER_TOKEN
    if most > _MOST_BYTES:
        raise UserError(
            f"inspect holds all prompts in memory, here {most / 1e9:.1f} GB: evaluate one length "
            "at a time (-T lengths=128K), or fewer examples (-T num_examples=20)"
        )

    place = prefix_in or ("none" if thinking_tokens else "user")
    if template != "base" and place != "assistant":
        raise UserError(
            f"template is {template}: inspect renders the chat itself; give -T prefix_in=assistant "
            "and a provider that sends the message as it is"
        )
    form = PromptFormat(
        load_tokenizer(tokenizer),
        template=template,
        prefix_in=place,
        thinking_tokens=thinking_tokens,
    )
    samples = [
        sample
        for name in names
        for length in sizes
        for sample in _samples(name, length, num_examples, seed, form, corpora, protocol)
    ]
    return Task(
        dataset=MemoryDataset(samples, name="ruler"),
        solver=ask(),
        scorer=string_match(),
    )


def _listed(given: Any) -> list[Any]:
    """What inspect makes of `-T name=a,b`: a list, a text or a number."""
    if isinstance(given, str):
        return [part.strip() for part in given.split(",")]
    return [*given] if isinstance(given, list | tuple) else [given]


def _samples(
    name: str,
    length: int,
    num_examples: int,
    seed: int,
    form: PromptFormat,
    corpora: str,
    protocol: str,
) -> Iterator[Sample]:
    """The samples of one task and length."""
    family = family_task(name, protocol).with_corpora(choices(corpora)["base"])
    examples = generate(family, length, num_examples, seed, form)
    asked = plain(examples.record())
    for example in examples:
        # Where inspect writes the model's turn, an answer prefix can only stand in the user's.
        text = example.prompt
        if form.prefix_in != "assistant":
            text = example.input.lstrip(" ")
        if form.prefix_in == "user":
            text += example.answer_prefix

        # All that `score` needs in order to read the log back.
        about = {
            "asked": asked,
            "suite": family.suite,
            "cell": f"{name}/{length}",
            "index": example.index,
            "digest": example.digest,
            "num_prompt_tokens": example.num_tokens,
            "max_new_tokens": example.max_new_tokens,
            "thinking_tokens": form.thinking_tokens,
            "answer_prefix": example.answer_prefix if family.judges_prefix else "",
        }

        yield Sample(
            input=[ChatMessageUser(content=text)],
            target=[*example.references],
            id=f"{name}/{length}/{seed}/{example.index}",
            metadata=about,
        )
