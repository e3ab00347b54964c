"""Whether our prompts are upstream's: the generator of a checkout of RULER, run beside ours.

    python benchmarks/conform.py ~/RULER --python ~/RULER/venv/bin/python --tokenizer PATH

Both make prompts of the same tasks with the same tokenizer, and what a score may depend on is held
side by side: template, size, fill, layouts, depths, and what copying the beginning scores. Ours are
those of `protocol: paper` for a checkout of 2024, of `protocol: upstream` for one since May 2025. Ends with 0
where all are equal, with 1 where one is not. docs/benchmark.md names what is known to differ.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rulerkit.common.errors import UserError, shorten
from rulerkit.common.lengths import parse_length
from rulerkit.generation.generate import generate
from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.generation.tasks import THIRTEEN, Task, task
from rulerkit.generation.tokenizers import Tokenizer, load_tokenizer

_UNITS = {
    "niah": ("needles", r"One of the special magic"),
    "variable_tracking": ("lines", r"The grass is green"),
    "common_words": ("words", r"\d+\. "),
    "frequent_words": ("words", r"\b[a-z]{6}\b|\.\.\."),
    "question_answering": ("documents", r"Document \d+:"),
}
"""Family -> what its contexts consist of, in words, and how one is found."""
_LISTS = ("common_words", "frequent_words")
_FILL, _SIZE, _DEPTH, _COPIED = 2.0, 0.03, 0.01, 6.0
"""What counts as equal: points of fill, share of the size, the level of a test of Kolmogorov and
Smirnov over the depths, points of the copying floor."""
_LONGEST_TOKEN = 40  # characters
_JSON_LINES = """
import json
def read_manifest(file):
    return [json.loads(line) for line in open(file, encoding="utf-8")]
