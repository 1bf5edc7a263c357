"""Ranks whose stacks end in calls of CUDA, and backward passes that a thread of torch computes.

The stacks have the form of published stacks of hanging trainings (pytorch/pytorch, issues 95944 and 20355); none was
recorded on a GPU here.
"""

import pytest

from clary.contract.stack_dumps import Frame, ProcessDump, ThreadStack
from clary.control.analysis.rank_doings import Doing, doing_of, operation_of, place_of, standing_calls

SCRIPT = (("step", "train.py", 31), ("<module>", "train.py", 40))
ITEM = (
    ("cudaMemcpyAsync", "libcudart.so.11.0", 0),
    ("at::native::_local_scalar_dense_cuda", "libtorch_cuda.so", 0),
    ("at::_ops::item::call", "libtorch_cpu.so", 0),
    *SCRIPT,
)
FULL_QUEUE = (
    ("cudaLaunchKernel", "libcudart.so.12", 0),
    ("at::native::gpu_kernel_impl", "libtorch_cuda.so", 0),
    *SCRIPT,
)
WAITED = (
    ("cudaStreamSynchronize", "libtorch_cuda.so", 0),  # if the CUDA library is linked into torch's own
    *SCRIPT,
)
BACKWARD = (
    ("pthread_cond_wait", "libpthread.so.0", 0),
    ("torch::autograd::Engine::execute_with_graph_task", "libtorch_cpu.so", 0),
    ("_engine_run_backward", "torch/autograd/graph.py", 869),
    *SCRIPT,
)
ENGINE = (
    ("torch::autograd::Engine::thread_main", "libtorch_cpu.so", 0),
    ("torch::autograd::python::PythonEngine::thread_init", "libtorch_python.so", 0),
)
RESTS = (("pthread_cond_wait", "libpthread.so.0", 0), ("torch::autograd::ReadyQueue::pop", "libtorch_cpu.so", 0))
AGAIN = (
    ("read_table", "layers.py", 12),
    ("unpack_hook", "torch/utils/checkpoint.py", 1100),
)
LOADING = (("_wait", "queue.py", 171), ("run", "threading.py", 982), ("_bootstrap", "threading.py", 1002))


def stack(calls, *, is_main=False):
    frames = tuple(Frame(function=function, file=file, line=line) for function, file, line in calls)
    return ThreadStack(thread=1, name="", is_main=is_main, frames=frames)


def rank(main, *others, state="S", channel="futex", waits=0):
    return ProcessDump(
        pid=100,
        parent=1,
        rank=0,
        command="python train.py",
        state=state,
        wait_channel=channel,
        cpu_s=1.0,
        num_waits=waits,
        cpu_used_s=0.7,
        bytes_moved=0,
        threads=(stack(main, is_main=True), *map(stack, others)),
        sockets=(),
    )


@pytest.mark.parametrize("calls", [ITEM, FULL_QUEUE, WAITED])
def test_a_rank_in_a_call_that_its_gpu_must_answer_waits_for_its_gpu(calls):
    process = rank(calls, state="R")
    assert doing_of(process) is Doing.WAITS_FOR_GPU
    assert place_of(process) == "step (train.py:31)"
    assert operation_of(process) == ""


def test_a_rank_held_by_the_driver_in_the_kernel_does_not_count_as_disk_wait():
    process = rank(SCRIPT, state="D", channel="uvm_gpu_retain_by_uuid")
    assert doing_of(process) is Doing.WAITS_FOR_GPU
    assert doing_of(rank(SCRIPT, state="D", channel="folio_wait_bit_common")) is Doing.READS


def test_a_backward_pass_on_a_gpu_has_the_location_of_torchs_thread():
    full = rank(BACKWARD, (*RESTS, *ENGINE), (*FULL_QUEUE[:2], *ENGINE))
    assert doing_of(full) is Doing.WAITS_FOR_GPU
    reducing = rank(BACKWARD, (("c10d::Reducer::finalize_backward", "libtorch_cpu.so", 0), *ENGINE))
    assert doing_of(reducing) is Doing.WAITS_FOR_RANKS


def test_recomputation_in_a_backward_pass_is_no_wait_for_other_ranks():
    process = rank(BACKWARD[2:], LOADING, AGAIN)
    assert doing_of(process) is Doing.OTHER
    assert [frame.function for frame in standing_calls(process)][:2] == ["read_table", "unpack_hook"]
    assert place_of(process) == "step (train.py:31)"
    with_native = rank(BACKWARD, (*AGAIN, *ENGINE))
    assert doing_of(with_native) is Doing.OTHER


def test_idle_threads_and_the_programs_own_threads_do_not_show_a_backward_pass():
    process = rank(BACKWARD[2:], LOADING, (*RESTS, *ENGINE))
    assert standing_calls(process) == stack(BACKWARD[2:]).frames
    assert doing_of(process) is Doing.WAITS_FOR_RANKS, "as it was without them"
    assert operation_of(process) == "backward"


def test_other_threads_are_ignored_outside_of_backward_passes():
    process = rank(SCRIPT, (*FULL_QUEUE[:2], *ENGINE), state="R")
    assert standing_calls(process) == stack(SCRIPT).frames
    assert doing_of(process) is Doing.OTHER


def test_threads_of_the_program_are_recognised_by_qualified_names():
    """From Python 3.11 on, code knows its qualified name, and py-spy prints Thread._bootstrap."""
    writer = (("Writer._run", "writing.py", 114), ("Thread.run", "threading.py", 982))
    process = rank(BACKWARD[2:], (*writer, ("Thread._bootstrap", "threading.py", 1002)))
    assert standing_calls(process) == stack(BACKWARD[2:]).frames
    assert doing_of(process) is Doing.WAITS_FOR_RANKS
