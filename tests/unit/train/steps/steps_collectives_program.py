"""Operations of torch's groups are recorded; `test_steps_collectives` runs it where torch is."""

import contextlib
import gc
import os
import pickle
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import torch
import torch.distributed as dist
from recorded_ranks import LIMIT_S, Ranks, has, rows_of_process, shown

from clary.agent.autopsy.call_records import read_records
from clary.contract.collective_records import STATES, SWITCH_VARIABLE
from clary.contract.step_records import FOLDER_VARIABLE
from clary.train.steps import torch_hooks
from clary.train.steps.collective_hooks import CollectiveCalls

_AT = tempfile.TemporaryDirectory(prefix="clary-calls-")
FOLDER = Path(_AT.name)
os.environ[FOLDER_VARIABLE] = _AT.name
RECORDER = torch_hooks.install()
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

SKIPPED = """
    for _ in range(5):
        dist.all_reduce(torch.ones(4))
    if rank != 1:
        dist.all_reduce(torch.ones(4))
    time.sleep(600)
"""


def test_a_rank_that_skipped_a_collective_is_named_while_others_wait_and_after_a_kill():
    with Ranks(SKIPPED, 3) as ranks:
        ranks.until(
            lambda calls: all(has(6, "waited for")(calls.get(rank)) for rank in (0, 2)) and has(5)(calls.get(1))
        )
        words = ranks.counted().about[1]
        assert words.startswith("it has not entered all_reduce #6 of group "), words
        assert "its last there was all_reduce #5, " in words
        newest = ranks.calls()[0][0]
        assert (newest.count, newest.dtype, newest.took_s) == (4, "float32", None)
        assert [call.state for call in ranks.calls()[0][1:]] == ["finished"] * 5
        ranks.kill()
        after = ranks.counted(is_over=True)
        assert "all_reduce #5 of group" in after.about[1]
        assert "all_reduce #6 of group" in after.about[0]
        assert "waited for" in after.about[0]


DIFFERENT = """
    for _ in range(5):
        dist.all_reduce(torch.ones(4))
    try:
        dist.all_reduce(torch.ones(4096 if rank == 1 else 4))
    except RuntimeError as error:
        print(error, file=sys.stderr)
    time.sleep(600)
"""


def test_a_rank_with_another_number_of_elements_is_named():
    with Ranks(DIFFERENT, 3) as ranks:
        ranks.until(lambda calls: all(has(6)(calls.get(rank)) for rank in range(3)))
        (found,) = ranks.counted().disagreements
        assert found.odd == (1,)
        assert (
            "rank 1 entered all_reduce #6 with 4096 float32 while ranks 0, 2 entered all_reduce #6 with 4"
            in found.words
        )


GRADIENTS = """
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        loss = net(torch.ones(2, 3)).sum()
        if step == 3 and rank == 1:
            time.sleep(600)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_passes_of_ddp_are_operations_and_a_wait_for_gradients_is_recorded():
    with Ranks(GRADIENTS, 2) as ranks:
        ranks.until(lambda calls: has(4, "waited for")(calls.get(0)) and has(3, "finished")(calls.get(1)), kind="DDP")
        assert {call.operation for call in ranks.calls("DDP")[0]} == {"gradients"}
        assert "it has not entered gradients #4 of group " in ranks.counted().about[1]


NATIVE = """
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    for _ in range(12):
        net(torch.ones(2, 3)).sum().backward()
    if rank == 0:
        dist.barrier()
    time.sleep(600)
"""


def test_the_compiled_core_records_the_operations_of_ddp_and_ranks_inside_a_call():
    with Ranks(NATIVE, 2, backend="smddp") as ranks:
        ranks.until(
            lambda calls: (
                len(calls) == 2
                and all(calls.values())
                and calls[0][0].operation == "barrier"
                and calls[0][0].number == calls[1][0].number + 1
                and calls[1][0].state == "finished"
            ),
            kind="smddp",
        )
        waiting, missing = (ranks.calls("smddp")[rank] for rank in range(2))
        assert (waiting[0].state, waiting[0].took_s, waiting[0].is_held) == ("entered", None, True)
        assert {(call.operation, call.count, call.dtype, call.state) for call in missing} == {
            ("all_reduce", 4, "float32", "finished")
        }
        assert "it has not entered barrier #" in ranks.counted().about[1]


def own_calls():
    """Return the rows of this process's default group, newest first."""
    return rows_of_process(FOLDER)


