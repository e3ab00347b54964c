"""Claims as data: held against the paper's own tables, and against scores that are made up, so that
each holds, fails, and cannot be judged somewhere."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rulerkit as rk
from rulerkit.analysis import correlation
from rulerkit.analysis.verdicts import FAILS, HOLDS, UNKNOWN, Verdict, share_of, within
from rulerkit.common.errors import UserError
from rulerkit.common.paths import package_data

K = 1024
LETTERS = {"H": HOLDS, "F": FAILS, "U": UNKNOWN}
CLAIMS = package_data("paper/claims.yaml")
SECTIONS = list(dict.fromkeys(claim["section"] for claim in CLAIMS))


def rows(means, task="vt", n=300, model="m", seed=1):
    """Right or wrong answers with these means (percent) by length; an example has the same luck at
    every length."""
    luck = (np.random.default_rng(seed).permutation(n) + 0.5) / n
    frames = []
    for length, mean in means.items():
        frame = pd.DataFrame({"index": range(n), "score": (luck < mean / 100).astype(float)})
        frames.append(frame.assign(model=model, task=task, length=length))
    return pd.concat(frames, ignore_index=True)


def lines(table):
    """The fields of the lines of a table, between bars."""
    for line in table.strip().splitlines():
        yield [field.strip() for field in line.split("|")]


PRINTED = """
v3 | Only half of the models that claim 32K      | H | ^10 of 17;
v1 | Of ten models only GPT-4, Command-R, Yi and | H | Command-R .* Mixtral
v3 | Of ten models only GPT-4, Command-R, Yi and | F | the others below: 7 of 15
v1 | GPT-4 degrades least from 4K to 128K        | H | ^GPT-4: lower by: 15.4 .*; the others: 9 of 9$
v3 | GPT-4 degrades least from 4K to 128K        | F | not Gemini-1.5-Pro, GLM4
v3 | Almost all models .all but Gemini           | H | ^16 of 17; not Gemini-1.5-Pro$
v3 | Almost all models drop much                 | H | ^16 of 17; not Gemini-1.5-Pro$
v3 | LWM .7B.: Within the training length        | H | over 5 doublings lower by: 17
base | LWM-base .7B.: Within the training length | H | over 5 doublings lower by: 19
v3 | Mixtral-8x22B .*The score drops abruptly    | H | ^64K to 128K lower than 4K to 8K by: 5
v3 | More distractor needles                     | U | ^$
v3 | Yi-34B: about 40 points lower at 256K       | U | ^$
"""
"""Version, claim, verdict, and what is seen. The fall over five doublings is that of a line through
the printed means."""


@cache
def judged_as_printed(table):
    version, aligned = ("v3", "base") if table == "base" else (table, "chat")
    return rk.claims(rk.paper.score_rows(version, aligned))


PAPER = [
    # Each version of the tables takes seconds.
    pytest.param(*case, marks=() if case[0] == "v3" else pytest.mark.slow)
    for case in lines(PRINTED)
]


@pytest.mark.parametrize(("table", "claim", "letter", "seen"), PAPER)
def test_claims_on_the_papers_printed_tables(table, claim, letter, seen):
    found = judged_as_printed(table)
    (row,) = found[found["claim"].str.contains(claim)].itertuples()
    assert row.verdict == LETTERS[letter]
    assert pd.Series([row.seen]).str.contains(seen).all(), row.seen
    assert bool(row.missing) == (letter == "U")


def test_points_are_no_shares_of_the_start():
    rows = []
    for model, *scores in (("gpt-4", 96.6, 81.2), ("other", 50.0, 40.0)):
        for length, score in zip((4096, 131072), scores, strict=True):
            about = {"model": model, "task": "thirteen", "length": length}
            rows.append({**about, "score": score / 100})
    found = rk.claims(pd.DataFrame(rows), section="4, version 1")
    (row,) = found[found["claim"].str.contains("degrades least")].itertuples()
    assert row.verdict == LETTERS["F"]
    assert "lower by: 10 " in row.seen


EIGHT_KEYS = "niah_multikey_1-num_keys_8"
MANY_QUERIES = "niah_multiquery-num_keys_8-num_queries_8"
TASKS = {
    "4": list(rk.THIRTEEN),
    "5, needle": ["niah_single_1", "niah_single_2", "niah_single_3", "niah_single_words"],
    "5, dist": ["niah_single_2", "niah_multikey_1", EIGHT_KEYS, "niah_multikey_2"],
    "5, mult": ["niah_single_2", "niah_multivalue", "niah_multiquery", MANY_QUERIES],
    "5, var": ["vt", "vt-num_hops_10", "vt_2_chains", "vt_2_chains-num_chains_8"],
    "5, freq": ["fwe_3.5", "fwe", "fwe-alpha_1.5", "fwe-alpha_1.2"],
    "5, quest": ["qa_1", "qa_1-context_none", "qa_2", "qa_2-context_none"],
    "6": ["vt", "cwe"],
}
CASES = """
4, main results         | FFFHUUU | a b                  | a: 99 99 90 60, b: 99 99 95 95
4, main results         | FHHFUUU | m                    | *: 90 90 90 40
4, main results         | HFFFUUU | m                    | *: 99 99 99 99
4, main results         | FFFHHHH | gemini-1.5-pro gpt-4-1106 lwm-7b-chat-1m mistral-7b-v0.2 | gemini-1.5-pro: 96 94 92 91, gpt-4-1106: 94 92 90 90, lwm-7b-chat-1m: 60 60 60 60, *: 85 70 30 5
4, main results         | FFFFFFF | gemini-1.5-pro gpt-4-1106 lwm-7b-chat-1m mistral-7b-v0.2 | gpt-4-1106: 60 60 60 60, *: 91 91 91 91
5, needle types         | HHH     | m                    | niah_single_3: 30 30, niah_single_words: 70 70, *: 99 99
5, needle types         | HHF     | m                    | niah_single_words: 30 30, niah_single_3: 80 80, *: 99 99
5, needle types         | FFF     | m                    | niah_single_2: 60 60, *: 90 90
5, distractors          | HU      | m                    | niah_single_2: 99 99, niah_multikey_2: 40 40, *: 70 70
5, distractors          | FU      | m                    | niah_multikey_1: 40 40, *: 99 99
5, distractors          | FH      | yi-34b               | niah_multikey_2: 90 90 90 90 80 80 60, *: 100 100 100 100 100 100 100
5, distractors          | FF      | yi-34b               | niah_multikey_2: 90 90 90 90 80 80 20, *: 100 100 100 100 100 100 100
5, multiple needles     | HHU     | m                    | niah_single_2: 99 99, *: 60 60
5, multiple needles     | FFU     | m                    | niah_single_2: 60 60, *: 99 99
5, multiple needles     | HHH     | yi-34b               | niah_single_2: 100 100, *: 90 85
5, multiple needles     | HHF     | yi-34b               | niah_single_2: 100 100, *: 90 60
5, variable tracking    | HU      | m                    | *: 99 80 60 5
5, variable tracking    | FU      | m                    | *: 99 60 60
5, variable tracking    | HH      | m                    | *: 99 96 92 88 84 80 40
5, variable tracking    | HF      | m                    | *: 99 96 92 50 30 25 20
5, frequent words       | H       | m                    | fwe-alpha_1.2: 30 30, *: 99 99
5, frequent words       | F       | m                    | fwe_3.5: 30 30, *: 99 99
5, question answering   | HH      | m                    | qa_1-context_none: 30, qa_2-context_none: 30, *: 95 50
5, question answering   | FF      | m                    | qa_1-context_none: 80, qa_2-context_none: 80, *: 95 5
5, question answering   | FF      | m                    | qa_1-context_none: 30, qa_2-context_none: 30, *: 95 95
5, question answering   | UU      | m                    | *: 95
6, training length      | HFUHHHH | a=16K b=32K          | a: 90 86 82 20 10, b: 99 95 91 87 40
6, training length      | FHUUFFH | a=32K b=16K          | a: 75 75 40 40, b: 95 94 93 90
6, training length      | FHHUF   | lwm-7b-chat-1m=1M lwm-7b-chat-512k=512K | lwm-7b-chat-1m: 50 50 50 50 50 50 50, *: 70 70 70 70 70 70 70
6, training length      | HFFUF   | lwm-7b-chat-1m=1M lwm-7b-chat-512k=512K | lwm-7b-chat-1m: 70 70 70 70 70 70 70, *: 50 50 50 50 50 50 50
6, model size           | HH      | a b!                 | a: 60 20, b: 95 90
6, model size           | FF      | a b!                 | a: 95 90, b: 60 20
6, model size           | UU      | b!                   | *: 90 80
6, architecture         | HHH     | a=4K b=4K!           | a: 60 20, b: 95 60
6, architecture         | FFF     | a=4K b=4K!           | a: 90 90, b: 95 95
6, architecture         | UUU     | a=4K b=4K            | a: 90 90, b: 95 95
"""
"""Section, verdicts in its order (of claims about each model, model after model), models (with
their training length; `!`: the reference), and mean scores from 4K on of the first of these models
or tasks that applies."""


def judged(section, models, means):
    """The claims of a section, by made-up scores."""
    specs = [spec.split(": ") for spec in means.split(", ")]
    tasks = next(tasks for start, tasks in TASKS.items() if section.startswith(start))
    frames, trained, reference = [], {}, None
    for name in models.split():
        reference = name.rstrip("!").split("=")[0] if name.endswith("!") else reference
        model, _, length = name.rstrip("!").partition("=")
        trained |= {model: length} if length else {}
        for seed, task in enumerate(tasks):
            numbers = next(n for key, n in specs if key in (model, task, "*")).split()
            by_length = {4 * K * 2**i: float(number) for i, number in enumerate(numbers)}
            claimed = np.nan if section.startswith("6") else 32 * K
            frame = rows(by_length, task, 300, model, seed)
            frames.append(frame.assign(claimed_length=claimed))
    return rk.claims(pd.concat(frames), section, reference=reference, trained=trained)


MADE_UP = [
    pytest.param(one, marks=pytest.mark.slow if one == "4, main results" else ())
    for one in sorted({case[0] for case in lines(CASES)})
]


@pytest.mark.parametrize("section", MADE_UP)
def test_each_claim_holds_somewhere_and_fails_somewhere(section):
    for of_section, letters, models, means in lines(CASES):
        if of_section == section:
            found = list(judged(section, models, means)["verdict"])
            assert found == [LETTERS[letter] for letter in letters], (models, means)


def test_no_claim_is_judged_by_what_happens_to_be_there():
    frame = rows({4 * K: 99, 8 * K: 80, 16 * K: 60, 32 * K: 20}, n=100)
    asked = frame.assign(wanted=100, failed=0, max_failures=0.0, adaptive="")
    section = "5, variable tracking"
    assert rk.claims(asked, section)["verdict"][0] == HOLDS
    some = rk.claims(asked[asked["index"] < 99], section)
    assert (some["verdict"][0], some["missing"][0]) == (UNKNOWN, "answers to vt at 4K")
    stopped = asked[asked["index"] < 99].assign(max_failures=0.01)
    assert rk.claims(stopped, section)["verdict"][0] == UNKNOWN
    assert rk.claims(stopped.assign(failed=1), section)["verdict"][0] == HOLDS
    adaptive = asked[asked["index"] < 99].assign(adaptive="{}")
    assert rk.claims(adaptive, section)["verdict"][0] == HOLDS

    both = pd.concat([rows({4 * K: 90, 8 * K: 80}), rows({4 * K: 90}, "cwe")])
    found = rk.claims(both, "6, training length", trained={"m": "8K"})
    assert "m at all lengths of vt, cwe" in set(found["missing"])


def test_a_claim_of_ones_own_and_what_is_refused():
    frame = pd.concat([rows({4 * K: 90}, model="new"), rows({4 * K: 60}, model="old")])
    own = {"claim": "better", "kind": "higher", "limit": [20, 40], "together": True}
    own |= {"rows": "model == 'new'", "than": "model == 'old'"}
    (found,) = rk.claims(frame, listed=[own]).itertuples()
    assert found.verdict == HOLDS
    assert found.seen.startswith("higher by: 30 [")
    for wrong, match in (
        ({"kind": "fall"}, "unknown kind of a claim 'fall': did you mean 'falls'"),
        ({"alnog": "length"}, "the claim better: alnog is invalid: Extra inputs"),
        ({"rows": "long"}, "a claim has the condition 'long'"),
        ({"share": 0.5}, "the claim better: share is invalid: Input should be a valid tuple"),
        ({"parts": [{"claim": "a"}, {"claim": "a"}]}, "better cannot be read: each of its parts"),
        ({"parts": [{"kind": "above"}]}, "better cannot be read: each of its parts needs"),
    ):
        with pytest.raises(UserError, match=match):
            rk.claims(frame, listed=[own | wrong])
    with pytest.raises(UserError, match="claims '7': allowed: 4, main results; 4, v"):
        rk.claims(frame, "7")
    of_section_6 = [section for section in SECTIONS if section.startswith("6, ")]
    assert list(rk.claims(frame, "6")["section"].unique()) == of_section_6
    with pytest.raises(UserError, match="unknown model among those shown 'mine'"):
        rk.claims(frame, reference="mine")


ERRORS = """
Beyond 128K UUIDs     | H | m | niah_single_3@262144: 9 incomplete uuid, 50 complete
Beyond 128K UUIDs     | F | m | niah_single_3@262144: 300 complete
Beyond 128K UUIDs     | U | m | niah_single_3@131072: 9 incomplete uuid
In a haystack         | H | m | niah_multikey_2@8192: 9 near distractor, 1 other key, 5 complete
In a haystack         | F | m | niah_multikey_2@1024: 1 near distractor, 60 other key
In a haystack         | U | m | niah_multikey_2@1024: 1 near distractor, 1 other key
In a haystack         | U | m | niah_multikey_2@8192: 50 complete
Values are repeated   | H | m | niah_multivalue@8192: 9 duplicated values, 50 complete
Errors in variable    | H | m | vt@8192: 10 empty, 10 wrong chain, 3 complete
Errors in variable    | F | m | vt@8192: 20 partial, 1 empty
Some answers to       | H | m | qa_1@8192: 9 no-context answer, 9 complete
Common words: most    | H | m | cwe@4096: 60 complete; cwe@8192: 18 copied demonstration, 2 empty
Common words: most    | F | m | cwe@4096: 9 copied demonstration, 20 complete; cwe@8192: 20 copied demonstration
Common words: most    | U | m | cwe@4096: 9 complete; cwe@8192: 20 copied demonstration
Yi-34B: over 80%      | H | yi-34b | cwe@131072: 95 copied demonstration, 5 empty
Yi-34B: over 80%      | F | yi-34b | cwe@131072: 65 copied demonstration, 35 empty
Yi-34B: over 80%      | U | m | cwe@131072: 20 copied demonstration
Common words without  | H | m | cwe-demonstration_False@8192: 20 copied beginning, 2 empty
Mistral-v0.2 answers  | F | mistral-7b-v0.2 | cwe@8192: 20 complete, 2 function words
"""
"""Claim, verdict, model, and what was seen in its answers."""


@pytest.mark.parametrize(("claim", "letter", "model", "answers"), list(lines(ERRORS)))
def test_claims_about_errors(claim, letter, model, answers):
    frames = []
    for place, kinds in (part.split(": ") for part in answers.split("; ")):
        task, length = place.split("@")
        counts = [kind.split(" ", 1) for kind in kinds.split(", ")]
        texts = [label for count, label in counts for _ in range(int(count))]
        frame = pd.DataFrame({"index": range(len(texts)), "failure": texts, "score": 0.0})
        frames.append(frame.assign(task=task, length=int(length)))
    labels = pd.concat(frames).assign(run="r", model=model, label="M")
    found = rk.claims(labels, "5, errors")
    (row,) = found[found["claim"].str.startswith(claim)].itertuples()
    assert row.verdict == LETTERS[letter], row


CORRELATED = """
1  | 001123 | HHH
30 | 001123 | UFH
1  | 010000 | FFH
1  | 000000 | UHF
5  | 000000 | UUU
"""


@pytest.mark.parametrize(("noise", "causes", "letters"), list(lines(CORRELATED)))
def test_claims_about_correlations(noise, causes, letters):
    """Scores of six tasks; those with the same cause go together."""
    random = np.random.default_rng(0)
    names = ["niah_single_1", "niah_single_words", "vt", "vt_2_chains", "cwe", "qa_1"]
    hidden = random.normal(size=(24, 4))[:, list(map(int, causes))]
    values = 60 + 10 * hidden + float(noise) * random.normal(size=(24, 6))
    wide = pd.DataFrame(values / 100, columns=names).assign(model="m", length=range(24))
    frame = wide.melt(["model", "length"], var_name="task", value_name="score")
    found = rk.claims(frame, "6, task correlation")
    assert list(found["verdict"]) == [LETTERS[letter] for letter in letters]


def test_a_correlation_needs_rows():
    found = rk.claims(rows({4 * K: 50}), "6, task correlation")
    assert found["missing"].str.contains("give at least two tasks").all()
    columns = ["run", "model", "length", "task", "score"]
    cells = [["main", "m", 4096, "vt", 50.0], ["main", "m", 4096, "cwe", float("nan")]]
    with pytest.raises(UserError, match=r"0 complete rows of scores .* run the evaluation again"):
        correlation.task_vectors(pd.DataFrame(cells, columns=columns))


def test_intervals_of_correlations_cover_the_truth():
    random, truth, inside = np.random.default_rng(4), 0.7, 0
    for _ in range(300):
        pair = random.multivariate_normal([0, 0], [[1, truth], [truth, 1]], size=24)
        _, low, high = correlation.fisher(float(np.corrcoef(pair, rowvar=False)[0, 1]), 24)
        inside += low <= truth <= high
    assert 0.91 < inside / 300 < 0.99


LIMITS = """
0.1  | 9    | 0  | inf | H
0.0  | 9    | 0  | inf | U
0    | 1.9  | 0  | inf | F
30.1 | 49.9 | 30 | 50  | H
30.0 | 49.9 | 30 | 50  | U
20   | 29.9 | 30 | 50  | F
50.1 | 60   | 30 | 50  | F
nan  | nan  | 0  | inf | U
"""


@pytest.mark.parametrize(("low", "high", "least", "most", "letter"), list(lines(LIMITS)))
def test_limits_on_both_sides(low, high, least, most, letter):
    low, high = float(low), float(high)
    found = within(((low + high) / 2, low, high), (float(least), float(most)))
    assert found.word == LETTERS[letter]


@given(st.text("HFU", min_size=1, max_size=8), st.floats(0, 1), st.floats(0, 1))
def test_a_share_of_parts_is_judged_by_what_could_still_come_of_them(letters, least, most):
    parts = {str(i): Verdict(LETTERS[letter]) for i, letter in enumerate(letters)}
    found = share_of(parts, (least, most)).word
    low = letters.count("H") / len(letters)
    high = low + letters.count("U") / len(letters)
    possible = {least <= share <= most for share in (low, high)}
    if found == HOLDS:
        assert possible == {True}
    elif found == FAILS:
        assert possible == {False}
    assert (share_of(parts, (1, 1)).word == HOLDS) == (set(letters) == {"H"})
