"""Figures: they show the numbers that they are given, and nothing on them overlaps or is cut."""

from functools import cache
from itertools import combinations, product

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_rgb
from PIL import Image
from test_summary import scores_of

import rulerkit as rk
from rulerkit.analysis import failures
from rulerkit.analysis.depth import by_bin, recall_by_depth
from rulerkit.common.lengths import length_name
from rulerkit.generation.generate import generate
from rulerkit.report import plots
from rulerkit.report.plots import DOUBLE, SINGLE
from rulerkit.report.plots.canvas import TASK_NAMES, look_of
from rulerkit.scoring.scores import THIRTEEN
from rulerkit.scoring.summary import summarize

LENGTHS = [4096, 8192, 16384]


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


@cache
def summary_of(*names, examples=4, have=4, engine="reader"):
    """A summary of invented scores: model i knows a share of the answers that falls with the
    length."""
    share = {
        (name, length): 1 - i % 4 * n / examples
        for i, name in enumerate(names)
        for n, length in enumerate(LENGTHS)
    }
    about = {"wanted": examples, "engine": engine, "stand_in": engine == "reader"}
    scores = scores_of(
        share, n=lambda model, length, task: have if length == LENGTHS[-1] else examples, **about
    )
    return summarize(scores.assign(label=scores["model"].str.upper()))


def texts(axes):
    return [text.get_text() for text in axes.texts]


def boxes(figure, slanted=True):
    """All texts that are drawn, with where they lie; ticks outside an axis' limits are not, and
    slanted texts, whose boxes overlap though they do not, only if wanted."""
    figure.draw_without_rendering()
    unseen = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        unseen |= {
            tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high
        }
    found = [
        t for t in figure.findobj(matplotlib.text.Text) if t.get_text().strip() and t.get_visible()
    ]
    found = [t for t in found if t not in unseen and (slanted or t.get_rotation() % 90 == 0)]
    return [(t.get_text(), matplotlib.text.Text.get_window_extent(t)) for t in found]


def assert_fit_for_print(axes):
    """No text is cut by the figure's edge or lies on another."""
    figure = axes.figure
    for text, box in boxes(figure):
        assert min(box.x0, box.y0) >= -1, f"{text!r} is cut"
        assert box.x1 <= figure.bbox.x1 + 1, f"{text!r} is cut"
        assert box.y1 <= figure.bbox.y1 + 1, f"{text!r} is cut"
    for (a, first), (b, second) in combinations(boxes(figure, slanted=False), 2):
        width = min(first.x1, second.x1) - max(first.x0, second.x0)
        height = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert min(width, height) < 1.5, f"{a!r} lies on {b!r}"


def test_lines_are_the_scores_and_bars_their_intervals():
    summary = summary_of("a", "b")
    axes = plots.score_by_length(summary.lengths)
    rows = summary.lengths.query("category == 'all'")
    for line, bars, name in zip(axes.get_lines(), axes.collections, ("a", "b"), strict=True):
        own = rows[rows["model"] == name]
        np.testing.assert_allclose(line.get_xdata(), LENGTHS, rtol=0.03)  # side by side
        np.testing.assert_allclose(line.get_ydata(), own["score"])
        ends = np.array([segment[:, 1] for segment in bars.get_segments()])
        np.testing.assert_allclose(ends, own[["low", "high"]])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4K", "8K", "16K"]


def test_threshold_is_drawn_and_named():
    summary = summary_of("a")
    assert plots.thresholds(summary.models) == {"Llama2-7B (chat) at 4K": 85.6}
    axes = plots.score_by_length(summary.lengths, plots.thresholds(summary.models))
    assert axes.get_lines()[-1].get_ydata() == [85.6, 85.6]
    below = axes.figure.get_supxlabel().replace("\n", " ")
    assert (
        below == "thin dashed: Llama2-7B (chat) at 4K = 85.6; bars: 95 % intervals; "
        "reference readers; synthetic texts"
    )