def test_operations_are_recorded_with_type_and_number_of_elements():
    ones = torch.ones(2, 3)
    calls = [
        (lambda: dist.all_reduce(ones), ("all_reduce", 6, "float32")),
        (lambda: dist.broadcast(torch.ones(5, dtype=torch.int64), 0), ("broadcast", 5, "int64")),
        (lambda: dist.reduce(torch.ones(2, dtype=torch.float64), 0), ("reduce", 2, "float64")),
        (lambda: dist.all_gather([torch.ones(2)], torch.ones(2)), ("all_gather", 2, "float32")),
        (lambda: dist.all_gather_into_tensor(torch.ones(2), torch.ones(2)), ("all_gather_into_tensor", 2, "float32")),
        (lambda: dist.gather(torch.ones(3), [torch.ones(3)]), ("gather", 3, "float32")),
        (lambda: dist.scatter(torch.ones(3), [torch.ones(3)]), ("scatter", 3, "float32")),
        (lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4)), ("all_to_all_single", 4, "float32")),
        (lambda: dist.barrier(), ("barrier", 0, "")),
    ]
    for act, wanted in calls:
        before = own_calls()[0].number if read_records(FOLDER).records else 0
        act()
        newest = own_calls()[0]
        assert newest.number == before + 1
        assert shown(newest) == (*wanted, "finished")
        assert newest.finished_ns >= newest.started_ns > 0
    assert torch.equal(ones, torch.ones(2, 3)), "the sum of one rank"


def test_an_asynchronous_operation_is_under_way_until_its_wait_and_is_not_kept_alive():
    work = dist.all_reduce(torch.ones(2), async_op=True)
    assert shown(own_calls()[0]) == ("all_reduce", 2, "float32", "under way")
    number = own_calls()[0].number
    other = dist.all_reduce(torch.ones(3), async_op=True)
    work.wait()
    states = {row.number: STATES[row.state] for row in own_calls()}
    assert (states[number], states[number + 1]) == ("finished", "under way")
    other.wait()
    for _ in range(3000):
        dist.all_reduce(torch.ones(1), async_op=True)  # without a wait
    gc.collect()
    assert len(RECORDER.calls.works) <= 1100


def test_a_failed_operation_is_recorded_as_failed_and_its_error_is_raised():
    has_failed = False
    try:
        dist.group.WORLD.allreduce([torch.ones(2), torch.ones(3)])
    except (RuntimeError, ValueError):
        has_failed = True
    assert has_failed, "tensors of different sizes are refused"
    assert shown(own_calls()[0])[3] == "failed"
    dist.all_reduce(torch.ones(2))
    assert shown(own_calls()[0])[3] == "finished"


def test_groups_are_recorded_with_their_ranks_and_separate_numbers():
    group = dist.new_group([0])
    dist.all_reduce(torch.ones(7), group=group)
    (record,) = (record for record in read_records(FOLDER).records if record.process == os.getpid())
    new = record.groups[-1]
    assert (tuple(new.facts.ranks), new.facts.size, new.facts.rank) == ((0,), 1, 0)
    assert [(row.number, row.num_elements) for row in new.rows] == [(1, 7)]
    dist.destroy_process_group(group)


def test_compiled_functions_give_the_same_results():
    def step(value):
        value = value * 2
        dist.all_reduce(value)
        return value + 1

    compiled = torch.compile(step, backend="eager")
    assert torch.equal(compiled(torch.ones(3)), step(torch.ones(3)))
    whole = torch.compile(step, backend="eager", fullgraph=True)
    assert torch.equal(whole(torch.ones(3)), step(torch.ones(3)))


def test_patched_methods_keep_their_names_and_can_be_pickled():
    assert dist.ProcessGroup.allreduce.__name__ == "allreduce"
    assert pickle.loads(pickle.dumps(dist.all_reduce)) is dist.all_reduce


