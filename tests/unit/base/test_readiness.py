"""Waits for descriptors, of any number: `select.select` refuses those from 1024 on."""

import ast
import contextlib
import errno
import os
import resource
import socket
import time
from pathlib import Path

import pytest

import clary
from clary.base.readiness import readable

HIGH = 1024  # the first descriptor that select.select() refuses
ROOT = Path(clary.__file__).parent
# The file of the zygote imports nothing of Clary and has few descriptors; the switch keeps its own low, since poll()
# waits for whole milliseconds; `testing` is no part of the product.
EXEMPT = {"agent/zygote/clary_zygote.py", "control/engines/local/network/tap_switch.py"}


@contextlib.contextmanager
def high_pipe():
    """Make a pipe whose read end is at least `HIGH`, and yield both ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * HIGH:
        pytest.skip(f"a process may have {hard} descriptors here")
    with contextlib.ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * HIGH), hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        low, write = os.pipe()
        stack.callback(os.close, write)
        high = os.dup2(low, next(number for number in range(HIGH, 2 * HIGH) if not os.path.exists(f"/dev/fd/{number}")))
        os.close(low)
        stack.callback(os.close, high)
        yield high, write


def test_a_descriptor_above_1023_is_waited_for():
    with high_pipe() as (read, write):
        assert readable([read], 0) == []
        os.write(write, b"x")
        assert readable([read], 10) == [read]


def test_the_things_that_were_given_are_returned_in_their_order():
    left, right = socket.socketpair()
    with left, right, high_pipe() as (read, write):
        right.send(b"x")
        assert readable([read, left, left], 10) == [left]
        os.write(write, b"x")
        assert readable([left, read], 10) == [left, read]


def test_an_end_of_a_stream_is_readable():
    read, write = os.pipe()
    os.close(write)
    assert readable([read], 10) == [read]
    os.close(read)


def test_a_wait_ends_at_its_limit_and_not_before():
    read, write = os.pipe()
    began_s = time.monotonic()
    assert readable([read], 0.0501) == []
    assert time.monotonic() - began_s >= 0.0501
    assert readable([read], -1) == []
    assert readable([], 0) == []
    for descriptor in (read, write):
        os.close(descriptor)


def test_a_closed_descriptor_is_an_error():
    read, write = os.pipe()
    os.close(write)
    os.close(read)
    with pytest.raises(OSError, match=f"descriptor {read} is not open") as caught:
        readable([read], 10)
    assert caught.value.errno == errno.EBADF


def test_no_module_waits_by_select():
    found = set()
    for path in ROOT.rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "select.select":
                found.add(name)
    assert {name for name in found - EXEMPT if not name.startswith("testing/")} == set()
