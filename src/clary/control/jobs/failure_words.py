"""Classification of an error text: cause, effect of another failure, or wrapper of one. Pure.

Where: `first_cause` classifies the text of every failure of a failing job; `verdicts` asks whether the code itself has
failed.

A program may write anything into its messages: a ValueError that names NCCL is still about the value. So an exception
class that proves a failure of the code itself decides first, then the classes of broken connections. Texts of messages
count only in the form that torch, jax, gloo, NCCL, Horovod and Open MPI really print.
Source: texts of torch 2.13 (gloo/transport/tcp/pair.cc, unbound_buffer.cc; ProcessGroupNCCL.cpp), NCCL 2.14 to 2.28
from NVIDIA/nccl issues 795, 1141, 1514, 2076, Horovod issues 410 and 1421; jax 0.10.2 with gloo on CPUs.
"""

from __future__ import annotations

import re
from enum import IntEnum


class Weight(IntEnum):
    """How near a failure is to the first cause; lighter is nearer."""

    OWN = 0
    EFFECT = 1
    WRAPPER = 2


# Prefix that the agent puts before the text of a failed process; see `first_cause`.
_WHO = r"(?:(?:rank \d+|the program)(?: ended with exit code \d+| was ended by signal \d+(?: \(\w+\))?)?: )?"
_CLASS = re.compile(rf"{_WHO}(?:[A-Za-z_]\w*(?:\.|::))*([A-Za-z_]\w*)(?::|\s*$)")
# Errors that recur when the same code runs with the same data.
_CODE_CLASSES = re.compile(
    r"(?:Arithmetic|Assertion|Attribute|FloatingPoint|Import|Indentation|Index|Key|Lookup|ModuleNotFound|Name"
    r"|NotImplemented|Overflow|Recursion|Syntax|Tab|Type|UnboundLocal|Unicode(?:Decode|Encode)?|Value|ZeroDivision)Error"
    r"|OrderMismatch"  # of `clary.train._native.errors`, like four of the effect classes below
)
_EFFECT_CLASSES = re.compile(
    r"(?:BrokenPipe|Connection(?:Aborted|Refused|Reset)?|Dist(?:Backend|Network|Store)|HorovodInternal"
    r"|IncompleteRead)Error|IncompleteRead|PeerLost|CollectiveTimeout|GroupClosed|BootstrapError"
)
_WRAPPER_CLASSES = re.compile(r"(?:CalledProcess|ChildFailed|ExecuteUserScript)Error")
_WRAPPER_WORDS = re.compile(rf"{_WHO}(?:MPI_ABORT was invoked|mpirun detected that)")
# A misuse of NCCL or of ports is a failure of the code, though torch raises it in the classes of broken connections.
_MISUSE = re.compile(
    r"NCCL [Ee]rror[^\n]*[:,] (?:invalid usage|invalid argument|unhandled cuda error)"
    r"|ncclInvalid(?:Usage|Argument):|ncclUnhandledCudaError:"
    r"|socket has failed to (?:bind|listen)[^\n]*EADDRINUSE"
)
_EFFECT_WORDS = re.compile(
    r"gloo/transport/\w+/\w+\.cc:\d+\]"  # `[.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [...`
    r"|Gloo connectFullMesh failed"
    r"|Connection closed by peer \["
    r"|socket has timed out after|Socket Timeout"
    r"|failed to pass monitoredBarrier|reached monitoredBarrier, but received errors"
    r"|NCCL [Ee]rror[^\n]*[:,] (?:remote process exited|unhandled system error|internal error)"
    r"|nccl(?:Remote|System|Internal)Error:"
    r"|NCCL communicator (?:was aborted|encountered error)"
    r"|Watchdog caught collective operation timeout: WorkNCCL\("
    r"|Some NCCL operations have failed or timed out"
    r"|Horovod has been shut down\. This was caused by an exception on one of the ranks"
    r"|An MPI communication peer process has unexpectedly disconnected"
    r"|ORTE has lost communication with a remote daemon"
    r"|(?:Connection reset by peer|Broken pipe|Connection refused|Connection was likely closed)"
    r"(?:\.[^\n]*|, keys: [^\n]*|\s*\[[^\n]*)?\s*$"  # at the end of a message of the operating system or a library
)
# jax raises gloo's errors about a peer as a ValueError, with gloo's own text behind its prefix.
_EFFECT_OF_JAX = re.compile(rf"{_WHO}(?:[\w.]+\.)?\w+Error: [A-Z_]+: Gloo [A-Za-z -]+ failed: \[\S*gloo/transport/")


def weigh(words: str) -> Weight:
    """Return whether a text reports a failure of the process itself, of a lost peer, or of a child."""
    name = class_of(words)
    if _WRAPPER_CLASSES.fullmatch(name) or _WRAPPER_WORDS.match(words):
        return Weight.WRAPPER
    if is_of_the_code(words) or is_misuse(words):
        return Weight.OWN
    return Weight.EFFECT if _EFFECT_CLASSES.fullmatch(name) or _EFFECT_WORDS.search(words) else Weight.OWN


def class_of(words: str) -> str:
    """Return the name of the exception at the start of the words, without its module, or an empty text."""
    match = _CLASS.match(words)
    return match[1] if match is not None else ""


def is_of_the_code(words: str) -> bool:
    """Whether the exception recurs when the same code runs with the same data."""
    return _CODE_CLASSES.fullmatch(class_of(words)) is not None and _EFFECT_OF_JAX.match(words) is None


def is_misuse(words: str) -> bool:
    """Whether a text reports a misuse of collectives by the program: a GPU used twice, a port that is in use."""
    return _MISUSE.search(words) is not None
