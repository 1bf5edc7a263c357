"""Plans of faults: from the command line, and drawn from a seed."""

import pytest

from clary.base.errors import ContractError
from clary.control.rehearsal.faults import (
    FaultKind,
    Moment,
    PlannedFault,
    check_hosts,
    draw_faults,
    parse_fault,
    settle,
    without_cuts,
)

HOSTS = ("algo-1", "algo-2", "algo-3")


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (FaultKind.RECLAIM, "step:120", "reclaim at step 120"),
        (FaultKind.RECLAIM, "@30s", "reclaim after 30 s"),
        (FaultKind.RECLAIM, "0.5s", "reclaim after 0.5 s"),
        (FaultKind.RECLAIM, "algo-2@step:3", "reclaim algo-2 at step 3"),
        (FaultKind.KILL, "algo-2@180s", "kill algo-2 after 180 s"),
        (FaultKind.KILL, "algo-12@step:7", "kill algo-12 at step 7"),
        (FaultKind.KILL_RANK, "3@step:7", "kill rank 3 at step 7"),
        (FaultKind.PARTITION, "algo-1,algo-2@200s", "partition algo-1, algo-2 after 200 s"),
        (FaultKind.PARTITION, "algo-1@step:5+10s", "partition algo-1 at step 5 for 10 s"),
        (FaultKind.PARTITION, "algo-1:algo-2@200s+10s", "partition algo-1 from algo-2 after 200 s for 10 s"),
        (FaultKind.DISK_FULL, "algo-2@step:120+30s", "fill the disk of algo-2 at step 120 for 30 s"),
        (FaultKind.DISK_FULL, "algo-2@9s", "fill the disk of algo-2 after 9 s"),
        (FaultKind.SLOW, "algo-2@60s+30s:5mbit", "slow algo-2 to 5 Mbit/s after 60 s for 30 s"),
    ],
)
def test_the_value_of_an_option_is_parsed_and_described(kind, text, words):
    assert str(parse_fault(kind, text)) == words


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (FaultKind.RECLAIM, ""),
        (FaultKind.RECLAIM, "120"),
        (FaultKind.RECLAIM, "step:-1"),
        (FaultKind.KILL, "step:7"),
        (FaultKind.KILL, "algo-0@1s"),
        (FaultKind.KILL, "algo-1@1m"),
        (FaultKind.KILL_RANK, "algo-1@1s"),
        (FaultKind.PARTITION, "algo-1@1s+s"),
        (FaultKind.PARTITION, "algo-1:algo-2:algo-3@1s"),
        (FaultKind.PARTITION, "algo-1:algo-2,algo-3@1s"),
        (FaultKind.PARTITION, "algo-1:@1s"),
        (FaultKind.DISK_FULL, "@1s"),
        (FaultKind.DISK_FULL, "algo-1,algo-2@1s"),
        (FaultKind.SLOW, "algo-1@1s"),
        (FaultKind.SLOW, "algo-1@1s:5"),
    ],
)
def test_an_unreadable_fault_is_refused_with_an_example(kind, text):
    with pytest.raises(ContractError, match=f"--{kind.value}: expected .*got"):
        parse_fault(kind, text)


def test_unknown_hosts_and_networks_of_a_single_host_are_refused():
    with pytest.raises(ContractError, match="no host algo-9; it has algo-1, algo-2, algo-3"):
        check_hosts([parse_fault(FaultKind.KILL, "algo-9@1s")], HOSTS)
    with pytest.raises(ContractError, match="one host has no network"):
        check_hosts([parse_fault(FaultKind.PARTITION, "algo-1@1s")], ("algo-1",))
    with pytest.raises(ContractError, match="no host algo-9"):
        check_hosts([parse_fault(FaultKind.PARTITION, "algo-1:algo-9@1s")], HOSTS)
    with pytest.raises(ContractError, match="expected two hosts"):
        check_hosts([parse_fault(FaultKind.PARTITION, "algo-1:algo-1@1s")], HOSTS)
    check_hosts([parse_fault(FaultKind.KILL, "algo-3@1s")], HOSTS)
    check_hosts([parse_fault(FaultKind.DISK_FULL, "algo-1@1s")], ("algo-1",))


def test_a_colon_means_the_link_between_two_hosts_and_a_comma_each_of_them():
    between = parse_fault(FaultKind.PARTITION, "algo-1:algo-2@1s")
    each = parse_fault(FaultKind.PARTITION, "algo-1,algo-2@1s")
    assert (between.hosts, between.is_between) == (("algo-1", "algo-2"), True)
    assert (each.hosts, each.is_between) == (("algo-1", "algo-2"), False)


