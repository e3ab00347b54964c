"""What is asked: every prompt byte for byte (written out here by hand), counts, order, knobs, and
reading."""

import re
from collections import Counter

import numpy as np
import pytest

from rulerkit.corpora import load_haystack, load_qa, load_words
from rulerkit.errors import UserError
from rulerkit.example import Example
from rulerkit.generation import generate
from rulerkit.tasks import TASKS, THIRTEEN, Task, read_answer, task

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
SENTENCES = [sentence + "." for sentence in NOISE.rstrip(".").split(". ")]
UUID4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
KIND = {"numbers": r"[1-9]\d{6}", "uuids": UUID4, "words": r"[a-z' .]+-[A-Za-z' .-]+"}


def examples(spec: object, length: int = 4096, count: int = 3) -> list[Example]:
    return list(generate(task(spec).with_corpora("builtin"), length, count))


def between(text: str, head: str, tail: str) -> str:
    """What stands between a beginning and an end that must be there byte for byte."""
    assert text.startswith(head), (text[:400], head)
    assert text.endswith(tail), (text[-400:], tail)
    return text[len(head) : len(text) - len(tail)]


# --- the thirteen ---------------------------------------------------------------------------------


def test_the_thirteen_and_the_five() -> None:
    assert list(TASKS) == [
        *(
            "niah_single_1",
            "niah_single_2",
            "niah_single_3",
            "niah_multikey_1",
            "niah_multikey_2",
            "niah_multikey_3",
        ),
        *("niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2"),
        *("niah_single_words", "niah_multivalue_2", "niah_multiquery_2", "vt_2_chains", "fwe_3.5"),
    ]
    assert list(THIRTEEN) == list(TASKS)[:13]
    by_category = Counter(TASKS[name].category for name in THIRTEEN)
    assert by_category == {"niah": 8, "vt": 1, "aggregation": 2, "qa": 2}
    assert {name: TASKS[name].match for name in THIRTEEN if TASKS[name].match == "part"} == {
        "qa_1": "part",
        "qa_2": "part",
    }


def test_answer_tokens() -> None:
    want = {"niah": 128, "variable_tracking": 30, "common_words": 120, "frequent_words": 50}
    for made in TASKS.values():
        tokens = want.get(made.family, 32)
        assert made.answer_tokens == made.settings()["max_new_tokens"] == tokens


@pytest.mark.parametrize(
    ("spec", "tokens"),
    [
        ({"base": "vt", "num_hops": 9}, 60),
        ({"base": "vt", "num_hops": 2}, 30),
        ({"base": "cwe", "num_cw": 20}, 240),
        ({"base": "fwe", "k": 6}, 100),
        ({"base": "niah_multiquery", "num_queries": 4, "num_values": 2}, 256),
        ({"base": "vt", "num_hops": 9, "max_new_tokens": 45}, 45),
    ],
)
def test_more_answers_need_more_tokens(spec: dict, tokens: int) -> None:
    assert task(spec).answer_tokens == examples(spec, count=1)[0].max_new_tokens == tokens


# --- needle in a haystack -------------------------------------------------------------------------

NEEDLES = {  # task: haystack, kind of key, kind of value, keys, values, queries (the table of the benchmark)
    "niah_single_1": ("noise", "words", "numbers", 1, 1, 1),
    "niah_single_2": ("essay", "words", "numbers", 1, 1, 1),
    "niah_single_3": ("essay", "words", "uuids", 1, 1, 1),
    "niah_multikey_1": ("essay", "words", "numbers", 4, 1, 1),
    "niah_multikey_2": ("needle", "words", "numbers", 1, 1, 1),
    "niah_multikey_3": ("needle", "uuids", "uuids", 1, 1, 1),
    "niah_multivalue": ("essay", "words", "numbers", 1, 4, 1),
    "niah_multiquery": ("essay", "words", "numbers", 4, 1, 4),
    "niah_single_words": ("essay", "words", "words", 1, 1, 1),
    "niah_multivalue_2": ("essay", "words", "numbers", 1, 2, 1),
    "niah_multiquery_2": ("essay", "words", "numbers", 2, 1, 2),
}


