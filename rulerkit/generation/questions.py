"""Questions with their documents: SQuAD, HotpotQA, the synthetic sets in the shape of either, and
files of one's own. Where the files come from: `corpora`."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError

from rulerkit.common.errors import UserError
from rulerkit.common.json_text import digest
from rulerkit.common.settings import Keys
from rulerkit.generation.corpora import KINDS, LOADED, Source, load


@dataclass(frozen=True)
class Question:
    """A question, its distinct answers in order of appearance, the indices of the documents that
    hold the answer (`gold`) and of the question's own other documents (`related`; empty in SQuAD's
    shape)."""

    text: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    related: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class QASet:
    """`documents`: distinct, stripped at both ends; `groups`: the article number of each
    document."""

    source: Source
    documents: list[str]
    groups: list[int]
    questions: list[Question]


_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Texts = Annotated[list[_Text], Field(min_length=1)]


class QuestionKeys(Keys):
    """A line of a file of questions."""

    question: _Text
    answers: _Texts
    """Any of them is right."""
    gold_documents: _Texts
    """Together they give the answer."""
    other_documents: list[_Text] = Field([])
    """They do not."""


def known_questions() -> Iterator[QASet]:
    """All question sets at hand: the files that were read, those that need no download, the
    originals."""
    for (kind, name), corpus in list(LOADED.items()):
        if kind == "qa" and isinstance(name, Path):
            yield corpus
    for name in reversed(list(KINDS["qa"])):
        with suppress(UserError):  # without its file, no prompt of a data set was made here
            yield load("qa", name)


def _qa_set(name: str, documents: dict[str, int], rows: list[Any], note: str = "") -> QASet:
    """The set of these documents (with their groups) and questions: of each question the text, its
    answers, the documents that hold the answer, and its own other documents."""
    # Questions name their documents by number. Texts are stripped at both ends; upstream keeps the
    # blanks of 257 of SQuAD's questions.
    numbers = {document: number for number, document in enumerate(documents)}
    questions = []
    for text, answers, gold, related in rows:
        if not gold or not answers or not all(a.strip() for a in answers):
            raise ValueError(f"the question {text!r} has no answer or no document")

        # A document may be named twice by one question.
        gold_numbers = tuple(dict.fromkeys(numbers[document] for document in gold))
        related_numbers = tuple(dict.fromkeys(numbers[document] for document in related))
        answers = tuple(dict.fromkeys(answers))
        questions.append(Question(text.strip(), answers, gold_numbers, related_numbers))
    if not questions:
        raise ValueError("it holds no questions")

    # The fingerprint covers the questions, too: other answers are another benchmark.
    lines = [f"{q.text}\t{q.answers}\t{q.gold}\t{q.related}" for q in questions]
    source = Source(name, digest("\n".join([*documents, *lines])), note=note)
    return QASet(source, list(documents), list(documents.values()), questions)


def squad(name: str, content: Any) -> QASet:
    """SQuAD 2.0: the questions that a paragraph answers; an article is a group."""
    # A paragraph that stands in several articles belongs to the first.
    documents, rows = dict[str, int](), list[Any]()
    for group, article in enumerate(content["data"]):
        for paragraph in article["paragraphs"]:
            text = paragraph["context"].strip()
            documents.setdefault(text, group)
            # SQuAD 2.0 also has questions that its paragraph does not answer.
            answerable = [qa for qa in paragraph["qas"] if not qa.get("is_impossible", False)]
            for qa in answerable:
                answers = [answer["text"] for answer in qa["answers"]]
                rows.append((qa["question"], answers, [text], []))
    return _qa_set(name, documents, rows)


def hotpotqa(name: str, content: Any) -> QASet:
    """HotpotQA, its questions each with two paragraphs that answer it and eight that do not."""
    documents, titles, rows = dict[str, int](), dict[str, int](), list[Any]()
    for row in content:
        # HotpotQA gives each question ten paragraphs, of which two hold the answer.
        supporting = {title for title, _ in row["supporting_facts"]}
        gold, related = list[str](), list[str]()
        for title, sentences in row["context"]:
            text = f"{title}\n{''.join(sentences)}".strip()
            documents.setdefault(text, titles.setdefault(title, len(titles)))
            (gold if title in supporting else related).append(text)
        rows.append((row["question"], [row["answer"]], gold, related))
    note = f"HotpotQA: {len(rows)} of 7405 questions" if len(rows) < 7405 else ""
    return _qa_set(name, documents, rows, note)


def invented(name: str, content: Any) -> QASet:
    """The built-in sets, whose questions name their documents by number."""
    documents = content["documents"]
    rows = [
        (text, answers, [documents[i] for i in gold], [documents[i] for i in related])
        for text, answers, gold, related in content["questions"]
    ]
    return _qa_set(name, dict(zip(documents, content["groups"], strict=True)), rows)


def own_questions(name: str, text: str) -> QASet:
    """A file of one's own, with the keys of `QuestionKeys` in each line."""
    documents, rows = dict[str, int](), list[Any]()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = QuestionKeys.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            field = "".join(f"{part}: " for part in first["loc"])
            raise ValueError(f"line {number}: {field}{first['msg']}") from error

        # Each document is a group of its own: nobody says which ones belong together.
        gold, others = row.gold_documents, row.other_documents
        for document in (*gold, *others):
            documents.setdefault(document, len(documents))
        rows.append((" ".join(row.question.split()), row.answers, gold, others))
    if any(len(documents) == len({*gold}) for _, _, gold, _ in rows):
        raise ValueError("it holds no documents beside the gold ones of a question")
    return _qa_set(name, documents, rows)
