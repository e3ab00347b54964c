"""What is asked: every prompt byte for byte (written out here by hand), counts, order, settings, and
reading."""

import re
import sys
from collections import Counter

import numpy as np
import pytest
import yaml

from rulerkit.common.errors import UserError
from rulerkit.generation.corpora import load
from rulerkit.generation.generate import generate
from rulerkit.generation.tasks import FAMILIES, TASKS, family_of, read_answer, task

LINE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
SHORT = "|".join(re.escape(LINE[:end]) for end in (19, 36, 55, 67))
UUID4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
KIND = {"numbers": r"[1-9]\d{6}", "uuids": UUID4, "words": r"[a-z' .]+-[A-Za-z' .-]+"}


def examples(spec, length=4096, count=3):
    return list(generate(task(spec).with_corpora("builtin"), length, count))


def between(text, head, tail):
    """What stands between a beginning and an end that must be there byte for byte."""
    assert text.startswith(head), (text[:400], head)
    assert text.endswith(tail), (text[-400:], tail)
    return text[len(head) : len(text) - len(tail)]


def test_more_answers_need_more_tokens():
    hops = {"base": "vt", "num_hops": 9}
    for spec, tokens in ((hops, 60), ({"base": "cwe", "num_cw": 20}, 240)):
        assert examples(spec, count=1)[0].max_new_tokens == tokens
    assert examples(hops | {"max_new_tokens": 45}, count=1)[0].max_new_tokens == 45


NEEDLES = {  # task: haystack, kind of key, kind of value, keys, values, queries
    "niah_single_1": ("noise", "words", "numbers", 1, 1, 1),
    "niah_single_2": ("essay", "words", "numbers", 1, 1, 1),
    "niah_single_3": ("essay", "words", "uuids", 1, 1, 1),
    "niah_multikey_1": ("essay", "words", "numbers", 4, 1, 1),
    "niah_multikey_2": ("needle", "words", "numbers", 1, 1, 1),
    "niah_multikey_3": ("needle", "uuids", "uuids", 1, 1, 1),
    "niah_multivalue": ("essay", "words", "numbers", 1, 4, 1),
    "niah_multiquery": ("essay", "words", "numbers", 4, 1, 4),
}


@pytest.mark.parametrize("name", NEEDLES)
def test_needle_prompts(name):
    haystack, key_kind, kind, num_keys, num_values, num_queries = NEEDLES[name]
    one = num_values * num_queries == 1
    noun = kind[:-1] if one else kind
    some, are, what = ("A", "is", "is") if one else ("Some", "are", "are all")
    needle = rf"One of the special magic {kind} for ({KIND[key_kind]}) is: ({KIND[kind]})\."
    for made in examples(name):
        query = re.findall(
            r"(?<=for )(\S+(?:, .*)?) mentioned in the provided text\?", made.prompt
        )[-1]
        about = f"special magic {noun} for {query} mentioned in the provided text"
        context = between(
            made.prompt,
            f"{some} special magic {noun} {are} hidden within the following text. Make sure to "
            f"memorize it. I will quiz you about the {noun} afterwards.\n",
            f"\nWhat {what} the {about}? The {about} {are}",
        )
        hidden = re.findall(needle, context)
        assert len({value for _, value in hidden}) == len(hidden)
        asked = query.replace(", and ", ", ").split(", ")
        assert len(asked) == num_queries
        values = [value for wanted in asked for key, value in hidden if key == wanted]
        assert len(values) == num_values * num_queries
        assert Counter(made.references) == Counter(values)
        assert num_queries == 1 or list(made.references) == values
        lines = context.split("\n")
        if haystack == "needle":
            line_form = rf"One of the special magic {kind} for (.+?) is: {KIND[kind]}\."
            keys = [match[1] for line in lines if (match := re.fullmatch(line_form, line))]
            assert len(set(keys)) == len(lines) > 40
            continue
        assert len({key for key, _ in hidden}) == num_keys
        assert len(hidden) == num_keys * num_values
        if haystack == "noise":
            *others, last = [line for line in lines if not re.fullmatch(needle, line)]
            assert set(others) == {LINE}
            assert re.fullmatch(f"{SHORT}|{re.escape(LINE)}", last)
        else:
            words = re.sub(rf" ?{needle}", "", context).split()
            assert words == load("essay", "prose").words[: len(words)]
            assert not re.search("\n|  ", context)


