"""What the way over HTTP costs: the kit's vllm engine (a server, asked over HTTP) against
`vllm.LLM.generate`.

Both get the same token ids and the same arguments of vLLM, in processes of their own that run one
after the other. A tiny Llama of random weights is made on the spot, so the model itself costs
little and the way to it shows. Loading is not timed.

    .venv-vllm/bin/python benchmarks/engines.py --lengths 4K 32K 128K --repeat 2

Columns: seconds to answer all requests with `LLM.generate` (direct) and with the server; `ratio`,
the first divided by the second (1: the server costs no time; 0.5: it takes twice as long); the
share of prompt tokens that came from the cache; milliseconds of processor time for each request
outside the engine's processes (EngineCore and workers): of the process that calls `LLM.generate`,
of the process that asks the server, and of the server's API process. They include what these
processes use while they only wait. The last two columns do not: they are the same for requests
whose prompts are in the cache but for their last token, as fast as a GPU would answer them or
faster.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rulerkit import generate, load_model, task  # noqa: E402
from rulerkit.common.lengths import parse_length  # noqa: E402
from rulerkit.generation.example import Example, Piece  # noqa: E402

TASKS = ("niah_single_2", "vt", "qa_1", "cwe")
ENGINE_ARGS = {
    "max_num_batched_tokens": 8192,  # the defaults of LLM and of the server differ
    "max_num_seqs": 64,
    "kv_cache_memory_bytes": 2**30,
}
MAX_LENGTH = 140_000
STOP = 1  # the token that ends an answer of the tiny Llama
COUNTS = ((8192, 40), (65536, 8), (2**24, 3))
"""Up to which length how many examples are asked."""
WAYS = ("direct", "server")
IDLE = 20  # seconds


def save_model(folder: Path) -> None:
    """A tiny Llama and its tokenizer, which is trained on prompts of the tasks."""
    from tests.tiny_llama import save_llama, save_tokenizer

    prompts = [generate(task(name).with_corpora("builtin"), 4096, 1)[0].prompt for name in TASKS]
    size = save_tokenizer(folder, prompts, 2000)
    save_llama(folder, size, head_dim=32, max_position_embeddings=MAX_LENGTH)


def spec(folder: Path) -> dict[str, Any]:
    """The model as the kit's vllm engine runs it."""
    more = {"enforce_eager": True, "max_length": MAX_LENGTH, "engine_args": ENGINE_ARGS}
    return {"name": "tiny", "engine": "vllm", "path": str(folder), "dtype": "float32", **more}


