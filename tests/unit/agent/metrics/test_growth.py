"""Growth of counters while processes fork, work, end and are orphaned: nothing counts twice, nothing falls."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from clary.agent.metrics.growth import Count, growth

ROOT = 1


def test_work_of_a_process_since_the_last_poll_counts():
    before = {5: Count(1, 100, (2.0, 10.0))}
    after = {5: Count(1, 100, (3.5, 10.0))}
    assert growth(before, after) == {5: (1.5, 0.0)}


def test_a_new_process_counts_from_zero():
    assert growth({}, {5: Count(1, 100, (3.0,))}) == {5: (3.0,)}


def test_a_reused_pid_counts_from_zero():
    before = {1: Count(0, 1, (0.0,)), 5: Count(1, 100, (50.0,))}
    after = {1: Count(0, 1, (50.0,)), 5: Count(1, 900, (2.0,))}
    assert growth(before, after) == {1: (0.0,), 5: (2.0,)}


def test_a_reaped_child_adds_only_its_new_work_to_its_parent():
    before = {1: Count(0, 1, (1.0,)), 5: Count(1, 100, (50.0,))}
    after = {1: Count(0, 1, (1.0 + 53.0,))}
    assert growth(before, after) == {1: (3.0,)}


def test_a_child_that_was_not_waited_for_does_not_make_the_rate_negative():
    before = {1: Count(0, 1, (1.0,)), 5: Count(1, 100, (50.0,))}
    assert growth(before, {1: Count(0, 1, (1.0,))}) == {1: (0.0,)}


def test_an_orphan_that_ended_with_its_parent_makes_no_spike_at_the_first_process():
    before = {1: Count(0, 1, (0.0,)), 5: Count(1, 2, (0.5,)), 6: Count(5, 3, (800.0,))}
    # Process 1 reaped 5, and 6 had become a child of 1 by then.
    after = {1: Count(0, 1, (0.0 + 0.5 + 800.25,))}
    assert growth(before, after) == {1: (0.25,)}


def test_a_counter_that_falls_has_not_grown():
    assert growth({5: Count(1, 9, (7.0,))}, {5: Count(1, 9, (6.0,))}) == {5: (0.0,)}


def test_parents_that_lead_in_a_circle_end_the_search():
    before = {5: Count(6, 1, (1.0,)), 6: Count(5, 2, (1.0,)), 7: Count(6, 3, (1.0,))}
    assert growth(before, {}) == {}


@dataclass
class FakeProcess:
    parent: int
    started_at: int
    used: float = 0.0


class FakeKernel:
    """Processes below a first process that adopts and reaps orphans."""

    def __init__(self) -> None:
        self.live = {ROOT: FakeProcess(0, 0)}
        self.work = 0.0
        self.num_forks = 0

    def do(self, kind: str, pick: int, amount: int) -> None:
        pids = sorted(self.live)
        pid = pids[pick % len(pids)]
        if kind == "work":
            self.live[pid].used += amount
            self.work += amount
        elif kind == "fork":
            self.num_forks += 1
            # Pids are reused, as by the kernel.
            fresh = next(number for number in range(2, 99) if number not in self.live)
            self.live[fresh] = FakeProcess(pid, self.num_forks)
        elif pid != ROOT:
            ended = self.live.pop(pid)
            for child in self.live.values():
                if child.parent == pid:
                    child.parent = ROOT
            if kind == "reaped":
                self.live[ended.parent].used += ended.used

    def counts(self) -> dict[int, Count]:
        return {pid: Count(item.parent, item.started_at, (item.used,)) for pid, item in self.live.items()}


def steps_of(*kinds: str):
    step = st.tuples(st.sampled_from(kinds), st.integers(0, 50), st.integers(0, 1000))
    return st.lists(st.one_of(step, st.just(("look", 0, 0))), max_size=60)


def looked_at(steps) -> tuple[FakeKernel, float]:
    """Return the fake kernel with its true work, and the sum of the work that `growth` found in all polls."""
    kernel, before, seen = FakeKernel(), {ROOT: Count(0, 0, (0.0,))}, 0.0
    for kind, pick, amount in [*steps, ("look", 0, 0)]:
        if kind != "look":
            kernel.do(kind, pick, amount)
            continue
        after = kernel.counts()
        grown = growth(before, after)
        assert grown.keys() == after.keys()
        assert all(value >= 0 for values in grown.values() for value in values)
        seen += sum(value for (value,) in grown.values())
        before = after
    return kernel, seen


@given(steps_of("work", "fork", "reaped", "ignored"))
def test_no_work_is_counted_twice_whichever_process_reaps_another(steps):
    kernel, seen = looked_at(steps)
    assert seen <= kernel.work + 1e-6


@given(steps_of("work", "fork", "reaped"))
def test_all_work_is_counted_if_every_process_is_reaped(steps):
    kernel, seen = looked_at(steps)
    assert abs(seen - kernel.work) < 1e-6