def test_figures_say_what_the_texts_and_the_means_are():
    for engine, is_said in (("reader", True), ("transformers", False)):
        one = summary_of("a", engine=engine)
        for axes in (
            plots.score_by_length(one.lengths),
            plots.tasks_by_length(one.cells)[0],
            plots.claimed_and_effective(one.models)[0],
        ):
            below = " ".join(axes.figure.get_supxlabel().split())
            assert ("reference readers; synthetic texts" in below) == is_said
    shown = rk.tables.show(plots.series_table(summary_of("a").of("all").lengths))
    assert "reference readers; synthetic texts: not comparable" in shown.to_html()
    few = scores_of({("a", 4096): 0.5}, ["vt", "cwe"])
    axes = plots.score_by_length(summarize(few).lengths)
    assert axes.figure.get_supxlabel() == "bars: 95 % intervals; mean of 2 tasks"


def test_an_incomplete_length_is_a_gap():
    summary = summary_of("a", "b", have=2)
    for note in ("", plots.remarks(summary.cells)):
        axes = plots.score_by_length(summary.lengths, note=note)
        assert np.isnan(axes.get_lines()[0].get_ydata()).tolist() == [False, False, True]
        below = " ".join(axes.figure.get_supxlabel().split())
        assert below == "bars: 95 % intervals; incomplete; reference readers; synthetic texts"
    assert not plots.remarks(summary_of("a", engine="transformers").cells)
    assert_fit_for_print(axes)


def test_printed_scores_are_grey_lines_with_names():
    axes = plots.score_by_length(summary_of("a").lengths, published=["gpt-4", "yi-34b"])
    printed = rk.paper.published_scores(["gpt-4", "yi-34b"])
    grey = axes.get_lines()[1:]
    for line in grey:
        assert list(line.get_ydata()) == list(printed[line.get_label()].values())
    assert len(grey) == 2
    assert {line.get_color() for line in grey} == {plots.canvas.GREY_LINE}
    assert "grey: scores as printed" in axes.figure.get_supxlabel()
    assert_fit_for_print(axes)


def rows_of(axes):
    """The name, effective length and dot of each row, from the top."""
    names = [label.get_text() for label in axes.get_yticklabels()]
    dots = [line for line in axes.get_lines() if line.get_markersize() == 2.9]
    # the claimed length stands right of its ring
    effective = [text.get_text() for text in axes.texts if text.get_ha() == "right"]
    rows = zip(names, effective, [line.get_xdata()[0] for line in dots], strict=True)
    return list(rows)[::-1]


def test_published_models_stand_by_their_effective_length():
    paper, upstream = plots.claimed_and_effective()
    rows = rows_of(paper)
    assert (len(rows), len(rows_of(upstream))) == (17, 27)
    assert rows[0] == ("Gemini-1.5-Pro", ">128K", 131072)
    assert ("GPT-4", "64K", 65536) in rows
    assert ("Llama3.1 (8B)", "32K", 32768) in rows
    assert rows[-1][1:] == ("<4K", 4096)
    for panel in (paper, upstream):
        dots = [dot for _, _, dot in rows_of(panel)]
        assert dots == sorted(dots, reverse=True)
    assert_fit_for_print(paper)


def test_own_models_stand_in_colour_among_the_published_ones():
    models = summary_of("a", "b", "c").models
    axes, upstream = plots.claimed_and_effective(models)
    rows = {name: text for name, text, _ in rows_of(axes)}
    own = models[models["category"] == "all"].set_index("label")
    assert rows["GPT-4"] == "64K"
    assert {name: rows[name] for name in own.index} == dict(own["effective_length"])
    assert "Qwen3-14B" in {name for name, _, _ in rows_of(upstream)}
    bold = {one.get_text() for one in axes.get_yticklabels() if one.get_fontweight() == "bold"}
    assert bold == {"A", "B", "C"}
    assert_fit_for_print(axes)


def test_lines_are_dashed_past_the_training_length():
    frame = pd.DataFrame({"length": LENGTHS, "score": [90, 80, 40]})
    frame = frame.assign(panel="p", label="M", have="", series="a", low=30, high=95)
    (axes,) = plots.series_by_length(frame, dashed_beyond={"a": 8192})
    dashed, solid = axes.get_lines()
    np.testing.assert_array_equal(solid.get_ydata(), [90, 80, np.nan])
    np.testing.assert_array_equal(dashed.get_ydata(), [np.nan, 80, 40])
    assert [line.get_linestyle() for line in (solid, dashed)] == ["-", "--"]


def looks_in(axes):
    """Colour, marker and dashes of each named line."""
    return {
        line.get_label(): (line.get_color(), line.get_marker(), line.get_linestyle())
        for line in axes.get_lines()
        if line.get_label()[0] != "_"
    }


