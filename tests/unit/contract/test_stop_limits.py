"""The service waits longer for the end of a stopped host than all limits of its agent take together."""

from clary.agent.host import program
from clary.agent.supervisor import profile_windows
from clary.agent.supervisor.supervisor import Limits
from clary.contract import stop_limits
from clary.contract.agent_protocol import HEARTBEAT_INTERVAL_S
from clary.contract.stop_limits import STOP_ALLOWANCE_S

WAITS = (
    stop_limits.KILL_TIMEOUT_S,
    profile_windows._LAST_TRACES_S,
    program.FREE_LIMIT_S + program.ANSWER_LIMIT_S + 2 * program.KILL_LIMIT_S + program.DRAIN_LIMIT_S,
    stop_limits.LAST_OUTPUT_S,
    2 * stop_limits.LAST_LOOK_S,
    max(stop_limits.FAILURE_FLUSH_S, stop_limits.LEAST_FLUSH_S),
    stop_limits.LAST_FILES_S,
    Limits().drain_most_s,
    stop_limits.LAST_ROWS_S,
    stop_limits.LAST_VALUES_S,
    2 * HEARTBEAT_INTERVAL_S,
)


def test_a_host_that_uses_up_every_limit_of_its_end_is_not_lost():
    assert sum(WAITS) < STOP_ALLOWANCE_S


def test_each_wait_after_the_programs_end_is_a_part_of_the_allowance():
    assert profile_windows._LAST_TRACES_S <= stop_limits.LAST_TRACES_S
    assert WAITS[2] <= stop_limits.CLOSE_S
    assert Limits().drain_s <= Limits().drain_most_s == stop_limits.LAST_LINES_S
