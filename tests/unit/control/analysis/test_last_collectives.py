"""Ranks that are behind or called another operation are found by records; ranks without records are not blamed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_calls import call, count, group, waits

from clary.contract.stack_dumps import LeftCalls, ProcessDump
from clary.control.analysis.last_collectives import last_call_words, rank_words


def process(rank, *groups, **facts):
    known = {"parent": 1, "command": "", "state": "S", "wait_channel": "", "cpu_s": 0.0, "num_waits": 0}
    known |= {"cpu_used_s": 0.0, "bytes_moved": 0, "threads": (), "sockets": ()}
    return ProcessDump(pid=100 + (rank or 0), rank=rank, collectives=groups, **known, **facts)


def in_step(number, ranks=range(4)):
    return [process(rank, group(call(number - 1), waits(number))) for rank in ranks]


def test_ranks_in_step_are_listed_without_a_remark():
    counted = count(*in_step(41))
    assert (counted.disagreements, counted.crossing, counted.about, counted.cleared) == ((), "", {}, frozenset())
    (table,) = counted.groups
    assert [(member.rank, member.call.number, member.is_behind) for member in table.members] == [
        (rank, 41, False) for rank in range(4)
    ]


def test_a_rank_that_has_not_entered_is_described_with_its_last_operation():
    counted = count(*in_step(41, range(3)), process(3, group(call(39), call(40))))
    assert counted.about == {
        3: "it has not entered all_reduce #41 of group 0, its last there was all_reduce #40, 12 s ago"
    }
    assert [member.is_behind for member in counted.groups[0].members] == [False, False, False, True]


@pytest.mark.parametrize(("age_s", "is_behind"), [(0.1, False), (5.0, True)])
def test_a_rank_that_has_just_entered_an_operation_is_not_behind(age_s, is_behind):
    """Hosts are read one after the other: ranks that train in step are found at different operations."""
    counted = count(process(0, group(call(342))), process(1, group(call(333, age_s=age_s))))
    assert [member.is_behind for member in counted.groups[0].members] == [False, is_behind]
    gone = count(process(0, group(call(342))), replace(process(1, group(call(333, age_s=0.1))), pid=0))
    assert [member.is_behind for member in gone.groups[0].members] == [False, True]


def test_a_rank_that_has_already_entered_is_described_as_such():
    entered = process(3, group(call(40), call(41, state="under way")))
    assert count(*in_step(41, range(3)), entered).about == {3: "it has entered all_reduce #41 of group 0 like them"}


def test_another_operation_under_the_same_number_is_named():
    odd = process(2, group(call(40), waits(41, "all_gather")))
    (found,) = count(*in_step(41, (0, 1, 3)), odd).disagreements
    assert found.odd == (2,)
    assert found.words == "in group 0 rank 2 entered all_gather #41 while ranks 0, 1, 3 entered all_reduce #41"


def test_two_camps_of_equal_size_have_no_odd_rank():
    (found,) = count(*in_step(6, (0, 1)), *(process(rank, group(waits(6, "barrier"))) for rank in (2, 3))).disagreements
    assert found.odd == ()
    assert found.words == "in group 0 ranks 2, 3 entered barrier #6 while ranks 0, 1 entered all_reduce #6"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"count": 8},
            "rank 1 entered all_reduce #41 with 8 float32 while ranks 0, 2, 3 entered all_reduce #41 with 4",
        ),
        ({"dtype": "int64"}, "rank 1 entered all_reduce #41 with 4 int64 while"),
    ],
)
def test_another_count_or_type_is_named(facts, words):
    (found,) = count(*in_step(41, (0, 2, 3)), process(1, group(waits(41, **facts)))).disagreements
    assert found.odd == (1,)
    assert words in found.words


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (waits(5, "all_gather", count=3), waits(5, "all_gather", count=9)),
        (waits(5, "all_to_all_single", count=3), waits(5, "all_to_all_single", count=9)),
        (waits(5, "all_gather", count=3), waits(5, "all_gather_into_tensor", count=9)),
        (waits(5, dtype="float32"), waits(5, dtype="")),
        (waits(5, "barrier", dtype="", count=0), waits(5, "barrier", dtype="uint8", count=1)),
    ],
)
def test_calls_that_match_each_other_are_no_disagreement(one, other):
    assert count(process(0, group(one)), process(1, group(other)), num_ranks=2).disagreements == ()


def test_ranks_without_a_record_are_not_called_behind():
    counted = count(*in_step(41, range(3)), process(3))
    assert counted.about == {}
    assert [member.rank for member in counted.groups[0].members] == [0, 1, 2]


def test_a_rank_without_calls_in_a_group_is_behind_if_it_records_other_groups():
    late = process(3, group(call(9), name="other"))
    counted = count(*in_step(1, range(3)), late)
    assert counted.about[3] == "it has not entered all_reduce #1 of group 0, nor any before it"
    full = process(3, group(call(9), name="other"), num_groups_left_out=2)
    assert count(*in_step(1, range(3)), full).about == {}, "its record had no room for the group"


def test_a_group_without_a_list_of_ranks_has_all_ranks_if_it_is_that_large():
    def smddp(*calls):
        return group(*calls, kind="smddp", ranks=(), size=4)

    ranks = [process(rank, smddp(waits(7))) for rank in range(3)]
    idle = process(3, group(call(1), name="x", ranks=(3,)))
    assert "it has not entered all_reduce #7" in count(*ranks, idle).about[3]
    assert count(*ranks, idle, num_ranks=8).about == {}


def test_sends_and_receives_are_shown_and_not_compared():
    def messages(number):
        return group(waits(number, "recv"), ranks=(0, 1), is_point_to_point=True)

    counted = count(process(0, messages(3)), process(1, messages(9)), num_ranks=2)
    assert counted.about == {}
    assert [member.is_behind for member in counted.groups[0].members] == [False, False]


def test_inconsistent_numbers_blame_no_rank():
    shifted = process(3, group(call(3, "broadcast"), call(4), call(5, "barrier"), waits(6, "broadcast")))
    others = [process(rank, group(call(3), call(4), call(5), waits(7))) for rank in range(3)]
    counted = count(*others, shifted)
    assert (counted.disagreements, counted.about) == ((), {})


def test_ranks_that_take_two_groups_in_different_orders_are_a_ring():
    first = process(0, group(waits(5), name="a", ranks=(0, 1)), group(call(8), name="b", ranks=(0, 1)))
    second = process(1, group(call(4), name="a", ranks=(0, 1)), group(waits(9), name="b", ranks=(0, 1)))
    assert count(first, second, num_ranks=2).crossing == (
        "rank 0 waits in all_reduce #5 of group a, which rank 1 has not entered; "
        "rank 1 waits in all_reduce #9 of group b, which rank 0 has not entered"
    )


def test_a_ring_of_three_is_found_and_a_chain_is_none():
    def pair(name, members, number, is_held):
        return group((waits if is_held else call)(number), name=name, ranks=members)

    ring = [
        process(0, pair("a", (0, 1), 2, True), pair("c", (0, 2), 1, False)),
        process(1, pair("a", (0, 1), 1, False), pair("b", (1, 2), 2, True)),
        process(2, pair("b", (1, 2), 1, False), pair("c", (0, 2), 2, True)),
    ]
    assert count(*ring, num_ranks=3).crossing.count("waits in") == 3
    chain = [*ring[:2], process(2, pair("b", (1, 2), 1, False), pair("c", (0, 2), 1, False))]
    assert count(*chain, num_ranks=3).crossing == ""


def test_a_rank_that_waits_for_a_waiting_rank_is_cleared():
    def tensor(rank, *calls):
        return group(*calls, name="tp", ranks=(rank // 2 * 2, rank // 2 * 2 + 1))

    def data(rank, *calls):
        return group(*calls, name="dp", ranks=(rank % 2, rank % 2 + 2))

    # Rank 3 reads data; rank 2 waits for it in their tensor group; rank 0 waits for rank 2, and rank 1 for rank 3.
    ranks = [
        process(0, tensor(0, call(5)), data(0, waits(3))),
        process(1, tensor(1, call(5)), data(1, waits(3))),
        process(2, tensor(2, waits(6)), data(2, call(2))),
        process(3, tensor(3, call(5)), data(3, call(2))),
    ]
    counted = count(*ranks)
    assert counted.cleared == {0, 1}
    assert counted.about[3].startswith("it has not entered")


def test_the_last_calls_of_a_rank_whose_process_has_ended_are_listed():
    left = LeftCalls(rank=3, groups=(group(call(40)),))
    counted = count(*in_step(41, range(3)), left=[left])
    assert counted.about == {3: "its last collective was all_reduce #40 of group 0, finished"}
    (gone,) = [member for member in counted.groups[0].members if not member.pid]
    assert (gone.rank, gone.is_behind) == (3, True)
    again = process(3, group(waits(41)))
    assert count(*in_step(41, range(3)), again, left=[left]).about == {}, "it has a process again"


def test_ranks_and_last_calls_are_described():
    assert rank_words([3]) == "rank 3"
    assert rank_words([0, 2, 3]) == "ranks 0, 2, 3"
    assert last_call_words([]) == ""
    digest = "0123456789" * 4
    assert last_call_words([group(call(2), name=digest)]) == "all_reduce #2 of group 012345678901, finished"


OPERATIONS = st.sampled_from(["all_reduce", "all_gather", "barrier", "broadcast"])


@given(st.lists(OPERATIONS, min_size=9, max_size=9), st.lists(st.integers(0, 3), min_size=2, max_size=6), st.data())
def test_ranks_of_one_program_never_disagree_and_those_with_fewest_calls_are_behind(program, skips, data):
    ranks = []
    for rank, skip in enumerate(skips):
        entered = len(program) - skip
        is_held = data.draw(st.booleans())
        calls = [call(number, program[number - 1]) for number in range(max(1, entered - 7), entered)]
        last = (waits if is_held else call)(entered, program[entered - 1])
        ranks.append(process(rank, group(*calls, last, ranks=range(len(skips)))))
    counted = count(*ranks, num_ranks=len(skips))
    assert counted.disagreements == ()
    assert counted.crossing == "", "one group has no ring"
    behind = {member.rank for member in counted.groups[0].members if member.is_behind}
    assert behind == {rank for rank, skip in enumerate(skips) if skip > min(skips)}
    assert not {rank for rank, words in counted.about.items() if "has not entered" in words} - behind


@given(st.lists(OPERATIONS, min_size=5, max_size=5), st.integers(3, 7), st.data())
def test_one_rank_with_another_last_operation_is_the_odd_one(program, num_ranks, data):
    odd = data.draw(st.integers(0, num_ranks - 1))
    other = data.draw(OPERATIONS.filter(lambda name: name != program[-1]))
    ranks = []
    for rank in range(num_ranks):
        own = [*program[:-1], other] if rank == odd else program
        calls = [call(number, name) for number, name in enumerate(own[:-1], 1)]
        ranks.append(process(rank, group(*calls, waits(len(own), own[-1]), ranks=range(num_ranks))))
    (found,) = count(*ranks, num_ranks=num_ranks).disagreements
    assert found.odd == (odd,)
    assert f"rank {odd} entered {other} #5 while" in found.words


def test_operations_that_succeeded_on_all_ranks_blame_no_rank():
    ranks = [process(rank, group(call(41, count=4 + (rank == 3)))) for rank in range(4)]
    assert count(*ranks).disagreements == ()
    ranks = [process(rank, group(call(41, count=4 + (rank == 3)), kind="nccl")) for rank in range(4)]
    assert [found.odd for found in count(*ranks).disagreements] == [(3,)], "there it may only be in line"


def test_a_rank_with_an_unknown_element_count_differs_from_none():
    ranks = [process(rank, group(waits(41))) for rank in range(3)]
    assert count(*ranks, process(3, group(waits(41, count=0, dtype="")))).disagreements == ()
