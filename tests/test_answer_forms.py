"""Right answers in other forms, judged as a careful reader would; and wrong ones that look alike."""

import json
from itertools import product

import pytest

import rulerkit as rk

INES = ["Ines Marlow"]
THREE = ["slow-violin", "brave-kettle", "pale-anchor"]
OTTER = ["tidy-otter"]
NODES = ["2fa6650d18", "91b3c4e07a"]
LINE = ["brave-kettle 10977"]
LINES = ["brave-kettle 10977", "x-y 22222"]
NUMBERS = ["4821377", "9004512"]

RIGHT = [
    # boxes, bold lines, headings
    ("latent_3", r"Final Answer: \boxed{Ines Marlow}", INES),
    ("latent_3", r"**Final Answer:** $\boxed{\text{Ines Marlow}}$", INES),
    ("latent_3", "**Final Answer**\n\n[Ines Marlow]", INES),
    ("latent_3", "### Final Answer\n[Ines Marlow]", INES),
    ("latent_3", "Final Answer - [Ines Marlow]", INES),
    ("latent_3", "Final Answer is [Ines Marlow]", INES),
    ("latent_3", "Final Answer：[Ines Marlow]", INES),
    ("latent_3", r"Final Answer: \(\boxed{\mathbf{Ines\ Marlow}}\)", INES),
    ("latent_3", "Final Answer:\n\\[\n\\boxed{\\textbf{Ines Marlow}}\n\\]", INES),
    ("latent_3", r"Final Answer: \boxed{\text{[Ines Marlow]}}", INES),
    ("latent_3", r"Final Answer: \[Ines Marlow\]", INES),
    ("latent_3", r"Final Answer: $\left[\mathrm{Ines~Marlow}\right]$", INES),
    ("latent_3", "The final answer is **Ines Marlow**.", INES),
    ("latent_3", "Therefore, the final answer is: Ines Marlow", INES),
    ("latent_3", "Step 4.\n**Final Answer**: `[Ines Marlow]`", INES),
    ("latent_3", "Final Answer:\n```\n[Ines Marlow]\n```", INES),
    ("latent_3", 'Final Answer:\n```json\n["Ines Marlow"]\n```\nDone.', INES),
    ("latent_3", "> **Final Answer:**\n> [Ines Marlow]", INES),
    ("latent_3", "## Final Answer\n\n---\n\n**Ines Marlow**", INES),
    ("latent_3", "Final Answer: <b>Ines Marlow</b>", INES),
    ("latent_3", '{"final_answer": ["Ines Marlow"]}', INES),
    ("latent_3", "Final Answer = [Ines Marlow]", INES),
    ("latent_3", "Final Answer [Ines Marlow]", INES),
    ("latent_3", "Final Answer (one person): [Ines Marlow]", INES),
    ("latent_3", "Final Answer: “Ines Marlow”", INES),
    ("latent_3", "Final Answer: ［Ｉｎｅｓ　Ｍａｒｌｏｗ］", INES),
    ("latent_3", "Final Answer: 【Ines Marlow】。", INES),
    ("latent_3", "Final Answer: INES MARLOW", INES),
    ("latent_3", "Final Answer: The person is Ines Marlow.", INES),
    ("latent_3", "Final Answer:\nInes Marlow\nI hope that this helps.", INES),
    ("latent_3", "Final Answer: [Ines Marlow] (not Otto Voss)", INES),
    ("latent_3", "Final Answer: [Ines Marlow], who cannot eat basil.", INES),
    ("latent_3", "Final Answer: [Otto Voss]\nNo.\nFinal Answer: Ines Marlow", INES),
    (
        "latent_3",
        "Final Answer: [Ines Marlow]\n\nThis final answer is based on the text.",
        INES,
    ),
    (
        "latent_3",
        "Final Answer: [Ines Marlow]\nThe final answer is Ines Marlow because of basil.",
        INES,
    ),
    ("latent_3", "Final Answer\n===\nInes Marlow", INES),
    ("latent_3", "Final Answer: Ines Marlow<|eot_id|>", INES),
    ("latent_3", "Final Answer: ✅ Ines Marlow", INES),
    # blanks and dashes
    ("latent_3", "Final Answer: [Ines\u00a0Marlow]", INES),
    ("latent_3", "Final Answer: [Ines\u202fMarlow]", INES),
    ("latent_3", "Final Answer: [Ines  Marlow]", INES),
    ("latent_3", "Final Answer: [Ines\nMarlow]", INES),
    ("latent_3", "Final Answer: Ines\nMarlow", INES),
    ("latent_3", "Final Answer: [Ines\tMarlow]", INES),
    ("latent_3", "Final Answer:\u200b [Ines Marlow\ufeff]", INES),
    ("state_4", "Final Answer: [tidy\u2011otter]", OTTER),
    ("state_4", "Final Answer: [tidy\u2013otter]", OTTER),
    ("state_4", "Final Answer: [tidy\u2212otter]", OTTER),
    # articles and words around
    ("state_4", "Final Answer: [the tidy-otter]", OTTER),
    ("state_4", "Final Answer: The tidy-otter.", OTTER),
    ("state_4", "Final Answer: a tidy-otter", OTTER),
    ("state_4", "Final Answer: [locker 41734: tidy-otter]", OTTER),
    ("state_4", "Final Answer for locker 41734: [tidy-otter]", OTTER),
    ("state_4", "Final Answer: The locker contains the tidy-otter.", OTTER),
    ("state_4", "Final Answer: tidy-otter (locker 41734)", OTTER),
    ("state_4", "Final Answer:\n- tidy-otter", OTTER),
    ("state_4", r"Final Answer: tidy\-otter", OTTER),
    # lists
    ("order_8", r"Final Answer: \boxed{[slow-violin, brave-kettle, pale-anchor]}", THREE),
    ("order_8", "Final Answer: slow-violin, brave-kettle, and pale-anchor", THREE),
    ("order_8", "Final Answer: slow-violin, brave-kettle and pale-anchor.", THREE),
    ("order_8", "Final Answer: slow-violin & brave-kettle & pale-anchor", THREE),
    ("order_8", "Final Answer: slow-violin, then brave-kettle, then pale-anchor", THREE),
    ("order_8", "Final Answer:\n1. slow-violin\n2. brave-kettle\n3. pale-anchor", THREE),
    ("order_8", "Final Answer: 1. slow-violin 2. brave-kettle 3. pale-anchor", THREE),
    ("order_8", "Final Answer:\n1) slow-violin\n\n2) brave-kettle\n\n3) pale-anchor", THREE),
    ("order_8", "Final Answer: (a) slow-violin (b) brave-kettle (c) pale-anchor", THREE),
    ("order_8", "Final Answer: (1) slow-violin, (2) brave-kettle, (3) pale-anchor", THREE),
    ("order_8", "Final Answer: slow-violin -> brave-kettle -> pale-anchor", THREE),
    ("order_8", "Final Answer: slow-violin → brave-kettle → pale-anchor", THREE),
    ("order_8", "Final Answer: slow-violin > brave-kettle > pale-anchor", THREE),
    ("order_8", r"Final Answer: $slow-violin \to brave-kettle \rightarrow pale-anchor$", THREE),
    ("order_8", "Final Answer: [1. slow-violin, 2. brave-kettle, 3. pale-anchor]", THREE),
    ("order_8", "Final Answer: [the slow-violin, the brave-kettle, the pale-anchor]", THREE),
    ("order_8", "Final Answer: [slow-violin], [brave-kettle], [pale-anchor]", THREE),
    ("order_8", "Final Answer: [slow-violin] [brave-kettle] [pale-anchor]", THREE),
    ("order_8", "Final Answer: [[slow-violin, brave-kettle], [pale-anchor]]", THREE),
    ("order_8", "Final Answer: slow-violin | brave-kettle | pale-anchor", THREE),
    ("order_8", "Final Answer: (slow-violin, brave-kettle, pale-anchor)", THREE),
    ("order_8", "Final Answer: slow-violin、brave-kettle、pale-anchor", THREE),
    ("order_8", "Final Answer:\n• slow-violin\n• brave-kettle\n• pale-anchor", THREE),
    ("order_8", "Final Answer:\n\n* **slow-violin**\n* **brave-kettle**\n* **pale-anchor**\n\nDone.", THREE),
    ("order_8", "Final Answer:\n| # | thing |\n|---|---|\n| 1. | slow-violin |\n| 2. | brave-kettle |\n| 3. | pale-anchor |", THREE),
    ("order_8", "Final Answer:\n| thing |\n|:---|\n| slow-violin |\n| brave-kettle |\n| pale-anchor |", THREE),
    ("order_8", "Final Answer: [slow-violin (Day 48), brave-kettle (Day 3305), pale-anchor (Day 9913)]", THREE),
    ("order_8", "Final Answer: Day 48: slow-violin, Day 3305: brave-kettle, Day 9913: pale-anchor", THREE),
    ("order_8", "Final Answer: Mara Lind brought the slow-violin, the brave-kettle and the pale-anchor.", THREE),
    ("order_8", "Final Answer: slow-violin brave-kettle pale-anchor", THREE),
    ("order_8", "Final Answer: ['slow-violin' 'brave-kettle' 'pale-anchor']", THREE),
    ("order_8", "Final Answer: First slow-violin, then brave-kettle, finally pale-anchor", THREE),
    ("order_8", "Final Answer: slow-violin, brave-kettle, pale-anchor, in that order", THREE),
    ("order_8", "Final Answer: slow-violin --> brave-kettle --> pale-anchor", THREE),
    ("order_8", "Final Answer:\n1 - slow-violin\n2 - brave-kettle\n3 - pale-anchor", THREE),
    ("order_8", "Final Answer:\n① slow-violin\n② brave-kettle\n③ pale-anchor", THREE),
    ("order_8", "Final Answer:\ni. slow-violin\nii. brave-kettle\niii. pale-anchor", THREE),
    ("order_8", "Final Answer:\na. slow-violin\nb. brave-kettle\nc. pale-anchor", THREE),
    ("order_8", "Final Answer: slow-violin\nbrave-kettle\npale-anchor\nDone.", THREE),
    ("order_8", "Final Answer:\r\n- slow-violin\r\n- brave-kettle\r\n- pale-anchor\r\n", THREE),
    ("order_8", "Final Answer: <ul><li>slow-violin</li><li>brave-kettle</li><li>pale-anchor</li></ul>", THREE),
    ("order_8", r"Final Answer: \begin{itemize} \item slow-violin \item brave-kettle \item pale-anchor \end{itemize}", THREE),
    ("order_8", '{"Final Answer": {"things": ["slow-violin", "brave-kettle", "pale-anchor"]}}', THREE),
    ("graph_bfs_2", r"Final Answer: \boxed{[2fa6650d18, 91b3c4e07a]}", NODES),
    ("graph_bfs_2", r"Final Answer: $\{2fa6650d18, 91b3c4e07a\}$", NODES),
    ("graph_bfs_2", r"Final Answer: $\left\{ \text{2fa6650d18}, \texttt{91b3c4e07a} \right\}$", NODES),
    ("graph_bfs_2", "Final Answer: {2fa6650d18,\n91b3c4e07a}", NODES),
    ("graph_bfs_2", "Final Answer: 2fa6650d18 and 91b3c4e07a", NODES),
    ("graph_bfs_2", "Final Answer: both 2fa6650d18 and 91b3c4e07a", NODES),
    ("graph_bfs_2", "Final Answer: node 2fa6650d18 and node 91b3c4e07a", NODES),
    ("graph_bfs_2", "Final Answer: 2fa6650d18 91b3c4e07a", NODES),
    ("graph_bfs_2", "Final Answer:\n2fa6650d18\n91b3c4e07a", NODES),
    ("graph_bfs_2", "Final Answer: The nodes at depth 2: [2fa6650d18, 91b3c4e07a]", NODES),
    ("graph_parents", "Final Answer: The parents are [2fa6650d18, 91b3c4e07a]", NODES),
    ("graph_parents", "Final answers are 2fa6650d18 and 91b3c4e07a.", NODES),
    ("graph_bfs_4", "Final Answer: `2fa6650d18`, `91b3c4e07a`", NODES),
    ("missing_8", "Final Answer: brave-kettle 10977 and x-y 22222", LINES),
    ("missing_8", "Final Answer: [brave-kettle: 10977, x-y: 22222]", LINES),
    ("missing_8", "Final Answer:\nbrave-kettle 10977\nx-y 22222", LINES),
    ("missing_8", "Final Answer: [brave-kettle (10977), x-y (22222)]", LINES),
    ("missing_8", "Final Answer: [(brave-kettle, 10977), (x-y, 22222)]", LINES),
    ("missing_8", "Final Answer: [brave-kettle - 10977, x-y – 22222]", LINES),
    ("missing_8", "Final Answer: [brave-kettle 10,977, x-y 22,222]", LINES),
    ("missing_8", "Final Answer: [brave-kettle\n10977, x-y 22222]", LINES),
    ("missing_8", 'Final Answer: {"brave-kettle": 10977, "x-y": 22222}', LINES),
    ("missing_8", "Final Answer:\n| line | number |\n|---|---|\n| brave-kettle | 10977 |\n| x-y | 22222 |", LINES),
    ("missing_8", "Final Answer: brave-kettle → 10977, x-y → 22222", LINES),
    ("missing_8", 'Final Answer: [{"thing": "brave-kettle", "number": 10977}, {"thing": "x-y", "number": 22222}]', LINES),
    ("missing_8", "Final Answer: brave-kettle 10977 x-y 22222", LINES),
    ("missing_8", "Final Answer: The missing lines are:\n- brave-kettle 10977\n- x-y 22222", LINES),
    ("absent_4", "Final Answer: [4,821,377, 9,004,512]", NUMBERS),
    ("absent_4", "Final Answer: 4821377 and 9004512", NUMBERS),
    ("absent_4", "Final Answer:\n4821377\n9004512", NUMBERS),
    ("absent_4", r"Final Answer: $4{,}821{,}377$ and $9{,}004{,}512$", NUMBERS),
    ("absent_4", "Final Answer: 4 821 377; 9 004 512", NUMBERS),
    ("absent_4", "Final Answer: [tidy-otter: 4821377, pale-anchor: n/a, x-y: 9004512, a-b: not mentioned]", NUMBERS),
    ("absent_4", "Final Answer: tidy-otter = 4821377, x-y = 9004512", NUMBERS),
    # nothing
    ("state_4", "Final Answer: The locker is empty.", []),
    ("state_4", "Final Answer: Locker 41734 is now empty", []),
    ("state_4", "The final answer is that the locker is empty.", []),
    ("state_4", "Final Answer: [empty]", []),
    ("latent_3", "Final Answer: [N/A]", []),
    ("latent_3", "Final Answer: [null]", []),
    ("latent_3", "Final Answer: no-one", []),
    ("latent_3", "Final Answer: Nobody has to refuse pesto.", []),
    ("latent_3", r"Final Answer: \boxed{[]}", []),
    ("latent_3", r"Final Answer: \boxed{}", []),
    ("latent_3", r"Final Answer: \[\]", []),
    ("latent_3", "**Final Answer**\n\n[]", []),
    ("graph_bfs_2", "Final Answer: ∅", []),
    ("graph_bfs_2", r"Final Answer: $\emptyset$", []),
    ("graph_bfs_2", r"Final Answer: $\{\}$", []),
    ("graph_bfs_2", "Final Answer: {}", []),
    ("graph_bfs_2", "Final Answer: the empty set", []),
    ("graph_bfs_2", "Final Answer: There are no such nodes.", []),
    ("graph_bfs_2", "Final Answer: [[]]", []),
    ("missing_8", "Final Answer: No lines are missing.", []),
    ("missing_8", "Final Answer: None of the lines is missing", []),
    ("missing_8", "Final Answer: ['']", []),
    ("absent_4", "Final Answer: No such numbers exist.", []),
    ("absent_4", "Final Answer: none, none, none, none", []),
    ("absent_4", "Final Answer: [a-b: not mentioned, c-d: no number]", []),
    ("order_8", "Final Answer: There is none.", []),
    ("order_8", "Final Answer: Mara Lind brought nothing.", []),
    # numbers
    ("count_64", r"Final Answer: \boxed{12}", ["12"]),
    ("count_64", r"Final Answer: $\boxed{12}$ orders", ["12"]),
    ("count_64", "Final Answer: 12.0", ["12"]),
    ("count_64", "Final Answer: twelve", ["12"]),
    ("count_64", "Final Answer: Twenty-one orders", ["21"]),
    ("count_64", "Final Answer: twelve (12)", ["12"]),
    ("count_64", "Final Answer: 5 + 7 = 12", ["12"]),
    ("count_64", "Final Answer: 12 = 5 + 7", ["12"]),
    ("count_64", "**Final Answer**\n\n12", ["12"]),
    ("count_64", "The final answer is 12.", ["12"]),
    ("count_64", "The final answer is twelve.", ["12"]),
    ("count_64", "Final Answer:\n- 12", ["12"]),
    ("count_64", "Final Answer: １２", ["12"]),
    ("count_64", "Final Answer: exactly 12 orders", ["12"]),
    ("count_64", "Final Answer: adds up to 12", ["12"]),
    ("count_64", "Final Answer: zero", ["0"]),
    ("count_64", "Final Answer: []", ["0"]),
    ("count_64", r"Final Answer: \boxed{[]}", ["0"]),
    ("count_64", "Final Answer: no orders", ["0"]),
    ("count_64", "Final Answer: There are none.", ["0"]),
    ("count_distinct_32", "Final Answer: nobody", ["0"]),
    ("count_distinct_32", "Final Answer: No one bought a teal lamp.", ["0"]),
]  # fmt: skip

