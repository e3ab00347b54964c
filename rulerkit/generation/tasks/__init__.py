"""What is asked: the thirteen tasks of RULER and the five that Figure 5 adds.

A task is one line here that says how it differs from its family's default; a family is one file and
one line, and is imported when one of its tasks is asked for.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pkgutil import resolve_name
from typing import Any

from rulerkit.common.errors import UserError, check_known, shortened, unknown
from rulerkit.common.plugins import brought, check_free, is_outside, load_recorded, loaded
from rulerkit.generation.tasks.base import PROTOCOLS, RULES
from rulerkit.generation.tasks.base import Task as Task

FAMILIES = {
    "niah": ("niah:Needles", "niah"),
    "vt": ("variable_tracking:VariableTracking", "vt"),
    "cwe": ("common_words:CommonWords", "aggregation"),
    "fwe": ("frequent_words:FrequentWords", "aggregation"),
    "qa": ("question_answering:QuestionAnswering", "qa"),
}
"""The first letters of the names of a family's tasks -> its file with its class, and its category,
for which no family is imported."""

_SETTINGS: dict[str, dict[str, Any]] = {
    "niah_single_1": {"haystack": "noise"},
    "niah_single_2": {},
    "niah_single_3": {"value": "uuids"},
    "niah_multikey_1": {"num_keys": 4},
    "niah_multikey_2": {"haystack": "needle"},
    "niah_multikey_3": {"haystack": "needle", "key": "uuids", "value": "uuids"},
    "niah_multivalue": {"num_values": 4},
    "niah_multiquery": {"num_keys": 4, "num_queries": 4},
    "vt": {},
    "cwe": {},
    "fwe": {},
    "qa_1": {},
    "qa_2": {"dataset": "hotpotqa"},
    # Beyond the thirteen, which are the first: the five that Figure 5 shows as redundant.
    "niah_single_words": {"value": "words"},
    "niah_multivalue_2": {"num_values": 2},
    "niah_multiquery_2": {"num_keys": 2, "num_queries": 2},
    "vt_2_chains": {"num_chains": 2, "num_hops": 2},
    "fwe_3.5": {"alpha": 3.5},
}
"""Task -> how it differs from its family's default."""
TASKS: tuple[str, ...] = tuple(_SETTINGS)
THIRTEEN: tuple[str, ...] = TASKS[:13]
CATEGORIES = ("niah", "vt", "aggregation", "qa")


def task(spec: str | Mapping[str, Any] | Task, protocol: str | None = None) -> Task:
    """The task that a name, or a mapping with `base` and settings, describes, under a protocol:
    `clean`, unless it is named here or by the task that is given.

    A variant that is equal to a named task is that task. Any other is named after what it changes,
    `niah_multikey_1-num_keys_8`, unless `name` says otherwise.
    """
    if isinstance(spec, str):
        # Plug-ins are asked where a name is none of ours.
        if spec in TASKS:
            spec = family_of(spec)(name=spec, **_SETTINGS[spec])
        else:
            known = all_tasks()
            check_known("task", spec, known, command="rulerkit tasks")
            spec = known[spec]
    if isinstance(spec, Task):
        if protocol is None:
            return spec
        check_known("protocol", protocol, PROTOCOLS)
        under: Any = {"protocol": protocol}
        return replace(spec, **under)
    return _variant(spec, protocol)


def _variant(spec: Mapping[str, Any], protocol: str | None) -> Task:
    """A task with other settings, under a name that no other task has."""
    if not isinstance(spec, Mapping) or not isinstance(spec.get("base"), str):
        raise UserError(
            f"a task is a name or a mapping with `base: NAME` and settings; seen: {shortened(spec)}"
        )
    base = task(spec["base"], protocol)
    settings = {name: value for name, value in spec.items() if name not in ("base", "name")}
    for setting in settings:
        check_known(f"setting of {base.name}", setting, [*base.setting_names(), "suite"])
    variant = replace(base, **settings)
    names = list(all_tasks() if is_outside(type(base)) else TASKS)

    # Without a name of its own it is the task that it equals, or is named after what it changes.
    name = str(spec.get("name") or "")
    if not name:
        changes = sorted(vars(variant).items() - vars(base).items())
        name = "-".join([base.name, *(f"{setting}_{value}" for setting, value in changes)])
        for other in names:
            if task(other, protocol) == replace(variant, name=other):
                name = other
                break
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", name):
        raise UserError(
            f"the task name {shortened(name)} cannot name a folder: give a `name` of at most 200 "
            "letters, digits, . _ and -"
        )

    variant = replace(variant, name=name)
    if name in names:
        # Only the tokens of an answer may differ from the task of this name.
        named = task(name, protocol)
        if variant != replace(named, max_new_tokens=variant.max_new_tokens):
            raise UserError(f"{name} is another task's name: give this variant another `name:`")
    return variant


def suites() -> dict[str, list[str]]:
    """Suite -> the names of its tasks, which its name stands for: those of plug-ins too, and of
    `ruler` the thirteen."""
    found: dict[str, list[str]] = {}
    for task in all_tasks().values():
        found.setdefault(task.suite, []).append(task.name)
    return found | {"ruler": list(THIRTEEN)}


def without_suites(specs: Iterable[Any]) -> list[Any]:
    """Names and mappings, with the tasks of a suite for its name."""
    found = list[Any]()
    for spec in specs:
        # Plug-ins are asked where a name is none of ours.
        if spec == "ruler":
            found += THIRTEEN
        elif isinstance(spec, str) and spec not in TASKS:
            found += suites().get(spec, [spec])
        else:
            found.append(spec)
    return found