@pytest.mark.parametrize("haystack", ["noise", "essay", "needle"])
def test_all_kinds_of_keys_and_values(haystack):
    for key, value in (("words", "uuids"), ("numbers", "words"), ("uuids", "numbers")):
        spec = {"base": "niah_multikey_1", "haystack": haystack, "key": key, "value": value}
        made = examples(spec, 2048, 1)[0]
        asked = re.findall("for (.+) mentioned", made.answer_prefix)[0]
        assert re.fullmatch(KIND[key], asked)
        assert re.fullmatch(KIND[value], made.references[0])
        assert f" for {asked} is: {made.references[0]}." in made.context_text


VT_OPENING = "Memorize and track the chain(s) of variable assignment hidden in the following text."


def chains_of(context, letters):
    """Value to names, by following the statements in order; each must stand after the one it refers
    to."""
    values = {}
    chains = {}
    name = rf"[A-Z]{{{letters}}}"
    for new, old, value in re.findall(rf"VAR ({name}) = (?:VAR ({name}) |(\d{{5}}))", context):
        assert new not in values
        values[new] = value or values[old]
        chains.setdefault(values[new], []).append(new)
    assert context.count("VAR ") == sum(2 * len(names) - 1 for names in chains.values())
    return chains


@pytest.mark.parametrize("protocol", ["clean", "paper"])
@pytest.mark.parametrize(("chains", "hops"), [(1, 4), (3, 6)])
def test_tracking_prompts(protocol, chains, hops):
    new = protocol == "clean"
    statement = r"VAR [A-Z]+ = (?:\d{5}|VAR [A-Z]+ )"
    row = rf"(?:{statement}|{re.escape(LINE)}\n)"
    lines = (  # statements and lines end with newlines, or are joined by blanks
        rf"(?:(?:{statement}|{re.escape(LINE)}|{SHORT})\n?)+"
        if new
        else rf"{row}(?: {row})*(?: (?:{SHORT})\n)?"
    )
    shown = set()
    spec = {"base": "vt", "num_chains": chains, "num_hops": hops}
    for made in examples(task(spec, protocol)):
        head, _, rest = made.prompt.rpartition(VT_OPENING + "\n\n")
        ends = "above." if new else ""
        for text, letters, above, answered in ((head, 3, ends, True), (rest, 5, "above.", False)):
            value = re.findall(r"assigned the value (\d+) in the text", text)[0]
            tail = (
                f"Question: Find all variables that are assigned the value {value} in the text"
                f"{' ' * bool(above)}{above} Answer: According to the chain(s) of variable assignment "
                f"in the text above, {hops + 1} variables are {'assigned' if new else 'assgined'} the "
                f"value {value}, they are: "
            )
            if answered:
                names = re.findall(r"they are:  (.*)\n", text)[0]
                context = between(
                    text,
                    f"{VT_OPENING}\n\n" if new else f" {VT_OPENING} ",
                    ("" if new else " ") + tail + f" {names}" + ("\n\n" if new else "\n\n\n\n"),
                )
            else:
                names = " ".join(made.references)
                context = between(text, "", "\n" + tail)
            found = chains_of(context + "\n", letters)
            assert " ".join(found[value]) == names
            assert [len(chain) for chain in found.values()] == [hops + 1] * chains
            assert re.fullmatch(lines, context), context[-300:]
        shown.add(head)
    assert len(shown) == (3 if new else 1), "fresh demonstrations, or one for all"


def listed(text):
    """The words of a numbered list; numbers must run from 1."""
    words = re.findall(r"\d+\. (.+?)(?= \d+\. |$)", text)
    assert " ".join(f"{number}. {word}" for number, word in enumerate(words, 1)) == text
    return words


