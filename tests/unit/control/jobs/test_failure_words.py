"""Error messages as torch, gloo, NCCL, Horovod and mpirun print them, and messages that only mention them."""

import pytest

from clary.base.errors import Fault
from clary.control.jobs.failure_words import Weight, class_of, weigh
from clary.control.jobs.verdicts import Verdict, judge

GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp"
ADVICE = "Check the logs of the remote worker before reporting an error. GLHF!"
# Printed by ranks of torch 2.13 whose peer was killed in all_reduce, barrier, broadcast, all_gather, send and recv.
TORCH_EFFECTS = [
    f"RuntimeError: {GLOO}/pair.cc:553] Connection closed by peer [127.0.0.1]:21935. This is typically caused by a "
    f"remote worker crashing. {ADVICE}",
    f"RuntimeError: {GLOO}/pair.cc:537] Read error [127.0.0.1]:33449: Connection reset by peer. This is typically "
    f"caused by a remote worker hanging or bugs in the application. {ADVICE}",
    "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms",
    "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
    "rank 0. Please check rank 0 logs for faulty rank.",
    f"RuntimeError: {GLOO}/unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete",
    "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote "
    "server shutdown or crash?",
    "torch.distributed.DistNetworkError: Connection reset by peer",
    "torch.distributed.DistStoreError: wait timeout after 5000ms, keys: /default_pg/0//k0-20, /default_pg/0//k1-20",
]
# Printed by processes of jax 0.10.2 on CPUs whose peer was killed in psum, ppermute and an all-gather.
_JAX_GLOO = "failed: [external/gloo/gloo/transport/tcp/pair.cc"
JAX_EFFECTS = [
    f"ValueError: UNKNOWN: Gloo all-reduce {_JAX_GLOO}:547] Connection closed by peer [127.0.0.1]:21170",
    f"ValueError: UNKNOWN: Gloo collective permute {_JAX_GLOO}:547] Connection closed by peer [127.0.0.1]:27299",
    f"ValueError: UNKNOWN: Gloo AllGather {_JAX_GLOO}:538] Read error [10.77.0.2]:64190: Connection reset by peer",
]
# Quoted in public: NVIDIA/nccl issues 2076, 1928 and 1514, stanford_alpaca 207, sglang 1693, horovod 3647 and 410.
PUBLIC_EFFECTS = [
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote "
    "process exited or there was a network error, NCCL version 2.21.5",
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1275, "
    "internal error, NCCL version 2.14.3\nncclInternalError: Internal check failed.\nLast error:\n"
    "Net : Connection closed by remote peer user<50260>",
    "std::runtime_error: NCCL error: remote process exited or there was a network error, NCCL version 2.14.3",
    "c10::DistBackendError: [PG 3 Rank 0] Process group watchdog thread terminated with exception: [Rank 0] Watchdog "
    "caught collective operation timeout: WorkNCCL(SeqNum=9141, OpType=_ALLGATHER_BASE, NumelIn=19008, "
    "NumelOut=152064, Timeout(ms)=600000) ran for 600022 milliseconds before timing out.",
    "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was caused by an exception on "
    "one of the ranks or an attempt to allreduce, allgather or broadcast a tensor after one of the ranks finished "
    "execution.",
]
_ERRORS = "clary.train._native.errors"
CLARY_EFFECTS = [
    f"{_ERRORS}.PeerLost: group '0', rank 3 on algo-2: all_reduce #21 (float32, avg), 4 bytes: rank 2 on algo-2 was "
    "lost: its connection ended without a goodbye, so its process has ended",
    f"{_ERRORS}.CollectiveTimeout: group '0', rank 0 on algo-1: waited 30 s for rank 3 on algo-2, which did not come",
    f"{_ERRORS}.GroupClosed: group '0' was closed by this rank",
    f"{_ERRORS}.BootstrapError: group '0': rank 3 did not come within 300 s",
]
PYTHON_EFFECTS = [
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "ConnectionRefusedError: [Errno 111] Connection refused",
    "BrokenPipeError: [Errno 32] Broken pipe",
    "OSError: [Errno 104] Connection reset by peer",
]
WRAPPERS = [
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.",
    "sagemaker_training.errors.ExecuteUserScriptError: ",
    "mpirun detected that one or more processes exited with non-zero status, thus causing",
    "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD",
]
# Errors of the code itself that contain phrases of effects.
IN_PASSING = [
    f"{_ERRORS}.OrderMismatch: group '0': rank 0 called all_reduce of 4 bytes, rank 1 barrier",
    "RuntimeError: PeerLost is what the other ranks will say",
    "ValueError: NCCL is not a backend that this script knows",
    "RuntimeError: please set NCCL_DEBUG and use gloo on machines without GPUs",
    "KeyError: 'ProcessGroup'",
    "AssertionError: expected ConnectionResetError",
    "RuntimeError: timed out after tuning: the loss has diverged",
    "RuntimeError: connection closed contours are not supported by this model",
    "ValueError: the reply was 'Connection reset by peer'",
    "RuntimeError: got CalledProcessError where none was expected",
    "torch.distributed.DistBackendError: NCCL error in: /opt/pytorch/torch/csrc/distributed/c10d/"
    "ProcessGroupNCCL.cpp:1287, invalid usage, NCCL version 2.17.1\nncclInvalidUsage: This usually reflects invalid "
    "usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
]