def in_order(names: Iterable[str]) -> list[str]:
    """Each task once, by its name: the thirteen in their order, then others as they come."""
    given = dict.fromkeys(names)
    ours = [name for name in THIRTEEN if name in given]
    return ours + [name for name in given if name not in THIRTEEN]


def each_once(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """The tasks, each once. Raises UserError for two different ones of one name, whose answers
    would be mixed."""
    named: dict[str, Task] = {}
    for task in tasks:
        if named.setdefault(task.name, task) != task:
            raise UserError(
                f"two different tasks are named {task.name}: give one of them another `name:`"
            )
    return tuple(named.values())


def family_of(name: str, family: str = "") -> type[Task]:
    """The family of a task: the one that a record calls `family`, or else the one that the first
    letters of the task's name tell."""
    # No other family of ours is imported for it.
    for letters, (place, _) in FAMILIES.items():
        is_named = place.startswith(f"{family}:")
        if is_named if family else re.match(rf"{letters}(?![a-zA-Z])", name):
            ours: type[Task] = resolve_name(f"{__name__}.{place}")
            return ours
    for one in _families_of_plugins():
        if one.family == family if family else re.match(rf"{one.short_name}(?![a-zA-Z])", name):
            return one
    names = ", ".join([*FAMILIES, *[one.short_name for one in _families_of_plugins()]])
    hint = f"Other names must begin with one of {names}: rename the file or the task"
    raise unknown("task", name, THIRTEEN, hint)


def category_of(name: str) -> str:
    """The category of a task, or variant, by the first letters of its name; '' where they tell
    none."""
    letters = re.split("[^a-zA-Z]", name, maxsplit=1)[0]
    if letters in FAMILIES:
        return FAMILIES[letters][1]
    try:
        return family_of(name).category
    except UserError:
        return ""


def all_tasks() -> dict[str, Task]:
    """The tasks by their names, those of plug-ins too."""
    return {name: task(name) for name in TASKS} | _from_plugins(loaded())


def all_families() -> Iterator[type[Task]]:
    """The families, and then those of plug-ins, each imported where it comes to it."""
    for place, _ in FAMILIES.values():
        yield resolve_name(f"{__name__}.{place}")
    yield from _families_of_plugins()


def _families_of_plugins() -> list[type[Task]]:
    return list(dict.fromkeys(type(task) for task in _from_plugins(loaded()).values()))


@lru_cache(maxsize=1)
def _from_plugins(_: tuple[str, ...]) -> dict[str, Task]:
    """The tasks of the families that plug-ins bring, by their names; asked anew when more are
    loaded."""
    owners = dict.fromkeys(TASKS, "rulerkit")
    family_owners = {place.partition(":")[0]: "rulerkit" for place, _ in FAMILIES.values()}
    tasks = dict[str, Task]()
    for module, families in brought("families"):
        if not isinstance(families, list | tuple):
            raise UserError(
                f"plug-in {module}: families is {shortened(families)}; expected a list of classes "
                "made from Task (docs/extend.md)"
            )

        for family in families:
            _check_family(family, module)
            check_free("family", family.family, module, family_owners)
            family_owners[family.family] = module
            for task in family.tasks():
                check_free("task", task.name, module, owners)
                owners[task.name] = module
                tasks[task.name] = task
    return tasks


def _check_family(family: Any, module: str) -> None:
    """Raises UserError where a plug-in's family lacks what it must bring."""
    problem = ""
    if not (isinstance(family, type) and issubclass(family, Task)):
        problem = "is no family: give classes made from rulerkit's Task"
    elif not hasattr(family, "family") or not hasattr(family, "new_tokens"):
        problem = "brings no `family` or no `new_tokens`: docs/extend.md says what it must bring"
    elif "__pydantic_validator__" not in vars(family):
        # Its settings would not be checked.
        problem = (
            "is no dataclass of pydantic: write `@dataclass(frozen=True, kw_only=True)` with "
            "`from pydantic.dataclasses import dataclass`"
        )
    elif (family.match in RULES) != (family.score is Task.score):
        # Else the record would name a rule that does not judge.
        problem = (
            f"says match = {family.match!r}: it names one of {', '.join(RULES)}, or another word, "
            "such as 'own', where it brings a `score` of its own, and only there"
        )
    if problem:
        raise UserError(f"plug-in {module}: {shortened(family)} {problem}")


def recorded_task(settings: Mapping[str, Any]) -> Task:
    """The task that a record describes by its settings. A family from outside that is not loaded
    yet is imported from the module that the record names. Raises UserError where it is not here."""
    # Files of other programs name no family.
    name, named_family = settings["name"], settings["family"]
    try:
        family = family_of(name, named_family)
    except UserError:
        if not named_family:
            raise
        module = settings.get("module", "")
        try:
            load_recorded(str(module))
            family = family_of(name, named_family)
        except UserError:
            raise UserError(
                f"the answers of {name} need the code of its family {named_family}, which is in "
                f"{module or 'a module that its record does not name'} and cannot be imported: "
                "install the package that holds it, or put it below the project root"
            ) from None

    # A record may lack what the family learned since, and says None of what is unknown.
    names = ("name", "protocol", *family.setting_names())
    given: Any = {name: settings[name] for name in names if settings.get(name) is not None}
    return family(**given)


def read_answer(text: str, task: str = "") -> str | None:
    """The answer that the text of a prompt gives; None if it is not a prompt of any family. `task`
    is the name of its task, where that is known."""
    for family in [family_of(task)] if task in TASKS else all_families():
        items = family.read(text)
        if items is not None:
            return family.join(items) or family.nothing
    return None
