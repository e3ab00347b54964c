"""What `rulerkit gate SERVER --serving` shows: text, Markdown, JSON, and a page of the losses."""

from html import escape as html
from pathlib import Path

from rulerkit.common import escape
from rulerkit.common.lengths import length_name
from rulerkit.common.render import render
from rulerkit.common.settings import JSON
from rulerkit_gate.evidence import PROBES
from rulerkit_gate.serving import Result, Run, Sent

_MOST_SHOWN = 20  # losses and leaks on a page
_MARKS = {"sound": "✅", "worse": "❌", "cannot tell": "❔"}


def rows_of(run: Run) -> list[JSON]:
    """One row for each condition that was tested."""
    rows: list[JSON] = []
    for probe in PROBES:
        pairs, lost, gained = run.evidence.counts(probe)
        if not pairs or (probe in run.not_tested and not lost):
            continue
        cached = [one.cached for one in run.sent if one.probe == probe and one.cached is not None]
        rows.append(
            {
                "name": probe,
                "lengths": sorted({pair.length for pair in run.evidence.pairs[probe]}),
                "pairs": pairs,
                "lost": lost,
                "gained": gained,
                "hits": sum(map(bool, cached)),
                "counted": len(cached),
                "evidence": run.evidence.of(probe),
                "unseen": run.evidence.unseen(probe),
            }
        )
    return rows


def _table(result: Result, format: str, notes: list[str]) -> str:
    """The rows as words, with notes below."""
    import pandas as pd

    rows = []
    for row in rows_of(result.run):
        unseen = "" if row["unseen"] is None else f"at most {100 * row['unseen']:.0f} %"
        hits = f"{row['hits']} of {row['counted']}" if row["counted"] else "unknown"
        rows.append((row["name"], row["pairs"], row["lost"], row["gained"], hits, unseen))
    head = ["condition", "pairs", "lost", "gained", "hits", "may be affected unseen"]
    return render(pd.DataFrame(rows, columns=head), format, notes)


def _seen(run: Run) -> list[tuple[str, Sent, str]]:
    """Each leak and each loss, leaks first: in words, its request, and the answer asked cold."""
    found = [
        (run.sent[leak.request - 1], f"wrote {leak.value}, which is request {leak.of}'s", "")
        for leak in run.evidence.leaks
    ]
    for loss in run.losses:
        what = f"did not write {', '.join(loss.lost)}"
        found.append((loss.probe, what, loss.control.answer))
    seen = []
    for sent, what, cold in found:
        at = f"{sent.tokens:,} tokens"
        if sent.cached:
            at += f", {sent.cached:,} from the cache"
        seen.append((f"request {sent.number}, {sent.probe}, {at}: {what}", sent, cold))
    return seen


def _notes(result: Result, page: str) -> list[str]:
    """What stands below the table: the first leak or loss, what was not tested, what it took."""
    run = result.run
    notes = [f"first: {text}" for text, _, _ in _seen(run)[:1]]
    for reason in dict.fromkeys(run.not_tested.values()):
        names = [probe for probe in run.not_tested if run.not_tested[probe] == reason]
        notes.append(f"{', '.join(names)}: not tested: {reason}")
    if failures := run.failures():
        notes.append(f"failed: {failures}")
    asked = f"Asked {len(run.sent)} requests, {run.num_tokens:,} tokens, seed {run.seed}."
    notes.append(f"{asked} Requests: {run.journal}")
    if page:
        notes.append(f"Page: {page}")
    return notes


def text_of(result: Result, page: str) -> str:
    """The verdict, the conditions, the first loss and what it took."""
    table = _table(result, "text", _notes(result, page))
    return f"{result.word.upper()}: {result.text}.\n\n{table}"


def markdown_of(result: Result, page: str) -> str:
    """As GitHub and GitLab show it."""
    head = f"## {_MARKS[result.word]} {result.word}\n\n{escape.markdown(result.text)}."
    return f"{head}\n\n{_table(result, 'markdown', _notes(result, page))}"


def json_of(result: Result, page: str) -> JSON:
    """All of the result, ready for JSON. Requests are named by their number in the journal."""
    run = result.run
    return {
        "verdict": {"word": result.word, "text": result.text, "status": result.status},
        "evidence": run.evidence.mean,
        "probes": rows_of(run),
        "leaks": [leak._asdict() for leak in run.evidence.leaks],
        "leak_chance": run.evidence.leak_chance,
        "losses": [
            {"control": loss.control.number, "request": loss.probe.number, "lost": loss.lost}
            for loss in run.losses
        ],
        "hits_from": run.counts_hits,
        "asked": {"requests": len(run.sent), "tokens": run.num_tokens},
        "failed": sum(bool(one.failure) for one in run.sent),
        "not_tested": run.not_tested,
        "seed": run.seed,
        "journal": str(run.journal),
        "page": page,
    }


def write_page(result: Result, path: Path) -> None:
    """The table, then leaks and losses: the answer cold, under the condition, and what is right."""
    seen = _seen(result.run)
    shown = f", the first {_MOST_SHOWN} here" if len(seen) > _MOST_SHOWN else ""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>Serving check</title>",
        "<style>body { font-family: sans-serif } pre { white-space: pre-wrap }</style>",
        f"<h1>{_MARKS[result.word]} {html(result.word)}</h1><p>{html(result.text)}.</p>",
        _table(result, "html", _notes(result, "")),
        f"<p>{len(seen)} leaks and losses{shown}:</p>" if seen else "",
    ]
    for text, sent, cold in seen[:_MOST_SHOWN]:
        parts.append(f"<h3>at {length_name(sent.prompt.length)}: {html(text)}</h3>")
        right = ", ".join(sent.prompt.example.references)
        for name, answer in {"cold": cold, sent.probe: sent.answer, "right": right}.items():
            parts.append(f"<b>{name}</b><pre>{html(answer)}</pre>")
        prompt = html(sent.prompt.example.prompt)
        parts.append(f"<details><summary>prompt</summary><pre>{prompt}</pre></details>")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts), encoding="utf-8")