def cut(text):
    return parse_fault(FaultKind.PARTITION, text)


@pytest.mark.parametrize(
    ("ending", "others", "num_hosts", "left"),
    [
        ("algo-2@1s+1s", [], 2, ("algo-2",)),
        ("algo-1:algo-2@1s+1s", ["algo-2@1s+9s"], 2, None),
        ("algo-2:algo-1@1s+1s", ["algo-2@1s+9s"], 2, None),
        ("algo-2@1s+1s", ["algo-1:algo-2@1s+9s"], 2, None),
        ("algo-1@1s+1s", ["algo-1:algo-2@1s+9s"], 2, ("algo-1",)),
        ("algo-1:algo-2@1s+1s", ["algo-2@1s+9s"], 3, ("algo-1", "algo-2")),
        ("algo-1:algo-2@1s+1s", ["algo-2:algo-1@1s"], 3, None),
        ("algo-1,algo-3@1s+1s", ["algo-3@1s"], 3, ("algo-1",)),
        ("algo-9,algo-10@1s+1s", ["algo-9:algo-10@1s"], 2, ("algo-9",)),
    ],
)
def test_the_end_of_a_cut_does_not_end_another_cut_that_is_still_active(ending, others, num_hosts, left):
    made = without_cuts(cut(ending), [cut(text) for text in others], num_hosts=num_hosts)
    assert (None if made is None else made.hosts) == left


def test_only_other_cuts_keep_a_cut_active():
    disk = parse_fault(FaultKind.DISK_FULL, "algo-2@1s+1s")
    slow = parse_fault(FaultKind.SLOW, "algo-2@1s+9s:5mbit")
    assert without_cuts(disk, [disk, cut("algo-2@1s")], num_hosts=2) == disk
    assert without_cuts(cut("algo-2@1s+1s"), [disk, slow], num_hosts=2) == cut("algo-2@1s+1s")


def test_the_same_seed_draws_the_same_plan_and_another_seed_another_plan():
    plans = [draw_faults(8, seed=seed, host_names=HOSTS, kinds=list(FaultKind)) for seed in (7, 7, 8)]
    assert plans[0] == plans[1]
    assert plans[0] != plans[2]
    assert [fault.moment.share for fault in plans[0]] == sorted(fault.moment.share for fault in plans[0])


def test_only_available_kinds_of_faults_are_drawn():
    kinds = [FaultKind.RECLAIM, FaultKind.KILL, FaultKind.KILL_RANK, FaultKind.DISK_FULL]
    drawn = draw_faults(50, seed=1, host_names=HOSTS, kinds=kinds)
    assert {fault.kind for fault in drawn} == {FaultKind.RECLAIM, FaultKind.KILL}
    alone = draw_faults(50, seed=1, host_names=("algo-1",), kinds=list(FaultKind))
    assert {fault.kind for fault in alone} == {FaultKind.RECLAIM, FaultKind.KILL}
    with pytest.raises(ContractError, match="no kind of fault"):
        draw_faults(1, seed=1, host_names=("algo-1",), kinds=[FaultKind.SLOW])


def test_drawn_faults_strike_at_steps_of_the_twin():
    fault = PlannedFault(kind=FaultKind.KILL, moment=Moment(share=0.5), hosts=("algo-1",))
    counted_through = settle(fault, [(None, float(step)) for step in range(1, 102)])
    assert str(counted_through) == "kill algo-1 at step 51"
    of_epochs = settle(fault, [(float(epoch), float(step)) for epoch in range(2) for step in range(10)])
    assert str(of_epochs) == "kill algo-1 at epoch 1, step 0"
    assert settle(parse_fault(FaultKind.KILL, "algo-1@1s"), [(None, 1.0)]).moment.seconds == 1.0


def test_a_step_is_reached_when_it_or_a_later_step_is_printed():
    moment = Moment(step=10)
    assert [moment.has_come(step=step, epoch=None) for step in (9, 10, 11)] == [False, True, True]
    in_epoch = Moment(step=5, epoch=2)
    assert [in_epoch.has_come(step=step, epoch=epoch) for epoch, step in ((1, 9), (2, 4), (2, 5), (3, 0))] == [
        *(False, False),
        *(True, True),
    ]
    assert not Moment(seconds=1.0).has_come(step=5, epoch=None)