@pytest.mark.parametrize("prefix", ["", "rank 3: ", "rank 3 ended with exit code 1: "])
@pytest.mark.parametrize("words", TORCH_EFFECTS + JAX_EFFECTS + PUBLIC_EFFECTS + CLARY_EFFECTS + PYTHON_EFFECTS)
def test_messages_of_libraries_about_a_lost_peer_are_effects(words, prefix):
    assert weigh(prefix + words) is Weight.EFFECT


@pytest.mark.parametrize("prefix", ["", "the program ended with exit code 1: "])
@pytest.mark.parametrize("words", WRAPPERS)
def test_messages_of_launchers_about_a_failed_child_are_wrappers(words, prefix):
    assert weigh(prefix + words) is Weight.WRAPPER


@pytest.mark.parametrize("prefix", ["", "rank 12: ", "rank 0 was ended by signal 6 (SIGABRT): "])
@pytest.mark.parametrize("words", IN_PASSING)
def test_messages_that_only_mention_libraries_are_the_codes_own(words, prefix):
    assert weigh(prefix + words) is Weight.OWN
    judgement = judge(Fault.ALGORITHM, prefix + words)
    assert (judgement.verdict, judgement.is_retryable) == (Verdict.USER, False)


@pytest.mark.parametrize("words", TORCH_EFFECTS + JAX_EFFECTS + PUBLIC_EFFECTS + CLARY_EFFECTS + PYTHON_EFFECTS)
def test_an_effect_without_a_cause_is_a_network_fault_and_a_timeout_is_not_retried(words):
    """Ranks that time out in a wait have more often lost step with each other, which a retry repeats."""
    judgement = judge(Fault.ALGORITHM, f"rank 0 ended with exit code 1: {words}")
    waits = ("Timed out waiting", "monitoredBarrier", "wait timeout", "timing out", "CollectiveTimeout")
    is_wait = any(text in words for text in waits)
    assert (judgement.verdict, judgement.is_retryable) == (Verdict.NETWORK, not is_wait)


@pytest.mark.parametrize(
    "words",
    [
        "RuntimeError: expected 3 channels, got channel 4 of the image",
        "RuntimeError: bucket 7 of the histogram is empty",
        "RuntimeError: model_dir s3:// is not supported here",
        "ValueError: the read timed out flag must be a number",
        "KeyError: 'object store'",
    ],
)
def test_the_programs_own_messages_are_not_attributed_to_a_channel_or_a_store(words):
    judgement = judge(Fault.ALGORITHM, f"rank 0 ended with exit code 1: {words}")
    assert (judgement.verdict, judgement.is_retryable) == (Verdict.USER, False)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("ValueError: x", "ValueError"),
        ("rank 1 ended with exit code 1: a.b.OddError", "OddError"),
        ("rank 0 was ended by signal 6 (SIGABRT): c10::Error: boom", "Error"),
        ("the program ended with exit code 3", ""),
        ("", ""),
    ],
)
def test_the_class_of_an_error_is_read_from_its_head(words, name):
    assert class_of(words) == name