def test_a_model_looks_the_same_whatever_stands_beside_it(tmp_path, monkeypatch):
    summary = summary_of("lwm-7b-chat-128k", "lwm-7b-chat-256k", "lwm-7b-chat-1m")
    rows = summary.lengths.query("category == 'all'")
    whole = looks_in(plots.score_by_length(rows))
    assert len({color for color, _, _ in whole.values()}) == 3
    last = rows[rows["model"] != "lwm-7b-chat-128k"].iloc[::-1]
    for axes in (plots.score_by_length(last), plots.series_by_length(last, "label")[0]):
        assert looks_in(axes).items() <= whole.items()
    with plots.style():
        look = look_of("lwm-7b-chat-1m")
    assert whole["LWM-7B-CHAT-1M"][:2] == (look["color"], look["marker"])

    # Two of the same colour differ by their dashes, whatever their markers.
    with plots.style():
        one = look_of("model 0")
        others = {f"model {i}": look_of(f"model {i}") for i in range(1, 1000)}
        twin = next(name for name, look in others.items() if look == one)
        other = next(n for n, o in others.items() if o["color"] == one["color"] and o != one)
    for second in (twin, other):
        axes = plots.score_by_length(summary_of("model 0", second).lengths)
        looks = list(looks_in(axes).values())
        assert looks[0][0] == looks[1][0] == one["color"]
        assert looks[0][2] != looks[1][2]

    # Another run of it differs by its dashes alone; its file may name the colour.
    runs = looks_in(plots.score_by_length(pd.concat([rows, rows.assign(run="again")])))
    first, again = (look for name, look in runs.items() if "1M" in name)
    assert first[:2] == again[:2]
    assert first[2] != again[2]
    (tmp_path / "params/models").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[tool.rulerkit]\n")
    (tmp_path / "params/models/mine.yaml").write_text("model: {base: perfect, color: '#123456'}")
    monkeypatch.chdir(tmp_path)
    assert look_of("mine")["color"] == "#123456"


def panels_frame():
    """Two models: two panels that share a task, and questions with and without context."""
    series = [
        ("Types", "vanilla", "niah_single_2"),
        ("Types", "UUID", "niah_single_3"),
        ("Keys", "#K = 4", "niah_multikey_1"),
        ("Keys", "#K = 1", "niah_single_2"),
        ("QA", "HotpotQA", "qa_2"),
        ("QA", "SQuAD", "qa_1"),
        ("QA", "SQuAD, no context", "qa_1-context_none"),
    ]
    rows = []
    for label, (panel, name, task), length in product("AB", series, LENGTHS):
        if "no" not in name or length == LENGTHS[0]:
            copied = 30.0 if task == "qa_2" else np.nan
            about = {"label": label, "panel": panel, "series": name, "task": task}
            numbers = {"score": 50.0, "low": 40.0, "high": 60.0, "copied": copied}
            rows.append({**about, "length": length, "have": "", **numbers})
    return pd.DataFrame(rows)


def test_panels_share_their_names_axes_and_colours():
    frame = panels_frame()
    flat = {"SQuAD, no context": "SQuAD"}
    panels = plots.series_by_length(frame, flat=flat, panels=["Types", "Keys", "QA", "Later"])
    types, keys, questions, later = panels[:4]
    assert looks_in(types)["vanilla"] == looks_in(keys)["#K = 1"]
    assert looks_in(types)["UUID"] != looks_in(keys)["#K = 1"] != looks_in(keys)["#K = 4"]
    assert not later.get_lines()

    # No context is a dashed level line with a band, copying the beginning a grey one.
    looks = looks_in(questions)
    assert looks["SQuAD, no context"] == (looks["SQuAD"][0], "None", "--")
    (band,) = (part for part in questions.patches if part.get_alpha() == 0.15)
    assert (band.get_y(), band.get_y() + band.get_height()) == (40, 60)
    (copied,) = (line for line in questions.get_lines() if list(line.get_ydata()) == [30, 30])
    assert (copied.get_linestyle(), copied.get_color()) == ("-", plots.canvas.GREY_LINE)
    assert "grey level line: copying the beginning" in types.figure.get_supxlabel()

    # Names once: panels and lines on top, models at the left, the x axis below.
    titles = ["Types", "Keys", "QA", "Later", *[""] * 4]
    assert [axes.get_title(loc="left") for axes in panels] == titles
    beside = ["A\nScore (%)", *[""] * 3, "B\nScore (%)", *[""] * 3]
    assert [axes.get_ylabel() for axes in panels] == beside
    assert [axes.get_xlabel() != "" for axes in panels] == [False] * 4 + [True] * 4
    assert_fit_for_print(types)