@pytest.mark.parametrize("name", NEEDLES)
def test_needle_prompts(name: str) -> None:
    haystack, key_kind, kind, num_keys, num_values, num_queries = NEEDLES[name]
    one = num_values * num_queries == 1
    some, are, what = (
        (f"A special magic {kind[:-1]}", "is", "What is the special magic ")
        if one
        else (f"Some special magic {kind}", "are", "What are all the special magic ")
    )
    noun = kind[:-1] if one else kind
    for made in examples(name):
        query = re.findall(
            r"magic [a-z]+ for (.+) mentioned in the provided text\? The", made.prompt
        )[-1]
        about = f"{noun} for {query} mentioned in the provided text"
        context = between(
            made.prompt,
            f"{some} {are} hidden within the following text. Make sure to memorize it. I will quiz "
            f"you about the {noun} afterwards.\n",
            f"\n{what}{about}? The special magic {about} {are}",
        )
        hidden = re.findall(
            rf"One of the special magic {kind} for ({KIND[key_kind]}) is: ({KIND[kind]})\.", context
        )
        assert len({value for _, value in hidden}) == len(hidden)
        asked = query.replace(", and ", ", ").split(", ") if num_queries > 1 else [query]
        assert (", and " in query) == (num_queries > 1)
        values = [[value for key, value in hidden if key == name_] for name_ in asked]
        assert [len(row) for row in values] == [num_values] * num_queries
        flat = [value for row in values for value in row]
        assert sorted(made.references) == sorted(flat)
        assert num_queries == 1 or list(made.references) == flat
        if haystack != "needle":
            assert len({key for key, _ in hidden}) == num_keys
            assert len(hidden) == num_keys * num_values
        check_haystack(haystack, kind, context)


def check_haystack(haystack: str, kind: str, context: str) -> None:
    needle = rf"One of the special magic {kind} for (.+?) is: ({KIND[kind]})\."
    if haystack == "needle":
        lines = context.split("\n")
        assert all(re.fullmatch(needle, line) for line in lines)
        assert len(set(lines)) == len(lines) > 40
        assert len({re.fullmatch(needle, line)[1] for line in lines}) == len(lines)
    elif haystack == "noise":
        lines = [line for line in context.split("\n") if not re.fullmatch(needle, line)]
        assert set(lines[:-1]) == {NOISE}
        assert lines[-1] in [" ".join(SENTENCES[: i + 1]) for i in range(5)]
    else:
        corpus = load_haystack("prose")
        words = re.sub(rf" ?{needle}", "", context).split(" ")
        assert [word for word in words if word] == list(
            corpus.words[: len([w for w in words if w])]
        )
        assert "\n" not in context
        assert "  " not in context


def test_needles_of_essays_stand_between_sentences() -> None:
    starts = set(load_haystack("prose").sentence_starts.tolist())
    for made in examples("niah_multikey_1", count=5):
        words, boundaries = 0, []
        for piece in made.pieces[1:]:
            if piece.key:
                boundaries.append(words)
            elif piece.role == "haystack":
                words += len(piece.text.split())
        assert len(set(boundaries)) == 4
        assert all(at in starts or at == words for at in boundaries)


def test_a_line_of_sentences_has_at_most_one_needle_before_it() -> None:
    for made in examples({"base": "niah_single_1", "num_keys": 30}):
        assert not re.search(r"\.\nOne of the .*\nOne of the ", made.prompt)
        assert made.prompt.count("One of the special") == 30


@pytest.mark.parametrize("haystack", ["noise", "essay", "needle"])
def test_all_kinds_of_keys_and_values(haystack: str) -> None:
    for key, value in (("words", "uuids"), ("numbers", "words"), ("uuids", "numbers")):
        spec = {"base": "niah_multikey_1", "haystack": haystack, "key": key, "value": value}
        made = examples(spec | {"depths": "even"}, 2048, 1)[0]
        (reference,) = made.references
        assert re.fullmatch(KIND[value], reference)
        asked = re.findall("for (.+) mentioned", made.answer_prefix)[0]
        assert re.fullmatch(KIND[key], asked)
        assert f" for {asked} is: {reference}." in made.context_text


