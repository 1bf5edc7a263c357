"""SIGTERM from outside: only a sender that the kernel vouches for counts."""

import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys

import pytest

from clary.agent.host.stopping.census import NamespaceCensus

RECEIVER = """
import sys
from clary.agent.host.stopping.outside import OutsideSignals
known = int(sys.argv[1])
signals = OutsideSignals(lambda pid: pid not in (0, known))  # as in a namespace; `known` is outside, too
print("ready", flush=True)
for line in sys.stdin:
    print(signals.take(), flush=True)
"""
QUEUE_NUMBERS = {"x86_64": 129, "aarch64": 138}  # rt_sigqueueinfo
SI_QUEUE, SI_MESGQ, SI_SIGIO = -1, -3, -5
F_SETSIG = 10


class _Info(ctypes.Structure):
    """The beginning of siginfo_t of a signal by a process."""

    _fields_ = [
        (name, ctypes.c_int) for name in ("number", "error", "code", "padding", "pid", "user", "value", "rest")
    ] + [("unused", ctypes.c_char * 96)]


@pytest.fixture
def receiver():
    command = [sys.executable, "-c", RECEIVER, str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def says_outside(receiver):
    receiver.stdin.write("\n")
    receiver.stdin.flush()
    return receiver.stdout.readline() == "True\n"


def queue(pid, *, code, sender=0):
    """Send SIGTERM with an invented sender; return whether the kernel takes it."""
    number = QUEUE_NUMBERS.get(os.uname().machine)
    if number is None:
        pytest.skip("the number of rt_sigqueueinfo is not known for this architecture")
    info = _Info(number=signal.SIGTERM, code=code, pid=sender)
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(ctypes.c_long(number), pid, int(signal.SIGTERM), ctypes.byref(info)) == 0


def test_a_plain_signal_from_outside_counts(receiver):
    assert not says_outside(receiver)
    os.kill(receiver.pid, signal.SIGTERM)
    assert says_outside(receiver)
    assert not says_outside(receiver)


def test_a_plain_signal_from_the_program_does_not_count(receiver):
    subprocess.run(["/bin/sh", "-c", f"kill -TERM {receiver.pid}"], check=True)
    assert not says_outside(receiver)


@pytest.mark.parametrize("code", [SI_QUEUE, SI_MESGQ, SI_SIGIO])
def test_a_signal_with_an_invented_sender_outside_does_not_count(receiver, code):
    assert queue(receiver.pid, code=code)
    assert not says_outside(receiver)


@pytest.mark.parametrize("code", [0, 0x80, -6])
def test_the_kernel_lets_nobody_invent_the_sender_of_a_plain_signal(receiver, code):
    assert not queue(receiver.pid, code=code)
    assert not says_outside(receiver)


def test_a_signal_that_a_socket_sends_on_data_does_not_count(receiver):
    one, other = socket.socketpair()
    with one, other:
        fcntl.fcntl(one, fcntl.F_SETOWN, receiver.pid)
        fcntl.fcntl(one, F_SETSIG, signal.SIGTERM)
        fcntl.fcntl(one, fcntl.F_SETFL, os.O_ASYNC)
        other.send(b"data")
        assert not says_outside(receiver)


def test_an_invented_signal_does_not_hide_a_true_one(receiver):
    os.kill(receiver.pid, signal.SIGTERM)
    queue(receiver.pid, code=SI_QUEUE)
    assert says_outside(receiver)


def test_a_namespace_holds_every_sender_but_those_outside():
    assert NamespaceCensus().may_hold(7)
    assert not NamespaceCensus().may_hold(0)
