"""Published scores of the suite's capabilities: what was printed, of which data, and where."""

import rulerkit_frontier as rf
from rulerkit_frontier.tasks import FAMILIES

KEY = ["benchmark", "setting", "variant", "model", "thinking", "lengths", "source"]


def test_every_row_says_what_was_printed_of_which_data_and_where():
    rows = rf.published_rows()
    assert not rows.duplicated(KEY).any()
    assert set(rows["capability"]) <= {family.capability for family in FAMILIES}
    assert set(rows["thinking"]) <= {"yes", "no", "unknown"}
    assert set(rows["measure"]) == {"accuracy", "F1", "ratio"}
    assert rows["score"].astype(float).between(0, 100).all()
    assert set(rows["checked"]) == {"table"}, "a figure that was only quoted is left out"
    assert (rows["source"].str.len() > 10).all()
    lengths = rows["length"][rows["length"] != ""].astype(int)
    assert lengths.between(250, 1048576).all()


def test_a_name_with_several_data_sets_says_which():
    """OpenAI's and Google's MRCR v2 differ; Anthropic changed prompt and scorer of GraphWalks."""
    rows = rf.published_rows()
    of_several = rows[rows["benchmark"].str.contains("MRCR|GraphWalks")]
    assert len(of_several) == 26
    assert of_several["variant"].ne("").all()
    assert "MRCR v2" not in set(rows["benchmark"]), "whose MRCR v2?"
