"""The preflight: a model's prompts looked at before the first GPU second (and, cheaply, one
question put to it)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rulerkit import checks
from rulerkit.checks import FAIL, NOTE, OK, Case, Check, Finding, case, frame_checks, short
from rulerkit.checks.vllm_config import GPUS_PER_NODE, check_vllm_config
from rulerkit.errors import UserError
from rulerkit.generation import generate
from rulerkit.models import Answer, Failure, Model, load_model
from rulerkit.models.server import Vllm
from rulerkit.studies import Study
from rulerkit.tasks import Task, task

CHECKS: tuple[Check, ...] = (
    checks.tokenizer_own,
    frame_checks.template,
    frame_checks.marks,
    frame_checks.system_prompt,
    frame_checks.thinking,
    frame_checks.one_bos,
    frame_checks.prefix_present,
    frame_checks.prefix_turn,
    frame_checks.prefix_blank,
    checks.ids_of_text,
    checks.needles,
    checks.budget,
    checks.fill,
    checks.length,
    checks.answer_room,
    checks.stop_strings,
)
"""In the order in which they are told: who reads, the frame, what stands in it, how much."""

EXAMPLES = 3
"""How many examples are looked at where the length is the shortest; of the longest, or a long one,
one is enough."""
_LONG = 32768
CHEAP = ("reader", "function", "openai")
"""Engines that are asked without `--ask`: nothing is loaded for it."""
_ASKED = 8  # examples among which the earliest and the latest needle are looked for
_FRAME_OF_SERVICE = 32  # tokens that a chat service adds around a message


def check(
    study: Study, ask: bool | None = None, gpus_per_node: int = GPUS_PER_NODE
) -> dict[str, list[Finding]]:
    """Findings by model: every check of every task at the shortest and the longest length of a
    study.

    With `ask` two short examples are put to each model, by default only where the engine is cheap
    to ask. For vLLM its own configuration of the model is built too.
    """
    found = {}
    for spec in study.models:
        model = load_model(spec)
        try:
            found[model.name] = list(check_model(model, study.tasks, study.lengths, study.seed))
            if isinstance(model, Vllm):
                lengths = [length for length in study.lengths if not model.too_long(length)]
                found[model.name] += check_vllm_config(
                    model.name, vllm_arguments(model), lengths, gpus_per_node
                )
            if ask or (
                ask is None and model.engine in CHEAP and not getattr(model, "startable", False)
            ):
                found[model.name] += check_answers(model, study.lengths[0], study.seed)
        except UserError as error:
            found.setdefault(model.name, []).append(Finding(FAIL, "model", str(error)))
        finally:
            model.close()
    return found


def vllm_arguments(model: Vllm) -> dict[str, Any]:
    """What vLLM is started with; a model over several nodes is described without their
    addresses."""
    one_node = Vllm({**model.spec, "nodes": 1})
    return one_node.arguments() | {"nnodes": model.spec.get("nodes", 1)}


def check_model(
    model: Model, tasks: Iterable[Task], lengths: Sequence[int], seed: int = 42
) -> Iterator[Finding]:
    """Every check of a few examples of each task at the shortest and the longest length."""
    tasks = list(tasks)
    _ = model.prompt_format.around  # a frame that cannot be made is said once, not for each task
    for length in sorted({min(lengths), max(lengths)}):
        for each in tasks:
            count = EXAMPLES if length == min(lengths) < _LONG else 1
            examples = generate(each, length, count, seed, model.prompt_format)
            for index in range(count):
                try:
                    yield from look(case(model, examples, index))
                except UserError as error:
                    yield Finding(FAIL, "fits", str(error), where=f"{each.name} at {length}")
                    break


def look(case: Case, asked: Iterable[Check] = CHECKS) -> list[Finding]:
    """What the checks say of one case."""
    found = [each(case) for each in asked]
    return [finding._replace(where=case.where) for finding in found if finding]


# --- what the model answers -----------------------------------------------------------------------


def check_answers(model: Model, length: int, seed: int = 42) -> list[Finding]:
    """Two short examples put to the model: what comes back is an answer to the whole prompt, and to
    nothing else.

    The needle of one stands early, that of the other late, so a prompt cut at its front is seen
    even where the engine does not count for us.
    """
    if model.too_long(length) or length > (model.claimed_length or length):
        return [Finding(NOTE, "asked", f"nothing: {length} is more than the model takes")]
    examples = generate(task("niah_single_1"), length, _ASKED, seed, model.prompt_format)
    by_depth = sorted(examples, key=lambda example: example.depths[0])
    cases = [case(model, examples, by_depth[at].index) for at in (0, -1)]
    try:
        answers = {
            example.index: answer
            for example, answer in model.answer([each.example for each in cases])
        }
    except UserError as error:
        return [Finding(FAIL, "asked", str(error), where=cases[0].where)]
    pairs = list[tuple[Case, Answer]]()
    for each in cases:
        answer = answers[each.example.index]
        if isinstance(answer, Failure):
            return [Finding(FAIL, "asked", answer.reason, where=each.where)]
        pairs.append((each, answer))
    found = [say(each, answer) for each, answer in pairs for say in ASKED]
    return [finding for finding in found if finding] + _both_ends(pairs)


def echo(case: Case, answer: Answer) -> Finding | None:
    """The answer is not the prompt itself, which would score 100 everywhere."""
    text, opening = answer.text, case.example.input[:200]
    if opening in text or (len(text) > 200 and text[:200] in case.example.prompt):
        mend = "let the engine return the new text alone (echo: false, return_full_text: false)"
        return Finding(FAIL, "echo", "the prompt came back with the answer", mend, case.where)
    return Finding(OK, "echo", f"the answer is new text: {short(text)}", where=case.where)


def empty(case: Case, answer: Answer) -> Finding | None:
    """Something was answered."""
    if answer.text.strip():
        return None
    if case.spec.get("window") == 0:
        return Finding(
            NOTE, "empty", "no answer, as of a reader that sees nothing", where=case.where
        )
    seen = f"the answer is empty ({answer.finish_reason}, {answer.num_tokens} tokens)"
    return Finding(
        FAIL, "empty", seen, "look at the stop strings, the refusals and the template", case.where
    )


def engine_count(case: Case, answer: Answer) -> Finding | None:
    """The engine counts as many prompt tokens as were sent: nothing was added, nothing cut away."""
    told, ours = (answer.usage or {}).get("prompt_tokens"), case.example.num_tokens
    if not isinstance(told, int):
        return None
    if told == ours:
        return Finding(OK, "engine's count", f"{told} prompt tokens, as sent", where=case.where)
    seen, name = f"the engine read {told} tokens, {ours} were sent", "engine's count"
    if told < ours:
        mend = "the prompt was cut: raise the server's context length and switch its truncation off"
    elif told == ours + 1:
        mend = "one was added, most likely a second BOS: send ids, or switch add_special_tokens off"
    elif case.form.closes_user_turn and told <= ours + _FRAME_OF_SERVICE:
        return Finding(
            NOTE,
            name,
            seen,
            "the service's own frame: keep as many tokens of the length free",
            case.where,
        )
    else:
        mend = "the server frames the prompt once more: send ids or raw text, or drop the template"
    return Finding(FAIL, name, seen, mend, case.where)


ASKED: tuple[Callable[[Case, Answer], Finding | None], ...] = (echo, empty, engine_count)


def _both_ends(pairs: list[tuple[Case, Answer]]) -> list[Finding]:
    """Whether the early needle is found where the late one is."""
    early, late = (
        all(ref in answer.text for ref in each.draft.references) for each, answer in pairs
    )
    depths = [each.example.depths[0] for each, _ in pairs]
    if early and late:
        return [
            Finding(OK, "both ends", f"needles at {depths[0]:.0f} % and {depths[1]:.0f} % found")
        ]
    if late:
        seen = f"the needle at {depths[1]:.0f} % is found, that at {depths[0]:.0f} % is not"
        return [
            Finding(
                FAIL,
                "both ends",
                seen,
                "the prompt seems to lose its front: look for truncation",
                pairs[0][0].where,
            )
        ]
    return [
        Finding(
            NOTE,
            "both ends",
            "a needle at a short length was not found",
            "look at the answer above",
        )
    ]


# --- telling --------------------------------------------------------------------------------------


def told(findings: Iterable[Finding]) -> list[str]:
    """One line a check: the worst that it saw, where, and how often; what was well in one line."""
    by_name: dict[str, list[Finding]] = {}
    for finding in findings:
        by_name.setdefault(finding.name, []).append(finding)
    lines = []
    for name, all_of in by_name.items():
        level = next(level for level in (FAIL, NOTE, OK) if any(f.level == level for f in all_of))
        these = [finding for finding in all_of if finding.level == level]
        first = these[0]
        line = f"{level:4}  {name:15} {first.seen}"
        if level != OK:
            line += f" ({first.where or 'asked'}; {len(these)} of {len(all_of)})"
            line += f"; {first.mend}" if first.mend else ""
        lines.append(line)
    return lines


def failed(findings: Iterable[Finding] | Mapping[Any, Iterable[Finding]]) -> bool:
    """Whether any finding is a FAIL."""
    groups = findings.values() if isinstance(findings, Mapping) else [findings]
    return any(finding.level == FAIL for group in groups for finding in group)