# --- variable tracking ----------------------------------------------------------------------------


def chains_of(context: str, letters: int) -> dict[str, list[str]]:
    """Value to names, by following the statements in order; each must stand after the one it refers
    to."""
    held: dict[str, str] = {}
    chains: dict[str, list[str]] = {}
    for name, other, value in re.findall(
        rf"VAR ([A-Z]{{{letters}}}) = (?:VAR ([A-Z]{{{letters}}}) |(\d{{5}}))", context
    ):
        assert name not in held
        held[name] = value or held[other]
        chains.setdefault(held[name], []).append(name)
    assert context.count("VAR ") == sum(2 * len(names) - 1 for names in chains.values())
    assert all(10000 <= int(value) <= 99998 for value in chains)
    return chains


VT = [("vt", 1, 4), ({"base": "vt", "num_chains": 3, "num_hops": 6}, 3, 6)]


def vt_prefix(hops: int, value: str, spelled: str) -> str:
    return (
        f" Answer: According to the chain(s) of variable assignment in the text above, {hops + 1} "
        f"variables are {spelled} "
        f"the value {value}, they are: "
    )


@pytest.mark.parametrize(("spec", "chains", "hops"), VT)
def test_tracking_prompts_2025(spec: object, chains: int, hops: int) -> None:
    opening = (
        "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
    )
    shown = set()
    for made in examples(spec):
        parts = made.prompt.split(opening)
        assert len(parts) == 3
        assert parts[0] == ""
        value = re.findall(r"assigned the value (\d+) in the text above", parts[1])[0]
        question = "Question: Find all variables that are assigned the value {} in the text above."
        demonstrated = chains_of(parts[1].partition("Question:")[0], 3)
        assert {len(names) for names in demonstrated.values()} == {hops + 1}
        assert len(demonstrated) == chains
        answer = (
            "\n"
            + question.format(value)
            + vt_prefix(hops, value, "assigned")
            + " "
            + " ".join(demonstrated[value])
        )
        check_lines(between(parts[1], "", answer + "\n\n"), cut=False)
        shown.add(parts[1])
        value = re.findall(r"assigned the value (\d+) in the text above", parts[2])[0]
        context = between(
            parts[2], "", "\n" + question.format(value) + vt_prefix(hops, value, "assigned")
        )
        tracked = chains_of(context + "\n", 5)
        assert len(tracked) == chains
        assert {len(names) for names in tracked.values()} == {hops + 1}
        assert tracked[value] == list(made.references)
        assert not tracked.keys() & demonstrated.keys()
        check_lines(context)
    assert len(shown) == 3, "each example has its own demonstration"


def check_lines(context: str, cut: bool = True) -> None:
    lines = context.split("\n")
    assert all(
        line == NOISE or re.fullmatch(r"VAR [A-Z]+ = (\d{5}|VAR [A-Z]+ )", line)
        for line in lines[:-1]
    )
    assert lines[-1].startswith(("The grass is green.", "VAR"))
    assert (
        lines[-1] in (NOISE, *([" ".join(SENTENCES[:i]) for i in range(1, 5)] if cut else []))
        or "VAR" in lines[-1]
    )


