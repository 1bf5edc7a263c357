"""Search for the culprit of a standstill in a job's dumps: the right rank, and no rank in a job with progress."""

from dataclasses import replace

import pytest
from dumped_gangs import ALL_REDUCE, BARRIER, COMPUTING, LOADING, gang, host, process, suspects, waiting

from clary.contract.stack_dumps import SocketState
from clary.control.analysis.autopsy import Weight, examine
from clary.control.analysis.rank_doings import Doing, doing_of, operation_of, place_of

BACKWARD = (
    ("_engine_run_backward", "torch/autograd/graph.py", 869),
    ("step", "train.py", 20),
    ("<module>", "train.py", 38),
)


def test_no_rank_is_suspected_if_all_wait_at_the_same_line():
    dumps = waiting()
    assert suspects(dumps) == []
    (group,) = examine(dumps, hosts=("algo-1", "algo-2"), num_ranks=4).groups
    assert (group.doing, group.operation, group.is_odd, len(group.members)) == (
        Doing.WAITS_FOR_RANKS,
        "all_reduce",
        False,
        4,
    )


def test_a_stopped_rank_is_named_with_its_remedy():
    ((who, why),) = suspects(waiting(process(3, COMPUTING, state="T")))
    assert who == "rank 3 on algo-2"
    assert "kill -CONT 103" in why


def test_on_a_crowded_machine_a_computing_rank_is_only_waited_for():
    crowded = process(3, COMPUTING, state="R", cpu=0.07, runnable=0.65)  # 0.58 s of it waiting for a processor
    assert suspects(waiting(crowded)) == []
    assert [who for who, _ in suspects(waiting(crowded), weights=(Weight.WAITED_FOR,))] == ["rank 3 on algo-2"]
    waking = process(3, COMPUTING, cpu=0.02, runnable=0.2)
    assert [who for who, _ in suspects(waiting(waking))] == ["rank 3 on algo-2"]


def test_a_rank_that_waits_for_its_data_is_named_with_its_workers():
    worker = replace(process(9, (("__getitem__", "data.py", 7),), pid=500, parent=103), rank=None)
    dumps = waiting(process(3, LOADING))
    dumps["algo-2"] = replace(dumps["algo-2"], processes=(*dumps["algo-2"].processes, worker))
    ((who, why),) = suspects(dumps)
    assert who == "rank 3 on algo-2"
    assert "waits for its data loader: step (train.py:16); its worker stands at __getitem__ (data.py:7)" in why
    assert "3 ranks wait for it in all_reduce" in why


def test_a_reading_rank_is_distinguished_from_a_computing_one():
    assert "held up by a file or disk" in suspects(waiting(process(3, COMPUTING, state="D")))[0][1]
    assert "held up by a file or disk" in suspects(waiting(process(3, COMPUTING, channel="pipe_read")))[0][1]
    assert "does something else: busy (train.py:28)" in suspects(waiting(process(3, COMPUTING)))[0][1]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"cpu": 0.6, "state": "R"}, "computes at busy (train.py:28)"),
        ({"moved": 10_000_000, "channel": "folio_wait_bit"}, "reads or writes at busy (train.py:28)"),
        ({"waits": 50}, "waits for one thing after another at busy (train.py:28)"),
    ],
)
def test_a_working_rank_is_waited_for_but_not_suspected(facts, words):
    dumps = waiting(process(3, COMPUTING, **facts))
    assert suspects(dumps) == []
    ((who, why),) = suspects(dumps, weights=list(Weight))
    assert who == "rank 3 on algo-2"
    assert f"it {words}; dump again: if it still stands there, suspect it; 3 ranks wait for it in all_reduce" in why


def test_a_loader_whose_workers_compute_is_waited_for():
    ((_, why),) = suspects(waiting(process(3, LOADING, cpu=0.7)), weights=list(Weight))
    assert "waits for its data loader at step (train.py:16), whose processes together compute; it has no workers" in why


RECORD = ("wrapper", "torch/distributed/elastic/multiprocessing/errors/__init__.py", 362)
FSDP = ("forward", "torch/distributed/fsdp/fully_sharded_data_parallel.py", 864)
SAVE = ("save", "torch/distributed/checkpoint/state_dict_saver.py", 170)


@pytest.mark.parametrize("outer", [RECORD, FSDP, SAVE])
def test_calls_of_torch_distributed_without_a_wait_are_no_waits(outer):
    assert doing_of(process(0, (*COMPUTING, outer))) is Doing.OTHER
    assert doing_of(process(0, (*LOADING, outer))) is Doing.WAITS_FOR_DATA
    assert operation_of(process(0, (*ALL_REDUCE, outer))) == "all_reduce"


def test_a_spawned_process_is_no_data_loader():
    spawned = (("busy", "train.py", 3), ("run", "multiprocessing/process.py", 108), ("<module>", "<string>", 1))
    assert doing_of(process(0, spawned)) is Doing.OTHER


def test_ranks_that_wait_for_their_gpus_count_as_waiting():
    item = (("cudaStreamSynchronize", "libcudart.so.12", 0), ("step", "train.py", 9), ("<module>", "train.py", 20))
    ranks = [process(rank, item, state="R") for rank in range(3)]
    ((who, why),) = suspects(gang(*ranks, process(3, LOADING)))
    assert who == "rank 3 on algo-2"
    assert "3 ranks wait for it in a synchronisation with the GPU" in why


