"""What `rulerkit gate SERVER --serving` shows: text, Markdown, JSON, and a page of the losses."""

from html import escape as html
from pathlib import Path

from rulerkit.common import escape
from rulerkit.common.lengths import length_name
from rulerkit.common.settings import JSON
from rulerkit_gate.evidence import PROBES
from rulerkit_gate.serving import Loss, Result, Sent

_HEAD = ("condition", "pairs", "lost", "gained", "texts differ", "hits", "may be affected unseen")
_MOST_SHOWN = 20  # losses and leaks on a page
_MARKS = {"sound": "✅", "worse": "❌", "cannot tell": "❔"}


def rows_of(result: Result) -> list[JSON]:
    """One row for each condition that was tested."""
    run = result.run
    rows: list[JSON] = []
    for probe in PROBES:
        pairs, lost, gained = run.evidence.counts(probe)
        if not pairs:
            continue
        hits = run.hits.get(probe, [])
        known = [cached for cached in hits if cached is not None]
        rows.append(
            {
                "name": probe,
                "lengths": sorted({pair.length for pair in run.evidence.pairs[probe]}),
                "pairs": pairs,
                "lost": lost,
                "gained": gained,
                "texts_differ": run.differing.get(probe, 0),
                "hits": sum(map(bool, known)),
                "counted": len(known),
                "evidence": run.evidence.of(probe),
                "unseen": run.evidence.unseen(probe),
            }
        )
    return rows


def _table(result: Result) -> list[tuple[str, ...]]:
    """The rows as words."""
    table = []
    for row in rows_of(result):
        unseen = "" if row["unseen"] is None else f"at most {100 * row['unseen']:.0f} %"
        hits = f"{row['hits']} of {row['counted']}" if row["counted"] else "unknown"
        numbers = (str(row[name]) for name in ("pairs", "lost", "gained", "texts_differ"))
        table.append((row["name"], *numbers, hits, unseen))
    return table


def seen_texts(result: Result) -> list[str]:
    """Where each leak and each loss was seen, leaks first."""
    run = result.run
    seen = [(sent, f"wrote {leak.value}, which is request {leak.of}'s") for leak, sent in run.leaks]
    for loss in run.losses:
        what = f"did not write {', '.join(loss.lost[:3])} (token {loss.position:,})"
        seen.append((loss.probe, what))

    texts = []
    for sent, what in seen:
        cached = ""
        if sent.cached:
            size = run.block_size
            block = f" ({sent.cached // size} blocks of {size})" if size > 1 else ""
            cached = f", {sent.cached:,} from the cache{block}"
        texts.append(f"request {sent.number}, {sent.probe}, {sent.tokens:,} tokens{cached}: {what}")
    return texts


def asked_text(result: Result) -> str:
    """What it took."""
    run = result.run
    return (
        f"Asked {len(run.sent)} requests, {run.num_tokens:,} tokens, seed {run.seed}; cold by "
        f"{run.cold_by}. Requests: {run.journal}"
    )


def notes_of(result: Result) -> list[str]:
    """What stands below the table, with the first leak or loss."""
    reasons: dict[str, list[str]] = {}
    for probe, reason in result.run.not_tested.items():
        reasons.setdefault(reason, []).append(probe)
    notes = [f"{', '.join(names)}: not tested: {reason}" for reason, names in reasons.items()]
    first = [f"first: {text}" for text in seen_texts(result)[:1]]
    return [*first, *notes]