@pytest.mark.parametrize(("spec", "chains", "hops"), VT)
def test_tracking_prompts_2024(spec: object, chains: int, hops: int) -> None:
    opening = "Memorize and track the chain(s) of variable assignment hidden in the following text."
    shown = set()
    for made in examples(
        {"edition": "2024", **(spec if isinstance(spec, dict) else {"base": spec})}
    ):
        demonstration, _, rest = made.prompt.rpartition(opening + "\n\n")
        value = re.findall(r"assigned the value (\d+) in the text Answer:", demonstration)[0]
        names = demonstration.rstrip("\n").split(" ")[-hops - 1 :]
        body = between(
            demonstration,
            f" {opening} ",
            f" Question: Find all variables that are assigned the value {value} in the text"
            f"{vt_prefix(hops, value, 'assgined')} {' '.join(names)}\n\n\n\n",
        )
        assert chains_of(body, 3)[value] == names
        check_blanks(body)
        assert body.endswith("back again.\n")
        shown.add(demonstration)
        value = re.findall(r"assigned the value (\d+) in the text above", rest)[0]
        question = (
            f"\nQuestion: Find all variables that are assigned the value {value} in the text above."
        )
        context = between(rest, "", question + vt_prefix(hops, value, "assgined"))
        assert chains_of(context, 5)[value] == list(made.references)
        assert len(chains_of(context, 5)) == chains
        check_blanks(context)
    assert len(shown) == 1, "one demonstration for all"


def check_blanks(context: str) -> None:
    """Statements and noise joined by one blank each; only noise ends in a newline; a hop keeps its
    own blank."""
    statement = r"VAR [A-Z]+ = (?:\d{5}|VAR [A-Z]+ )"
    short = "|".join(re.escape(" ".join(SENTENCES[:i])) for i in range(1, 5))
    units = rf"(?:{statement}|{re.escape(NOISE)}\n)"
    assert re.fullmatch(rf"{units}(?: {units})*(?: (?:{short})\n)?", context), context[-300:]


def test_the_demonstration_is_about_500_tokens() -> None:
    for edition in ("2024", "2025"):
        for chains in (1, 3):
            spec = {"base": "vt", "edition": edition, "num_chains": chains}
            pieces = examples(spec, 4096, 1)[0].pieces
            assert 400 <= sum(p.num_tokens for p in pieces if p.role == "demonstration") <= 800


def test_a_demonstration_can_be_left_out() -> None:
    made = examples({"base": "vt", "demonstration": False})[0]
    assert made.prompt.startswith("Memorize and track")
    assert made.prompt.count("Memorize and track") == 1
    assert (
        examples({"base": "cwe", "demonstration": False})[0].prompt.count(
            "Below is a numbered list"
        )
        == 1
    )


# --- common words ---------------------------------------------------------------------------------


def cwe_list(text: str) -> Counter[str]:
    """The counts of a numbered list; numbers must run from 1."""
    entries = re.findall(r"(\d+)\. (.+?)(?= \d+\. |$)", text)
    assert [int(number) for number, _ in entries] == list(range(1, len(entries) + 1))
    assert " ".join(f"{number}. {word}" for number, word in entries) == text
    return Counter(word for _, word in entries)


@pytest.mark.parametrize(
    ("edition", "length", "often", "seldom", "shown"),
    [
        ("2025", 4095, 6, 1, (20, 3, 1)),
        ("2025", 4096, 30, 3, (40, 10, 3)),
        ("2024", 4096, 30, 3, (40, 10, 3)),
    ],
)
def test_common_words_prompts(
    edition: str, length: int, often: int, seldom: int, shown: tuple[int, int, int]
) -> None:
    opening = (
        "Below is a numbered list of words. In these words, some appear more often than others. "
        "Memorize the ones that "
        "appear most often.\n"
    )
    question = "\nQuestion: What are the 10 most common words in the above list?"
    prefix = " Answer: The top 10 words that appear most often in the list are:"
    gap = " " if edition == "2025" else ""
    for made in examples({"base": "cwe", "edition": edition}, length):
        parts = made.prompt.split(opening)
        assert len(parts) == 3
        assert parts[0] == ""
        body, _, answer = parts[1].partition(question + prefix)
        words = re.fullmatch(gap + " ".join(rf"{i}\. (.+)" for i in range(1, 11)) + "\n", answer)
        assert words, answer
        counts = cwe_list(body)
        assert len(counts) == shown[0]
        assert sorted(counts[word] for word in words.groups()) == [shown[1]] * 10
        assert Counter(counts.values()) == {shown[1]: 10, shown[2]: shown[0] - 10}
        counts = cwe_list(between(parts[2], "", question + prefix))
        assert Counter(counts.values()) == {often: 10, seldom: len(counts) - 10}
        assert {word for word, count in counts.items() if count == often} == set(made.references)
        assert len(made.references) == 10
        assert not set(made.references) & set(words.groups())