WRONG = [
    ("latent_3", "Final Answer: [Ines Marlow]\n\n(The form was 'Final Answer: [Jane Doe]'.)", INES),
    ("latent_3", "Final Answer: [Ines Marlow] or [Otto Voss]", INES),
    ("latent_3", "Final Answer: [Ines Marlow] or Otto Voss", INES),
    ("latent_3", "Final Answer: [Ines Marlow] (or Otto Voss)", INES),
    ("latent_3", "Final Answer: [Ines Marlow] / [Otto Voss]", INES),
    ("latent_3", "Final Answer: [Ines Marlow], Otto Voss", INES),
    ("latent_3", "Final Answer: [Ines Marlow]\n[Otto Voss]", INES),
    ("latent_3", "Final Answer: either Ines Marlow or Otto Voss", INES),
    ("latent_3", "Final Answer: Ines Marlow or Otto Voss", INES),
    ("latent_3", "Final Answer: Ines Marlow/Otto Voss", INES),
    ("latent_3", "Final Answer: Ines Marlow and Otto Voss", INES),
    ("latent_3", "Final Answer:\nInes Marlow\nOtto Voss", INES),
    ("latent_3", "Final Answer:\n- Ines Marlow\n\n- Otto Voss", INES),
    ("latent_3", r"Final Answer: \boxed{Ines Marlow} or \boxed{Otto Voss}", INES),
    ("latent_3", "Final Answer: not Ines Marlow", INES),
    ("latent_3", "Final Answer: [not Ines Marlow]", INES),
    ("latent_3", "The final answer is not Ines Marlow.", INES),
    ("latent_3", "Final Answer: It is not [Ines Marlow]", INES),
    ("latent_3", "Final Answer: Not: Ines Marlow", INES),
    ("latent_3", "Final Answer: anyone but [Ines Marlow]", INES),
    ("latent_3", "Final Answer: Ines Marlow?", INES),
    ("latent_3", "Final Answer: ~~Ines Marlow~~", INES),
    ("latent_3", r"Final Answer: \cancel{Ines Marlow}", INES),
    ("latent_3", "Final Answer: Ines", INES),
    ("latent_3", "Final Answer: Ines Marlowe", INES),
    ("latent_3", "Final Answer: Marlow Ines", INES),
    ("latent_3", "Final Answer: [Ines, Marlow]", INES),
    ("latent_3", "Final Answer:", INES),
    ("latent_3", "Ines Marlow", INES),
    ("latent_3", "Answer: [Ines Marlow]", INES),
    ("latent_3", "My final answer:\n\nI cannot tell.\n\nInes Marlow", INES),
    ("latent_3", "Final Answer: [Ines Marlow]\nWait, the final answer is Otto Voss.", INES),
    ("latent_3", "Final Answer: Nobody but Otto Voss", []),
    ("latent_3", "Final Answer: none or Otto Voss", []),
    ("latent_3", "Final Answer: I do not know", []),
    ("latent_3", "Final Answer: no idea", []),
    ("latent_3", "Final Answer: cannot be determined", []),
    ("state_4", "Final Answer: the locker is not empty", []),
    ("state_4", "Final Answer: [tidy-otter] or empty", []),
    ("state_4", "Final Answer: [tidy-otter] or empty", OTTER),
    ("state_4", "Final Answer: tidy-otter or nothing", OTTER),
    ("state_4", "Final Answer: The locker is empty, tidy-otter", OTTER),
    ("state_4", "Final Answer: [tidy-otter, pale-anchor, brave-kettle]", OTTER),
    ("state_4", "Final Answer: tidy otter-case", OTTER),
    ("state_4", "Final Answer: tidy-otter pale-anchor", OTTER),
    ("state_4", "Final Answer: tidy-otter\npale-anchor", OTTER),
    ("state_4", "Final Answer: ❌ tidy-otter", OTTER),
    ("missing_8", "Final Answer: no lines except brave-kettle 10977", []),
    ("missing_8", "Final Answer: brave-kettle 10978", LINE),
    ("missing_8", "Final Answer: brave-kettle 109770", LINE),
    ("missing_8", "Final Answer: brave-kettle", LINE),
    ("missing_8", "Final Answer: all lines but brave-kettle 10977", LINE),
    ("missing_8", "Final Answer: brave-kettle 10977 or pale-anchor 66302", LINE),
    ("absent_4", "Final Answer: 9004512 or 4821377", ["4821377"]),
    ("absent_4", "Final Answer: not 4821377", ["4821377"]),
    ("absent_4", "Final Answer: 48213770", ["4821377"]),
    ("absent_4", "Final Answer: 4821376-4821378", ["4821377"]),
    ("graph_bfs_2", "Final Answer: []", NODES),
    ("graph_bfs_2", "Final Answer: [2fa6650d1891b3c4e07a]", NODES),
    ("order_8", "Final Answer: [a-b, c-d]", THREE),
    ("count_64", "Final Answer: more than 12", ["12"]),
    ("count_64", "Final Answer: ≈12", ["12"]),
    ("count_64", r"Final Answer: $\approx 12$", ["12"]),
    ("count_64", r"Final Answer: $\geq 12$", ["12"]),
    ("count_64", "Final Answer: x >= 12", ["12"]),
    ("count_64", "Final Answer: ~12", ["12"]),
    ("count_64", "Final Answer: >12", ["12"]),
    ("count_64", "Final Answer: approximately 12", ["12"]),
    ("count_64", "Final Answer: approx. 12", ["12"]),
    ("count_64", "Final Answer: about **12**", ["12"]),
    ("count_64", "Final Answer: at least 12", ["12"]),
    ("count_64", "Final Answer: at most [12]", ["12"]),
    ("count_64", "Final Answer: up to 12", ["12"]),
    ("count_64", "Final Answer: 12 or more", ["12"]),
    ("count_64", "Final Answer: 12+", ["12"]),
    ("count_64", "Final Answer: 12 teal lamps or more", ["12"]),
    ("count_64", "Final Answer: 12, maybe more", ["12"]),
    ("count_64", "Final Answer: 12-ish", ["12"]),
    ("count_64", "Final Answer: 12?", ["12"]),
    ("count_64", "Final Answer: 12 ± 1", ["12"]),
    ("count_64", "Final Answer: not 12", ["12"]),
    ("count_64", "Final Answer: 10-12", ["12"]),
    ("count_64", "Final Answer: 10–12", ["12"]),
    ("count_64", "Final Answer: between 11 and 13", ["12"]),
    ("count_64", "Final Answer: eleven or twelve", ["12"]),
    ("count_64", "Final Answer: a dozen or so", ["12"]),
    ("count_64", "Final Answer: 10 = 12", ["12"]),
    ("count_64", "Final Answer: 1²", ["12"]),
    ("count_64", "Final Answer: 12%%12", ["12"]),
    ("count_64", "Final Answer: 10, 11, 12, 13", ["12"]),
    ("count_64", "Final Answer: no idea", ["0"]),
    ("count_64", "Final Answer:", ["0"]),
    ("count_64", "Final Answer: not zero", ["0"]),
    ("count_64", "Final Answer: none or 3", ["0"]),
]  # fmt: skip


