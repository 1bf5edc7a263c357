"""The base of profiler rules: parameters, and a verdict over measurements.

Where: package `rules` contains the built-in rules; `configured` makes the rules of a request.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from clary.base.errors import ContractError, Fault
from clary.control.profiling.measurements import Measurements

SCAN_INTERVAL_US = 60_000_000
US_PER_S = 1_000_000
PERCENTAGE: Mapping[str, Any] = {"most": 100.0}
POSITIVE: Mapping[str, Any] = {"is_positive": True}
NO_GPU = "no GPU was measured"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict of a rule on a job so far.

    Attributes:
        has_issue: whether it fires.
        detail: one sentence with the finding, its host, GPU or rank, and the limit; or why the rule could not judge.
        evidence: one line for each host, GPU or rank, like `detail`.
        num_datapoints: rows that were judged.
        num_violations: number of judged rows or windows over the limit.
        figures: host, GPU or rank -> name -> number, for programs.
        was_judged: whether there was enough data for a judgement.
    """

    has_issue: bool = False
    detail: str
    evidence: tuple[str, ...] = ()
    num_datapoints: int = 0
    num_violations: int = 0
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    was_judged: bool = True


@dataclass(frozen=True, kw_only=True)
class ProfilerRule:
    """Base of all rules; fields are parameters, with SageMaker's names and defaults.

    Args:
        scan_interval_us: microseconds from one evaluation to the next.
    """

    advice: ClassVar[str] = ""  # remedy if the rule fires

    scan_interval_us: int = field(default=SCAN_INTERVAL_US, metadata=POSITIVE)

    def judge(self, measurements: Measurements) -> Verdict:
        """Return the verdict on the measurements so far.

        Raises: NotImplementedError unless the rule overrides it.
        """
        raise NotImplementedError

    @classmethod
    def name(cls) -> str:
        """Return the rule's name in `rule_to_invoke`."""
        return cls.__name__

    @property
    def scan_interval_s(self) -> float:
        """Seconds from one evaluation to the next."""
        return self.scan_interval_us / US_PER_S

    def parameters(self) -> dict[str, Any]:
        """Return the parameters by name, in order."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


def not_judged(detail: str, num_datapoints: int = 0) -> Verdict:
    """Return the verdict of a rule without enough data."""
    return Verdict(detail=detail, num_datapoints=num_datapoints, was_judged=False)


def too_short(num_datapoints: int, patience: float) -> Verdict:
    """Return the verdict on a job that has not run for as long as the rule waits."""
    return not_judged(
        f"{num_datapoints} datapoints so far; the rule judges what comes after the first {patience:g} (patience)",
        num_datapoints,
    )


def rule_with(cls: type[ProfilerRule], given: Mapping[str, str]) -> ProfilerRule:
    """Return a rule with the parameters of a request.

    Raises: ContractError naming the parameter, the expected and the actual value.
    """
    known = {one.name: one for one in fields(cls)}
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name not in known:
            raise ContractError(
                f"{cls.name()} has no parameter {name[:80]!r}; it has {', '.join(known)}", fault=Fault.USER
            )
        values[name] = _parsed(cls, name, text, known[name].default, known[name].metadata)
    return cls(**values)


def _parsed(cls: type[ProfilerRule], name: str, text: str, default: Any, limits: Mapping[str, Any]) -> Any:
    if default is None:  # the request contains a text; a field value of None means all
        return None if text == "None" else text
    most = limits.get("most", math.inf)
    expected = "a number above 0" if limits.get("is_positive") else f"a number from 0 to {most:g}"
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    is_fit = 0 < value < math.inf if limits.get("is_positive") else 0 <= value <= most
    if not is_fit:
        raise ContractError(
            f"{cls.name()}: {name} must be {expected}, got {str(text)[:80]!r}; its default is {default:g}",
            fault=Fault.USER,
        )
    return round(value) if isinstance(default, int) and value == round(value) else value


def summary_of(cls: type[ProfilerRule]) -> str:
    """Return the summary of a rule: the first line of its docstring, without the full stop."""
    return (inspect.getdoc(cls) or "").partition("\n")[0].rstrip(".")
