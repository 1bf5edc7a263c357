"""Functional collectives are recorded and timed; `test_steps_functional` runs it where torch is."""

import contextlib
import copy
import os
import pickle
import tempfile
import threading
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from recorded_ranks import LIMIT_S, Ranks, has, rows_of_process, shown
from torch._dynamo.testing import EagerAndRecordGraphs
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from clary.agent.autopsy.call_records import read_records
from clary.contract.step_records import FOLDER_VARIABLE, HEADER_BYTES, read_rows
from clary.train.steps import torch_hooks
from clary.train.steps.functional_hooks import Operator
from clary.train.steps.step_clock import COMMUNICATION

OPERATORS = torch.ops._c10d_functional
KNOWN_BEFORE = {OPERATORS.all_reduce: "all", OPERATORS.all_reduce.default: "one"}  # like the tables of torch
_AT = tempfile.TemporaryDirectory(prefix="clary-functional-")
FOLDER = Path(_AT.name)
os.environ[FOLDER_VARIABLE] = _AT.name
RECORDER = torch_hooks.install()
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
NAME = dist.group.WORLD.group_name
dist.all_reduce(torch.ones(1))  # creates the record


def newest():
    return rows_of_process(FOLDER)[0]


def num_counted(act):
    """Return the number of operations that are counted during a call."""
    before = newest().number
    act()
    return newest().number - before


def sums(value):
    return funcol.all_reduce(value * 2, "sum", NAME) + 1


ROW_WISE = """
    import torch.distributed._functional_collectives as funcol
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    mesh = init_device_mesh("cpu", (size,))
    weight = torch.nn.Parameter(DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0)], run_check=False))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(6):
        if rank == 1:
            time.sleep(0.3)
        brought = DTensor.from_local(torch.ones(5, 2), mesh, [Shard(1)], run_check=False)
        whole = (brought @ weight).redistribute(mesh, [Replicate()])
        whole.to_local().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        funcol.wait_tensor(funcol.all_reduce(torch.ones(7), "sum", mesh.get_group()))
    time.sleep(600)
"""


def test_row_wise_dtensors_are_counted_and_timed_and_a_skipping_rank_is_named():
    with Ranks(ROW_WISE, 2) as ranks:
        ranks.until(
            lambda calls: (
                len(calls) == 2
                and has(calls[1][0].number + 1, "waited for")(calls[0])
                and (calls[0][0].count, calls[1][0].count) == (7, 15)
            )
        )
        done = ranks.calls()[1]
        assert {(call.operation, call.count, call.dtype, call.state) for call in done[:6]} == {
            ("all_reduce", 15, "float32", "finished")
        }
        assert f"it has not entered all_reduce #{done[0].number + 1} of group " in ranks.counted().about[1]
        files = [Path(ranks.folder, f"{number}-{rank.pid}.steps") for number, rank in enumerate(ranks.all)]
        waiting, slow = (read_rows(file.read_bytes()[HEADER_BYTES:]) for file in files)
    assert len(waiting) == len(slow) == 6
    waits_s, is_waited_for_s = (sum(row.communication_s for row in rows[1:]) for rows in (waiting, slow))
    assert waits_s > is_waited_for_s + 0.3  # out of 1.5 s, on a machine that delays both ranks
    assert all(row.forward_s > 0.25 for row in slow)


ONCE = """
    import torch.distributed._functional_collectives as funcol
    dist.all_reduce(torch.ones(7))
    for _ in range(3):
        funcol.wait_tensor(funcol.all_reduce(torch.ones(5), "sum", dist.group.WORLD))
    dist.all_reduce(torch.ones(9))
    time.sleep(600)
"""


def test_a_group_of_a_python_class_counts_a_functional_operation_once():
    with Ranks(ONCE, 2, backend="smddp") as ranks:
        ranks.until(
            lambda calls: len(calls) == 2 and all(found and found[0].count == 9 for found in calls.values()),
            kind="smddp",
        )
        for found in ranks.calls("smddp").values():
            assert [(call.operation, call.count) for call in found[:5]] == [
                ("all_reduce", count) for count in (9, 5, 5, 5, 7)
            ]
        for record in read_records(ranks.folder).records:
            assert len([group for group in record.groups if group.rows]) == 1


