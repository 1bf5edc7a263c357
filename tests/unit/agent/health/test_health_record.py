"""Findings are merged into a host's record in any order, and no known finding becomes pending again."""

from itertools import permutations

import pytest

from clary.agent.health.health_record import merged, settled
from clary.contract.health import Check, FindingState, HealthFinding

OK, BAD, PENDING, SKIPPED = FindingState.OK, FindingState.BAD, FindingState.PENDING, FindingState.SKIPPED


def finding(check, state, peer=None):
    return HealthFinding(check=check, state=state, host="algo-1", peer=peer)


EARLY = (finding(Check.COLLECTIVE, PENDING), finding(Check.LINK, PENDING, "algo-2"), finding(Check.CLOCK, PENDING))
MEASURED = (finding(Check.COLLECTIVE, OK), finding(Check.MTU, BAD, "algo-2"), finding(Check.LOSS, BAD, "algo-2"))
CLOCK = (finding(Check.CLOCK, OK),)


@pytest.mark.parametrize("parts", permutations([EARLY, MEASURED, CLOCK]))
def test_the_order_of_findings_does_not_change_the_merged_record(parts):
    record = {}
    for found in parts:
        record = merged(record, found)
    assert set(record.values()) == {*MEASURED, *CLOCK}


def test_a_dropped_port_is_recorded_while_the_link_is_still_pending():
    drop = finding(Check.DROP, BAD, "algo-2")
    record = merged({}, (drop, *EARLY))
    assert set(record.values()) == {drop, *EARLY}
    assert set(merged(record, (drop, *MEASURED)).values()) == {drop, *MEASURED, EARLY[2]}


def test_only_pending_findings_are_settled():
    record = settled(merged({}, (*EARLY, finding(Check.DISK, OK))), "it is over")
    assert {item.check: (item.state, item.words) for item in record.values()} == {
        Check.COLLECTIVE: (SKIPPED, "it is over"),
        Check.LINK: (SKIPPED, "it is over"),
        Check.CLOCK: (SKIPPED, "it is over"),
        Check.DISK: (OK, ""),
    }