def test_models_of_several_panels_have_one_legend():
    rows = summary_of("a", "b", "c").lengths.query("category == 'all'")
    frame = pd.concat([rows.assign(panel="p"), rows[rows["model"] != "a"].assign(panel="q")])
    panels = plots.series_by_length(frame, "label")
    assert all(axes.get_legend() is None for axes in panels)
    (legend,) = panels[0].figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["A", "B", "C"]


@pytest.mark.slow
@pytest.mark.parametrize("num_models", [8, 20])
@pytest.mark.parametrize("name", ["score_by_length", "series_by_length"])
def test_long_names_and_many_models_leave_the_plot_whole(name, num_models):
    long = "meta-llama-3.1-8b-instruct-ours-128k-finetuned-step"
    names = [f"{long}-{i}000" for i in range(num_models)]
    rows = summary_of(*names).lengths.query("category == 'all'")
    series = {"series": "label"} if name == "series_by_length" else {}
    (axes,) = np.ravel(
        getattr(plots, name)(rows, **series, note="small protocol", threshold={"half": 50})
    )
    said = {text.replace("\n", "") for text, _ in boxes(axes.figure)}
    assert {name.upper() for name in names} <= said
    assert_fit_for_print(axes)
    width, height = axes.get_window_extent().size / axes.figure.dpi
    assert width > axes.figure.get_figwidth() / 2
    assert height > 1.5
    assert axes.figure.get_figwidth() == (SINGLE if num_models <= 8 else DOUBLE)


def test_a_long_name_of_a_task_is_whole():
    name = "niah_multikey_3_with_a_very_long_variant_name_of_mine"
    names = [name, *(f"niah_task_{number}" for number in range(17))]
    correlations = plots.correlation_heatmap(pd.DataFrame(np.eye(18), names, names), [name])
    assert correlations.get_yticklabels()[0].get_color() != "black"
    assert name in {text.replace("\n", "") for text, _ in boxes(correlations.figure)}
    assert_fit_for_print(correlations)


@pytest.mark.parametrize("lengths", [2 ** np.arange(12, 18), 2 ** np.arange(10, 21)])
def test_names_of_many_lengths_do_not_touch(lengths):
    cells = summary_of("a").cells.head(4).assign(failure="cut off", count=3)
    cells = pd.concat(cells.assign(length=length, task=list("abcd")) for length in lengths)
    axes = plots.score_by_length(cells.assign(category="all"))
    named = [label.get_text() for label in axes.get_xticklabels()]
    assert named[-1] == length_name(int(lengths[-1]))
    assert_fit_for_print(axes)
    assert_fit_for_print(plots.tasks_by_length(cells)[0])
    assert_fit_for_print(plots.failures_by_length(cells)[0])


def test_each_panel_of_a_figure_of_ones_own_has_its_note():
    rows = summary_of("a").lengths
    _, axes = plt.subplots(1, 2, layout="constrained", figsize=(4.1, 2))
    for one, note in zip(axes, ("a note", "small protocol"), strict=True):
        assert plots.score_by_length(rows, note=note, ax=one) is one
        words = " ".join(one.get_xlabel().split())
        start = "Sequence length (tokens) bars: 95 % intervals"
        assert words == f"{start}; {note}; reference readers; synthetic texts"
    assert_fit_for_print(axes[0])
    with pytest.raises(rk.UserError, match="ax is for a figure of one panel, and this one has 2"):
        plots.series_by_length(panels_frame().query("panel == 'QA'"), ax=axes[0])


