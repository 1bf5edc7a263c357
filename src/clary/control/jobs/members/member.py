"""Elements of the tables of request members: a member, and the rules under which it is not honoured.

Where: `create_table` and `other_tables` declare each member of SageMaker's requests with them, `judging` applies the
tables to a request, and `tools/make_api_page.py` writes `docs/api.md` from the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from clary.control.jobs.members.place import HERE, Place


class Outcome(StrEnum):
    """Consequence of a rule that holds."""

    WARNED = "warned"  # the job runs; `describe` and the first lines of its log show the sentence
    REFUSED = "refused"  # ValidationException with the sentence


@dataclass(frozen=True, kw_only=True)
class Site:
    """Facts of this service that rules need."""

    account_id: str = "000000000000"
    machine_is_trusted: bool = False  # the setting: if true, requested encryption is a warning, no refusal
    free_disk_bytes: int | None = None  # free space of the disk that hosts write to; None if unknown
    place: Place = HERE
    has_host_networks: bool = True  # whether each job has its own network, which it leaves only by the proxy


@dataclass(frozen=True, kw_only=True)
class Use:
    """One use of a member in a request: the value, and its enclosing structure."""

    path: str  # of the member, as in the table
    value: Any
    around: tuple[Any, ...]  # enclosing structures: the request first, the structure with the member last
    item: str  # name of the channel, rule or group that contains the member; empty outside of lists
    site: Site

    @property
    def request(self) -> Any:
        """The request as a whole."""
        return self.around[0]

    @property
    def holder(self) -> Any:
        """The structure that contains the member."""
        return self.around[-1]


Condition = Callable[[Use], bool]


def is_set(use: Use) -> bool:
    """Whether the member is set; false, zero and empty values count as absent."""
    return bool(use.value)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Condition under which a member is not honoured, and the sentence about it."""

    outcome: Outcome
    sentence: str  # template with {path}, {value}, {item} and fields of {place}; equal sentences appear once
    when: str = ""  # the condition as a phrase; empty: wherever the member is set
    holds: Condition = is_set

    def speak(self, use: Use) -> str:
        """Return the rule's sentence about one use of the member."""
        return self.sentence.format(path=use.path, value=use.value, item=use.item, place=use.site.place)


@dataclass(frozen=True, kw_only=True)
class Member:
    """Treatment of one member, or of a structure with all its members."""

    path: str  # dotted, [] for items of a list
    says: str = ""  # effect of a value to which no rule applies; empty if the member has no effect
    rules: tuple[Rule, ...] = ()

    @property
    def is_honoured(self) -> bool:
        """Whether some values of the member are honoured."""
        return bool(self.says)


def honoured(path: str, says: str, *rules: Rule) -> Member:
    """Declare a member that has an effect."""
    return Member(path=path, says=says, rules=rules)


def without_effect(path: str, sentence: str, *, when: str = "", holds: Condition = is_set) -> Member:
    """Declare a member without an effect, with the sentence that says so.

    Args:
        path: dotted, [] for items of a list.
        sentence: may name {path}, {value} and {item}.
        when: the condition in words; empty: wherever the member is set.
        holds: the condition.
    """
    return Member(path=path, rules=(warned(sentence, when=when, holds=holds),))


def not_here(path: str, sentence: str) -> Member:
    """Declare a member that no job of this service can have."""
    return Member(path=path, rules=(refused(sentence),))


def warned(sentence: str, *, when: str = "", holds: Condition = is_set) -> Rule:
    """Declare values that are accepted with a warning.

    Args:
        sentence: may name {path}, {value} and {item}.
        when: the condition in words; empty: wherever the member is set.
        holds: the condition.
    """
    return Rule(outcome=Outcome.WARNED, sentence=sentence, when=when, holds=holds)


def refused(sentence: str, *, when: str = "", holds: Condition = is_set) -> Rule:
    """Declare values that are refused.

    Args:
        sentence: may name {path}, {value} and {item}.
        when: the condition in words; empty: wherever the member is set.
        holds: the condition.
    """
    return Rule(outcome=Outcome.REFUSED, sentence=sentence, when=when, holds=holds)
