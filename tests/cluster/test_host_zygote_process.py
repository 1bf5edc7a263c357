"""Zygotes that do not do what they are asked: the caller can start everything anew. Small scripts stand for them."""

import os
import socket
import time

import pytest
from host_world import DEADLINE_S, PATH, eventually

from clary.agent.host import zygote_process
from clary.agent.host.zygote_process import Zygote
from clary.contract.processes import read_entry

BEGIN = """
import array, json, os, socket, sys, time
keeper = socket.socket(fileno=int(sys.argv[1]))
def say(**message):
    keeper.send(json.dumps(message).encode())
def take():
    _, ancillary, _, _ = keeper.recvmsg(65536, socket.CMSG_SPACE(4096))
    return array.array("i", ancillary[0][2])
def fork(descriptors):
    pid = os.fork()
    if pid == 0:
        byte = os.read(descriptors[1], 1)
        os.write(descriptors[3], b"went" if byte else b"left")
        os._exit(0)
    return pid
"""
WHOLE = "say(kind='ready'); d = take(); say(kind='forked', pids=[fork(d)]); os._exit(0)"


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return a function that starts a zygote and has it fork; it returns the answer and what the rank wrote."""
    monkeypatch.setattr(zygote_process, "READY_LIMIT_S", 2.0)
    monkeypatch.setattr(zygote_process, "FORK_LIMIT_S", 2.0)
    control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def start(script, *, marked=True):
        path = tmp_path / "fake_zygote.py"
        path.write_text(BEGIN + script)
        standby = {"argv": ["/usr/bin/python3", str(path)], "environment": {"PATH": PATH}}
        zygote = Zygote.start(standby, parent_watched=False, prepare=lambda: None)
        read_end, write_end = os.pipe()
        process = {"argv": ["x"], "environment": {}, "working_folder": "/", "output_fd": write_end, "forks": marked}
        pids, reason = zygote.fork([process], control=control, parent_watched=False)
        os.close(write_end)
        with open(read_end, "rb") as output:
            text = output.read().decode()  # ends when nobody is left who could write
        # Ranks are orphans now and belong to another parent: this process adopts none.
        eventually(lambda: not any(is_running(pid) for pid in (zygote._pid, *pids.values())))
        return pids, reason, text

    yield start
    control.close()
    other.close()


def is_running(pid):
    entry = read_entry(pid)
    return entry is not None and not entry.has_ended


def test_ranks_go_when_the_zygote_has_ended(start):
    pids, reason, text = start(WHOLE)
    assert (list(pids), reason, text) == ([0], "", "went")


def test_nobody_is_asked_for_programs_that_cannot_be_forked(start):
    assert start(WHOLE, marked=False) == ({}, "", "")


def test_a_zygote_that_refuses_says_why(start):
    assert start("say(kind='refused', reason='because'); time.sleep(600)") == ({}, "because", "")


@pytest.mark.parametrize("script", ["os._exit(1)", "say(kind='ready'); take(); os._exit(1)"])
def test_a_zygote_that_ends_is_named(start, script):
    assert start(script) == ({}, "the interpreter that stood ready has ended", "")


def test_a_zygote_that_does_not_get_ready_is_given_up(start):
    began_s = time.monotonic()
    assert start("time.sleep(600)") == ({}, "the interpreter that stood ready did not say 'ready' within 2 s", "")
    assert time.monotonic() - began_s < DEADLINE_S


def test_a_zygote_that_hangs_while_it_forks_leaves_no_rank_that_runs(start):
    script = "say(kind='ready'); d = take(); fork(d); time.sleep(600)"
    assert start(script) == ({}, "the interpreter that stood ready did not say 'forked' within 2 s", "left")


def test_a_zygote_that_does_not_end_leaves_no_rank_that_runs(start):
    script = "say(kind='ready'); d = take(); say(kind='forked', pids=[fork(d)]); time.sleep(600)"
    pids, reason, text = start(script)
    assert (pids, text) == ({}, "left")
    assert "lived on for" in reason


def test_a_zygote_that_tells_fewer_pids_than_ranks_is_not_believed(start):
    pids, reason, text = start("say(kind='ready'); d = take(); fork(d); say(kind='forked', pids=[]); os._exit(0)")
    assert (pids, text) == ({}, "left")
    assert reason
