"""Plans of faults depend only on their seed."""

from dataclasses import replace
from itertools import islice

import pytest

from clary.testing.faults.fault_plan import MAX_CLOCK_JUMP_S, FaultKind, Moment, Ruin, make_faults, make_jobs


def test_the_same_seed_gives_the_same_faults_and_another_seed_gives_others():
    assert make_faults(7, 300) == make_faults(7, 300)
    assert make_faults(7, 300) != make_faults(8, 300)


def test_the_same_seed_gives_the_same_jobs_with_unique_names():
    first, again = (list(islice(make_jobs(7, "a"), 200)) for _ in range(2))
    assert first == again
    assert len({spec.name for spec in first}) == 200
    assert {spec.num_hosts for spec in first} == {1, 2}
    assert any(spec.exit_code for spec in first)


def test_jobs_of_two_runs_with_the_same_seed_differ_only_in_their_names():
    one, other = (list(islice(make_jobs(7, run), 50)) for run in ("a", "b"))
    assert not {spec.name for spec in one} & {spec.name for spec in other}
    assert [replace(spec, name="") for spec in one] == [replace(spec, name="") for spec in other]


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_strikes_at_least_once_if_there_are_enough_faults(seed):
    faults = make_faults(seed, len(FaultKind), num_spare=30)
    assert sorted(fault.kind for fault in faults[: len(FaultKind)]) == sorted(FaultKind)
    assert [fault.number for fault in faults] == list(range(1, len(FaultKind) + 31))


def test_only_the_requested_kinds_strike():
    kinds = {FaultKind.KILL_AGENT, FaultKind.KILL_SERVICE}
    assert {fault.kind for fault in make_faults(3, 100, kinds)} == kinds


def test_program_faults_strike_during_training_and_clock_jumps_stay_within_the_skew():
    for fault in make_faults(5, 1000):
        if fault.kind in (FaultKind.KILL_PROGRAM, FaultKind.PAUSE_PROGRAM):
            assert fault.moment is Moment.TRAINING
        if fault.kind is FaultKind.JUMP_CLOCK:
            assert abs(fault.amount) <= MAX_CLOCK_JUMP_S


def test_files_are_damaged_in_every_manner_and_rows_in_both_directions():
    faults = make_faults(5, 3000)
    ruined = {fault.kind: set() for fault in faults if fault.ruin is not None}
    for fault in faults:
        if fault.ruin is not None:
            ruined[fault.kind].add(fault.ruin)
    assert len(ruined) == 9
    assert all(ways == set(Ruin) for ways in ruined.values())
    assert {fault.amount for fault in faults if fault.kind is FaultKind.SPOIL_ROW} == {0.0, 1.0}