@pytest.mark.parametrize(("task", "answer", "references"), RIGHT)
def test_a_right_answer_scores_one_in_any_form(task, answer, references):
    asked = rk.task(task)
    assert asked.score(answer, references) == 1
    assert asked.strict(answer, references).f1 == 1
    assert asked.missing(answer, references) == ()


@pytest.mark.parametrize(("task", "answer", "references"), WRONG)
def test_what_is_wrong_or_in_doubt_scores_nothing(task, answer, references):
    assert rk.task(task).score(answer, references) == 0


# --- every form says what the usual one says ------------------------------------------------------

FORMS = {
    "boxed": lambda items: rf"Final Answer: \boxed{{[{', '.join(items)}]}}",
    "words in boxes": lambda items: (
        "Final Answer: $" + ", ".join(rf"\text{{{item}}}" for item in items) + "$"
    ),
    "heading": lambda items: f"## Final Answer\n\n[{', '.join(items)}]",
    "json": lambda items: f"Final Answer:\n```json\n{json.dumps(items)}\n```",
    "bullets": lambda items: "\n".join(
        ["**Final Answer:**", *(f"- **{item}**" for item in items)]
    ),
    "numbers": lambda items: "\n\n".join(
        ["Final Answer:", *(f"{i}. {item}" for i, item in enumerate(items, 1))]
    ),
    "in a row": lambda items: (
        "Final Answer: "
        + " ".join(f"({i}) {item}" for i, item in enumerate(items, 1))
    ),
    "lines": lambda items: "\n".join(["Final Answer:", *items]),
    "arrows": lambda items: f"Final Answer: {' → '.join(items)}",
    "and": lambda items: (
        f"The final answer is: {', '.join(items[:-1])}, and the {items[-1]}."
    ),
    "table": lambda items: "\n".join(
        [
            "Final Answer:",
            "| item |",
            "|---|",
            *(f"| {item} |" for item in items),
        ]
    ),
    "typographic": lambda items: f"Final Answer：［{'，'.join(items)}］".replace(
        "-", "\u2011"
    ),
}
OTHERS = {
    "order_8": (THREE, "blue-door", [f"a{i}-b" for i in range(60)]),
    "missing_8": (
        LINES,
        "red-roof 33333",
        [f"a-b {n}" for n in range(10000, 10060)],
    ),
    "absent_4": (NUMBERS, "1234567", [str(n) for n in range(5000000, 5000060)]),
    "graph_bfs_2": (NODES, "0123456789", [f"{n:010x}" for n in range(60)]),
}


@pytest.mark.parametrize(("task", "form"), list(product(OTHERS, FORMS)))
def test_wrong_items_cost_the_same_in_every_form(task, form):
    """One left out, one wrong, the other order, all candidates."""
    right, wrong, candidates = OTHERS[task]
    asked = rk.task(task)
    for items in (
        right,
        right[1:] + [wrong],
        [wrong, *right],
        right[::-1],
        [wrong, candidates[0]],
        right + candidates,
    ):
        usual = asked.score(f"Final Answer: [{', '.join(items)}]", right)
        assert asked.score(FORMS[form](items), right) == usual, items
