"""Judgement of a request by the table of its operation: refusals and warnings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from clary.control.jobs.members.create_table import CREATE_TRAINING_JOB
from clary.control.jobs.members.data_members import with_modes
from clary.control.jobs.members.member import Member, Outcome, Site, Use
from clary.control.jobs.members.other_tables import (
    DELETE_TRAINING_JOB,
    LIST_TRAINING_JOBS,
    SEARCH,
    STOP_TRAINING_JOB,
    UPDATE_TRAINING_JOB,
)

TABLES: Mapping[str, tuple[Member, ...]] = {
    "CreateTrainingJob": CREATE_TRAINING_JOB,
    "UpdateTrainingJob": UPDATE_TRAINING_JOB,
    "StopTrainingJob": STOP_TRAINING_JOB,
    "DeleteTrainingJob": DELETE_TRAINING_JOB,
    "ListTrainingJobs": LIST_TRAINING_JOBS,
    "Search": SEARCH,
}
_Step = tuple[str, bool]  # (name of a member, whether the following steps apply to its items)
ITEM_NAMES = ("ChannelName", "RuleConfigurationName", "InstanceGroupName", "Name")


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Sentences on a request, in the table's order, each once."""

    refusals: tuple[str, ...]
    warnings: tuple[str, ...]


def judge(operation: str, request: Mapping[str, Any], site: Site) -> Judgement:
    """Return the judgement of a request by the operation's table.

    Args:
        operation: one of `TABLES`.
        request: the client's request, valid by the service model.
        site: facts of this service.
    """
    request = with_modes(request)
    found: dict[Outcome, dict[str, None]] = {outcome: {} for outcome in Outcome}
    for member, steps in _with_rules(operation):
        for use in _uses(steps, request, site):
            for rule in member.rules:
                if rule.holds(use):
                    found[rule.outcome][rule.speak(use)] = None
                    break
    return Judgement(refusals=tuple(found[Outcome.REFUSED]), warnings=tuple(found[Outcome.WARNED]))


def is_decided(operation: str, path: str) -> bool:
    """Whether the operation's table has a decision on a member, or on a structure that contains it."""
    decided = _paths(operation)
    steps = path.split(".")
    return any(".".join(steps[:count]).removesuffix("[]") in decided for count in range(1, len(steps) + 1))


@cache
def _with_rules(operation: str) -> tuple[tuple[Member, tuple[_Step, ...]], ...]:
    return tuple(
        (member, tuple((step.removesuffix("[]"), step.endswith("[]")) for step in member.path.split(".")))
        for member in TABLES[operation]
        if member.rules
    )


@cache
def _paths(operation: str) -> frozenset[str]:
    return frozenset(member.path for member in TABLES[operation])


def _uses(steps: tuple[_Step, ...], request: Mapping[str, Any], site: Site) -> Iterator[Use]:
    """Yield each value at a path, with the structures that contain it."""
    if request.get(steps[0][0]) is None:
        return
    places: list[tuple[Any, tuple[Any, ...], str]] = [(request, (), "")]
    for name, is_list in steps:
        following: list[tuple[Any, tuple[Any, ...], str]] = []
        for holder, around, item in places:
            value = holder.get(name) if isinstance(holder, dict) else None
            if value is None:
                continue
            inner = (*around, holder)
            if is_list:
                following += [(entry, inner, _name_of(entry) or item) for entry in value]
            else:
                following.append((value, inner, item))
        places = following
    path = ".".join(name for name, _ in steps)
    for value, around, item in places:
        yield Use(path=path, value=value, around=around, item=item, site=site)


def _name_of(entry: Any) -> str:
    if not isinstance(entry, dict):
        return ""
    return next((str(entry[name]) for name in ITEM_NAMES if entry.get(name)), "")