def write_manifest(file, rows):
    with open(file, "w", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\\n" for row in rows)
"""
"""The two functions that upstream takes of NeMo, for environments without it."""


class Prompt(NamedTuple):
    """A prompt, whoever made it."""

    text: str
    references: tuple[str, ...]


class Conformity(NamedTuple):
    """One task at one length: what was seen of upstream and of ours, and what differs."""

    task: str
    length: int
    seen: dict[str, tuple[str, str]]
    """Name of a fact -> upstream's value and ours."""
    differs: tuple[str, ...]
    failure: str = ""
    """Why upstream made no prompts, such as `did not end in 600 s`."""

    @property
    def is_equal(self) -> bool:
        """Whether upstream made prompts, and nothing differs."""
        return not self.failure and not self.differs

    @property
    def text(self) -> str:
        """One line."""
        place = f"{self.task} at {self.length}"
        if self.failure:
            return f"{place}: upstream {self.failure}"
        facts = "; ".join(f"{name} {theirs} / {ours}" for name, (theirs, ours) in self.seen.items())
        verdict = f"differs in {', '.join(self.differs)}" if self.differs else "equal"
        return f"{place}: {verdict} ({facts})"


class Upstream(NamedTuple):
    """A checkout of RULER and the Python that runs it."""

    checkout: Path
    python: Path
    timeout: float = 600.0
    """Seconds for each task and length."""

    @property
    def protocol(self) -> str:
        """`paper` or `upstream`, by whether its generator searches for the size by halves."""
        script = self.checkout / "scripts/data/synthetic/niah.py"
        if not script.is_file():
            raise UserError(
                f"{self.checkout} is no checkout of RULER: it has no scripts/data/synthetic/niah.py"
            )
        searches = "optimal_num_haystack" in script.read_text(encoding="utf-8")
        return "upstream" if searches else "paper"

    def prompts(self, name: str, length: int, count: int, tokenizer: str) -> list[Prompt]:
        """Prompts of upstream's generator; raises `UserError` with the reason where it made
        none."""
        data = self.checkout.absolute() / "scripts/data"
        with tempfile.TemporaryDirectory() as folder:
            nemo = Path(folder, "nemo/collections/asr/parts/utils")
            nemo.mkdir(parents=True)
            (nemo / "manifest_utils.py").write_text(_JSON_LINES, encoding="utf-8")
            command = [str(self.python), "prepare.py", "--save_dir", folder]
            command += ["--benchmark", "synthetic", "--task", name]
            command += ["--tokenizer_path", tokenizer, "--tokenizer_type", "hf"]
            command += ["--max_seq_length", str(length), "--num_samples", str(count)]
            command += ["--model_template_type", "base"]
            # Upstream calls `python`, whichever comes first.
            paths = f"{self.python.absolute().parent}{os.pathsep}{os.environ['PATH']}"
            modules = os.pathsep.join((folder, str(data)))
            # Upstream reads its files in the encoding of the locale.
            around = os.environ | {"PATH": paths, "PYTHONPATH": modules}
            around |= {"PYTHONUTF8": "1"}
            try:
                ended = subprocess.run(
                    ["timeout", "--kill-after=5", f"{self.timeout:g}", *command],
                    cwd=data,
                    env=around,
                    capture_output=True,
                    encoding="utf-8",
                    errors="replace",
                    check=False,
                )
            except OSError as error:
                raise UserError(f"cannot be started: {error}") from error
            if ended.returncode in (124, 137):
                raise UserError(f"did not end in {self.timeout:g} s")
            file = Path(folder, name, "validation.jsonl")
            if not file.is_file():
                raise UserError(f"made no file: {_reason(ended.stdout + ended.stderr)}")
            rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return [
            Prompt(row["input"] + row.get("answer_prefix", ""), tuple(row["outputs"]))
            for row in rows
        ]


def _reason(output: str) -> str:
    """The line of an output that names an error, else the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"\w*(Error|Exception)\b", line)]
    return shorten((errors or lines or ["nothing was printed"])[-1], 200)


def conform(
    upstream: Upstream,
    tokenizer: str,
    names: Sequence[str],
    lengths: Sequence[int],
    num_examples: int,
) -> Iterator[Conformity]:
    """Each task at each length, as it is done."""
    ours = load_tokenizer(tokenizer)
    form = PromptFormat(ours)
    for length in lengths:
        for name in names:
            asked = task(name, upstream.protocol)
            try:
                theirs = upstream.prompts(name, length, num_examples, tokenizer)
            except UserError as error:
                yield Conformity(name, length, {}, (), str(error))
                continue
            examples = generate(asked, length, len(theirs), prompt_format=form)
            made = [Prompt(one.prompt, one.references) for one in examples]
            instruction = examples[0].text_of("instruction").strip()
            yield _compared(asked, length, instruction, ours, theirs, made)


def _compared(
    asked: Task,
    length: int,
    instruction: str,
    tokenizer: Tokenizer,
    theirs: list[Prompt],
    ours: list[Prompt],
) -> Conformity:
    """What is seen of both, and what is not equal."""
    from scipy.stats import ks_2samp

    seen, differs = dict[str, tuple[str, str]](), list[str]()

    def note(name: str, values: Sequence[str], is_equal: bool) -> None:
        seen[name] = (values[0], values[1])
        if not is_equal:
            differs.append(name)

    def means(name: str, values: Sequence[list[float]], form: str, most: float) -> None:
        one, other = (statistics.fmean(each) for each in values)
        note(name, [format(one, form), format(other, form)], abs(one - other) <= most)

    sides = (theirs, ours)
    whole = [_has_template(asked, instruction, side) for side in sides]
    note("template", ["ours" if one else "another" for one in whole], all(whole))

    unit, pattern = _UNITS[asked.family]
    sizes = [[float(len(re.findall(pattern, one.text))) for one in side] for side in sides]
    means(unit, sizes, ".1f", _SIZE * statistics.fmean(sizes[0]) + 0.5)

    room = asked.answer_tokens
    fills = [[100 * (tokenizer.count(one.text) + room) / length for one in side] for side in sides]
    means("fill", fills, ".1f", _FILL)

    depths = [[_depth(asked, one) for one in side] for side in sides]
    p = float(ks_2samp(*depths).pvalue)
    medians = [f"{statistics.median(each):.0f} %" for each in depths]
    note("median depth", medians, p >= _DEPTH)

    if asked.family in _LISTS:
        layouts = [len({_layout(asked, one) for one in side}) for side in sides]
        near = abs(layouts[0] - layouts[1]) <= 2
        note("layouts", [str(count) for count in layouts], near)
        copied = [[_copied(asked, one, tokenizer) for one in side] for side in sides]
        means("beginning copied", copied, ".0f", _COPIED)
    return Conformity(asked.name, length, seen, tuple(differs))


def _has_template(asked: Task, instruction: str, prompts: list[Prompt]) -> bool:
    """Whether all prompts have our instruction and ask our question."""
    wanted = " ".join(instruction.split())
    return all(
        wanted in " ".join(one.text.split()) and re.search(asked.question_form, one.text)
        for one in prompts
    )


def _context(asked: Task, prompt: Prompt) -> str:
    """What stands before the question that is asked, without the demonstration."""
    *_, last = re.finditer(asked.question_form, prompt.text)
    before = prompt.text[: last.start()]
    if asked.family == "common_words":
        return before[before.rindex("1. ", 0, before.rindex(" 2. ")) :]
    return before[before.rindex("coded word") :] if asked.family in _LISTS else before


def _depth(asked: Task, prompt: Prompt) -> float:
    """Where the first reference stands first, in percent of the characters."""
    context = _context(asked, prompt)
    place = context.lower().find(prompt.references[0].lower())
    return 100 * place / max(1, len(context))


def _layout(asked: Task, prompt: Prompt) -> tuple[int, ...]:
    """The order of the first 400 words, whatever they are: for each when it first came."""
    first: dict[str, int] = {}
    words = re.findall(r"[a-z-]{3,}|\.\.\.", _context(asked, prompt).lower())
    return tuple(first.setdefault(word, len(first)) for word in words[10:400])


def _copied(asked: Task, prompt: Prompt, tokenizer: Tokenizer) -> float:
    """What copying the beginning of the context scores, in percent."""
    context = _context(asked, prompt)
    if asked.family == "frequent_words":
        context = context.split("coded words.")[-1]
    # Far more characters than so many tokens have.
    beginning = context.strip()[: _LONGEST_TOKEN * asked.answer_tokens]
    ids = tokenizer.encode(beginning)[: asked.answer_tokens]
    return 100 * asked.score(tokenizer.decode(ids), prompt.references)


def main() -> None:
    """Compare the tasks and lengths that were asked for, a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("checkout", type=Path, help="a checkout of RULER, with its data downloaded")
    add("--tokenizer", required=True, help="a folder or hub id that both sides can read")
    add("--python", type=Path, default=Path(sys.executable), help="that runs the checkout")
    add("--tasks", default=",".join(THIRTEEN), help="names with commas between")
    add("--lengths", default="4K", help="with commas between")
    add("--num-examples", type=int, default=60)
    add("--timeout", type=float, default=600, help="seconds for each task and length")
    asked = parser.parse_args()

    upstream = Upstream(asked.checkout, asked.python, asked.timeout)
    try:
        lengths = [parse_length(text) for text in asked.lengths.split(",")]
        print(f"upstream ({upstream.protocol}) / ours")
        num_equal = num_all = 0
        names = asked.tasks.split(",")
        for found in conform(upstream, asked.tokenizer, names, lengths, asked.num_examples):
            print(found.text, flush=True)
            num_all += 1
            num_equal += found.is_equal
    except UserError as error:
        parser.error(str(error))
    print(f"{num_equal} of {num_all} are equal")
    sys.exit(num_equal < num_all)


if __name__ == "__main__":
    main()