def test_common_words_score_for_themselves_only() -> None:
    """At 131072 tokens the list needs hyphenated pairs, which are spread evenly: no common word
    stands in another entry, nor in the pairs."""
    singles = set(load_words().everything)
    for length in (4096, 131072):
        for made in examples("cwe", length, 2):
            text = made.context_text.rstrip("\n")
            counts = cwe_list(text)
            others = "\n".join(word for word in counts if word not in made.references).lower()
            assert [word for word in made.references if word.lower() in others] == []
            assert all("-" not in word and " " not in word for word in made.references)
            assert Counter(counts.values()).keys() == {30, 3}
            entries = re.findall(r"\d+\. (.+?)(?= \d+\. |$)", text)
            pairs = [i / len(entries) for i, word in enumerate(entries) if word not in singles]
            assert bool(pairs) == (length == 131072)
            assert not pairs or 0.4 < np.mean(pairs) < 0.6


# --- frequent words -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "alpha", "zeta"),
    [("fwe", 2.0, 1.6449340668482264), ("fwe_3.5", 3.5, 1.1267338673170566)],
)
@pytest.mark.parametrize("length", [1024, 16384])
def test_frequent_words_prompts(name: str, alpha: float, zeta: float, length: int) -> None:
    for made in examples(name, length, 2):
        context = between(
            made.prompt,
            "Read the following coded text and track the frequency of each coded word. Find the "
            "three most frequently "
            "appeared coded words. ",
            "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are "
            "the three most frequently "
            "appeared words in the above coded text? Answer: According to the coded text above, "
            "the three most "
            "frequently appeared words are:",
        )
        counts = Counter(context.split(" "))
        ranks = [counts.pop("...")] + [counts.pop(word) for word in made.references]
        ranks += sorted(counts.values(), reverse=True)
        assert all(re.fullmatch("[a-z]{6}", word) for word in [*counts, *made.references])
        assert len(made.references) == 3
        vocabulary = length // 50
        low = np.ceil(max(count * k**alpha * zeta for k, count in enumerate(ranks, 1)) - 1e-6)
        expected = [
            [int(n * k**-alpha / zeta) for k in range(1, vocabulary + 1)]
            for n in range(int(low) - 2, int(low) + 60)
        ]
        assert ranks in [[count for count in row if count] for row in expected], ranks[:8]


def test_frequent_words_knobs() -> None:
    made = examples({"base": "fwe", "k": 5, "word_length": 4, "vocabulary": 30}, 4096, 2)[0]
    assert "Find the five most frequently appeared coded words. " in made.prompt
    assert made.prompt.endswith("above, the five most frequently appeared words are:")
    counts = Counter(made.context_text.split())
    assert len(made.references) == 5
    assert len(counts) <= 30
    assert [word for word, _ in counts.most_common(6)][1:] == list(made.references)
    assert all(len(word) == 4 for word in counts if word != "...")


@pytest.mark.parametrize("spec", [{"base": "fwe", "k": 10}, "fwe", "fwe_3.5"])
def test_the_answer_is_never_a_tie(spec: object) -> None:
    for length in (512, 1024, 4096):
        try:
            made = examples(spec, length)
        except UserError:
            continue  # too short for an answer that the text decides
        for one in made:
            counts = Counter(one.context_text.split()).most_common()
            last = len(one.references)
            assert {word for word, _ in counts[1 : last + 1]} == set(one.references)
            assert counts[last][1] > (counts[last + 1][1] if counts[last + 1 :] else 0)


# --- question answering ---------------------------------------------------------------------------

INSTRUCTION = "Answer the question based on the given documents. Only give me the answer and do not output any other words."


