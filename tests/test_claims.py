"""Claims held against data: what intervals can say, what they cannot, and what is not about the models shown."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rulerkit import claims, sweeps
from rulerkit.claims import ELSEWHERE, FAILS, HOLDS, UNKNOWN, Verdict, correlation, paper_verdicts
from rulerkit.claims.paper_claims import CLAIMS, stated
from rulerkit.errors import UserError
from rulerkit.plots import sweep_plots
from rulerkit.tasks import TASKS


def rows(means: Mapping[Any, float], task: str = "vt", n: int = 100, seed: int = 1, **about: Any) -> pd.DataFrame:
    """Right or wrong answers with these shares (percent) by length; example i has one luck at every length."""
    luck = np.random.default_rng(seed).random(n)
    frames = []
    for length, mean in means.items():
        score = (luck < mean / 100).astype(float)
        cell = {"run": "r", "model": "m", "label": "M", "claimed_length": float("nan"), "wanted": n, **about}
        frames.append(pd.DataFrame({"index": range(n), "score": score, "task": task, "length": length, **cell}))
    return pd.concat(frames, ignore_index=True)


# --- intervals --------------------------------------------------------------------------------------------------------


def test_the_same_examples_are_compared_pair_by_pair() -> None:
    own = rows({4096: 70, 8192: 60})
    a, b = claims.select(own, length=8192), claims.select(own, length=4096)
    paired = claims.difference(a, b)
    independent = claims.difference(a.assign(task="cwe"), b)
    assert paired is not None
    assert independent is not None
    assert paired.value == pytest.approx(independent.value)
    assert (paired.high - paired.low) < 0.7 * (independent.high - independent.low)


def test_all_right_leaves_some_doubt_and_stays_within_what_is_possible() -> None:
    found = claims.contrast([(1.0, rows({4096: 100}, n=20))])
    assert found is not None
    assert found.value == found.high == 100
    assert 75 < found.low < 95
    far = claims.difference(rows({4096: 0}, n=5), rows({4096: 100}, n=5))
    assert far is not None
    assert far.value == far.low == -100
    assert far.high < 0


def test_intervals_cover_the_truth() -> None:
    random, inside = np.random.default_rng(3), 0
    for i in range(300):
        a, b = rows({4096: 80}, "vt", 40, int(random.integers(10**9))), rows({4096: 60}, "cwe", 40, i)
        found = claims.difference(a, b)
        assert found is not None
        inside += found.low <= 20 <= found.high
    assert inside >= 0.92 * 300


def test_cells_that_are_missing_or_incomplete_are_not_judged() -> None:
    own = rows({4096: 70, 8192: 20})
    a, b = claims.select(own, length=8192), claims.select(own, length=4096)
    assert claims.difference(a[:50], b) is None
    assert claims.lower("c", a[:0], b, "n").verdict == UNKNOWN
    assert claims.lower("c", a, b, "n").verdict == HOLDS
    whole = claims.asked_for(pd.concat([a, b[:50]]), 50)
    assert len(whole) == 100
    assert claims.lower("c", *(claims.select(whole, length=n) for n in (8192, 4096)), "n").verdict == HOLDS


# --- judging ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "n", "verdict"),
    [(50, 80, 100, HOLDS), (80, 50, 100, FAILS), (60, 62, 50, UNKNOWN), (90, 90, 4000, FAILS), (0, 100, 1, UNKNOWN)],
)
def test_lower(a: float, b: float, n: int, verdict: str) -> None:
    found = claims.lower("c", rows({4096: a}, n=n), rows({4096: b}, "cwe", n, 2), "a less b")
    assert found.verdict == verdict
    assert found.seen.startswith("a less b: ")


@pytest.mark.parametrize(("a", "verdict"), [(60, HOLDS), (95, FAILS), (10, FAILS), (70, UNKNOWN)])
def test_about(a: float, verdict: str) -> None:
    assert claims.about("c", rows({4096: a}, n=2000), rows({4096: 100}, n=2000), 40, "n").verdict == verdict


def test_thresholds() -> None:
    own = rows({4096: 90}, n=200)
    assert claims.above("c", own, 80, "n").verdict == claims.below("c", own, 97, "n").verdict == HOLDS
    assert claims.above("c", own, 97, "n").verdict == claims.below("c", own, 80, "n").verdict == FAILS
    assert claims.above("c", own, 90, "n").verdict == UNKNOWN


@pytest.mark.parametrize(
    ("means", "verdict"),
    [
        ({4096: 90, 8192: 70, 16384: 40}, HOLDS),
        ({4096: 90, 8192: 40, 16384: 70}, FAILS),
        ({4096: 90, 8192: 40, 16384: 40}, UNKNOWN),  # all in one step, as far as one can tell
        ({4096: 90, 8192: 89, 16384: 90}, UNKNOWN),
        ({4096: 90}, UNKNOWN),
    ],
)
def test_falls_with_length(means: dict[int, float], verdict: str) -> None:
    assert claims.falls_with_length("c", rows(means), "M").verdict == verdict


def test_a_step_up_is_named() -> None:
    found = claims.falls_with_length("c", rows({4096: 90, 8192: 40, 16384: 70}), "M")
    assert "8K to 16K rises by" in found.seen


@pytest.mark.parametrize(
    ("means", "verdict"),
    [
        ({4096: 90, 8192: 80, 16384: 70, 32768: 60}, HOLDS),
        ({4096: 90, 8192: 90, 16384: 90, 32768: 10}, FAILS),
        ({4096: 90, 8192: 80}, UNKNOWN),
    ],
)
def test_straight(means: dict[int, float], verdict: str) -> None:
    assert claims.straight("c", rows(means, n=1500), "M").verdict == verdict


@pytest.mark.parametrize(
    ("means", "verdict"),
    [
        ({4096: 90, 8192: 85, 16384: 30}, HOLDS),
        ({4096: 90, 8192: 50, 16384: 45}, FAILS),
        ({4096: 90, 8192: 85}, UNKNOWN),
        ({16384: 85}, UNKNOWN),
    ],
)
def test_abrupt(means: dict[int, float], verdict: str) -> None:
    assert claims.abrupt("c", rows(means, n=300), 8192, "M").verdict == verdict


def test_what_is_kept_is_compared_relative_to_the_start() -> None:
    small, large = rows({4096: 50, 8192: 25}, n=400), rows({4096: 90, 8192: 81}, n=400, seed=2)
    ends = [tuple(claims.select(each, length=n) for n in (4096, 8192)) for each in (small, large)]
    found = claims.ratio_difference(*ends)  # type: ignore[arg-type]
    assert found is not None
    assert found.value == pytest.approx(-40, abs=4)
    assert found.low < found.value < found.high < 0


def test_parts() -> None:
    good, bad, open_, other = (Verdict("", v, v) for v in (HOLDS, FAILS, UNKNOWN, ELSEWHERE))
    assert claims.every("c", [good, other, good]).verdict == HOLDS
    assert claims.every("c", [good, open_]).verdict == UNKNOWN
    assert claims.every("c", [good, open_, bad]).verdict == FAILS
    assert claims.every("c", [other]).verdict == ELSEWHERE
    assert claims.some("c", [bad, good]).verdict == HOLDS
    assert claims.some("c", [bad, open_]).verdict == UNKNOWN
    assert claims.some("c", [bad, bad]).verdict == FAILS


def test_tables_can_be_shown() -> None:
    found = [Verdict("a claim", HOLDS, "1.0 [0.5, 1.5]"), Verdict("another", UNKNOWN, "nothing")]
    assert "a claim" in claims.show_verdicts(found).to_html()
    assert list(claims.verdict_table(found)) == ["claim", "verdict", "seen"]
    for notebook in CLAIMS:
        assert "the paper says" in stated(notebook).to_html()


# --- the paper's claims -----------------------------------------------------------------------------------------------


def swept(name: str, means: Mapping[Any, float], n: int = 200, **about: Any) -> tuple[pd.DataFrame, list[Any]]:
    series = sweeps.sweep(name, list(means))
    cells = [rows({4096: mean, 8192: mean}, each.task.name, n, i, **about)
             for i, (each, mean) in enumerate(zip(series, means.values(), strict=True))]  # fmt: skip
    return pd.concat(cells, ignore_index=True), series


def said(verdicts: list[Verdict]) -> list[str]:
    return [verdict.verdict for verdict in verdicts]


def test_needle_types() -> None:
    means = {"passkey": 100, "vanilla": 99, "word-uuid": 30, "word-word": 70}
    assert said(paper_verdicts.needle_types(*swept("needles", means))) == [HOLDS] * 3
    assert said(paper_verdicts.needle_types(*swept("needles", means | {"word-uuid": 90}))) == [HOLDS, HOLDS, FAILS]
    assert said(paper_verdicts.needle_types(*swept("needles", {"passkey": 100}))) == [UNKNOWN] * 3


def test_distractors_and_a_claim_about_one_model() -> None:
    scores, series = swept("keys", {1: 100, 4: 80, "full": 40})
    assert said(paper_verdicts.distractors(scores, series)) == [HOLDS, ELSEWHERE]
    yi = scores.assign(model="yi-34b", label="Yi (34B)")
    assert said(paper_verdicts.distractors(yi, series)) == [HOLDS, UNKNOWN]
    far = pd.concat([yi, yi[yi["length"] == 4096].assign(length=262144)], ignore_index=True)
    assert said(paper_verdicts.distractors(far, series)) == [HOLDS, FAILS]


def test_several_models_are_judged_one_by_one() -> None:
    scores, series = swept("alphas", {3.5: 90, 2.0: 60})
    other, _ = swept("alphas", {3.5: 60, 2.0: 90}, model="m2", label="M2")
    found = paper_verdicts.frequent_words(pd.concat([scores, other]), series)
    assert [(v.claim.split(":")[0], v.verdict) for v in found] == [("M", HOLDS), ("M2", FAILS)]


def three(**means: dict[int, float]) -> pd.DataFrame:
    return pd.concat([rows(m, n=600, model=name, label=name) for name, m in means.items()], ignore_index=True)


def test_training_lengths() -> None:
    scores = three(a={4096: 90, 8192: 80, 16384: 20, 32768: 10}, b={4096: 95, 8192: 90, 16384: 85, 32768: 40})
    trained = paper_verdicts.training_lengths(scores, {"a": "8K", "b": 16384})
    assert trained == {"a": 8192, "b": 16384}
    assert said(paper_verdicts.training_length(scores, trained)) == [HOLDS, FAILS, ELSEWHERE, HOLDS, UNKNOWN]
    inverted = paper_verdicts.training_length(scores, {"a": 16384, "b": 8192})
    assert said(inverted)[:2] == [FAILS, HOLDS]
    with pytest.raises(UserError, match="names 'c', which is not among the models shown: a, b"):
        paper_verdicts.training_lengths(scores, {"c": 4096})


def test_sizes_and_architectures() -> None:
    scores = three(a={4096: 60, 8192: 20}, b={4096: 95, 8192: 90})
    assert said(paper_verdicts.model_size(scores)) == [HOLDS, HOLDS]
    assert said(paper_verdicts.model_size(scores[scores["label"] == "a"])) == [UNKNOWN, UNKNOWN]
    assert said(paper_verdicts.architectures(scores, "b", 4096)) == [HOLDS, HOLDS, HOLDS]
    assert said(paper_verdicts.architectures(scores, "a", 4096)) == [HOLDS, FAILS, HOLDS]
    with pytest.raises(UserError, match="reference 'c' is not among the models shown: a, b"):
        paper_verdicts.architectures(scores, "c", 4096)


# --- sweeps and correlations ------------------------------------------------------------------------------------------


def test_the_papers_values_share_what_is_the_same() -> None:
    vanilla = [next(s for s in sweeps.sweep(name) if s.value in (1, "vanilla")) for name in SHARING]
    assert {series.task for series in vanilla} == {TASKS["niah_single_2"]}
    everything = [series for name in sweeps.SWEEPS for series in sweeps.sweep(name)]
    names = [each.name for each in sweeps.tasks_of(everything)]
    assert len(names) == len(set(names)) == 30
    settings = {name: TASKS[name].settings() for name in names if name in TASKS}
    assert len(settings) == 17
    assert len(sweeps.tasks_of(series for name in SHARING for series in sweeps.sweep(name))) == 15, "Figure 2"
    assert [s.label for s in sweeps.sweep("keys")] == ["#K = 1", "#K = 4", "#K = 8", "#K = FULL", "#K = FULL uuid-uuid"]


SHARING = ("needles", "keys", "values", "queries")


@pytest.mark.parametrize(("name", "values"), [("needles", ["word"]), ("keys", [0]), ("hops", ["many"]), ("keys", "8")])
def test_values_that_make_no_task(name: str, values: Any) -> None:
    with pytest.raises(UserError):
        sweeps.sweep(name, values)


def test_correlated_tasks_are_found() -> None:
    random = np.random.default_rng(0)
    names = ["niah_single_1", "niah_single_words", "vt", "vt_2_chains", "cwe", "qa_1"]
    hidden = random.normal(size=(24, 4))[:, [0, 0, 1, 1, 2, 3]]
    vectors = pd.DataFrame(60 + 10 * hidden + random.normal(size=(24, 6)), columns=names)
    found = correlation.correlations(vectors)
    kinds = {name: TASKS[name].category for name in names}
    table = correlation.redundancy(vectors, found, kinds, names[::2] + ["qa_1"])
    removed = table[~table["in_benchmark"]].set_index("task")
    assert removed["nearest"].to_dict() == {"niah_single_words": "niah_single_1", "vt_2_chains": "vt"}
    assert table.loc[table["cut_keeps"], "task"].isin(["niah_single_1", "vt", "cwe", "qa_1"]).all()
    assert said(correlation.judge(vectors, found, table)) == [HOLDS, HOLDS, HOLDS]


def test_correlations_need_several_scores() -> None:
    cells = pd.DataFrame({"run": "r", "model": "m", "length": [4096, 8192], "task": "vt", "score": [1.0, 2.0]})
    with pytest.raises(UserError, match=r"2 complete rows .* at least 3"):
        correlation.task_vectors(cells)


# --- figures ----------------------------------------------------------------------------------------------------------


def frame_of(**series: dict[int, float]) -> pd.DataFrame:
    lines = [
        {"panel": "p", "series": name, "label": "M", "length": n, "score": s, "low": s - 5, "high": min(100, s + 5)}
        for name, means in series.items()
        for n, s in means.items()
    ]
    return pd.DataFrame(lines)


def test_lines_are_dashed_past_the_training_length_and_flat_where_asked() -> None:
    import matplotlib.pyplot as plt

    frame = frame_of(a={4096: 90, 8192: 80, 16384: 40}, b={4096: 30})
    (axes,) = sweep_plots.series_by_length(frame, dashed_beyond={"a": 8192}, flat=["b"], note="a note")
    solid, dashed, hollow, flat = axes.get_lines()
    step = [np.log2(np.asarray(line.get_xdata(), dtype=float)) for line in (solid, dashed, hollow)]
    assert [len(x) for x in step] == [2, 2, 1]
    assert [line.get_linestyle() for line in (solid, dashed)] == ["-", "--"]
    assert list(np.asarray(flat.get_ydata(), dtype=float)) == [30, 30]
    figure: Any = axes.figure
    assert "dashed: beyond the training length; a note" in [text.get_text() for text in figure.texts]
    (axes,) = sweep_plots.series_by_length(frame, dashed_beyond={"a": 16384})
    figure = axes.figure
    assert not figure.texts
    plt.close("all")


def test_several_models_and_panels_have_their_own_axes() -> None:
    import matplotlib.pyplot as plt

    one = frame_of(a={4096: 90, 8192: 80}, b={4096: 30, 8192: 20})
    frame = pd.concat([one.assign(label=m, panel=p) for m in "MN" for p in "pq"])
    panels = sweep_plots.series_by_length(frame)
    assert [axes.get_title(loc="left") for axes in panels] == ["M\np", "M\nq", "N\np", "N\nq"]
    with pytest.raises(UserError, match="no complete scores"):
        sweep_plots.series_by_length(frame.assign(score=float("nan")))
    plt.close("all")


def test_removed_tasks_are_red() -> None:
    import matplotlib.pyplot as plt

    found = pd.DataFrame([[1, 0.9], [0.9, 1]], index=["vt", "cwe"], columns=["vt", "cwe"])
    axes = sweep_plots.correlation_heatmap(found, ["cwe"], ["vt", "aggregation"])
    colors = {label.get_text(): label.get_color() for label in axes.get_yticklabels()}
    assert colors["cwe"] != colors["vt"]
    assert [text.get_text() for text in axes.texts] == ["1", ".90", ".90", "1"]
    plt.close("all")
