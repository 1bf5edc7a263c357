"""Zygotes that fail, played by small scripts: the caller can start every rank in a new interpreter."""

import contextlib
import os
import socket
import time

import pytest
from host_world import DEADLINE_S, PATH, eventually

from clary.agent.host import zygote_process
from clary.agent.host.confinement import UNCONFINED
from clary.agent.host.zygote_process import LOOK_INTERVAL_S, MAX_IDLE_LOOKS, Zygote
from clary.base.processes import read_entry

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
SHORT_S = 0.5  # a limit that expires in the test
WHOLE = "say(kind='ready'); d = take(); say(kind='forked', pids=[fork(d)], is_parent=True); os._exit(0)"


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return a function that starts a zygote and has it fork; it returns the pids, the reason and the rank's output."""
    control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    forked = tmp_path / "forked"
    expect = Zygote._expect

    def expect_when_it_is_there(zygote, kind, *, within_s):
        if kind == "forked":
            eventually(forked.exists)
        return expect(zygote, kind, within_s=within_s)

    def start(script, *, marked=True, ready_limit_s=None, fork_limit_s=None):
        """Start a zygote; `fork_limit_s` counts from the time at which the script has marked its rank as forked."""
        if ready_limit_s is not None:
            monkeypatch.setattr(zygote_process, "READY_LIMIT_S", ready_limit_s)
        if fork_limit_s is not None:
            monkeypatch.setattr(zygote_process, "FORK_LIMIT_S", fork_limit_s)
            monkeypatch.setattr(Zygote, "_expect", expect_when_it_is_there)
        path = tmp_path / "fake_zygote.py"
        path.write_text(f"{BEGIN}FORKED = {str(forked)!r}\n{script}")
        standby = {"argv": ["/usr/bin/python3", str(path)], "environment": {"PATH": PATH}}
        with contextlib.ExitStack() as opened:
            zygote = Zygote.start(standby, parent_watched=False, prepare=lambda: None, confinement=UNCONFINED)
            opened.callback(zygote.end)
            read_end, write_end = os.pipe()
            output = opened.enter_context(open(read_end, "rb"))
            with open(write_end, "wb"):
                process = {"argv": ["x"], "environment": {}, "working_folder": "/", "output_fd": write_end}
                process["forks"] = marked
                pids, reason = zygote.fork([process], control=control, parent_watched=False, before_gate=lambda: None)
            text = output.read().decode()  # ends once no writer is left
        # Ranks are orphans now, adopted by another process than this one.
        eventually(lambda: not any(is_running(pid) for pid in (zygote.pid, *pids.values())))
        return pids, reason, text

    yield start
    control.close()
    other.close()


def is_running(pid):
    entry = read_entry(pid)
    return entry is not None and not entry.has_ended


def test_ranks_run_once_the_zygote_has_ended(start):
    pids, reason, text = start(WHOLE)
    assert (list(pids), reason, text) == ([0], "", "went")


def test_no_fork_is_requested_for_programs_that_cannot_be_forked(start):
    assert start(WHOLE, marked=False) == ({}, "", "")


def test_a_zygote_that_refuses_gives_the_reason(start):
    assert start("say(kind='refused', reason='because'); time.sleep(600)") == ({}, "because", "")


@pytest.mark.parametrize("script", ["os._exit(1)", "say(kind='ready'); take(); os._exit(1)"])
def test_the_reason_names_a_zygote_that_has_ended(start, script):
    assert start(script) == ({}, "the standby interpreter has ended", "")


def test_a_zygote_that_does_not_get_ready_is_abandoned(start):
    began_s = time.monotonic()
    answer = start("time.sleep(600)", ready_limit_s=SHORT_S)
    assert answer == ({}, "the standby interpreter did not say 'ready' within 0.5 s", "")
    assert time.monotonic() - began_s < DEADLINE_S


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("time.sleep(600)", "did not say 'ready'"),
        ("say(kind='ready'); d = take(); fork(d); time.sleep(600)", "did not say 'forked'"),
        ("say(kind='ready'); d = take(); fork(d); os.kill(os.getpid(), 19)", "did not say 'forked'"),
        (
            "say(kind='ready'); d = take(); say(kind='forked', pids=[fork(d)], is_parent=True); time.sleep(600)",
            "lived on",
        ),
    ],
)
@pytest.mark.long
def test_an_idle_zygote_is_abandoned_long_before_the_limit(start, monkeypatch, script, what):
    for limit in ("READY_LIMIT_S", "FORK_LIMIT_S"):  # polls may be delayed too: the idle polls end first
        monkeypatch.setattr(zygote_process, limit, 120.0)
    began_s = time.monotonic()
    pids, reason, _text = start(script)
    took_s = time.monotonic() - began_s
    assert pids == {}
    assert f"the standby interpreter {what}" in reason
    assert f"idle for {6 if 'ready' in what else 3} s" in reason
    assert took_s >= LOOK_INTERVAL_S * MAX_IDLE_LOOKS


def test_a_computing_zygote_has_more_time_than_an_idle_one(start, monkeypatch):
    monkeypatch.setattr(zygote_process, "MAX_IDLE_LOOKS", 4)
    compute = "end = time.process_time() + 2\nwhile time.process_time() < end: pass\n"
    pids, reason, text = start(compute + WHOLE)
    assert (list(pids), reason, text) == ([0], "", "went")


def test_a_zygote_that_hangs_while_forking_leaves_no_running_rank(start):
    script = "say(kind='ready'); d = take(); fork(d); open(FORKED, 'w').close(); time.sleep(600)"
    answer = start(script, fork_limit_s=SHORT_S)
    assert answer == ({}, "the standby interpreter did not say 'forked' within 0.5 s", "left")


def test_a_zygote_that_does_not_end_leaves_no_running_rank(start):
    script = (
        "say(kind='ready'); d = take(); say(kind='forked', pids=[fork(d)], is_parent=True); open(FORKED, 'w').close()"
    )
    pids, reason, text = start(f"{script}; time.sleep(600)", fork_limit_s=SHORT_S)
    assert (pids, text) == ({}, "left")
    assert "lived on for" in reason


def test_a_zygote_that_reports_fewer_pids_than_ranks_is_rejected(start):
    pids, reason, text = start(
        "say(kind='ready'); d = take(); fork(d); say(kind='forked', pids=[], is_parent=True); os._exit(0)"
    )
    assert (pids, text) == ({}, "left")
    assert reason