@pytest.mark.parametrize("name", ["qa_1", "qa_2"])
def test_question_prompts(name: str) -> None:
    for length in (1024, 4096):
        check_questions(task(name).with_corpora("builtin"), length)


@pytest.mark.parametrize("name", ["qa_1", "qa_2"])
@pytest.mark.usefixtures("data")
def test_question_prompts_of_the_originals(name: str) -> None:
    check_questions(task(name), 4096)


def check_questions(asked: Task, length: int) -> None:
    corpus = load_qa(asked.settings()["dataset"])
    by_text = {}
    for question in corpus.questions:
        by_text.setdefault(question.text, []).append(question)
    for made in generate(asked, length, 8):
        text = made.prompt.rpartition("\n\nQuestion: ")[2].removesuffix(" Answer:")
        context = between(
            made.prompt,
            f"{INSTRUCTION}\n\nThe following are given documents.\n\n",
            f"\n\n{INSTRUCTION}\n\nQuestion: {text} Answer:",
        )
        question = next(q for q in by_text[text] if q.answers == made.references)
        pieces = [piece for piece in made.pieces if (piece.key or "").isdigit()]
        documents = [int(piece.key) for piece in pieces]
        assert context == "\n\n".join(
            f"Document {i}:\n{corpus.documents[d]}" for i, d in enumerate(documents, 1)
        )
        assert len(set(documents)) == len(documents)
        assert {
            d for d, piece in zip(documents, pieces, strict=True) if piece.role == "needle"
        } == set(question.gold)
        if length == 4096:
            assert set(question.related) <= set(documents)
        if asked.settings()["dataset"] != "hotpotqa" or question.answers[0].lower() not in (
            "yes",
            "no",
        ):
            gold = " ".join(corpus.documents[d] for d in question.gold).lower()
            assert any(answer.lower() in gold for answer in made.references)


def test_documents_repeat_only_after_all_were_used() -> None:
    corpus = load_qa("fictional")
    made = examples("qa_1", 262_144, 1)[0]
    used = Counter(piece.key for piece in made.pieces if (piece.key or "").isdigit())
    assert len(used) == len(corpus.documents)
    assert max(used.values()) - min(used.values()) <= 1
    gold = [piece.key for piece in made.pieces if piece.role == "needle"]
    assert all(used[key] == 1 for key in gold)


def test_questions_come_from_one_permutation() -> None:
    """No question twice before all were asked; another seed asks in another order."""
    texts = [made.text_of("question") for made in examples("qa_1", 1024, 100)]
    assert len(set(texts)) > 97
    other = generate(task("qa_1").with_corpora("builtin"), 1024, 5, seed=7)[0]
    assert other.text_of("question") != texts[0]


def test_a_question_alone() -> None:
    for made in examples({"base": "qa_1", "context": "none"}):
        assert "Document" not in made.prompt
        assert made.prompt.endswith(" Answer:")
        assert made.prompt.count("Question: ") == 1
        assert made.num_tokens < 120
        assert made.references
        assert made.depths == []