def examples(model: Any, length: int) -> list[Example]:
    """The examples of a length, with their token ids: a round over the tasks, in the order of their
    token ids."""
    count = next(count for most, count in COUNTS if length <= most)
    cells = [
        generate(task(n).with_corpora("builtin"), length, count, prompt_format=model.prompt_format)
        for n in TASKS
    ]
    chosen = [cells[number % len(TASKS)][number // len(TASKS)] for number in range(count)]
    return sorted(chosen, key=lambda example: example.ids.tolist())


def variants(example: Example, count: int = 10) -> list[Example]:
    """An example with other last tokens: all but the end of its prompt is in the cache, so nothing
    waits for the engine."""
    made = []
    for number in range(count):
        ids = example.ids.copy()
        ids[-1] = 300 + number
        made.append(
            Example(
                number,
                example.task,
                example.length,
                ("",),
                8,
                (Piece("", "question", ids),),
                (0, len(ids)),
            )
        )
    return made


# --- the two ways ---------------------------------------------------------------------------------


def ask_server(model: Any, asked: list[Example]) -> list[tuple[str, int]]:
    """The answers of the kit's engine, each with its cached tokens, in the order of the
    examples."""
    by_example = {
        (e.task, e.index): (a.text, (a.usage or {})["cached_tokens"])
        for e, a in model.answer(asked)
    }
    return [by_example[each.task, each.index] for each in asked]


def ask_directly(model: Any, llm: Any, asked: list[Example]) -> list[tuple[str, int]]:
    """The answers of `LLM.generate`, each with its cached tokens, in the order of the examples."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": each.ids.tolist()} for each in asked]
    options = [
        SamplingParams(
            temperature=0, max_tokens=each.max_new_tokens, stop_token_ids=[STOP], detokenize=False
        )
        for each in asked
    ]
    outputs = llm.generate(prompts, options, use_tqdm=False)
    decode = model.prompt_format.tokenizer.decode
    return [
        (decode([t for t in o.outputs[0].token_ids if t > STOP]), o.num_cached_tokens)
        for o in outputs
    ]


def measure(way: str, folder: Path, lengths: list[int]) -> dict[str, Any]:
    """One way: for each length what it answered and what that took, and its processor time while it
    has nothing to do."""
    model: Any = load_model(spec(folder))
    by_length = [examples(model, length) for length in lengths]
    if way == "server":
        model.open()
        model.wait_until_ready()

        def ask(asked: list[Example]) -> list[tuple[str, int]]:
            return ask_server(model, asked)
    else:
        from vllm import LLM

        arguments = {
            "dtype": "float32",
            "max_model_len": MAX_LENGTH,
            "enforce_eager": True,
            **ENGINE_ARGS,
        }
        llm = LLM(str(folder), skip_tokenizer_init=True, generation_config="vllm", **arguments)

        def ask(asked: list[Example]) -> list[tuple[str, int]]:
            return ask_directly(model, llm, asked)

    ask(
        list(generate(task("fwe"), 1024, 8, prompt_format=model.prompt_format))
    )  # the first requests cost more
    rows = []
    for asked in by_length:
        before, start = processor_seconds(), time.perf_counter()
        answers = ask(asked)
        seconds, after = time.perf_counter() - start, processor_seconds()
        cached = variants(asked[0])
        at_once = processor_seconds()
        if way == "server":
            list(model.answer(cached))
        no_wait = [
            1000 * (b - a) / len(cached) for a, b in zip(at_once, processor_seconds(), strict=True)
        ]
        rows.append(
            {
                "no_wait_ms": no_wait,
                "seconds": seconds,
                "beside_ms": [
                    1000 * (b - a) / len(asked) for a, b in zip(before, after, strict=True)
                ],
                "cached": sum(tokens for _, tokens in answers)
                / sum(each.num_tokens for each in asked),
                "answers": [text for text, _ in answers],
            }
        )
    before = processor_seconds()
    time.sleep(IDLE)
    idle_ms = 1000 * (sum(processor_seconds()) - sum(before)) / IDLE
    if way == "server":
        model.close()
    return {"rows": rows, "idle_ms": idle_ms}


def processor_seconds() -> tuple[float, float]:
    """The processor time so far of this process, and of its descendants without the engine's
    (VLLM::EngineCore, ...)."""
    import psutil

    own = psutil.Process()
    others = 0.0
    for process in own.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            others += 0 if process.name().startswith("VLLM::") else times.user + times.system
    times = own.cpu_times()
    return times.user + times.system, others


# --- the comparison -------------------------------------------------------------------------------

COLUMNS = (
    *("length", "requests", "direct s", "server s", "ratio", "direct %", "server %"),
    *("direct ms", "asking ms", "API ms", "equal", "asking *", "API *"),
)


def table_row(length: str, one: dict[str, Any], other: dict[str, Any]) -> tuple[str, ...]:
    """A line of the table: `LLM.generate` and the server at one length."""
    pairs = list(zip(one["answers"], other["answers"], strict=True))
    return (
        length,
        str(len(pairs)),
        f"{one['seconds']:.1f}",
        f"{other['seconds']:.1f}",
        f"{one['seconds'] / other['seconds']:.2f}",
        f"{100 * one['cached']:.1f}",
        f"{100 * other['cached']:.1f}",
        *(f"{milliseconds:.0f}" for milliseconds in (one["beside_ms"][0], *other["beside_ms"])),
        f"{sum(a == b for a, b in pairs)} of {len(pairs)}",
        *(f"{milliseconds:.0f}" for milliseconds in other["no_wait_ms"]),
    )


def main() -> None:
    """Measure and print; exit status 1 where answers differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", nargs="+", default=["4K", "32K", "128K"])
    parser.add_argument(
        "--repeat", type=int, default=1, help="how often both are measured, in turns"
    )
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    lengths = [parse_length(length) for length in options.lengths]
    if options.way:
        measured = measure(options.way, options.folder, lengths)
        (options.folder / f"{options.way}.json").write_text(json.dumps(measured), encoding="utf-8")
        return
    print(" ".join(f"{name:>9}" for name in COLUMNS))
    ratios: dict[str, list[float]] = {}
    equal = True
    with TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder)
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
        }
        for number in range(options.repeat):
            for way in WAYS if number % 2 == 0 else reversed(WAYS):
                call = [
                    sys.executable,
                    __file__,
                    "--way",
                    way,
                    "--folder",
                    name,
                    "--lengths",
                    *options.lengths,
                ]
                subprocess.run(call, env=environment, check=True)
            direct, server = (
                json.loads((folder / f"{way}.json").read_text(encoding="utf-8")) for way in WAYS
            )
            for length, one, other in zip(
                options.lengths, direct["rows"], server["rows"], strict=True
            ):
                print(
                    " ".join(f"{value:>9}" for value in table_row(length, one, other)), flush=True
                )
                ratios.setdefault(length, []).append(one["seconds"] / other["seconds"])
                equal &= one["answers"] == other["answers"]
    print(
        f"without requests, milliseconds of processor time a second: {direct['idle_ms']:.1f}, "
        f"{server['idle_ms']:.1f}"
    )
    print(
        "; ".join(f"{length}: ratio {statistics.mean(each):.2f}" for length, each in ratios.items())
    )
    sys.exit(0 if equal else "the answers differ")


if __name__ == "__main__":
    main()
