"""The clock of steps, driven by a clock that only tests advance."""

import pytest

from clary.contract.step_records import StepRow
from clary.train.steps.step_clock import BACKWARD, COMMUNICATION, DATA, MOST_STEPS_OF_ANOTHER, StepClock

S = 1_000_000_000


class Program:
    """Spends seconds in parts of steps."""

    def __init__(self):
        self.now_ns = 5 * S
        self.clock = StepClock(lambda: self.now_ns, lambda: 1000.0)

    def spend(self, seconds):
        self.now_ns += seconds * S

    def part(self, part, seconds):
        depth = self.clock.enter(part)
        self.spend(seconds)
        self.clock.leave(depth)

    def step(self, seconds=0, owner="sgd", num_outer=0):
        self.clock.enter_optimizer(owner, num_outer)
        self.spend(seconds)
        return self.clock.leave_optimizer(owner)


@pytest.fixture
def program():
    return Program()


def test_time_before_a_backward_pass_is_forward_and_other_time_is_no_part(program):
    program.spend(1)
    program.part(DATA, 2)
    program.spend(4)
    program.part(BACKWARD, 8)
    program.spend(16)
    row = program.step(32)
    assert row == StepRow(1, 1000.0, 63.0, 2.0, 4.0, 8.0, 0.0, 32.0)


def test_communication_is_subtracted_from_the_part_that_contains_it(program):
    program.spend(1)
    program.part(COMMUNICATION, 2)
    program.spend(4)
    depth = program.clock.enter(BACKWARD)
    program.spend(8)
    program.part(COMMUNICATION, 16)
    program.spend(32)
    program.clock.leave(depth)
    program.clock.enter_optimizer("sgd")
    program.part(COMMUNICATION, 64)
    program.spend(128)
    row = program.clock.leave_optimizer("sgd")
    assert (row.forward_s, row.backward_s, row.communication_s, row.optimizer_s) == (5.0, 40.0, 82.0, 128.0)


def test_a_part_without_an_end_ends_with_the_part_around_it(program):
    depth = program.clock.enter(BACKWARD)
    program.spend(1)
    program.clock.enter(COMMUNICATION)
    program.spend(2)
    program.clock.leave(depth)
    program.spend(4)
    row = program.step(8)
    assert (row.backward_s, row.communication_s, row.optimizer_s, row.step_s) == (1.0, 2.0, 8.0, 15.0)


def test_a_closure_inside_of_an_optimizer_is_forward_and_backward(program):
    program.clock.enter_optimizer("lbfgs")
    program.spend(1)
    program.part(BACKWARD, 2)
    program.spend(4)
    row = program.clock.leave_optimizer("lbfgs")
    assert (row.forward_s, row.backward_s, row.optimizer_s) == (1.0, 2.0, 4.0)


def test_a_nested_step_of_the_same_optimizer_does_not_end_the_step(program):
    program.clock.enter_optimizer("sgd")
    assert program.step(1, num_outer=1) is None
    program.spend(2)
    assert program.clock.leave_optimizer("sgd").optimizer_s == 3.0


def test_a_step_that_ended_with_an_error_is_discarded_by_the_next(program):
    program.clock.enter_optimizer("sgd")
    program.spend(1)
    row = program.step(2)
    assert (row.optimizer_s, row.step_s) == (3.0, 3.0)
    assert not program.clock.is_in_optimizer


def test_steps_of_a_second_optimizer_are_part_of_the_first_ones_steps(program):
    assert program.step(1, "one").number == 1
    assert program.step(2, "two") is None
    row = program.step(4, "one")
    assert (row.number, row.optimizer_s) == (2, 6.0)


def test_an_optimizer_that_continues_alone_takes_over(program):
    program.step(1, "old")
    ended = [program.step(1, "new") is not None for _ in range(MOST_STEPS_OF_ANOTHER + 2)]
    assert ended == [False] * (MOST_STEPS_OF_ANOTHER - 1) + [True] * 3
    assert program.step(1, "old") is None


def test_an_optimizer_inside_of_a_backward_pass_leaves_the_pass_open(program):
    depth = program.clock.enter(BACKWARD)
    program.spend(1)
    first = program.step(2)
    program.spend(4)
    program.clock.leave(depth)
    assert (first.backward_s, first.optimizer_s) == (1.0, 2.0)
    assert program.step().backward_s == 4.0


def test_an_end_without_a_beginning_is_ignored(program):
    assert program.clock.leave_optimizer("sgd") is None
