"""Texts, questions and words of one's own: exact and full in other scripts, answered by the perfect reader, told apart
in records, refused in one line where they cannot be used."""

import json
from itertools import pairwise, product

import pytest
from test_generation import check_example, filled

import rulerkit as rk
from rulerkit.common.errors import UserError
from rulerkit.generation import corpora as own_texts
from rulerkit.generation.pieces import piece_encoder
from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.generation.tasks import THIRTEEN, read_answer
from rulerkit.report import plots, tables

SENTENCES = {  # who, what, end, what stands between sentences
    "chinese": (
        "老师 学生 船长 医生",
        "走过了长桥 写了一封信 找到了一本旧书",
        "{}{}，一共{}次。",
        "",
    ),
    "arabic": ("المعلم الطالب القبطان", "كتب عبر زرع", "هل {} {} {} مرة؟", " "),
}
CITIES = [a + b for a, b in product("东西南北上下", "山河城村路桥湖港")]
PARTS = [a + b for a, b in product("bdfg", "ae")]  # 64 words, few more than `cwe` needs


def text(language, count=300):
    """A few sentences, repeated with numbers."""
    who, what, form, between = SENTENCES[language]
    pairs = list(product(who.split(), what.split()))
    return between.join(form.format(*pairs[i % len(pairs)], i) for i in range(count))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A project with a folder of texts, a file of questions and a list of words."""
    monkeypatch.setenv("RULERKIT_HOME", str(tmp_path))
    (tmp_path / "texts/more").mkdir(parents=True)
    (tmp_path / "texts/a.txt").write_text(text("chinese"), encoding="utf-8-sig")
    (tmp_path / "texts/more/b.md").write_text(text("arabic"), encoding="utf-8")
    lines = []
    for year, city in enumerate(CITIES, 1000):
        question = {"question": f"{city}的塔建于哪一年？", "answers": [f"公元{year}年", str(year)]}
        question["gold_documents"] = [f"{city}有一座塔，建于公元{year}年。"]
        question["other_documents"] = [f"{city}有{year}座桥。"] * (year % 2)
        lines.append(json.dumps(question, ensure_ascii=False))
    (tmp_path / "qa.jsonl").write_text("\n".join(lines), encoding="utf-8")
    words = ["".join(parts) for parts in product(PARTS, PARTS)]
    (tmp_path / "words.txt").write_text("\n".join(words), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("language", SENTENCES)
def test_essays_in_other_scripts_are_exact_full_and_cut_at_sentences(vocabulary, home, language):
    (home / "own.txt").write_text(text(language), encoding="utf-8")
    form = PromptFormat(vocabulary, template="base")
    assert piece_encoder(vocabulary).exact
    asked = rk.task("niah_multiquery").with_corpora({"essay": "own.txt"})
    for example in rk.generate(asked, 4096, 2, prompt_format=form):
        check_example(example, form.bos, vocabulary)
        assert example.whole_ids is None
        # Scripts without blanks are filled by whole sentences.
        assert filled(example) >= (98 if language == "chinese" else 99.5)
        assert asked.score(read_answer(example.prompt), example.references) == 1
        blocks = example.context_blocks
        before = [a.text for a, b in pairwise(blocks) if b.role == "needle"]
        assert all(t.endswith(("。", "！", "؟", "।", ".")) for t in before), before


def study(home, **changes):
    corpora = {"essay": "texts", "qa": "qa.jsonl", "words": "words.txt"}
    parameters = {"lengths": [4096], "num_examples": 3, "outputs": "out", "corpora": corpora}
    return rk.study(model="perfect", **parameters | changes)


def test_all_tasks_over_own_corpora(home, rulerkit):
    cells = rk.evaluate(study(home), progress=False)
    scores = rk.score(cells)
    assert set(scores["task"]) == set(THIRTEEN)
    assert (scores["score"] == 1).all()
    summary = rk.summarize(scores)
    table = tables.task_table_text(summary, "perfect", "main")
    assert "Not comparable with the paper: reference readers, own texts.\n" in table
    for words in ("essay from texts", "qa from qa.jsonl", "words from words.txt"):
        assert f"Own texts: {words}.\n" in table
    assert "Synthetic" not in table
    assert plots.remarks(summary.cells).startswith("reference readers; own texts")
    assert set(rk.answers_of(cells, labels=True)["failure"]) == {"complete"}
    for cell in cells:
        own = {"vt": 0, "fwe": 0, "niah_multikey_3": 0}.get(cell.task, 1)
        assert bool(cell.record["result"]["sources"]) == own, cell.task
    assert len(rk.evaluate(study(home, num_examples=5), progress=False)) == 13  # resumes


def test_a_changed_file_is_noticed_and_a_moved_one_is_not_another(home):
    asked = {"tasks": ["niah_single_2", "qa_1", "cwe"]}
    rk.evaluate(study(home, **asked), progress=False)
    changes = {"texts/more/b.md": ("هل", "لا"), "qa.jsonl": ("塔", "桥"), "words.txt": ("ba", "bo")}
    for name, (old, new) in changes.items():
        file, content = home / name, (home / name).read_text(encoding="utf-8")
        file.write_text(content.replace(old, new), encoding="utf-8")
        own_texts.LOADED.clear()  # as another process, which reads them anew
        with pytest.raises(UserError, match=r"sources\.\w+\.fingerprint"):
            rk.evaluate(study(home, **asked), progress=False)
        file.write_text(content, encoding="utf-8")
        own_texts.LOADED.clear()
    (home / "moved").mkdir()
    for name in ("texts", "qa.jsonl", "words.txt"):
        (home / name).rename(home / "moved" / name)
    corpora = {"essay": "moved/texts", "qa": "moved/qa.jsonl", "words": home / "moved/words.txt"}
    rk.evaluate(study(home, **asked, corpora=corpora), progress=False)
    with pytest.raises(UserError, match=r"sources\.essays\.name"):
        rk.evaluate(study(home, **asked, corpora="builtin"), progress=False)


GOOD = '{"question": "q", "answers": ["a"], "gold_documents": ["a b"], "other_documents": ["c"]}\n'


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("essay", b"caf\xe9", r"own cannot be used .*can't decode byte 0xe9 in position 3"),
        ("qa", GOOD.replace("answers", "anwers").encode(), "line 1: answers: Field required"),
        ("qa", GOOD.replace("a b", "long " * 900).encode(), "more than 3000 characters together"),
        ("words", b"one\ntwo words\n", "it is no list of words: 'two words'"),
        ("texts", b"x", "unknown key of corpora 'texts'"),
    ],
)
def test_what_cannot_be_used_is_one_line(home, kind, content, message):
    own = home / "own"
    own.write_bytes(content)
    tasks = ["niah_single_2", "qa_1", "cwe"]
    with pytest.raises(UserError, match=message) as error:
        rk.evaluate(study(home, corpora={kind: "own"}, tasks=tasks), progress=False)
    assert "\n" not in str(error.value)


def test_a_task_keeps_the_file_that_it_names(home):
    tasks = [{"base": "niah_single_2", "essays": "texts", "name": "own"}, "niah_single_2"]
    asked = study(home, tasks=tasks, corpora={"base": "original", "words": "words.txt"})
    assert [task.essays for task in asked.tasks] == ["texts", "paul_graham"]