def test_stages_of_a_pipeline_send_and_receive_by_their_position():
    send = (("send", "torch/distributed/distributed_c10d.py", 2500), *BARRIER[1:])
    recv = (("recv", "torch/distributed/distributed_c10d.py", 2600), *BARRIER[1:])
    ranks = [process(0, send), process(1, recv), process(2, recv), process(3, recv)]
    assert suspects(gang(*ranks)) == []
    assert not any(group.is_odd for group in examine(gang(*ranks), hosts=("algo-1", "algo-2"), num_ranks=4).groups)


def test_one_operation_at_two_lines_is_no_other_operation():
    elsewhere = (ALL_REDUCE[0], ("other", "train.py", 77), ("<module>", "train.py", 90))
    assert suspects(waiting(process(3, elsewhere))) == []


def test_a_rank_under_a_debugger_is_distinguished_from_a_stopped_one():
    assert "held by a debugger" in suspects(waiting(process(3, COMPUTING, state="t")))[0][1]


def test_a_host_whose_dump_may_still_arrive_is_no_suspect():
    alone = {"algo-1": host("algo-1", process(0, ALL_REDUCE))}
    found = examine(alone, hosts=("algo-1", "algo-2"), num_ranks=2, is_final=False)
    assert found.suspicions == ()


def test_no_rank_is_suspected_while_waiting_ranks_make_progress():
    ranks = [process(rank, ALL_REDUCE, waits=50) for rank in range(3)]
    assert suspects(gang(*ranks, process(3, COMPUTING))) == []


def test_a_rank_in_another_operation_than_the_others_is_named():
    found = suspects(waiting(process(3, BARRIER)))
    assert [who for who, _ in found] == ["rank 3 on algo-2"]
    assert "waits in barrier at step (train.py:34), another collective than theirs" in found[0][1]
    assert "3 ranks wait for it in all_reduce" in found[0][1]


def test_two_halves_in_different_operations_are_both_named():
    found = suspects(gang(*[process(rank, BARRIER if rank % 2 else ALL_REDUCE) for rank in range(4)]))
    assert [who for who, _ in found] == ["the order of collectives"]
    assert "ranks 0, 2 in all_reduce at step (train.py:35); ranks 1, 3 in barrier at step (train.py:34)" in found[0][1]


def test_a_backward_pass_that_sleeps_waits_for_the_others_gradients():
    assert doing_of(process(0, BACKWARD)) is Doing.WAITS_FOR_RANKS
    assert doing_of(process(0, BACKWARD, state="R")) is Doing.OTHER
    ((who, why),) = suspects(gang(*[process(rank, BACKWARD) for rank in range(3)], process(3, LOADING)))
    assert who == "rank 3 on algo-2"
    assert "3 ranks wait for it in backward" in why


def test_a_link_on_which_nothing_is_acknowledged_is_named_before_ranks():
    cut = SocketState(
        local="10.0.0.1:4000",
        peer="10.0.0.2:5000",
        state="ESTABLISHED",
        unsent_bytes=77,
        unread_bytes=0,
        num_retransmits=5,
    )
    ranks = [process(rank, ALL_REDUCE) for rank in range(1, 4)]
    ((who, why),) = suspects(gang(process(0, ALL_REDUCE, sockets=[cut]), *ranks))
    assert who == "the link algo-1 - algo-2"
    assert "77 bytes are not acknowledged after 5 retransmissions" in why
    one_resent = replace(cut, num_retransmits=1)
    assert suspects(gang(process(0, ALL_REDUCE, sockets=[one_resent]), *ranks)) == []
    to_a_stranger = replace(cut, peer="10.9.9.9:443")
    assert suspects(gang(process(0, ALL_REDUCE, sockets=[to_a_stranger]), *ranks)) == []


def test_ranks_and_hosts_that_are_missing_are_named():
    assert suspects(gang(*[process(rank, ALL_REDUCE) for rank in range(3)])) == [
        ("rank 3", "its process does not run: the others may wait for it")
    ]
    alone = {"algo-1": host("algo-1", process(0, ALL_REDUCE))}
    assert [who for who, _ in suspects(alone)] == ["algo-2"]
    broken = {**gang(), "algo-2": host("algo-2", error="no program runs on this host")}
    assert ("algo-2", "no program runs on this host") in suspects(broken, num_ranks=0, weights=[Weight.NOTE])


def test_collectives_that_a_dump_leaves_out_are_told():
    short = {**gang(), "algo-2": replace(host("algo-2"), num_records_left_out=3)}
    told = "last collectives of 3 processes are left out, of ended ones first"
    assert ("algo-2", told) in suspects(short, num_ranks=0, weights=[Weight.NOTE])


def test_a_rank_that_cannot_be_inspected_is_reported_as_such():
    ((who, why),) = suspects(waiting(process(3, ())))
    assert who == "rank 3 on algo-2"
    assert "could not be looked at (py-spy: Permission denied)" in why


def test_programs_without_ranks_are_grouped_by_their_python_processes():
    lone = replace(process(0, COMPUTING), rank=None)
    found = examine({"algo-1": host("algo-1", lone)}, hosts=("algo-1",), num_ranks=0)
    assert [member.rank for group in found.groups for member in group.members] == [None]
    assert found.suspicions == ()


def test_the_location_is_in_the_users_code_and_not_in_a_library():
    assert place_of(process(0, LOADING)) == "step (train.py:16)"
    assert place_of(process(0, ())) == "an unknown place"
