"""What a claim may say: its keys and their values. The claims of the paper are data,
`rulerkit/data/paper/claims.yaml`, whose head says what each key means."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from rulerkit.common.errors import UserError, check_type, shorten, unknown
from rulerkit.common.paths import package_data

Limits = tuple[float, float]


class Claim(BaseModel, extra="forbid"):
    """The keys of a claim; each but `kind` may be left out."""

    section: str = ""
    place: str = ""
    claim: str = ""
    number: str = ""
    together: bool = False
    kind: str = ""
    rows: str = "all"
    than: str = "all"
    needs: list[str] = []
    weights: Literal["long", "short"] | None = None
    limit: Any = 0.0  # a number, two, threshold or chance
    along: str = "length"
    past: str = ""
    answers: list[str] = []
    among: list[str] = []
    parts: list["Claim"] = []
    every: dict[Literal["model", "task", "length"], str] = {}
    share: Limits = (1, 1)


def read_claims(listed: Sequence[Any] | None, section: str | None) -> list[Claim]:
    """The claims that are listed, by default the paper's, or those of a section of it (`5,
    distractors`, or `5`). Raises UserError for a wrong key or value, and for an unknown section."""
    given = package_data("paper/claims.yaml") if listed is None else listed
    found = []
    for claim in given:
        check_type(claim, Mapping, "claims", "a list of claims, each a mapping")
        try:
            found.append(Claim.model_validate(claim))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            name = shorten(claim.get("claim", claim))
            raise UserError(f"the claim {name}: {key} is invalid: {first['msg']}") from None

    if section is None:
        return found
    chosen = [claim for claim in found if f"{claim.section},".startswith(f"{section},")]
    if not chosen:
        raise unknown("section of the claims", section, dict.fromkeys(c.section for c in found))
    return chosen