@pytest.mark.parametrize(
    ("protocol", "length", "often", "seldom", "shown"),
    [
        ("clean", 4095, 6, 1, (20, 3, 1)),
        ("clean", 4096, 30, 3, (40, 10, 3)),
        ("paper", 4096, 30, 3, (40, 10, 3)),
    ],
)
def test_common_words_prompts(protocol, length, often, seldom, shown):
    opening = (
        "Below is a numbered list of words. In these words, some appear more often than others. "
        "Memorize the ones that appear most often.\n"
    )
    question = (
        "\nQuestion: What are the 10 most common words in the above list? Answer: The top 10 words "
        "that appear most often in the list are:"
    )
    for made in examples(task("cwe", protocol), length):
        before, demonstration, rest = made.prompt.split(opening)
        body, _, answer = demonstration.partition(question)
        words = listed(between(answer, " " if protocol == "clean" else "", "\n"))
        counts = Counter(listed(body))
        assert before == ""
        assert len(counts) == shown[0]
        assert [counts[word] for word in words] == [shown[1]] * 10
        assert Counter(counts.values()) == {shown[1]: 10, shown[2]: shown[0] - 10}
        counts = Counter(listed(between(rest, "", question)))
        assert Counter(counts.values()) == {often: 10, seldom: len(counts) - 10}
        assert {word for word, count in counts.items() if count == often} == set(made.references)
        assert not set(made.references) & set(words)


def test_common_words_score_for_themselves_only():
    """At 131072 tokens the list needs hyphenated pairs, which are spread evenly: no common word
    stands in another entry, nor in the pairs."""
    singles = set(load("words", "wonderwords").everything)
    for length in (4096, 131072):
        for made in examples("cwe", length, 2):
            words = listed(made.context_text.rstrip("\n"))
            others = "\n".join(set(words) - set(made.references)).lower()
            assert [word for word in made.references if word.lower() in others] == []
            pairs = [i / len(words) for i, word in enumerate(words) if word not in singles]
            assert bool(pairs) == (length == 131072)
            assert not pairs or 0.4 < np.mean(pairs) < 0.6