def text_of(result: Result, page: str = "") -> str:
    """The verdict, the conditions, the first loss and what it took, in eleven lines at most."""
    is_worse = result.word == "worse"
    rows = _table(result)
    if is_worse:
        # Those where something was lost or leaked.
        leaked = {sent.probe for _, sent in result.run.leaks}
        rows = [row for row in rows if row[2] != "0" or row[0] in leaked]
    table = [_HEAD, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [f"{result.word.upper()}: {result.text}."]
    for name, *fields in table:
        cells = [name.ljust(widths[0])]
        cells += [field.rjust(width) for field, width in zip(fields, widths[1:], strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    lines += notes_of(result)
    lines.append(asked_text(result) + (f". Page: {page}" if page else "."))
    return "\n".join(lines)


def markdown_of(result: Result, page: str = "") -> str:
    """As GitHub and GitLab show it."""
    lines = [f"## {_MARKS[result.word]} {result.word}", "", escape.markdown(result.text) + ".", ""]
    lines += [f"| {' | '.join(_HEAD)} |", "|---" * len(_HEAD) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in _table(result)]
    notes = [*notes_of(result), asked_text(result), f"Page: {page}" if page else ""]
    lines += ["", *(f"- {escape.markdown(note)}" for note in notes if note)]
    return "\n".join(lines) + "\n"


def json_of(result: Result, page: str = "") -> JSON:
    """All of the result, ready for JSON; docs/gate.md lists the keys."""
    run = result.run
    return {
        "verdict": {"word": result.word, "text": result.text, "status": result.status},
        "evidence": run.evidence.mean,
        "probes": rows_of(result),
        "leaks": [
            {
                "probe": sent.probe,
                "length": sent.prompt.length,
                "cached": sent.cached,
                "request": leak.request,
                "value": leak.value,
                "of": leak.of,
                "answer": sent.answer,
            }
            for leak, sent in run.leaks
        ],
        "leak_chance": run.evidence.leak_chance,
        "losses": [
            {
                "probe": loss.probe.probe,
                "length": loss.probe.prompt.length,
                "control": loss.control.number,
                "request": loss.probe.number,
                "cached": loss.probe.cached,
                "lost": loss.lost,
                "position": loss.position,
            }
            for loss in run.losses
        ],
        "cold_by": run.cold_by,
        "hits_from": run.counts_hits,
        "block_size": run.block_size,
        "pool": run.pool,
        "rounds": run.rounds,
        "asked": {"requests": len(run.sent), "tokens": run.num_tokens},
        "failed": sum(bool(one.failure) for one in run.sent),
        "not_tested": run.not_tested,
        "seed": run.seed,
        "server": run.model.environment() if hasattr(run.model, "environment") else {},
        "journal": str(run.journal),
        "page": page,
    }


# --- the page -------------------------------------------------------------------------------------

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse }
td, th { padding: .2em .8em; border-bottom: 1px solid #ddd; text-align: right }
td:first-child, th:first-child { text-align: left }
.pair { display: grid; grid-template-columns: 1fr 1fr 1fr; gap: 1em }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; margin: 0 }
mark { background: #ffc9c9 }
"""


def write_page(result: Result, path: Path) -> None:
    """The table, then each leak and loss: cold, under the condition, and what is right."""
    run = result.run
    shown = [*_leak_parts(result), *(_loss_part(loss) for loss in run.losses)]
    head = "".join(f"<th>{name}</th>" for name in _HEAD)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html(field)}</td>" for field in row) + "</tr>"
        for row in _table(result)
    )
    notes = "".join(f"<p>{html(note)}</p>" for note in [*notes_of(result), asked_text(result)])
    more = len(shown) - _MOST_SHOWN
    left = f"<p>{more} more stand in the JSON and in {html(str(run.journal))}.</p>"
    page = (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Serving check</title>"
        f"<style>{_STYLE}</style><h1>{_MARKS[result.word]} {html(result.word)}</h1>"
        f"<p>{html(result.text)}.</p><table><tr>{head}</tr>{rows}</table>{notes}"
        f"{''.join(shown[:_MOST_SHOWN])}{left if more > 0 else ''}</html>\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def _leak_parts(result: Result) -> list[str]:
    """A part for each answer that holds values of other prompts."""
    values: dict[int, list[str]] = {}
    senders: dict[int, Sent] = {}
    for leak, sent in result.run.leaks:
        values.setdefault(sent.number, []).append(leak.value)
        senders[sent.number] = sent
    return [
        _part(sent, f"wrote {len(values[number])} values of other prompts", "", values[number])
        for number, sent in senders.items()
    ]


def _loss_part(loss: Loss) -> str:
    title = f"lost {len(loss.lost)} values, the first at token {loss.position:,}"
    return _part(loss.probe, title, loss.control.answer, loss.lost)


def _part(sent: Sent, title: str, cold: str, marked: list[str]) -> str:
    """One request: its answer beside the cold one and the right one."""
    right = ", ".join(sent.prompt.example.references)
    cached = "unknown" if sent.cached is None else f"{sent.cached:,}"
    columns = {"cold": cold, sent.probe: sent.answer, "right": right}
    texts = ""
    for name, text in columns.items():
        shown = html(text)
        for value in marked:
            shown = shown.replace(value, f"<mark>{value}</mark>")
        texts += f"<div><b>{html(name)}</b><pre>{shown}</pre></div>"
    return (
        f"<h3>request {sent.number}: {html(sent.probe)} at {length_name(sent.prompt.length)}, "
        f"{html(title)}</h3><p>{sent.tokens:,} tokens, {cached} from the cache</p>"
        f"<div class=pair>{texts}</div><details><summary>prompt</summary>"
        f"<pre>{html(sent.prompt.example.prompt)}</pre></details>"
    )
