"""The rank that delayed a job over its whole time, from the series that a report reads."""

from clary.contract.agent_protocol import HostPhase
from clary.control.analysis.stragglers import StragglerKind
from clary.control.profiling.measurements import HostShape, measurements_of
from clary.control.reconcile.job_stragglers import whole_verdict
from clary.control.series.queries import Point, Series

RUNNING = float(list(HostPhase).index(HostPhase.RUNNING))
ROWS = 600


def measured(times):
    """Return measurements of hosts with one rank each; `times` maps host -> quantity -> seconds."""
    found = []
    for number, (host, own) in enumerate(times.items()):
        columns = {"host/phase": RUNNING, **{f"rank-{number}/{name}": value for name, value in own.items()}}
        for name, value in columns.items():
            points = tuple(Point(500 * row, value, value, value, 1.0, value) for row in range(ROWS))
            found.append(Series(host=host, name=name, points=points))
    shapes = [HostShape(name=host, num_cpus=2.0) for host in times]
    return measurements_of(found, shapes, step_ms=500, until_ms=500 * ROWS, is_over=True)


def test_the_rank_that_computes_longer_while_the_other_waits_is_named():
    verdict = whole_verdict(
        measured(
            {
                "algo-1": {"step_s": 0.3, "backward_s": 0.1, "communication_s": 0.15},
                "algo-2": {"step_s": 0.3, "backward_s": 0.24, "communication_s": 0.01},
            }
        )
    )
    assert verdict.kind is StragglerKind.COMPUTE
    assert verdict.host == "algo-2"


def test_equal_ranks_have_no_straggler():
    alike = {"step_s": 0.3, "backward_s": 0.2, "communication_s": 0.05}
    assert whole_verdict(measured({"algo-1": alike, "algo-2": alike})).kind is StragglerKind.NOBODY


def test_a_job_without_steps_has_no_verdict():
    assert whole_verdict(measured({"algo-1": {}, "algo-2": {}})).kind is StragglerKind.UNKNOWN