def test_operations_are_recorded_with_their_elements_and_are_under_way_until_the_wait():
    ones = torch.ones(4, 3)
    out = torch.empty(4, 3)
    calls = [
        (lambda: OPERATORS.all_reduce(ones, "sum", NAME), "all_reduce"),
        (lambda: OPERATORS.all_reduce_(ones.clone(), "sum", NAME), "all_reduce"),
        (lambda: OPERATORS.all_reduce_coalesced([ones, ones], "sum", NAME), "all_reduce_coalesced"),
        (lambda: OPERATORS.all_gather_into_tensor(ones, 1, NAME), "all_gather_into_tensor"),
        (lambda: OPERATORS.all_gather_into_tensor_out(ones, 1, NAME, out=out), "all_gather_into_tensor"),
        (
            lambda: OPERATORS.all_gather_into_tensor_coalesced([ones, ones], 1, NAME),
            "all_gather_into_tensor_coalesced",
        ),
        (lambda: OPERATORS.reduce_scatter_tensor(ones, "sum", 1, NAME), "reduce_scatter_tensor"),
        (
            lambda: OPERATORS.reduce_scatter_tensor_coalesced([ones, ones], "sum", 1, NAME),
            "reduce_scatter_tensor_coalesced",
        ),
        (lambda: OPERATORS.all_to_all_single(ones, [4], [4], NAME), "all_to_all_single"),
        (lambda: OPERATORS.broadcast(ones, 0, NAME), "broadcast"),
        (lambda: OPERATORS.broadcast_(ones.clone(), 0, NAME), "broadcast"),
        (lambda: OPERATORS.all_reduce_coalesced_([ones.clone()], "sum", NAME), "all_reduce_coalesced"),
        (lambda: OPERATORS.reduce_scatter_tensor_out(ones, "sum", 1, NAME, out=out), "reduce_scatter_tensor"),
    ]
    for act, operation in calls:
        before = newest().number
        result = act()
        assert newest().number == before + 1, operation
        assert shown(newest()) == (operation, 12, "float32", "under way")
        for item in result if isinstance(result, list) else [result]:
            assert torch.equal(funcol.wait_tensor(item), ones)
            assert shown(newest()) == (operation, 12, "float32", "finished")
            assert newest().finished_ns >= newest().started_ns > 0
        assert newest().number == before + 1


def test_functional_and_other_operations_of_a_group_share_one_numbering():
    first = newest().number + 1
    funcol.all_reduce(torch.ones(3), "sum", dist.group.WORLD).wait()
    dist.all_reduce(torch.ones(4))
    funcol.all_reduce(torch.ones(5), "sum", (init_device_mesh("cpu", (1,)), 0)).wait()
    rows = {row.number: row.num_elements for row in rows_of_process(FOLDER)}
    assert [rows.get(first + index) for index in range(3)] == [3, 4, 5]


def test_an_implicit_wait_at_the_use_of_a_result_ends_the_operation():
    result = funcol.all_reduce(torch.ones(2), "sum", NAME)
    assert shown(newest())[3] == "under way"
    assert (result + 1).tolist() == [2.0, 2.0]
    assert shown(newest())[3] == "finished"
    part = OPERATORS.all_gather_into_tensor(torch.ones(4, 2), 1, NAME)[1:]
    funcol.wait_tensor(part)
    assert shown(newest()) == ("all_gather_into_tensor", 8, "float32", "finished")


def test_a_wait_counts_as_communication():
    spent = RECORDER.clock._spent
    before = spent[COMMUNICATION]
    funcol.wait_tensor(funcol.all_reduce(torch.ones(2), "sum", NAME))
    assert spent[COMMUNICATION] > before


def test_a_shard_exchange_with_its_own_wait_is_recorded_and_timed():
    spent, value = RECORDER.clock._spent, torch.arange(16.0).reshape(4, 4)
    before = spent[COMMUNICATION]
    assert torch.equal(torch.ops._dtensor.shard_dim_alltoall(value, 0, 1, NAME), value)
    assert shown(newest()) == ("all_to_all_single", 16, "float32", "finished")
    assert spent[COMMUNICATION] > before


def test_an_operation_of_another_thread_is_recorded():
    thread = threading.Thread(target=lambda: funcol.all_reduce(torch.ones(21), "sum", NAME).wait())
    assert num_counted(lambda: (thread.start(), thread.join(LIMIT_S))) == 1
    assert shown(newest()) == ("all_reduce", 21, "float32", "finished")


class PassingDispatch(TorchDispatchMode):
    """Intercepts every operator without a change."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class PassingFunctions(TorchFunctionMode):
    """Intercepts every function without a change."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Named(torch.Tensor):
    """A subclass of tensors without changes."""


