"""A short run of faults (kills, pauses, cuts, full disks): no job is lost, duplicated or left hanging.

`make faults` is the long run; its failing seeds can be run here too.
"""

import sys

import pytest
from postgres_server import PostgresServer
from running_service import TRAIN_PYTHON

from clary.testing.faults.fault_plan import FaultKind
from clary.testing.faults.fault_runner import run_faults

pytestmark = [pytest.mark.timeout(420), pytest.mark.xdist_group("faults")]

SEED = 20
NUM_FAULTS, NUM_DATABASE_FAULTS = 30, 12
OF_DATABASE = (
    FaultKind.CUT_DATABASE,
    FaultKind.KILL_DATABASE,
    FaultKind.HOLD_DATABASE,
    FaultKind.PAUSE_SERVICE,
    FaultKind.KILL_AGENT,
)


def say(text):
    print(text, file=sys.stderr, flush=True)


@pytest.mark.long
def test_no_job_is_lost_duplicated_or_left_hanging_under_faults():
    result = run_faults(SEED, NUM_FAULTS, python=str(TRAIN_PYTHON), say=say)
    print(result.table())
    assert result.total.injected == NUM_FAULTS
    assert result.violations == ()
    assert result.num_tuned > 0, "no tuning job got through, so nothing was shown of them"
    assert result.statuses.get("Completed", 0) > 0, "no job got through, so nothing was shown"


@pytest.mark.long
def test_no_job_is_lost_duplicated_or_left_hanging_on_postgresql():
    postgres = PostgresServer()
    try:
        url = postgres.url(postgres.create_database())
        result = run_faults(
            SEED, NUM_DATABASE_FAULTS, database_url=url, kinds=OF_DATABASE, python=str(TRAIN_PYTHON), say=say
        )
    finally:
        postgres.remove()
    print(result.table())
    assert result.total.injected == NUM_DATABASE_FAULTS
    assert result.violations == ()
    assert result.statuses.get("Completed", 0) > 0, "no job got through, so nothing was shown"