@pytest.mark.parametrize(
    ("name", "alpha", "zeta"),
    [("fwe", 2.0, 1.6449340668482264), ("fwe_3.5", 3.5, 1.1267338673170566)],
)
def test_frequent_words_prompts(name, alpha, zeta):
    for made in examples(name, 1024) + examples(name, 16384, 2):
        context = between(
            made.prompt,
            "Read the following coded text and track the frequency of each coded word. Find the "
            "three most frequently appeared coded words. ",
            "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are "
            "the three most frequently appeared words in the above coded text? Answer: According "
            "to the coded text above, the three most frequently appeared words are:",
        )
        counts = Counter(context.split(" "))
        ranks = [counts.pop(word) for word in ("...", *made.references)]
        ranks += sorted(counts.values(), reverse=True)
        assert all(re.fullmatch("[a-z]{6}", word) for word in [*counts, *made.references])
        low = int(max(count * k**alpha * zeta for k, count in enumerate(ranks, 1)))
        assert ranks in [
            [count for k in range(1, made.length // 50 + 1) if (count := int(n * k**-alpha / zeta))]
            for n in range(low - 2, low + 60)
        ]


@pytest.mark.parametrize("spec", [{"base": "fwe", "k": 10}, "fwe", "fwe_3.5"])
def test_the_answer_is_never_a_tie(spec):
    for length in (512, 1024, 4096):
        try:
            made = examples(spec, length)
        except UserError:
            continue  # too short for an answer that the text decides
        for one in made:
            counts = [*Counter(one.context_text.split()).most_common(), ("", 0)]
            last = len(one.references)
            assert {word for word, _ in counts[1 : last + 1]} == set(one.references)
            assert counts[last][1] > counts[last + 1][1]


INSTRUCTION = "Answer the question based on the given documents. Only give me the answer and do not output any other words."


@pytest.mark.parametrize("name", ["qa_1", "qa_2"])
def test_question_prompts(name):
    asked = task(name).with_corpora("builtin")
    corpus = load("qa", asked.settings()["dataset"])
    for made in generate(asked, 4096, 8):
        text = made.prompt.rpartition("\n\nQuestion: ")[2].removesuffix(" Answer:")
        context = between(
            made.prompt,
            f"{INSTRUCTION}\n\nThe following are given documents.\n\n",
            f"\n\n{INSTRUCTION}\n\nQuestion: {text} Answer:",
        )
        question = next(
            q for q in corpus.questions if q.text == text and q.answers == made.references
        )
        pieces = [piece for piece in made.pieces if piece.key]
        documents = [int(str(piece.key)) for piece in pieces]
        assert context == "\n\n".join(
            f"Document {i}:\n{corpus.documents[d]}" for i, d in enumerate(documents, 1)
        )
        assert len(set(documents)) == len(documents)
        assert set(question.related) <= set(documents)
        gold = {int(str(piece.key)) for piece in pieces if piece.role == "needle"}
        assert gold == set(question.gold)


def test_a_question_alone():
    for made in examples({"base": "qa_1", "context": "none"}):
        assert "Document" not in made.prompt
        assert made.prompt.endswith(" Answer:")
        assert made.prompt.count("Question: ") == 1
        assert made.depths == []


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("niah_x", "niah_single_1"),
        ({"base": "vt", "hops": 3}, "num_hops"),
        ({"base": "vt", "num_hops": 0}, "num_hops"),
        ({"base": "vt", "num_hops": 100}, "less than 100"),
        ({"base": "fwe", "alpha": 1.0}, "alpha"),
        ({"base": "vt", "name": "../up"}, "name"),
        ({"base": "niah_multikey_1", "num_keys": 60_000, "num_values": 2}, "at most 100000"),
        ({"base": "cwe", "freq_cw": 3}, "freq"),
        ({"base": "fwe", "k": 30, "word_length": 1}, "word_length"),
    ],
)
def test_wrong_settings(spec, named):
    with pytest.raises(UserError, match=named) as error:
        task(spec)
    assert "\n" not in str(error.value)


VARIANTS = [
    task({"base": "vt", "num_hops": 9}, "paper"),
    task("cwe", "paper"),
    {"base": "cwe", "num_cw": 20, "freq_cw": 10, "freq_ucw": 2},
    {"base": "fwe", "k": 2},
    {"base": "niah_multikey_3", "num_queries": 3, "num_values": 2},
]


@pytest.mark.parametrize("spec", [*TASKS, *VARIANTS])
def test_a_careful_reader_finds_every_answer(spec):
    for made in examples(spec, 4096, 5):
        answer = read_answer(made.prompt)
        assert answer is not None
        score = task(spec).score(answer, made.references)
        assert score == 1, (answer, made.references)


@pytest.mark.parametrize("dataset", ["fictional", "fictional_two_hop"])
def test_an_invented_question_is_answered_where_all_of_its_documents_stand(dataset):
    for made in generate(task({"base": "qa_1", "dataset": dataset}), 4096, 5):
        assert read_answer(made.prompt) in made.references
        for gold in (block for block in made.blocks if block.role == "needle"):
            assert read_answer(made.prompt.replace(gold.text, "")) == "not found"


SHOWN = re.compile(
    r"A prompt of `(.+)` in (\d+) tokens, its lines wrapped:\n(.+)References: (.+?)\.\n", re.DOTALL
)


@pytest.mark.parametrize("letters", FAMILIES)
def test_the_file_of_a_family_shows_a_finished_prompt(letters):
    family = family_of(letters)
    assert (family.short_name, family.category) == (letters, FAMILIES[letters][1])
    spec, length, prompt, references = SHOWN.search(sys.modules[family.__module__].__doc__).groups()
    (made,) = examples(yaml.safe_load(spec), int(length), 1)
    # Whatever the lines are.
    assert prompt.split() == made.prompt.split()
    assert references == ", ".join(made.references)