def test_an_operation_counts_once_for_every_form_of_call():
    ones = torch.ones(2)
    leaf = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    ways = [
        lambda: OPERATORS.all_reduce(ones, "sum", NAME),
        lambda: OPERATORS.all_reduce.default(ones, "sum", NAME),
        lambda: OPERATORS.all_reduce(ones, "sum", group_name=NAME),
        lambda: OPERATORS.all_reduce(leaf, "sum", NAME),
        lambda: OPERATORS.all_reduce(ones.as_subclass(Named), "sum", NAME),
        lambda: OPERATORS.all_reduce_coalesced((ones, ones), "sum", NAME)[0],
        lambda: OPERATORS.all_reduce_coalesced([ones, ones.as_subclass(Named)], "sum", NAME)[0],
        lambda: OPERATORS.reduce_scatter_tensor(ones, "sum", group_size=1, group_name=NAME),
    ]
    modes = [contextlib.nullcontext, lambda: torch.device("cpu"), PassingDispatch, PassingFunctions]
    for number, way in enumerate(ways):
        for mode in modes:
            with mode():
                assert num_counted(lambda way=way: funcol.wait_tensor(way())) == 1, (number, mode)
            assert shown(newest())[3] == "finished", (number, mode)
    assert num_counted(lambda: funcol.all_reduce(funcol.all_reduce(ones, "sum", NAME), "sum", NAME).wait()) == 2


def test_a_list_with_a_pending_tensor_counts_once():
    ones = torch.ones(2)
    awaited = funcol.all_reduce(ones, "sum", NAME)
    assert isinstance(awaited, funcol.AsyncCollectiveTensor)
    assert num_counted(lambda: OPERATORS.all_reduce_coalesced([ones, awaited], "sum", NAME)) == 1


def test_an_operator_gives_torch_s_pickling_error_and_its_copy_is_itself():
    reasons = []
    for kept in (contextlib.nullcontext, without):
        with kept():
            try:
                pickle.dumps(OPERATORS.all_reduce.default)
            except Exception as error:  # noqa: BLE001 - whatever it is
                reasons.append((type(error), str(error).split(" at ")[0]))
    assert len(reasons) == 2
    assert reasons[0] == reasons[1]
    assert copy.deepcopy(OPERATORS.all_reduce.op) is OPERATORS.all_reduce.op


def test_backward_passes_are_counted_and_correct():
    leaf = torch.ones(3, requires_grad=True)
    before = newest().number
    (funcol.all_reduce(leaf, "sum", NAME) * 2).sum().backward()
    assert leaf.grad.tolist() == [2.0] * 3
    assert newest().number == before + 2
    assert shown(newest()) == ("all_reduce", 3, "float32", "finished")


class Summing(torch.nn.Module):
    """A model with a functional collective."""

    def forward(self, value):
        return sums(value)


def traced():
    """Return the compilers' results for functional collectives, and how many operations each has run."""
    torch._dynamo.reset()
    ones, found, counts = torch.ones(3), [], {}

    def take(name, act):
        counts[name] = num_counted(lambda: found.append((name, act())))

    take("make_fx", lambda: make_fx(sums, tracing_mode="fake")(ones).code)
    take("make_fx, real", lambda: make_fx(sums, tracing_mode="real")(ones).code)
    take("make_fx, before dispatch", lambda: make_fx(sums, tracing_mode="fake", pre_dispatch=True)(ones).code)
    take("export", lambda: torch.export.export(Summing(), (ones,)).graph_module.code)
    with FakeTensorMode() as mode:
        take("fake", lambda: tuple(sums(mode.from_tensor(ones)).shape))
    graphs = EagerAndRecordGraphs()
    compiled = torch.compile(sums, backend=graphs, fullgraph=True)
    take("compile", lambda: compiled(ones).tolist())
    torch._dynamo.config.error_on_recompile = True
    take("compiled", lambda: [compiled(ones).tolist() for _ in range(3)])
    torch._dynamo.config.error_on_recompile = False
    take("graphs", lambda: [graph.code for graph in graphs.graphs])
    whole = torch.compile(sums, backend="aot_eager", fullgraph=True)
    take("aot", lambda: whole(ones).tolist())
    return found, counts


@contextlib.contextmanager
def without():
    """Have operators call torch's original functions."""
    packets = [getattr(OPERATORS, name) for name in list(OPERATORS)]
    items = [item for packet in packets for item in (packet, *packet.op_overloads())]
    wrapped = {id(item): (item, item._op) for item in items if isinstance(item._op, Operator)}
    assert len(wrapped) > 20
    for item, operator in wrapped.values():
        item._op = operator.function
    try:
        yield
    finally:
        for item, operator in wrapped.values():
            item._op = operator


def test_compilers_give_unchanged_results_and_only_executed_operations_are_counted():
    found, counts = traced()
    assert counts == {
        "make_fx": 0,
        "make_fx, real": 1,
        "make_fx, before dispatch": 0,
        "export": 0,
        "fake": 0,
        "compile": 1,
        "compiled": 3,
        "graphs": 0,
        "aot": 1,
    }
    with without():
        before, none = traced()
    assert set(none.values()) == {0}
    assert found == before
    (code,) = dict(found)["graphs"]
    assert "_c10d_functional.all_reduce" in code
    assert dict(found)["compiled"] == [[3.0] * 3] * 3


