"""The rule that reads the invented question answering sets."""

import pytest

from rulerkit import corpora

FICTIONAL = ["fictional", "fictional_two_hop"]


@pytest.mark.parametrize("name", FICTIONAL)
def test_the_rule_answers_every_question_from_its_documents_and_none_without(name):
    qa = corpora.load_qa(name)
    for number, question in enumerate(qa.questions):
        others = question.related or [
            (question.gold[0] + step) % len(qa.documents) for step in range(1, 9)
        ]
        around = [qa.documents[index] for index in others]
        gold = [qa.documents[index] for index in question.gold]
        gold = gold[::-1] if number % 2 else gold
        prompt = "\n\n".join([*around[:4], *gold, *around[4:], question.text])
        assert corpora.answer_fictional(prompt, question.text) == question.answers[0]
        for missing in gold:
            rest = "\n\n".join(
                [*around, *(document for document in gold if document != missing), question.text]
            )
            assert corpora.answer_fictional(rest, question.text) is None


def test_a_prompt_cut_anywhere_gives_the_answer_or_nothing():
    for name in FICTIONAL:
        qa = corpora.load_qa(name)
        for question in qa.questions[:: len(qa.questions) // 20]:
            text = "\n\n".join(qa.documents[index] for index in question.gold)
            answers = [
                corpora.answer_fictional(text[cut:], question.text) for cut in range(len(text))
            ]
            assert answers[0] == question.answers[0]
            assert set(answers) == {question.answers[0], None}
            assert answers == sorted(answers, key=lambda answer: answer is None)  # once lost, lost


def test_the_rule_reads_the_text_and_not_the_tables():
    text = (
        "The Brass Academy was founded by Nobody Atall, who paid for the roof with borrowed money."
    )
    assert corpora.answer_fictional(text, "Who founded the Brass Academy?") == "Nobody Atall"
    assert corpora.answer_fictional(text, "Who founded the Tin Academy?") is None
    assert corpora.answer_fictional(text, "Who sings about the Brass Academy?") is None
    text += "\n\nThe parish book says that Nobody Atall was born in Somewhere, the youngest of seven children."
    question = "Where was the founder of the Brass Academy born?"
    assert corpora.answer_fictional(text, question) == "Somewhere"
    assert corpora.answer_fictional(text.replace("Nobody", "Somebody", 1), question) is None
