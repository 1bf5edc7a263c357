r"""Prometheus' text format, and the names of series in it. Pure.

    # HELP clary_host_cpu_percent description
    # TYPE clary_host_cpu_percent gauge
    clary_host_cpu_percent{training_job="demo",host="algo-1"} 182.5

Source: https://prometheus.io/docs/instrumenting/exposition_formats/ (version 0.0.4).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
GAUGE, COUNTER = "gauge", "counter"
OTHER_SERIES = "clary_series"
_SCOPE = re.compile(r"(host|agent|machine)|(gpu|rank)-([0-9]{1,6})")


@dataclass(frozen=True, kw_only=True)
class Family:
    """Samples of one name."""

    name: str
    help: str
    kind: str = GAUGE
    samples: list[tuple[Mapping[str, str], float]] = field(default_factory=list)

    def add(self, value: float, **labels: str) -> None:
        """Add a sample."""
        self.samples.append((labels, value))


def text_of(families: Iterable[Family]) -> str:
    """Return families in the text format; a family without samples is listed as well."""
    lines = []
    for family in families:
        lines.append(f"# HELP {family.name} {_escaped(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for labels, value in family.samples:
            inner = ",".join(f'{name}="{_quoted(text)}"' for name, text in labels.items())
            lines.append(f"{family.name}{{{inner}}} {_number(value)}" if inner else f"{family.name} {_number(value)}")
    return "\n".join(lines) + "\n"


def exposed_name(series: str) -> tuple[str, dict[str, str]]:
    """Return the name and the labels of a series, without job and host.

    `rank-3/cpu_percent` is `clary_rank_cpu_percent{rank="3"}`. Series of unknown scopes share one name, so that a
    program cannot send a series under the name of another metric.
    """
    scope, _, quantity = series.partition("/")
    match = _SCOPE.fullmatch(scope)
    if match is None:
        return OTHER_SERIES, {"series": series}
    if match[1]:
        return f"clary_{match[1]}_{quantity}", {}
    return f"clary_{match[2]}_{quantity}", {match[2]: match[3]}


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