def test_dtensors_are_compiled_into_one_graph():
    torch._dynamo.reset()
    mesh = init_device_mesh("cpu", (1,))
    graphs = EagerAndRecordGraphs()

    def reduced(value):
        return (
            DTensor.from_local(value, mesh, [Partial()], run_check=False).redistribute(mesh, [Replicate()]).to_local()
        )

    compiled = torch.compile(reduced, backend=graphs, fullgraph=True)
    for _ in range(2):
        assert compiled(torch.ones(3)).tolist() == reduced(torch.ones(3)).tolist()
    assert len(graphs.graphs) == 1


def test_compiled_code_around_operations_does_not_include_the_recorder():
    torch._dynamo.reset()

    def step(value):
        torch._dynamo.graph_break()
        return funcol.wait_tensor(funcol.all_reduce(value, "sum", NAME))

    compiled = torch.compile(step, backend="eager")
    assert num_counted(lambda: [compiled(torch.ones(2)) for _ in range(3)]) == 3
    reasons = "".join(map(str, torch._dynamo.utils.counters["graph_break"]))
    assert "monotonic" not in reasons
    assert "_len_torch_dispatch_stack" not in reasons


def test_operators_are_found_in_tables_that_were_built_before():
    assert KNOWN_BEFORE[OPERATORS.all_reduce] == "all"
    assert KNOWN_BEFORE[OPERATORS.all_reduce.default] == "one"
    assert OPERATORS.wait_tensor.default in torch.fx.node._side_effectful_functions
    assert isinstance(OPERATORS.wait_tensor.default._op, Operator)
    assert OPERATORS.all_reduce._op.__name__ == "all_reduce"
    assert "torch" in OPERATORS.all_reduce._op.__module__


def test_scripts_find_operators():
    @torch.jit.script
    def script(value: torch.Tensor):
        return torch.ops._c10d_functional.wait_tensor(value)

    assert script(torch.ones(2)).tolist() == [1.0, 1.0]


def test_tensors_without_values_are_not_counted():
    assert num_counted(lambda: OPERATORS.all_reduce(torch.ones(2, device="meta"), "sum", NAME)) == 0


def test_a_failed_operation_is_recorded_as_failed_and_the_error_is_torch_s():
    errors = []
    for group, operation in (("nobody", "sum"), (NAME, "nonsense")):
        for has_ours in (True, False):
            with contextlib.nullcontext() if has_ours else without():
                try:
                    OPERATORS.all_reduce(torch.ones(23), operation, group)
                except RuntimeError as error:
                    errors.append(str(error).splitlines()[0])
    assert len(errors) == 4
    assert errors[0] == errors[1]
    assert errors[2] == errors[3]
    assert shown(newest()) == ("all_reduce", 23, "float32", "failed")
    assert num_counted(lambda: dist.all_reduce(torch.ones(2))) == 1, "the record goes on"


def test_results_without_a_wait_are_evicted():
    kept = [OPERATORS.all_reduce(torch.ones(1), "sum", NAME) for _ in range(1500)]
    assert len(RECORDER.calls.outputs) <= 1025 < len(kept)


def test_a_defect_of_the_recorder_ends_the_recording_and_not_the_training():
    calls = RECORDER.calls
    calls.slots[id(dist.group.WORLD)] = (bytes(8), 0, int, None)  # a slot to which no row can be written
    assert funcol.all_reduce(torch.ones(2), "sum", NAME).tolist() == [1.0, 1.0]
    assert calls._is_on is False
    assert funcol.all_reduce(torch.ones(2), "sum", NAME).tolist() == [1.0, 1.0]
    calls._is_on = True
    funcol.all_reduce(torch.ones(27), "sum", NAME).wait()
    assert shown(newest()) == ("all_reduce", 27, "float32", "finished")


def test_a_forked_child_waits_without_writing_into_its_parent_s_record():
    result = OPERATORS.all_reduce(torch.ones(29), "sum", NAME)
    before = rows_of_process(FOLDER)
    child = os.fork()
    if child == 0:
        funcol.wait_tensor(torch.ones(2))
        os._exit(len(RECORDER.calls.outputs))
    assert os.waitpid(child, 0)[1] == 0
    assert rows_of_process(FOLDER) == before
    funcol.wait_tensor(result)
    assert shown(newest()) == ("all_reduce", 29, "float32", "finished")


def test_no_files_are_left():
    dist.destroy_process_group()
    _AT.cleanup()
    assert not FOLDER.exists()