def test_a_defect_of_the_recorder_ends_the_recording_and_not_the_training():
    calls = RECORDER.calls
    calls.slots[id(dist.group.WORLD)] = (bytes(8), 0, int, None)  # a slot to which no row can be written
    value = torch.ones(2)
    dist.all_reduce(value)
    assert calls._is_on is False
    dist.all_reduce(value)
    calls._is_on = True
    dist.all_reduce(value)
    assert shown(own_calls()[0]) == ("all_reduce", 2, "float32", "finished")


def test_a_forked_child_does_not_write_into_its_parent_s_record():
    dist.all_reduce(torch.ones(2))
    before = own_calls()
    child = os.fork()
    if child == 0:
        RECORDER.calls.ended(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert own_calls() == before


OFF = """
    import os, torch, torch.distributed as dist
    before = dist.ProcessGroup.allreduce
    from clary.train.steps import torch_hooks
    assert torch_hooks.install() is not None
    assert dist.ProcessGroup.allreduce is before
    assert not hasattr(torch.ops._c10d_functional.all_reduce._op, "function")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(2))
    assert not [name for name in os.listdir(os.environ["CLARY_STEPS_FOLDER"]) if str(os.getpid()) in name]
    os._exit(0)
"""


def test_recording_is_off_if_the_environment_says_so():
    environment = {**os.environ, SWITCH_VARIABLE: "0"}
    subprocess.run([sys.executable, "-c", textwrap.dedent(OFF)], env=environment, check=True, timeout=LIMIT_S)


class Nameless(dist.ProcessGroup):
    """A program's own group, which torch does not know."""

    def __init__(self):
        super().__init__(0, 1)

    def size(self):
        return 1

    def rank(self):
        return 0


def test_a_group_without_a_name_is_not_recorded_and_ends_no_recording():
    own = Nameless()
    dist.all_reduce(torch.ones(3))
    (before,) = (record for record in read_records(FOLDER).records if record.process == os.getpid())
    with contextlib.suppress(RuntimeError):  # the group has no backend
        own.allreduce([torch.ones(2)], dist.AllreduceOptions())
    dist.all_reduce(torch.ones(17))
    assert shown(own_calls()[0]) == ("all_reduce", 17, "float32", "finished")
    (after,) = (record for record in read_records(FOLDER).records if record.process == os.getpid())
    assert len(after.groups) == len(before.groups)


def test_a_group_without_a_free_slot_is_counted_once():
    calls = CollectiveCalls()
    asked = []
    calls._rows_of = lambda facts: asked.append(facts.name) or 0
    for _ in range(3):
        assert (calls.slots.get(id(dist.group.WORLD)) or calls.begin_group(dist.group.WORLD, calls.slots))[0] is None
    assert len(asked) == 1


class FakeBusyTable(dict):
    """A table during whose lookups another thread records an operation."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def get(self, key, default=None):
        self.other[1000 + len(self.other)] = 0
        return super().get(key, default)


def test_an_operation_that_is_recorded_during_a_sweep_of_the_table_does_no_harm():
    calls = CollectiveCalls()
    calls.works = FakeBusyTable(calls.works_of_rows)
    calls.works.update({7: 64, 8: 128})
    calls.works_of_rows.update({64: 7, 128: 9})  # another operation has taken the row of 8
    calls.sweep()
    assert calls.works == {7: 64}


def test_the_gradients_of_each_model_have_a_separate_name_also_after_a_deleted_model():
    calls = CollectiveCalls()
    asked = []
    calls._rows_of = lambda facts: asked.append(facts.name) or 0
    reducer = object()  # a deleted reducer's id is used again for the next one
    for _ in range(3):
        calls.know_reducer(reducer, dist.group.WORLD)
    assert len(set(asked)) == 3, asked


def test_a_symbolic_number_of_elements_stays_symbolic_and_is_not_recorded():
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    shapes = ShapeEnv()
    traced = FakeTensorMode(shape_env=shapes).from_tensor(torch.ones(5, 3))
    with contextlib.suppress(Exception):  # fake tensors have no data to send
        dist.group.WORLD.allreduce([traced], dist.AllreduceOptions())
    assert shown(own_calls()[0])[:3] == ("all_reduce", 0, "")
    assert shapes.guards == []
    dist.all_reduce(torch.ones(19))
    assert shown(own_calls()[0]) == ("all_reduce", 19, "float32", "finished")


def test_no_files_are_left():
    dist.destroy_process_group()
    _AT.cleanup()
    assert not FOLDER.exists()