def test_parts_without_an_item_are_grey():
    depths = pd.DataFrame({"depth": [5.0, 15.0, 95.0], "recalled": 1.0, "index": range(3)})
    about = {"run": "r", "model": "m", "label": "m", "task": "vt", "category": "vt", "length": 4096}
    bins = by_bin(depths.assign(**about))
    (axes,) = plots.depth_map(bins)
    assert axes.collections[0].get_array()[:, 0].tolist() == [100, 100, *[None] * 7, 100]
    below = " ".join(axes.figure.get_supxlabel().split())
    assert below == "recall in percent; hatched: fewer than 5 items, grey: none"
    axes.figure.canvas.draw()
    assert axes.collections[1].get_edgecolor()[0, 3] == 1
    repeated = pd.concat([bins, bins.assign(run="r-repeat2")])
    titles = [axes.get_title() for axes in plots.depth_map(repeated)]
    assert titles == ["m [r]\nVT", "m [r-repeat2]\nVT"]
    listed = pd.concat([depths.assign(**about | {"task": task}) for task in ("vt", "cwe")])
    titles = [axes.get_title() for axes in plots.depth_map(by_bin(listed))]
    assert titles == ["m\nVT", "m\nCWE"]


def test_failures_stand_in_groups_with_their_intervals():
    counts = {"complete": 50, "empty": 20, "cut off": 0, "copied demonstration": 10, "partial": 20}
    rows = pd.DataFrame(
        {"run": run, "model": "m", "label": "M", "task": "vt", "failure": label, "count": count}
        for run in "ab"
        for label, count in {**counts, "wrong chain": 0, "refused": 0}.items()
    ).assign(length=4096, n=100)
    more = rows.assign(count=rows["count"].where(rows["failure"] != "refused", 1), length=8192)
    panels = plots.failures_by_length(pd.concat([rows, more]))
    assert [axes.get_title() for axes in panels] == ["M [a]\nVT", "M [b]\nVT"]
    names = [label.get_text() for label in panels[0].get_yticklabels()]
    found = ["complete", "no answer", "empty", "refused", "copied demonstration", "partial"]
    assert [name.strip() for name in names] == found
    assert texts(panels[0])[:4] == ["50\n[40, 60]"] * 2 + ["20\n[13, 29]", "21\n[14, 30]"]
    assert_fit_for_print(panels[0])


def test_fields_show_the_scores():
    own = summary_of("a", "b").cells.query("model == 'b'")
    (panel,) = plots.tasks_by_length(own)
    assert texts(panel) == [f"{score:.1f}" for score in own["score"]]
    names = [label.get_text() for label in panel.get_yticklabels()]
    assert names == [TASK_NAMES[task] for task in THIRTEEN]
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("Length (tokens)", "Task")
    assert_fit_for_print(panel)
    (one,) = plots.tasks_by_length(own[own["task"] == "vt"], "small protocol", {"vt": "Chains"})
    assert one.get_yticklabels()[0].get_text() == "Chains"
    assert_fit_for_print(one)
    assert one.get_window_extent().height / one.figure.dpi > 0.16


def test_figure_1_shows_both_laws_in_natural_logarithms():
    cwe = plots.word_counts(generate("cwe", 4096, 1)[0])
    alphas = (1.5, 2.0, 2.5, 3.0)
    fwe = {a: plots.word_counts(generate({"base": "fwe", "alpha": a}, 4096, 1)[0]) for a in alphas}
    left, right = plots.word_frequencies(cwe, fwe, num_types=30)
    assert [bar.get_height() for bar in left.patches] == [30] * 10 + [3] * 20
    dots = [line for line in right.get_lines() if line.get_linestyle() == "None"]
    assert [line.get_label() for line in dots] == [f"α = {a}" for a in alphas]
    for line, alpha in zip(dots, alphas, strict=True):
        x, y = line.get_xdata(), line.get_ydata()
        np.testing.assert_allclose(np.exp(y), fwe[alpha]["count"])
        assert (y[3] - y[0]) / (x[3] - x[0]) == pytest.approx(-alpha, abs=0.03)
    assert_fit_for_print(left)


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    """Each figure function, as it is called over the answers of two readers."""
    asked = {"lengths": [1024, 2048], "num_examples": 4, "tasks": ["niah_single_2", "vt", "cwe"]}
    models, folder = ["reader-1024", "reader-dropping"], tmp_path_factory.mktemp("figures")
    cells = rk.evaluate(rk.study(asked, models=models, outputs=folder), progress=False)
    scores = rk.score(cells)
    summary = rk.summarize(scores)
    bins = by_bin(recall_by_depth(rk.answers_of(scores, cells=cells)))
    shares = failures.shares(rk.answers_of(scores, labels=True, cells=cells))
    note = plots.remarks(summary.cells) + "; a note that is longer than one line of a column"
    four = summary.cells[summary.cells["task"] != "cwe"].rename(columns={"task": "panel"})
    grey = {"vt": rk.paper.published_scores(["yi-34b"], "vt")}
    thirteen, models = summary_of("a", "b").lengths, summary_of("a", "b").models
    return {
        "score_by_length": lambda: plots.score_by_length(
            thirteen, {"threshold": 85.6}, note, published=["gpt-4"]
        ),
        "claimed_and_effective": lambda: plots.claimed_and_effective(models, note=note),
        "series_by_length": lambda: plots.series_by_length(
            four, "label", note=note, published=grey, columns=4
        ),
        "depth_map": lambda: plots.depth_map(bins, note),
        "tasks_by_length": lambda: plots.tasks_by_length(summary.cells, note=note),
        "failures_by_length": lambda: plots.failures_by_length(shares, note),
    }


