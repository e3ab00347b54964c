"""Small causal language models, trained on examples that are generated as they are needed.

Batch s is a function of the seed and s, so a training that was stopped goes on as if it had not
been. The examples have seeds from `FIRST_SEED` on, which no study takes by default; no example is
seen twice.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from rulerkit.common.errors import UserError, shorten
from rulerkit.common.gpus import torch_module
from rulerkit.common.paths import completed, resolve
from rulerkit.common.settings import TrainingKeys, check
from rulerkit.generation.generate import generate
from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.generation.tasks import Task, read_answer

if TYPE_CHECKING:
    import pandas as pd

FIRST_SEED = 1_000_000
SHORTEST = 112
"""Tokens of the shortest examples, which hold a needle and a number."""
TOKENS = 4096
"""Tokens of a batch."""
EVERY = 20
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
_WARM_UP = 50
_PROMPT_SHARE = 4
_SAVE_EVERY = 60.0  # seconds
_ABOUT, _HISTORY = "training.json", "history.csv"


def train(
    config: Mapping[str, Any],
    folder: Path | str,
    tasks: Sequence[Task],
    length: int,
    steps: int,
    seed: int = 0,
    tokenizer: str = TOKENIZER,
    rates: Sequence[float] = (0.02, 0.002),
    curriculum: Sequence[Sequence[float]] | None = None,
    prompt_weight: float = 0.2,
    minutes: float | None = None,
    report: "Callable[[pd.DataFrame], object]" = len,
) -> "pd.DataFrame":
    """Train a model of a configuration of transformers; returns its history, which also goes to
    `report` after every `EVERY` steps.

    `tasks` come in order of difficulty. `curriculum` lists points: a share of the `steps`, then the
    tokens of the longest examples there and how many of the `tasks` are asked; both grow evenly
    between two points. By default from 128 tokens and two tasks at a fifth of the steps to `length`
    and all tasks at three fifths. Each step reads about `TOKENS` tokens. The loss is the mean over
    answer tokens, and `prompt_weight` times that over a quarter of the prompt's. `rates` are the
    learning rates of Muon, for matrices, and of AdamW, for all other weights; the first is 0 where
    AdamW is to have all. A linear warm-up, then a cosine to a tenth. On a GPU where there is one.

    The history has the columns step, length (the longest so far), loss (of answer tokens), right
    (the share of examples whose answer a greedy model would have written without an error, before
    it was trained on them) and seconds; loss and right are means over `EVERY` steps. `folder` holds
    it as `history.csv` and, where the call ends, the model in half precision and `training.json`, how
    it was made. A training that was stopped, by `minutes` or otherwise, goes on with the same call, and one
    that is complete is not done again; with other arguments the call is an error.
    """
    import pandas as pd

    torch, transformers = torch_module(), import_module("transformers")
    folder = resolve(folder)
    points = curriculum or [[0.2, 128, 2], [0.6, length, len(tasks)]]
    asked = {"steps": steps, "rates": rates, "curriculum": points, "minutes": minutes}
    points = check(TrainingKeys, asked).curriculum
    how = {
        "config": dict(config),
        "tasks": [task.name for task in tasks],
        "length": length,
        "steps": steps,
        "seed": seed,
        "rates": list(rates),
        "curriculum": [*map(list, points)],
        "prompt_weight": prompt_weight,
    }
    if (complete := _complete(folder, how)) is not None:
        return complete
    form = PromptFormat(tokenizer, template="base")  # type: ignore[arg-type]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(seed)
    try:
        shape = transformers.AutoConfig.for_model(**config)
        network = transformers.AutoModelForCausalLM.from_config(shape).to(device)
    except Exception as error:  # each architecture checks its keys in its own way
        raise UserError(
            f"transformers makes no language model of the architecture {config.get('model_type')} with "
            f"these layers, width and `more` (llama, mamba2 and qwen3_5_text were tried): {shorten(error, 160)}"
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _ABOUT).write_text(json.dumps(how, indent=2) + "\n")
    optimizers = _optimizers(network, rates)
    parts, rows = [network, *optimizers], list[dict[str, Any]]()
    state_file = folder / "training.pt"
    if state_file.exists():
        state = torch.load(state_file, map_location=device, weights_only=True)
        for part, content in zip(parts, state["parts"], strict=True):
            part.load_state_dict(content)
        rows = state["rows"]
    done, spent = (rows[-1]["step"], rows[-1]["seconds"]) if rows else (0, 0.0)
    started = saved = time.monotonic()
    shares, *columns = zip(*points, strict=True)
    stops = False
    while done < steps and not stops:
        results = []
        for step in range(done, min(done + EVERY, steps)):
            longest, known = (
                round(np.interp(step / steps, shares, column)) for column in columns
            )
            ids, answers = _batch(
                tasks[:known], form, longest, Random(f"{seed}/{step}")
            )
            warm_up = min(1.0, (step + 1) / _WARM_UP)
            cosine = 0.55 + 0.45 * math.cos(math.pi * step / steps)
            for rate, optimizer in zip(reversed(rates), optimizers, strict=False):
                optimizer.param_groups[0]["lr"] = rate * warm_up * cosine
            torch.manual_seed(seed + step)
            results.append(
                _learn(parts, ids.to(device), answers.to(device), prompt_weight)
            )
        done, now = step + 1, time.monotonic()
        loss, right = np.mean(results, axis=0).tolist()
        row = {"step": done, "length": longest, "loss": loss, "right": right}
        rows.append(row | {"seconds": round(spent + now - started, 1)})
        history = pd.DataFrame(rows)
        history.to_csv(folder / _HISTORY, index=False, float_format="%.4f")
        report(history)
        stops = minutes is not None and now - started > 60 * minutes
        if done < steps and (stops or now - saved > _SAVE_EVERY):
            with completed(state_file) as file:
                torch.save(
                    {"parts": [part.state_dict() for part in parts], "rows": rows}, file
                )
            saved = now
    network.half().save_pretrained(folder)
    if done == steps:
        how |= {"torch": torch.__version__, "transformers": transformers.__version__}
        how |= {"device": device, "seconds": rows[-1]["seconds"]}
        (folder / _ABOUT).write_text(json.dumps(how, indent=2) + "\n")
        state_file.unlink(missing_ok=True)
    return history


def _complete(folder: Path, how: Mapping[str, Any]) -> "pd.DataFrame | None":
    """The history of a training that is complete in a folder, else None. Raises UserError where
    another training was begun there."""
    import pandas as pd

    about = folder / _ABOUT
    if about.exists():
        made = json.loads(about.read_text())
        if not how.items() <= made.items():
            raise UserError(
                f"{about} holds the values of another training: give the same ones, or another name or folder"
            )
        if "seconds" in made:
            return pd.read_csv(folder / _HISTORY)
    return None


def _optimizers(network: Any, rates: Sequence[float]) -> list[Any]:
    """AdamW, and Muon for the matrices that are no embeddings unless its rate is 0."""
    optim = torch_module().optim
    tables = {
        network.get_input_embeddings().weight,
        network.get_output_embeddings().weight,
    }
    weights = list(network.parameters())
    matrices = [w for w in weights if w.ndim == 2 and w not in tables and rates[0]]
    others = [w for w in weights if w not in set(matrices)]
    optimizers = [optim.AdamW(others, rates[1], (0.9, 0.98), weight_decay=0.01)]
    return optimizers + [optim.Muon(matrices, rates[0], weight_decay=0.01)] * bool(
        matrices
    )


def _batch(
    tasks: Sequence[Task], form: PromptFormat, longest: int, random: Random
) -> tuple[Any, Any]:
    """Token ids of examples with their answers, padded on the right, and where the answers are."""
    torch = torch_module()
    length = longest if random.random() < 0.5 else random.randint(SHORTEST, longest)
    fitting = [task for task in tasks if _fits(task, length, form)]
    rows: list[Any] = []
    places: list[Any] = []
    stop = form.tokenizer.encode(form.tokenizer.eos_token or "")
    while len(rows) < max(1, TOKENS // length):
        asked = random.choice(fitting), length, 1, FIRST_SEED + random.getrandbits(40)
        with suppress(UserError):  # too long for this length
            example = generate(*asked, form)[0]
            blank = "" if example.prompt.endswith(" ") else " "
            answer = form.tokenizer.encode(blank + (read_answer(example.prompt) or ""))
            ids = np.concatenate([example.ids, answer, stop])
            rows.append(torch.from_numpy(ids).long())
            places.append(torch.arange(len(ids)) >= example.num_tokens)
    pad = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
    return pad(rows, padding_value=int(stop[0])), pad(places, padding_value=False)


@cache
def _fits(task: Task, length: int, form: PromptFormat) -> bool:
    with suppress(UserError):
        return bool(generate(task, length, 1, FIRST_SEED, form)[0])
    return False


def _learn(
    parts: Sequence[Any], ids: Any, answers: Any, prompt_weight: float
) -> tuple[float, float]:
    """One step of a network by its optimizers: the mean loss of answer tokens before it, and the
    share of answers without an error."""
    torch, (network, *optimizers) = torch_module(), parts
    cross_entropy = torch.nn.functional.cross_entropy
    hidden = network.base_model(ids).last_hidden_state[:, :-1]
    targets, answers = ids[:, 1:], answers[:, 1:]
    prompts = torch.randint_like(targets, _PROMPT_SHARE).eq(0) & ~answers
    head = network.get_output_embeddings()
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
