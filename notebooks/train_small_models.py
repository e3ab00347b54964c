"""Trains small causal language models on examples that are generated as they are needed.

The notebook 18_train_small_models uses these functions. From the command line:

    python notebooks/train_small_models.py outputs/models/mine --length 512

The same call resumes a training that was stopped. It ends with the same weights as one that was
not, because batch number s depends on the seed and on s alone. The examples have seeds from
`FIRST_SEED` on, which no study takes by default, and no example is seen twice.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import transformers
import yaml
from matplotlib.colors import to_hex

import rulerkit as rk

try:
    import torch
except ImportError:
    raise rk.UserError(
        "training needs torch: pip install '.[transformers]' in the kit's folder"
    ) from None

SIZE = Path(__file__).resolve().parent.parent / "params/sizes/small.yaml"
TOKENIZER = "rulerkit/data/small/tokenizer"
CONFIG: dict[str, Any] = {
    "vocab_size": 2048,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "initializer_range": 0.05,
    "max_position_embeddings": 4096,
}
"""Keys that the configurations of all small models share."""
SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_attention_heads": 4,
}
"""The shape of `small-llama`."""

FIRST_SEED = 1_000_000
SHORTEST = 112
"""Tokens of the shortest examples, which hold a needle and a number."""
TOKENS = 4096
"""Tokens of a batch."""
EVERY = 20
"""Steps between two rows of the history."""
WARM_UP = 50
"""Steps until the learning rates are at their highest."""
PROMPT_SHARE = 4
"""One in so many tokens of a prompt enters the loss."""
SAVE_EVERY = 60.0
"""Seconds between two saves of the state."""


def train(
    config: Mapping[str, Any],
    folder: Path | str,
    tasks: Sequence[Any],
    length: int,
    steps: int,
    seed: int = 0,
    tokenizer: str = TOKENIZER,
    rates: Sequence[float] = (0.02, 0.002),
    curriculum: Sequence[Sequence[float]] | None = None,
    prompt_weight: float = 0.2,
    minutes: float | None = None,
    report: Callable[[pd.DataFrame], object] = len,
) -> pd.DataFrame:
    """Train a model with a configuration of transformers; returns its history, which also goes to
    `report` after every `EVERY` steps.

    `tasks` come in order of difficulty. `curriculum` lists points: a share of the `steps`, then the
    tokens of the longest examples there and how many of the `tasks` are asked; both grow evenly
    between two points. By default from 128 tokens and two tasks at a fifth of the steps to `length`
    and all tasks at three fifths. Each step reads about `TOKENS` tokens. The loss is the mean over
    answer tokens, and `prompt_weight` times that over a quarter of the prompt's. `rates` are the
    learning rates of Muon, for matrices, and of AdamW, for all other weights; where the first is 0,
    AdamW trains all weights. They rise evenly at first, then fall along a cosine to a tenth. A GPU
    is used where there is one.

    The history has the columns step, length (the longest so far), loss (of answer tokens), right
    (the share of examples whose answer a greedy model would have written without an error, before
    it was trained on them) and seconds; loss and right are means over `EVERY` steps. `folder` holds
    the history as `history.csv` and, once the call ends, the model in half precision and
    `training.json`, which says how it was made. A training that was stopped, by `minutes` or
    otherwise, goes on with the same call, and one that is complete is not done again; with other
    arguments the call is an error.
    """
    points = [[0.2, 128, 2], [0.6, length, len(tasks)]] if curriculum is None else curriculum
    check(steps, rates, points, minutes)
    how = {
        "config": dict(config),
        "tasks": [task.name for task in tasks],
        "length": length,
        "steps": steps,
        "seed": seed,
        "rates": list(rates),
        "curriculum": [list(point) for point in points],
        "prompt_weight": prompt_weight,
    }
    folder = Path(folder)
    about_file, state_file = folder / "training.json", folder / "training.pt"
    history_file = folder / "history.csv"
    if about_file.exists():
        made = json.loads(about_file.read_text(encoding="utf-8"))
        if not how.items() <= made.items():
            raise rk.UserError(
                f"{about_file} holds the values of another training: give the same ones, or "
                "another name or folder"
            )
        if "seconds" in made:
            return pd.read_csv(history_file)

    form = rk.PromptFormat(tokenizer, template="base")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(seed)
    network = make_network(config).to(device)
    optimizers = make_optimizers(network, rates)

    # The folder is made only now, so that right values are not refused after wrong ones.
    folder.mkdir(parents=True, exist_ok=True)
    about_file.write_text(json.dumps(how, indent=2) + "\n", encoding="utf-8")
    rows: list[dict[str, Any]] = []
    if state_file.exists():
        state = torch.load(state_file, map_location=device, weights_only=True)
        for part, content in zip([network, *optimizers], state["parts"], strict=True):
            part.load_state_dict(content)
        rows = state["rows"]

    done, spent = (rows[-1]["step"], rows[-1]["seconds"]) if rows else (0, 0.0)
    history = pd.DataFrame(rows)
    started = saved = time.monotonic()
    stops = False
    while done < steps and not stops:
        results = []
        for step in range(done, min(done + EVERY, steps)):
            longest, known = stage(points, step / steps)
            ids, answers = make_batch(tasks[:known], form, longest, Random(f"{seed}/{step}"))
            set_rates(optimizers, rates, step, steps)
            torch.manual_seed(seed + step)  # which tokens of the prompt enter the loss
            result = learn(network, optimizers, ids.to(device), answers.to(device), prompt_weight)
            results.append(result)

        done, now = step + 1, time.monotonic()
        loss, right = np.mean(results, axis=0).tolist()
        seconds = round(spent + now - started, 1)
        rows.append(
            {"step": done, "length": longest, "loss": loss, "right": right, "seconds": seconds}
        )
        history = pd.DataFrame(rows)
        history.to_csv(history_file, index=False, float_format="%.4f")
        report(history)

        stops = minutes is not None and now - started > 60 * minutes
        if done < steps and (stops or now - saved > SAVE_EVERY):
            # Written beside the old state, so that a killed process leaves one that is whole.
            part_file = state_file.with_suffix(".part")
            parts = [part.state_dict() for part in (network, *optimizers)]
            torch.save({"parts": parts, "rows": rows}, part_file)
            part_file.replace(state_file)
            saved = now

    transformers.utils.logging.disable_progress_bar()  # a widget, in a notebook
    network.half().save_pretrained(folder)
    if done == steps:
        how |= {"torch": torch.__version__, "transformers": transformers.__version__}
        how |= {"device": device, "seconds": rows[-1]["seconds"]}
        about_file.write_text(json.dumps(how, indent=2) + "\n", encoding="utf-8")
        state_file.unlink(missing_ok=True)
    return history


def check(steps: Any, rates: Any, points: Any, minutes: Any) -> None:
    """Raise UserError for a value that `train` does not take."""
    two_rates = _is_list(rates) and len(rates) == 2 and all(_is_number(rate) for rate in rates)
    all_points = _is_list(points) and bool(points) and all(_is_point(point) for point in points)
    for name, value, is_right, takes in (
        ("steps", steps, _is_count(steps), "a whole number of at least 1"),
        ("rates", rates, two_rates, "two numbers from 0 on, such as `rates: [0.02, 0.002]`"),
        (
            "curriculum",
            points,
            all_points,
            "a list of points: a share of the steps, the longest examples in tokens, the number of "
            "tasks, such as `curriculum: [[0.2, 128, 2], [0.6, 256, 11]]`",
        ),
        ("minutes", minutes, minutes is None or _is_number(minutes), "a number from 0 on"),
    ):
        if not is_right:
            raise rk.UserError(f"{name}: {value!r} is invalid: expected {takes}")


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_point(value: Any) -> bool:
    if not _is_list(value) or len(value) != 3:
        return False
    share, length, num_tasks = value
    return _is_number(share) and share <= 1 and _is_count(length) and _is_count(num_tasks)


def make_network(config: Mapping[str, Any]) -> Any:
    """A network with random weights."""
    try:
        shape = transformers.AutoConfig.for_model(**config)
        return transformers.AutoModelForCausalLM.from_config(shape)
    except Exception as error:  # each architecture checks its keys in its own way
        raise rk.UserError(
            "transformers makes no language model of the architecture "
            f"{config.get('model_type')} with these layers, width and `more` (llama, mamba2 and "
            f"qwen3_5_text were tried): {' '.join(str(error).split())[:160]}"
        ) from None


def make_optimizers(network: Any, rates: Sequence[float]) -> list[Any]:
    """AdamW, and Muon for the matrices that are no embeddings unless its rate is 0."""
    tables = {network.get_input_embeddings().weight, network.get_output_embeddings().weight}
    weights = list(network.parameters())
    matrices = [w for w in weights if w.ndim == 2 and w not in tables] if rates[0] else []
    others = [w for w in weights if w not in set(matrices)]

    optimizers = [torch.optim.AdamW(others, rates[1], (0.9, 0.98), weight_decay=0.01)]
    if matrices:
        optimizers.append(torch.optim.Muon(matrices, rates[0], weight_decay=0.01))
    return optimizers


def set_rates(optimizers: Sequence[Any], rates: Sequence[float], step: int, steps: int) -> None:
    """Set the learning rates of a step."""
    warm_up = min(1.0, (step + 1) / WARM_UP)
    cosine = 0.55 + 0.45 * math.cos(math.pi * step / steps)
    # AdamW comes first and has the second rate; without Muon it is the only one.
    for rate, optimizer in zip(reversed(rates), optimizers, strict=False):
        optimizer.param_groups[0]["lr"] = rate * warm_up * cosine


def stage(points: Sequence[Sequence[float]], share: float) -> tuple[int, int]:
    """The tokens of the longest examples and the number of tasks at a share of the steps."""
    shares, lengths, counts = zip(*points, strict=True)
    return round(np.interp(share, shares, lengths)), round(np.interp(share, shares, counts))


def make_batch(
    tasks: Sequence[Any], form: rk.PromptFormat, longest: int, random: Random
) -> tuple[Any, Any]:
    """Token ids of examples with their answers, padded on the right, and where the answers are."""
    # Half of the batches have the longest examples, the others any length.
    drawn = longest if random.random() < 0.5 else random.randint(SHORTEST, longest)
    # Where a shorter length has room for no task, the longest one is taken.
    for length in (drawn, longest):
        fitting = [task for task in tasks if fits(task, length, form)]
        if fitting:
            break
    else:
        names = ", ".join(task.name for task in tasks)
        raise rk.UserError(
            f"none of the tasks {names} fits into {longest} tokens, the longest examples at this "
            "share of the steps: give longer ones in `curriculum`, or smaller tasks"
        )
    stop = form.tokenizer.encode(form.tokenizer.eos_token or "")

    rows, places = [], []
    while len(rows) < max(1, TOKENS // length):
        task, seed = random.choice(fitting), FIRST_SEED + random.getrandbits(40)
        try:
            example = rk.generate(task, length, 1, seed, form)[0]
        except rk.UserError:  # this one is too long for the length
            continue
        blank = "" if example.prompt.endswith(" ") else " "
        answer = form.tokenizer.encode(blank + (rk.read_answer(example.prompt) or ""))
        ids = np.concatenate([example.ids, answer, stop])
        rows.append(torch.from_numpy(ids).long())
        places.append(torch.arange(len(ids)) >= example.num_tokens)

    pad = torch.nn.utils.rnn.pad_sequence
    padded = pad(rows, batch_first=True, padding_value=int(stop[0]))
    return padded, pad(places, batch_first=True, padding_value=False)


@cache
def fits(task: Any, length: int, form: rk.PromptFormat) -> bool:
    """Whether a length has room for an example of a task."""
    with suppress(rk.UserError):
        return bool(rk.generate(task, length, 1, FIRST_SEED, form)[0])
    return False


def learn(
    network: Any, optimizers: Sequence[Any], ids: Any, answers: Any, prompt_weight: float
) -> tuple[float, float]:
    """One step of a network by its optimizers: the mean loss of answer tokens before it, and the
    share of answers without an error."""
    cross_entropy = torch.nn.functional.cross_entropy
    hidden = network.base_model(ids).last_hidden_state[:, :-1]
    head = network.get_output_embeddings()

    # Position i predicts token i + 1. Logits are made only where they enter the loss.
    targets, answers = ids[:, 1:], answers[:, 1:]
    prompts = torch.randint_like(targets, PROMPT_SHARE).eq(0) & ~answers
    logits = head(hidden[answers]).float()
    loss = cross_entropy(logits, targets[answers])
    prompt_loss = cross_entropy(head(hidden[prompts]).float(), targets[prompts])
    (loss + prompt_weight * prompt_loss).backward()

    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()

    wrong = torch.zeros(answers.shape, dtype=torch.bool, device=ids.device)
    wrong[answers] = logits.argmax(-1) != targets[answers]
    return loss.item(), float((~wrong.any(dim=1)).float().mean())


def training_curve(history: pd.DataFrame, live: Any = None) -> list[Any]:
    """The loss of answer tokens and the share of examples answered without an error, over the steps
    of a training. `live`, a handle of IPython's `display`, shows the figure in place of what it
    showed."""
    with rk.plots.style():
        figure, panels = plt.subplots(
            1,
            2,
            figsize=(rk.plots.DOUBLE, 1.9),
            layout="constrained",
            FigureClass=rk.plots.PrintFigure,
        )
        for i, axes in enumerate(panels):
            color = to_hex(f"C{i}")  # that of the style, which may be drawn when it no longer holds
            values = 100 * history["right"] if i else history["loss"]
            axes.plot(history["step"], values, color=color, marker="o", clip_on=False)
            axes.locator_params("x", integer=True)
            axes.set(xlabel="Step", xlim=(0, None), ylim=(0, 102 if i else None))
        panels[0].set_ylabel("Loss of answer tokens")
        panels[1].set_ylabel("Right, new examples (%)")
    if live is not None:
        live.update(figure)
        plt.close("all")
    return list(panels)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small causal language model.")
    add = parser.add_argument
    add("folder", type=Path, help="of the model; the same call resumes a training")
    add("--config", default={}, type=json.loads, help=f"JSON: keys beside or over {SHAPE}")
    add("--size", default=SIZE, type=Path, help="a YAML file with `tasks`")
    add("--length", default=256, type=int, help="the longest examples in tokens")
    add("--steps", default=800, type=int, help="steps of about four thousand tokens")
    add("--seed", default=0, type=int, help="of the weights and of the examples")
    add("--rates", default=[0.02, 0.002], type=float, nargs=2, help="of Muon and of AdamW")
    add("--curriculum", type=json.loads, help="points as JSON: [[share, tokens, tasks], ...]")
    add("--prompt-weight", default=0.2, type=float, help="of the loss of prompt tokens")
    add("--minutes", type=float, help="stop after so many; the same call goes on")
    given = parser.parse_args()
    try:
        tasks = rk.study(yaml.safe_load(given.size.read_text(encoding="utf-8"))).tasks
        train(
            CONFIG | SHAPE | given.config,
            given.folder,
            tasks,
            given.length,
            given.steps,
            given.seed,
            rates=given.rates,
            curriculum=given.curriculum,
            prompt_weight=given.prompt_weight,
            minutes=given.minutes,
            report=lambda history: print(history.tail(1).to_string(header=len(history) == 1)),
        )
    except (rk.UserError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    main()