def luminance(color):
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def ground_of(text):
    """The colour on which a text stands: that of its field in a heatmap, else the paper's."""
    collections = text.axes.collections if text.axes and text in text.axes.texts else ()
    for field in (part for part in collections if isinstance(part, QuadMesh)):
        column, row = (int(place) for place in text.get_position())
        return field.to_rgba(field.get_array())[row, column]
    return text.figure.get_facecolor()


PRINTED = ("score_by_length", "claimed_and_effective", "depth_map", "tasks_by_length")
OTHERS = ("series_by_length", "failures_by_length")


@pytest.mark.parametrize(
    ("name", "ground"),
    [
        *((name, "white") for name in PRINTED),
        ("depth_map", "black"),
        *(pytest.param(name, "white", marks=pytest.mark.slow) for name in OTHERS),
        pytest.param("series_by_length", "black", marks=pytest.mark.slow),
    ],
)
def test_a_figure_is_readable_in_print(figures, name, ground, monkeypatch):
    """All text of 7 points or more, with a contrast of 4.5 to 1, nothing cut or on another; in a
    dark style of the user too."""
    if ground == "black":
        for key, value in matplotlib.style.library["dark_background"].items():
            monkeypatch.setitem(matplotlib.rcParams, key, value)
    drawn = np.ravel(figures[name]())
    figure = drawn[0].figure
    assert figure.get_figwidth() in (SINGLE, DOUBLE)
    for text in figure.findobj(matplotlib.text.Text):
        if text.get_text().strip() and text.get_visible():
            assert text.get_fontsize() >= 7, text
            dark, light = sorted((luminance(text.get_color()), luminance(ground_of(text))))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, text
    assert_fit_for_print(drawn[0])


def test_what_the_user_sets_wins():
    own = {"font.size": 9, "axes.prop_cycle": matplotlib.cycler(color=["#112233", "#445566"])}
    with plt.rc_context(own):
        axes = plots.score_by_length(summary_of("a", "b", "c").lengths)
    assert {line.get_color() for line in axes.get_lines()} <= {"#112233", "#445566"}
    assert {text.get_fontsize() for text in axes.get_legend().get_texts()} == {9}
    with plt.rc_context():
        matplotlib.rcdefaults()
        before = dict(matplotlib.rcParams)
        plots.tasks_by_length(summary_of("a").cells)
        assert dict(matplotlib.rcParams) == before
    with plt.style.context("rulerkit.data.rulerkit"):
        assert matplotlib.rcParams["font.size"] == 7


def test_a_saved_figure_says_what_it_was_made_from(tmp_path):
    """Fonts are whole; the caption stands beside it as text and for LaTeX."""
    study = rk.study(models=["reader-4096", "perfect"], run="mine", outputs=tmp_path)
    axes = plots.score_by_length(summary_of("a_b").lengths, note="100 % of it")
    pdf, png = study.save_figure(axes, "figure_9")
    assert pdf.name == "reader-4096+perfect-figure_9.pdf"
    content = pdf.read_bytes()
    assert b"/Type3" not in content
    assert b"/FontFile2" in content
    assert b"/Title (Figure 9: reader \\(4K window\\), perfect reader)" in content
    assert b"/Subject (run mine, 20" in content
    assert Image.open(png).info["Subject"].endswith(f"rulerkit {rk.__version__}")
    caption = "Figure 9: reader (4K window), perfect reader. "
    caption += "Bars: 95 % intervals; 100 % of it; reference readers; synthetic texts.\n"
    assert pdf.with_suffix(".txt").read_text() == caption
    assert pdf.with_suffix(".tex").read_text() == caption.replace("%", r"\%")