# --- knobs and names ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({"base": "niah_multikey_1", "num_keys": 8}, "niah_multikey_1-num_keys_8"),
        ({"base": "vt", "num_hops": 10, "num_chains": 2}, "vt-num_chains_2-num_hops_10"),
        ({"base": "vt", "num_hops": 4}, "vt"),
        ({"base": "fwe", "alpha": 2.5}, "fwe-alpha_2.5"),
        ({"base": "vt", "edition": 2024}, "vt-edition_2024"),
        ({"base": "vt", "edition": 2025}, "vt"),
        ({"base": "qa_1", "context": "none"}, "qa_1-context_none"),
        ({"base": "vt", "num_hops": 6, "name": "vt_long"}, "vt_long"),
    ],
)
def test_names_of_variants(spec: dict, name: str) -> None:
    made = task(spec)
    assert made.name == name
    for knob in spec.keys() - {"base", "name", "edition"}:
        assert made.settings()[knob] == spec[knob]
    assert task(made) is made


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("niah_x", "niah_single_1"),
        (None, "base"),
        ({"base": "nope"}, "allowed"),
        ({"base": "vt", "hops": 3}, "num_hops"),
        ({"base": "vt", "num_hops": 0}, "num_hops"),
        ({"base": "vt", "num_hops": True}, "num_hops"),
        ({"base": "vt", "demonstration": "no"}, "demonstration"),
        ({"base": "vt", "edition": "2023"}, "2024"),
        ({"base": "vt", "max_new_tokens": 0}, "max_new_tokens"),
        ({"base": "vt", "name": "../up"}, "name"),
        ({"base": "niah_single_1", "haystack": "hay"}, "essay"),
        ({"base": "niah_single_2", "essays": "shakespeare"}, "prose"),
        ({"base": "niah_multikey_1", "num_keys": 50, "depths": "even"}, "40"),
        ({"base": "qa_1", "dataset": "trivia"}, "squad"),
        ({"base": "cwe", "freq_cw": 3}, "freq"),
        ({"base": "cwe", "num_cw": 7000}, "num_cw"),
        ({"base": "fwe", "alpha": 1.0}, "alpha"),
        ({"base": "fwe", "alpha": float("nan")}, "alpha .*number above"),
        ({"base": "fwe", "vocabulary": 4}, "vocabulary"),
        ({"base": "fwe", "k": 30, "word_length": 1}, "word_length"),
    ],
)
def test_wrong_knobs(spec: object, named: str) -> None:
    with pytest.raises(UserError, match=named) as error:
        generate(
            task(spec).with_corpora("builtin")
            if not isinstance(spec, dict) or "essays" not in spec
            else task(spec),
            8192,
            1,
        )[0]
    assert "\n" not in str(error.value)


def test_corpora_can_be_exchanged() -> None:
    for name, made in TASKS.items():
        builtin = made.with_corpora("builtin")
        assert builtin.name == name
        assert all(source.stand_in for source in builtin.sources().values())
        assert builtin.with_corpora("original") == made
    with pytest.raises(UserError, match="original"):
        TASKS["qa_1"].with_corpora("real")


# --- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_a_careful_reader_finds_every_answer(name: str) -> None:
    for made in examples(name, 1024, 5) + examples(name, 8192, 5):
        answer = read_answer(made.prompt)
        assert answer is not None
        found = [reference in answer for reference in made.references]
        assert any(found) if TASKS[name].match == "part" else all(found), (answer, made.references)


@pytest.mark.parametrize("name", ["niah_single_2", "niah_multikey_2", "vt", "qa_1"])
def test_a_reader_cannot_find_what_it_is_not_shown(name: str) -> None:
    """The second half of a prompt alone, where the first needle lies in the first half."""
    tried = 0
    for made in examples(name, 4096, 20):
        half = len(made.prompt) // 2
        before = made.prompt[:half]
        needle = next(piece for piece in made.pieces if piece.role == "needle")
        if needle.text not in before:
            continue
        tried += 1
        answer = (read_answer(made.prompt[half:]) or "").lower()
        assert not any(reference.lower() in answer for reference in made.references), answer
    assert tried >= 5


@pytest.mark.parametrize("spec", [{"base": "vt", "num_hops": 9}, {"base": "vt", "num_chains": 3}, {"base": "vt", "edition": "2024"}]
    + [{"base": "cwe", "edition": "2024"}, {"base": "cwe", "num_cw": 20, "freq_cw": 10, "freq_ucw": 2}, {"base": "fwe", "k": 2}]
    + [{"base": "niah_multiquery", "num_values": 2}, {"base": "niah_multikey_3", "num_queries": 3}])  # fmt: skip
def test_variants_can_be_read(spec: dict) -> None:
    for made in examples(spec, 4096):
        answer = read_answer(made.prompt)
        assert all(reference in answer for reference in made.references), (answer, made.references)


def test_other_texts_are_not_read() -> None:
    for text in ("", "Question: Who wrote this?", "Answer the question."):
        assert read_answer(text) is None
