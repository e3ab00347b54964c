"""Invented question answering: unique answers, the shapes of SQuAD and HotpotQA, and the rule that reads them."""

import time
from collections import Counter

import pytest

from rulerkit import corpora
from rulerkit.corpora import stand_ins

FICTIONAL = ["fictional", "fictional_two_hop"]


@pytest.mark.parametrize("name", FICTIONAL)
def test_fictional_sets_are_written_in_less_than_a_second(name: str) -> None:
    start = time.process_time()
    corpora.load_qa.__wrapped__(name)
    assert time.process_time() - start < 2  # a second, doubled for a busy machine


@pytest.mark.parametrize(
    ("name", "digest"), [("fictional", "988069f2cebe8a9c"), ("fictional_two_hop", "2d497409e3aa16c2")]
)
def test_fictional_sets_are_the_same_everywhere(name: str, digest: str) -> None:
    assert corpora.load_qa(name).source == corpora.Source(name, digest, stand_in=True, note="")


@pytest.mark.parametrize("name", FICTIONAL)
def test_fictional_answers_stand_in_one_document_only(name: str) -> None:
    qa = corpora.load_qa(name)
    everything = "\n".join(qa.documents).lower()
    for question in qa.questions:
        (answer,) = question.answers
        assert answer in qa.documents[question.gold[-1]]
        assert everything.count(answer.lower()) == 1, answer
        assert answer.lower() not in question.text.lower()


@pytest.mark.parametrize("name", FICTIONAL)
def test_fictional_documents_and_questions_are_distinct_and_well_formed(name: str) -> None:
    qa = corpora.load_qa(name)
    assert len(set(qa.documents)) == len(qa.documents) == len(qa.groups)
    assert len({question.text for question in qa.questions}) == len(qa.questions)
    for document in qa.documents:
        assert document == document.strip()
        assert document.isascii()
        assert not any(c in "{}%" for c in document)
    for question in qa.questions:
        assert question.text[0].isupper()
        assert question.text[-1] == "?"
        assert not any(c in "{}%" for c in question.text)


def test_fictional_has_squads_shape() -> None:
    qa = corpora.load_qa("fictional")
    assert len(qa.questions) >= 4000
    assert len(qa.documents) >= 1200
    assert set(Counter(qa.groups).values()) == {20}
    assert {qa.groups[q.gold[0]] for q in qa.questions} == set(range(60))
    assert all(len(q.gold) == 1 and q.related == () for q in qa.questions)
    assert all(90 <= len(document.split()) <= 180 for document in qa.documents)


def test_fictional_two_hop_has_hotpotqas_shape() -> None:
    qa = corpora.load_qa("fictional_two_hop")
    assert len(qa.questions) >= 1500
    assert len(qa.documents) >= 8000
    for question in qa.questions:
        assert len({*question.gold, *question.related}) == 10
        assert len(question.gold) == 2
    for document in qa.documents:
        title, text = document.split("\n")
        assert title in text
        assert 40 <= len(document.split()) <= 120
    assert len({document.split("\n")[0] for document in qa.documents}) == len(qa.documents)


@pytest.mark.parametrize("name", FICTIONAL)
def test_the_rule_answers_every_question_from_its_documents_and_none_without(name: str) -> None:
    qa = corpora.load_qa(name)
    for number, question in enumerate(qa.questions):
        others = question.related or [(question.gold[0] + step) % len(qa.documents) for step in range(1, 9)]
        around = [qa.documents[index] for index in others]
        gold = [qa.documents[index] for index in question.gold]
        gold = gold[::-1] if number % 2 else gold
        prompt = "\n\n".join([*around[:4], *gold, *around[4:], question.text])
        assert corpora.answer_fictional(prompt, question.text) == question.answers[0]
        for missing in gold:
            rest = "\n\n".join([*around, *(document for document in gold if document != missing), question.text])
            assert corpora.answer_fictional(rest, question.text) is None


def test_a_prompt_cut_anywhere_gives_the_answer_or_nothing() -> None:
    for name in FICTIONAL:
        qa = corpora.load_qa(name)
        for question in qa.questions[:: len(qa.questions) // 60]:
            text = "\n\n".join(qa.documents[index] for index in question.gold)
            answers = [corpora.answer_fictional(text[cut:], question.text) for cut in range(len(text))]
            assert answers[0] == question.answers[0]
            assert set(answers) == {question.answers[0], None}
            assert answers == sorted(answers, key=lambda answer: answer is None)  # once lost, lost


def test_the_rule_reads_the_text_and_not_the_tables() -> None:
    text = "The Brass Academy was founded by Nobody Atall, who paid for the roof with borrowed money."
    assert corpora.answer_fictional(text, "Who founded the Brass Academy?") == "Nobody Atall"
    assert corpora.answer_fictional(text, "Who founded the Tin Academy?") is None
    assert corpora.answer_fictional(text, "Who sings about the Brass Academy?") is None
    text += "\n\nThe parish book says that Nobody Atall was born in Somewhere, the youngest of seven children."
    question = "Where was the founder of the Brass Academy born?"
    assert corpora.answer_fictional(text, question) == "Somewhere"
    assert corpora.answer_fictional(text.replace("Nobody", "Somebody", 1), question) is None


def test_statements_name_their_subject_before_the_answer() -> None:
    for lines in stand_ins.sections("fictional.txt").values():
        for line in lines:
            if line.startswith("= "):
                assert line.count("{e}") == line.count("{a}") == 1
                assert line.index("{e}") < line.index("{a}"), line
