"""The page on the profiler describes every rule with its actual defaults."""

import sys
from pathlib import Path

import pytest

from clary.control.profiling.rules import RULES

TOOLS = Path(__file__).parents[4] / "tools"


@pytest.fixture
def maker(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import make_rules_tables

    yield make_rules_tables
    sys.modules.pop("make_rules_tables", None)


def test_the_table_of_profiler_rules_is_up_to_date(maker):
    page = maker.PROFILER_PAGE.read_text(encoding="utf-8")
    assert maker.with_table(maker.PROFILER_PAGE) == page, "run tools/make_rules_tables.py"
    assert all(f"| `{name}` |" in page for name in RULES)


def test_every_rule_that_can_fire_has_advice():
    assert {name for name, rule in RULES.items() if not rule.advice} == {"OverallSystemUsage"}


def test_the_default_parameters_match_those_of_the_sdk(maker):
    assert "`stddev=3`, `mode=None`, `n_outliers=10`" in "".join(maker.profiler_rows())
    assert RULES["LoadBalancing"]().threshold == 0.5
    assert RULES["MaxInitializationTime"]().threshold == 20
    assert {rule().scan_interval_us for rule in RULES.values()} == {60_000_000}
