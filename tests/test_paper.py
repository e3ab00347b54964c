"""The paper's rows by name and beside ours, and upstream's list; test_leaderboard rebuilds the
paper's tables."""

import math

import pytest
from test_summary import scores_of

from rulerkit import paper
from rulerkit.errors import UserError
from rulerkit.summary import summarize


def test_the_tables_are_whole():
    assert len(paper.paper_scores("v3")) + len(paper.paper_scores("v1")) == 1742
    assert len(paper.paper_summary("v3")) + len(paper.paper_summary("v1")) == 307
    assert (len(paper.paper_models()), len(paper.paper_tasks())) == (40, 13)


@pytest.mark.parametrize(
    "name",
    [
        *("llama3-1-8b", "Llama3.1 (8B)", "llama-3.1-8b", "meta-llama/Meta-Llama-3.1-8B-Instruct"),
        *("Meta-Llama-3.1-8B-Instruct", "meta-llama__Meta-Llama-3.1-8B-Instruct"),
    ],
)
def test_a_row_is_found_by_any_of_its_names(name):
    row = paper.paper_row(name)
    assert row["slug"] == "llama3-1-8b"
    assert (row["effective_length"], row["claimed_length"], row["rank_inc"]) == ("32K", "128K", 5)
    assert (row[4096], row[131072], row["avg"]) == (95.5, 77.0, 88.3)


def test_no_row_where_the_paper_has_none():
    assert paper.paper_row("reader-8192") is None
    assert paper.paper_row("") is None
    assert paper.paper_row("gemini-1-5-pro", version="v1") is None
    assert paper.paper_row("rwkv-v5-7b") is None
    assert paper.paper_row("jamba-52b-base", "vt")["rank_inc"] > 0
    assert math.isnan(paper.paper_row("gpt-4", "passkey")["rank_inc"])
    assert paper.paper_row("jamba-52b-base", "niah")["rank_inc"] == 3  # printed 3th


def test_every_model_is_found_by_its_slug_and_its_checkpoint():
    models = paper.paper_models()
    for version in paper.VERSIONS:
        for slug in paper.paper_summary(version, "all")["slug"]:
            checkpoint = models.set_index("slug").loc[slug, "checkpoint"]
            assert paper.paper_row(slug, version=version)["slug"] == slug
            assert paper.paper_row(checkpoint, version=version)["slug"] == slug


@pytest.mark.parametrize("wrong", [{"version": "v2"}, {"category": "code"}])
def test_unknown_parts_of_the_paper(wrong):
    with pytest.raises(UserError, match="allowed"):
        paper.paper_scores(**wrong)


def test_beside():
    found = paper.beside(
        summarize(
            scores_of(
                {("llama-3.1-8b", n): 0.9 for n in (4096, 8192)}
                | {("mine", n): 0.5 for n in (4096, 8192)}
            )
        )
    )
    assert found["source"].tolist() == ["ours", "paper v3", "ours"]
    assert found["model"].tolist() == ["llama-3.1-8b", "llama-3.1-8b", "mine"]
    assert found[4096].tolist() == pytest.approx([90.0, 95.5, 50.0])
    assert found["effective_length"].tolist() == [">8K", "32K", "<4K"]
    assert "averages over 4K, 8K, the paper's over 4K to 128K" in found["note"][0]


def test_beside_says_stand_in_and_other_tasks():
    scores = scores_of({("llama-3.1-8b", 4096): 0.9}, tasks=["vt"], stand_in=True)
    notes = paper.beside(summarize(scores, tasks=["vt"]))["note"]
    assert "stand-in corpora: not comparable with the paper" in notes[0]
    assert "tasks: 1, the paper's 13" in notes[0]


def test_upstreams_list_adds_the_models_that_the_paper_lacks():
    rows = paper.upstream_rows().set_index("model")
    assert len(rows) == 44 - 17
    assert rows["source"].value_counts().to_dict() == {"upstream": 15, "authors": 12}
    qwen = rows.loc["Qwen3-14B (14B)"]
    assert (qwen["effective_length"], qwen["source"]) == ("64K", "authors")
    assert qwen["note"] == "printed effective length >128K, scores at 85.6 give 64K"
    assert rows.loc["Qwen2.5-14B-Instruct-1M (14B)", "avg"] == pytest.approx(95.2)
    assert math.isnan(rows.loc["EXAONE-4.0-1.2B (1.2B)", "avg"])  # has no 128K
    shorter = paper.upstream_rows(lengths=paper.PAPER_LENGTHS[:2]).set_index("model")
    assert shorter.loc["EXAONE-4.0-1.2B (1.2B)", "avg"] == pytest.approx((87.0 + 86.7) / 2)


def against(share, **columns):
    scores = scores_of({("llama-3.1-8b", 4096): share}, n=500, wanted=500, **columns)
    found = paper.against_paper(summarize(scores))
    return found.set_index(["category", "length"]).loc[("all", 4096)]


ALIKE = {"note": "Protocol paper: prompts of the time", "tokenizer": "llama3", "template": "llama3"}


@pytest.mark.parametrize(
    ("share", "columns", "verdict"),
    [
        (0.955, {}, "agrees"),
        (0.945, {}, "differs"),
        (0.955, {"note": ""}, "not comparable: protocol"),
        (
            0.955,
            {"tokenizer": "builtin", "template": "qwen"},
            "not comparable: tokenizer, template",
        ),
        (0.955, {"stand_in": True}, "not comparable: examples"),
    ],
)
def test_our_cells_against_the_papers(share, columns, verdict):
    row = against(share, **{**ALIKE, **columns})
    assert row["verdict"] == verdict
    assert row["paper"] == 95.5
    assert abs(row["z"]) < 0.5 or (share == 0.945 and row["z"] < -1.96)
