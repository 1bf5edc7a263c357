"""Standby hosts with an interpreter ready: as root, in a user namespace and as plain processes."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from host_world import (
    DEADLINE_S,
    NOBODY,
    PATH,
    PYTHON,
    Listener,
    eventually,
    pids_with,
    shell,
    unique_sleep,
)
from host_worlds import EVERY_MODE, world_of
from standby_world import IS_FORKED, PRELOADED, StandbyWorld, finished

import clary
from clary.agent.host import kernel
from clary.agent.host.program import Program
from clary.agent.host.program_record import ProgramRecord
from clary.agent.host.sandbox import Bind
from clary.agent.zygote.interpreter_start import RANK_SHIM
from clary.base.errors import AgentError
from clary.base.processes import read_entry

# Collects every fact from which a process could tell how it was started.
DESCRIBE = """
import gc, json, locale, multiprocessing, os, resource, signal, socket, sys, threading, warnings
def lines(path, keys=None):
    found = dict(line.split(":", 1) for line in open(path).read().splitlines() if ":" in line)
    return {key: value.strip() for key, value in found.items() if keys is None or key in keys}
def stream(stream):
    inner = [type(stream).__name__]
    for name in ("buffer", "raw"):
        stream_inner = getattr(stream, name, None)
        inner.append(type(stream_inner).__name__)
    words = [stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering, stream.write_through,
             stream.newlines, stream.seekable(), stream.isatty(), stream.fileno(), stream.buffer.name]
    return [inner, words]
def descriptor(name):
    target = os.readlink("/proc/self/fd/" + name)
    return "pipe" if target.startswith("pipe:") else target
keys = ("Name Umask Uid Gid Groups SigQ SigBlk SigIgn SigCgt CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp "
        "Speculation_Store_Bypass Cpus_allowed Threads").split()
names = os.listdir("/proc/self/fd")
main = sys.modules["__main__"]
print(json.dumps({
    "status": {key: value.split("/")[-1] for key, value in lines("/proc/self/status", keys).items()},
    "limits": open("/proc/self/limits").read(),
    "oom_score_adj": open("/proc/self/oom_score_adj").read(),
    "dumpable": os.stat("/proc/self/fd").st_uid,
    "cgroup": open("/proc/self/cgroup").read(),
    "session": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
    "parent": open("/proc/%d/comm" % os.getppid()).read(),
    "folder": os.getcwd(),
    "descriptors": sorted((name, descriptor(name)) for name in names if os.path.exists("/proc/self/fd/" + name)),
    "inheritable": [os.get_inheritable(number) for number in (0, 1, 2)],
    "environment": dict(os.environ),
    "environment of C": __import__("subprocess").run(["/usr/bin/env"], capture_output=True, text=True).stdout,
    "command line": open("/proc/self/cmdline").read(),
    "first environment": sorted(open("/proc/self/environ").read().split("\\0")),
    "priority": os.getpriority(os.PRIO_PROCESS, 0),
    "hostname": socket.gethostname(),
    "mounts": sorted(line.split()[1] for line in open("/proc/self/mounts")),
    "run": sorted(os.listdir("/run")),
    "sys": [sys.argv, sys.orig_argv, sys.path, sys.executable, sys.prefix, sys.base_prefix, str(sys.flags),
            sys.warnoptions, sys._xoptions, sys.dont_write_bytecode, sys.getrecursionlimit(), sys.pycache_prefix,
            sys.getfilesystemencoding(), sys.stdout is sys.__stdout__, sys.gettrace(), sys.getprofile()],
    "filters": [str(filter) for filter in warnings.filters],
    "streams": [stream(sys.stdin), stream(sys.stdout), stream(sys.stderr)],
    "handlers": {str(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
    "main": sorted(name for name in vars(main) if name.startswith("__")) + [main.__name__, main.__file__],
    "threads": [threading.current_thread() is threading.main_thread(), threading.main_thread().name,
                threading.main_thread().ident == threading.get_ident(), threading.active_count(),
                threading.main_thread().native_id == os.getpid()],
    "process": [multiprocessing.current_process().name, multiprocessing.parent_process(),
                multiprocessing.process.ORIGINAL_DIR],
    "collector": [gc.isenabled(), gc.get_threshold(), gc.get_debug()],
    "locale": [locale.setlocale(locale.LC_CTYPE, None), locale.getpreferredencoding(False)],
    "leaving": [__import__("sys").modules.get("clary_zygote"), "array" in globals()],
}))
"""


world = world_of(EVERY_MODE, lambda mode: StandbyWorld(mode))


def test_ranks_are_forked_from_the_ready_interpreter(world):
    sandbox = world.sandbox()
    standby = world.prepare(sandbox)
    script = f"{IS_FORKED}import os; print(sys.argv[1:], os.environ['RANK']); sys.exit(int(sys.argv[1]))"
    ranks = [world.rank(sandbox, script, str(3 * rank), rank=rank, RANK=str(rank)) for rank in range(3)]
    assert standby.why_not(sandbox, ranks) == ""
    assert [standby.why_not_fork(rank) for rank in ranks] == [""] * 3
    program, listener = world.start_in(standby, *ranks)
    exits, _ = finished(program, listener)
    assert [listener.text(rank) for rank in range(3)] == [f"forked\n['{3 * rank}'] {rank}\n" for rank in range(3)]
    assert exits == [(0, None), (3, None), (6, None)]
    assert (program.num_forked, program.why_not_forked, program.wait(0).notes) == (3, "", ())


def zygote_and_ranks(world, sandbox, *, ahead):
    """Prepare a host; return it, the pid of its zygote, and the pids of the ranks that it has forked ahead."""
    marker = f"missing_{uuid.uuid4().hex}"
    standby = world.prepare(sandbox, preload=(PRELOADED, marker), ahead=ahead)
    for _ in range(2):  # a zygote also forks a child that exits at once, to see whether it can fork
        eventually(lambda: len(pids_with(marker)) == 1 + ahead)
        time.sleep(0.1)
    pids = pids_with(marker)
    zygote = min(pids, key=lambda pid: (read_entry(pid).started_at, pid))
    return standby, zygote, [pid for pid in pids if pid != zygote]


def is_alive(pid):
    entry = read_entry(pid)
    return entry is not None and not entry.has_ended


def test_ranks_that_were_forked_ahead_run_the_program(world):
    sandbox = world.sandbox()
    standby, zygote, ahead = zygote_and_ranks(world, sandbox, ahead=2)
    assert {read_entry(pid).parent for pid in ahead} == {read_entry(zygote).parent}, "ranks need not wait for its end"
    ranks = [world.rank(sandbox, f"{IS_FORKED}import os; print({rank}, os.nice(0))", rank=rank) for rank in range(2)]
    program, listener = world.start_in(standby, *ranks)
    finished(program, listener)
    assert [listener.text(rank) for rank in range(2)] == ["forked\n0 0\n", "forked\n1 0\n"]
    assert sorted(end.pid for end in program.exits()) == sorted(ahead)


def test_a_program_with_more_ranks_than_were_forked_ahead_forks_the_others(world):
    sandbox = world.sandbox()
    standby, _, ahead = zygote_and_ranks(world, sandbox, ahead=1)
    ranks = [world.rank(sandbox, f"{IS_FORKED}print({rank})", rank=rank) for rank in range(3)]
    program, listener = world.start_in(standby, *ranks)
    finished(program, listener)
    assert [listener.text(rank) for rank in range(3)] == [f"forked\n{rank}\n" for rank in range(3)]
    assert program.num_forked == 3
    assert set(ahead) < {end.pid for end in program.exits()}


def test_ranks_forked_ahead_that_a_program_does_not_need_exit_before_it_ends(world):
    sandbox = world.sandbox()
    standby, _, ahead = zygote_and_ranks(world, sandbox, ahead=3)
    program, listener = world.start_in(standby, world.rank(sandbox, "print('on', flush=True)\nwhile True: pass"))
    listener.wait_for("on")
    eventually(lambda: sum(map(is_alive, ahead)) == 1)
    program.kill()


def test_a_rank_forked_ahead_that_was_killed_is_replaced(world):
    sandbox = world.sandbox()
    standby, _, ahead = zygote_and_ranks(world, sandbox, ahead=2)
    os.kill(ahead[0], signal.SIGKILL)
    eventually(lambda: not is_alive(ahead[0]))
    program, listener = world.start_in(standby, *(world.rank(sandbox, IS_FORKED, rank=rank) for rank in range(2)))
    assert finished(program, listener) == ([(0, None)] * 2, "forked\n")
    assert program.num_forked == 2


def test_ranks_forked_ahead_end_with_their_interpreter(world):
    standby, zygote, ahead = zygote_and_ranks(world, world.sandbox(), ahead=2)
    os.kill(zygote, signal.SIGKILL)
    eventually(lambda: not any(map(is_alive, ahead)))
    standby.close()


def test_a_forked_rank_sees_the_same_process_state_as_an_executed_one(world):
    sandbox = world.sandbox()
    standby = world.prepare(sandbox, preload=("multiprocessing", PRELOADED))
    rank = world.rank(sandbox, DESCRIBE, "a", "", rank=1, RANK="1", PYTHONUNBUFFERED="1", TZ="UTC")
    standby.close()
    standby = world.prepare(sandbox, preload=("multiprocessing", PRELOADED), environment=rank.environment)
    program, listener = world.start_in(standby, rank)
    assert program.num_forked == 1, program.why_not_forked
    _, forked = finished(program, listener)
    _, executed = finished(*world.start(rank, sandbox=sandbox))
    forked, executed = json.loads(forked), json.loads(executed)
    for key, value in executed.items():
        assert forked[key] == value, key


@pytest.mark.parametrize(
    "script",
    [
        "raise ValueError('no such thing')",
        "import sys; print('x'); print('y', file=sys.stderr); sys.exit('bye')",
        "import this_is_missing",
        "def f(:\n",
        "import atexit; atexit.register(print, 'at the end'); print('first')",
        "import os; os.kill(os.getpid(), 11)",
        "import os; os.abort()",
        "raise KeyboardInterrupt",
        "import warnings; warnings.warn('beware')",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()",
        "import subprocess; print(subprocess.run(['echo', 'child'], capture_output=True, text=True).stdout)",
        "import multiprocessing as m\n"
        "def f(x): return x * x\n"
        "if __name__ == '__main__':\n"
        "    for how in ('fork', 'spawn'):\n"
        "        with m.get_context(how).Pool(2) as pool: print(how, pool.map(f, [1, 2, 3]))",
        None,
    ],
)
@pytest.mark.long
def test_a_forked_rank_ends_like_an_executed_one(world, script):
    sandbox = world.sandbox()
    standby = world.prepare(sandbox)
    rank = world.rank(sandbox, script)
    program, listener = world.start_in(standby, rank)
    assert program.num_forked == 1, program.why_not_forked
    forked = finished(program, listener)
    assert forked == finished(*world.start(rank, sandbox=sandbox))


def test_modules_run_in_forked_ranks_too(world):
    sandbox = world.sandbox()
    standby = world.prepare(sandbox)
    (Path(sandbox.ml_folder) / "trainer").mkdir()
    (Path(sandbox.ml_folder) / "trainer" / "__main__.py").write_text(f"{IS_FORKED}print(sys.argv, sys.path[0])")
    rank = world.rank(sandbox, "")
    rank = dataclasses.replace(rank, argv=(PYTHON, RANK_SHIM, "-m", "trainer", "--x"))
    program, listener = world.start_in(standby, rank)
    code = world.code(sandbox)
    assert finished(program, listener)[1] == f"forked\n['{code}/trainer/__main__.py', '--x'] {code}\n"


def test_forked_ranks_get_sigterm_once_and_their_last_output_arrives(world):
    sandbox = world.sandbox()
    standby = world.prepare(sandbox)
    script = (
        "import os, signal, sys, time\n"
        "def save(*_):\n    os.write(1, b'saved\\n'); sys.exit(7)\n"  # not print: the signal may interrupt a print
        "signal.signal(signal.SIGTERM, save)\nprint('on', flush=True)\nwhile True: time.sleep(60)"
    )
    program, listener = world.start_in(standby, *(world.rank(sandbox, script, rank=rank) for rank in range(2)))
    for index in range(2):
        listener.wait_for("on", index=index)
    assert program.num_forked == 2
    assert program.signal_all(0) == 2  # the zygote is not counted
    assert program.signal_all(signal.SIGTERM) == 2
    result = program.wait(DEADLINE_S)
    assert [(end.exit_code, end.is_consequence) for end in result.exits] == [(7, True)] * 2
    assert [listener.text(index) for index in range(2)] == ["on\nsaved\n"] * 2


def test_kill_ends_forked_ranks_and_their_child_processes(world):
    sandbox = world.sandbox()
    standby = world.prepare(sandbox)
    sleep = unique_sleep()
    script = f"import os, time; os.system('(setsid {sleep} &)'); print('on', flush=True); time.sleep(600)"
    program, listener = world.start_in(standby, world.rank(sandbox, script))
    listener.wait_for("on")
    eventually(lambda: pids_with(sleep.split()[1]))
    program.kill()
    (end,) = program.wait(0).exits
    assert (end.signal, end.is_consequence) == (signal.SIGKILL, True)
    program.close()
    assert pids_with(sleep.split()[1]) == []


def test_pid_of_a_forked_rank_is_that_of_the_machines_namespace(world):
    sandbox = world.sandbox()
    standby = world.prepare(sandbox)
    sleep = unique_sleep()
    script = f"import subprocess, time; subprocess.Popen(['sleep', '{sleep.split()[1]}']); time.sleep(600)"
    program, _ = world.start_in(standby, world.rank(sandbox, script))
    eventually(lambda: pids_with(sleep.split()[1]))
    (child,) = pids_with(sleep.split()[1])
    parent = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
    program.kill()
    assert program.exits()[0].pid == parent


def test_death_of_the_first_process_ends_forked_ranks(world):
    sandbox = world.sandbox()
    standby = world.prepare(sandbox)
    program, listener = world.start_in(standby, world.rank(sandbox, "print('on', flush=True)\nwhile True: pass"))
    listener.wait_for("on")
    os.kill(program.init_pid, signal.SIGKILL)
    result = program.wait(DEADLINE_S)
    assert "first process of algo-1 ended before its program did" in result.lost_why
    eventually(lambda: not Path(f"/proc/{result.exits[0].pid}").exists())


def test_random_numbers_differ_between_ranks(world):
    sandbox = world.sandbox()
    standby = world.prepare(sandbox, preload=("random", "multiprocessing", "tempfile"))
    script = (
        "import random, multiprocessing as m, tempfile, uuid\n"
        "print(random.random(), m.current_process().authkey.hex(), tempfile.mktemp(), uuid.uuid4())"
    )
    program, listener = world.start_in(standby, *(world.rank(sandbox, script, rank=rank) for rank in range(2)))
    finished(program, listener)
    assert program.num_forked == 2
    first, second = listener.text(0).split(), listener.text(1).split()
    assert len(first) == len(second) == 4
    assert not set(first) & set(second)


def test_of_a_mixed_program_only_suitable_ranks_are_forked(world):
    sandbox = world.sandbox()
    standby = world.prepare(sandbox)
    processes = (
        shell("echo by bash"),
        world.rank(sandbox, IS_FORKED, rank=1),
        world.rank(sandbox, IS_FORKED, rank=2, OMP_NUM_THREADS="3"),
        dataclasses.replace(world.rank(sandbox, IS_FORKED, rank=3), working_folder="/no/folder"),
    )
    assert standby.why_not(sandbox, processes) == ""
    assert "is no Python program" in standby.why_not_fork(processes[0])
    assert "OMP_NUM_THREADS is '3', and not set where" in standby.why_not_fork(processes[2])
    program, listener = world.start_in(standby, *processes)
    exits, _ = finished(program, listener)
    assert [listener.text(index) for index in range(3)] == ["by bash\n", "forked\n", "executed\n"]
    assert "working folder /no/folder: No such file" in listener.text(3)
    assert exits == [(0, None), (0, None), (0, None), (127, None)]
    assert (program.num_forked, program.why_not_forked) == (1, "")


@pytest.mark.parametrize(
    ("name", "place"),
    [
        (PRELOADED, "."),
        ("sitecustomize", "."),  # every new interpreter imports it
        ("users_own", "home/.local/lib/python{version}/site-packages"),
    ],
)
def test_a_program_file_that_shadows_a_module_of_the_start_gets_a_new_interpreter(world, name, place):
    sandbox = world.sandbox()
    home = f"{world.code(sandbox)}/home"
    standby = world.prepare(sandbox, environment=world.variables(sandbox, HOME=home))
    version = subprocess.run([PYTHON, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    folder = Path(sandbox.ml_folder) / place.format(version=version.rpartition(".")[0])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text("WHOSE = 'the program'")
    rank = world.rank(
        sandbox, f"import sys; print({name!r} in sys.modules); import {name}; print({name}.WHOSE)", HOME=home
    )
    program, listener = world.start_in(standby, rank)
    assert program.num_forked == 1  # the fork then executes a new interpreter
    expected = ([(0, None)], f"{name == 'sitecustomize'}\nthe program\n")
    assert finished(program, listener) == expected
    assert finished(*world.start(rank, sandbox=sandbox)) == expected


def test_a_script_that_installs_a_package_imports_what_it_has_installed(world):
    sandbox = world.sandbox_with("wave", "VERSION = 'old'")
    standby = world.prepare(sandbox)
    pip = "if len(sys.argv) > 9: subprocess.check_call([sys.executable, '-m', 'pip', 'install', 'wave==2'])"
    copying = "open(sys.path[0] + '/wave.py', 'w').write('VERSION = 2')"  # what pip does
    script = f"import subprocess, sys\n{pip}\n{copying}\nimport wave\nprint(wave.VERSION)"
    assert finished(*world.start_in(standby, world.rank(sandbox, script))) == ([(0, None)], "2\n")


def test_the_zygote_does_not_import_modules_of_the_program(world):
    sandbox = world.sandbox()
    own = "import os\nprint('imported by', os.environ.get('RANK'), os.getpid() == os.getpgrp())"
    (Path(sandbox.ml_folder) / "own.py").write_text(own)
    (Path(sandbox.ml_folder) / f"{PRELOADED}.py").write_text(own)
    standby = world.prepare(sandbox, preload=("own", PRELOADED))
    program, listener = world.start_in(standby, world.rank(sandbox, f"import own, {PRELOADED}", RANK="0"))
    assert finished(program, listener) == ([(0, None)], "imported by 0 True\n" * 2)


def test_a_data_folder_with_the_name_of_a_module_does_not_prevent_the_fork(world):
    sandbox = world.sandbox()
    standby = world.prepare(sandbox)
    (Path(sandbox.ml_folder) / PRELOADED).mkdir()
    (Path(sandbox.ml_folder) / PRELOADED / "a.csv").write_text("1,2")
    assert finished(*world.start_in(standby, world.rank(sandbox, IS_FORKED))) == ([(0, None)], "forked\n")


def test_output_of_preloaded_modules_is_repeated_for_each_rank(world):
    sandbox = world.sandbox_with("talkative", "import sys; print('to out'); print('to err', file=sys.stderr)")
    rank = world.rank(sandbox, "import talkative; print('program')")
    standby = world.prepare(sandbox, preload=("talkative",), environment=rank.environment)
    program, listener = world.start_in(standby, rank, rank)
    finished(program, listener)
    assert program.num_forked == 2
    for index in range(2):
        assert sorted(listener.text(index).split("\n")) == ["", "program", "to err", "to out"]


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()", "threads"),
        ("kept = open('/etc/passwd')", "hold open 3 (/etc/passwd)|hold open 5 (/etc/passwd)"),
        ("raise ValueError('broken')", "import unfit failed: ValueError: broken"),
        ("import json, not_here", "import unfit failed: ModuleNotFoundError: No module named 'not_here'"),
        ("import os; os._exit(3)", "has ended"),
    ],
)
def test_ranks_are_executed_if_a_preloaded_module_cannot_be_forked(world, module, words):
    sandbox = world.sandbox_with("unfit", module)
    rank = world.rank(sandbox, "print('on')")
    standby = world.prepare(sandbox, preload=("unfit",), environment=rank.environment)
    program, listener = world.start_in(standby, rank)
    assert finished(program, listener) == ([(0, None)], "on\n")
    assert program.num_forked == 0
    assert any(word in program.why_not_forked for word in words.split("|")), program.why_not_forked


def test_ranks_are_executed_if_the_zygote_has_died(world):
    sandbox, marker = world.sandbox(), f"missing_{uuid.uuid4().hex}"
    standby = world.prepare(sandbox, preload=(PRELOADED, marker))
    eventually(lambda: pids_with(marker))
    for pid in pids_with(marker):
        os.kill(pid, signal.SIGKILL)
    rank = world.rank(sandbox, IS_FORKED)
    assert standby.why_not(sandbox, [rank]) == ""
    program, listener = world.start_in(standby, rank, rank)
    assert finished(program, listener) == ([(0, None)] * 2, "executed\n")
    assert "the standby interpreter has ended" in program.why_not_forked
    assert program.wait(0).notes == ()


def test_a_standby_host_that_died_is_replaced(world):
    sandbox, marker = world.sandbox(), f"missing_{uuid.uuid4().hex}"
    standby = world.prepare(sandbox, preload=(marker,))
    eventually(lambda: pids_with(marker))
    for pid in pids_with(marker):
        os.kill(read_entry(pid).parent, signal.SIGKILL)
    rank = world.rank(sandbox, "print('on')")
    eventually(lambda: "its first process has ended" in standby.why_not(sandbox, [rank]))
    program, listener = world.start_in(standby, rank)
    assert finished(program, listener) == ([(0, None)], "on\n")
    eventually(lambda: pids_with(marker) == [])


def test_a_started_program_is_not_started_again_if_its_host_reports_no_readiness(world, monkeypatch):
    sandbox = world.sandbox()
    standby = world.prepare(sandbox)
    listener, waits = Listener(), []
    taking_in = ProgramRecord.apply

    def lose_ready(record, report, *, sender):
        if report["kind"] != "ready":
            taking_in(record, report, sender=sender)

    def give_up_when_it_runs(record, timeout_s):
        waits.append(timeout_s)
        listener.wait_for("begun", times=len(waits))
        return False

    monkeypatch.setattr(ProgramRecord, "apply", lose_ready)
    monkeypatch.setattr(ProgramRecord, "wait_until_started", give_up_when_it_runs)
    script = "open('begun', 'a').write('x'); print('begun', flush=True); import time; time.sleep(600)"
    if world.mode == "user" and os.geteuid() == 0:
        os.chown(sandbox.ml_folder, NOBODY, NOBODY)
    with pytest.raises(AgentError, match="it was not ready after 60 s"):
        standby.start([world.rank(sandbox, script)], on_output=listener)
    assert (Path(sandbox.ml_folder) / "begun").read_text() == "x"
    assert os.listdir(sandbox.host_folder) == []


def test_an_error_of_host_creation_gives_the_reason(world):
    if world.mode == "plain":
        sandbox = dataclasses.replace(world.sandbox(), ml_folder="/no/folder")
        with pytest.raises(AgentError, match="/no/folder does not exist"):
            world.prepare(sandbox)
        return
    sandbox = world.sandbox(binds=(Bind(source="/no/such/file", target="/srv/x"),))
    standby = world.prepare(sandbox)
    eventually(lambda: "bind /no/such/file" in standby.why_not(sandbox, [world.rank(sandbox, "")]))
    with pytest.raises(AgentError, match="could not be made: FileNotFoundError: bind /no/such/file"):
        world.start_in(standby, world.rank(sandbox, ""))
    assert os.listdir(sandbox.host_folder) == []


def test_a_standby_host_serves_one_program(world):
    sandbox = world.sandbox()
    standby = world.prepare(sandbox)
    rank = world.rank(sandbox, "print('on')")
    finished(*world.start_in(standby, rank))
    assert standby.why_not(sandbox, [rank]) == "it has been used or closed"
    with pytest.raises(AgentError, match="algo-1 is no longer a standby host"):
        world.start_in(standby, rank)


def test_an_unused_standby_host_leaves_no_files_or_processes(world):
    sandbox, marker = world.sandbox(), f"missing_{uuid.uuid4().hex}"
    world.prepare(sandbox).close()
    before = sorted(os.listdir("/proc/self/fd")), threading.active_count()
    standby = world.prepare(sandbox, preload=(marker,), late_roots=(str(world.base),))
    eventually(lambda: pids_with(marker))
    standby.close()
    standby.close()
    assert pids_with(marker) == []
    assert (sorted(os.listdir("/proc/self/fd")), threading.active_count()) == before
    assert os.listdir(sandbox.host_folder) == os.listdir(sandbox.ml_folder) == []


def test_a_used_standby_host_leaves_no_files_or_processes(world):
    sandbox, marker = world.sandbox(), f"missing_{uuid.uuid4().hex}"
    finished(*world.start_in(world.prepare(sandbox), world.rank(sandbox, "")))
    before = sorted(os.listdir("/proc/self/fd")), threading.active_count()
    standby = world.prepare(sandbox, preload=(marker,), late_roots=(str(world.base),))
    program, listener = world.start_in(standby, world.rank(sandbox, "import time; time.sleep(600)"))
    program.close()
    standby.close()
    assert (program.num_forked, listener.text()) == (1, "")
    assert pids_with(marker) == []
    assert (sorted(os.listdir("/proc/self/fd")), threading.active_count()) == before
    assert os.listdir(sandbox.host_folder) == []


def test_a_standby_host_dies_with_its_agent(world):
    sandbox, marker = world.sandbox(), f"missing_{uuid.uuid4().hex}"
    arguments = {"python": PYTHON, "environment": {"PATH": PATH}, "preload": (marker,)}
    agent = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import sys, time\n"
            "from clary.agent.host.standby import StandbyHost\n"
            "from clary.agent.host.sandbox import *\n"
            "from clary.contract.launch_plan import *\n"
            "sandbox, arguments = eval(sys.argv[1])\n"
            "standby = StandbyHost.prepare(sandbox, **arguments)\n"
            "time.sleep(600)\n",
            repr((sandbox, arguments)).replace(repr(sandbox.isolation), f"Isolation.{sandbox.isolation.name}"),
        ],
        env={"PYTHONPATH": str(Path(clary.__file__).parents[1]), "PATH": PATH},
    )
    try:
        eventually(lambda: len(pids_with(marker)) > 1)  # the agent's command line holds the marker too
    finally:
        agent.kill()
        agent.wait()
    eventually(lambda: pids_with(marker) == [])
    eventually(lambda: os.listdir(sandbox.host_folder) == [])
    world.expect_no_cgroup_of(sandbox)


@pytest.fixture
def isolated(world):
    if world.mode == "plain":
        pytest.skip("plain processes have no mounts")
    return world


def test_late_binds_are_visible_and_other_files_of_the_late_root_are_not(isolated):
    world = isolated
    cache = world.folder("cache")
    snapshot = world.folder("cache/snapshot")
    for name in ("images", "labels.csv"):
        (snapshot / name).write_text(name)
        if world.mode == "user" and os.geteuid() == 0:
            os.chown(snapshot / name, NOBODY, NOBODY)
    (cache / "of-other-jobs").write_text("secret")
    (cache / "link").symlink_to(snapshot)
    binds = (
        Bind(source=str(cache / "link"), target="/opt/ml/input/data/training", overlay=True),
        Bind(source=str(snapshot), target="/opt/ml/input/data/fixed", read_only=True),
        Bind(source=str(snapshot / "labels.csv"), target="/srv/labels"),
    )
    sandbox = world.sandbox(hidden_folders=(str(cache),))
    standby = world.prepare(sandbox, late_roots=(str(cache),))
    wanted = dataclasses.replace(sandbox, binds=binds)
    script = (
        IS_FORKED + "import glob, os, time\n"
        "data = '/opt/ml/input/data'\n"
        "print(sorted(os.listdir(data + '/training')), open(data + '/training/images').read())\n"
        "os.remove(data + '/training/images'); open(data + '/training/new', 'w').write('new')\n"
        "print(sorted(os.listdir(data + '/training')), open('/srv/labels').read())\n"
        "try: open(data + '/fixed/new', 'w')\n"
        "except OSError as error: print(error.strerror)\n"
        "print(os.listdir('/run'), [line.split()[1] for line in open('/proc/mounts') if 'late' in line.split()[1]])\n"
    )
    rank = world.rank(sandbox, script)
    assert standby.why_not(wanted, [rank]) == ""
    assert standby.late_binds(wanted) == binds
    program, listener = world.start_in(standby, rank, binds=binds)
    exits, text = finished(program, listener)
    assert text == (
        "forked\n['images', 'labels.csv'] images\n['labels.csv', 'new'] labels.csv\n"
        "Read-only file system\n['lock'] []\n"
    )
    assert exits == [(0, None)]
    assert program.not_isolated == ("Network: the program shares this machine's network and its ports.",)
    assert sorted(path.name for path in snapshot.iterdir()) == ["images", "labels.csv"]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to lay an overlay")
def test_without_overlays_a_late_bind_is_read_only_and_a_note_reports_it(isolated):
    world = isolated
    lower, upper, work, merged = (world.folder(name) for name in ("lower", "upper", "work", "merged"))
    kernel.mount(
        "overlay", str(merged), kind="overlay", options=f"lowerdir={lower},upperdir={upper},workdir={work},xino=off"
    )
    try:
        # The kernel accepts no folder on an overlay as the upper layer of another overlay.
        cache, environment, stacked = (world.folder(name) for name in ("cache", "cache/env", "merged/host"))
        (environment / "module.py").write_text("kept")
        if world.mode == "user":
            os.chown(environment / "module.py", NOBODY, NOBODY)
        sandbox = world.sandbox(folder=stacked, hidden_folders=(str(cache),))
        standby = world.prepare(sandbox, late_roots=(str(cache),))
        script = (
            "import os\n"
            "print(open('/srv/env/module.py').read())\n"
            "for act in (lambda: open('/srv/env/module.py', 'a'), lambda: open('/srv/env/evil.pth', 'w'),\n"
            "            lambda: os.remove('/srv/env/module.py')):\n"
            "    try: act(); print('done')\n"
            "    except OSError as error: print(error.strerror)\n"
        )
        binds = (Bind(source=str(environment), target="/srv/env", overlay=True),)
        program, listener = world.start_in(standby, world.rank(sandbox, script), binds=binds)
        exits, text = finished(program, listener)
        assert (exits, text) == ([(0, None)], "kept\n" + 3 * "Read-only file system\n")
        assert "the program can change nothing in /srv/env" in " ".join(program.not_isolated)
        assert [(path.name, path.read_text()) for path in environment.iterdir()] == [("module.py", "kept")]
    finally:
        kernel.unmount(str(merged), flags=kernel.MNT_DETACH)


def test_executed_processes_see_late_binds_but_no_late_root(isolated):
    world = isolated
    cache = world.folder("cache")
    (cache / "data").mkdir()
    (cache / "data" / "x").write_text("content\n")
    sandbox = world.sandbox(hidden_folders=(str(cache),))
    standby = world.prepare(sandbox, late_roots=(str(cache),))
    bind = Bind(source=str(cache / "data"), target="/opt/ml/input", read_only=True)
    program, listener = world.start_in(
        standby, shell("cat /opt/ml/input/x; ls /run; grep -c clary-late /proc/mounts"), binds=(bind,)
    )
    assert finished(program, listener)[1] == "content\nlock\n0\n"


def test_the_zygote_cannot_see_late_roots(isolated):
    world = isolated
    cache = world.folder("cache")
    (cache / "secret").write_text("of other jobs")
    spy = (
        "import os\n"
        "print(sorted(os.listdir('/run')), [names for _, _, names in os.walk('/run/.clary-late')])\n"
        "print(sum('clary-late' in line for line in open('/proc/self/mounts')))\n"
        f"print(os.path.exists({str(cache / 'secret')!r}))\n"
        "try: print(os.listdir('/proc/1/root/run'))\n"
        "except OSError as error: print(type(error).__name__)\n"
        "open(__file__ + '.done', 'w').close()\n"
    )
    sandbox = world.sandbox_with("spy", spy, hidden_folders=(str(cache),))
    rank = world.rank(sandbox, "import spy")
    standby = world.prepare(sandbox, preload=("spy",), environment=rank.environment, late_roots=(str(cache),))
    eventually((world.base / "modules" / "spy.py.done").exists)
    program, listener = world.start_in(standby, rank)
    seen = "[[]]" if world.mode == "user" else "[]"  # programs with their own user may not list the folder
    assert finished(program, listener)[1] == f"['.clary-late', 'lock'] {seen}\n0\nFalse\nPermissionError\n"


def test_children_of_the_zygote_see_an_empty_opt_ml_before_the_program_starts(isolated):
    world = isolated
    spy = (
        "import os, pathlib, time\n"
        "here = pathlib.Path(__file__).parent\n"
        "if os.fork() == 0:\n"
        "    end = time.monotonic() + 120\n"
        "    while not (here / 'look').exists() and time.monotonic() < end: time.sleep(0.01)\n"
        "    seen = [os.listdir('/opt/ml'), os.path.exists('/proc/1/root/opt/ml/input')]\n"
        "    os.symlink('/', '/opt/ml/planted')\n"
        "    (here / 'found').write_text(repr(seen)); (here / 'found').rename(here / 'seen')\n"
        "    os._exit(0)\n"
    )
    sandbox = world.sandbox_with("spy", spy)
    modules = world.base / "modules"
    standby = world.prepare(sandbox, preload=("spy", PRELOADED), environment=world.variables(sandbox))
    config = Path(sandbox.ml_folder) / "input" / "config"
    config.mkdir(parents=True)
    (config / "hyperparameters.json").write_text("secret")
    (modules / "look").touch()
    eventually((modules / "seen").exists)
    assert (modules / "seen").read_text() == "[[], False]"
    assert os.listdir(sandbox.ml_folder) == ["input"]
    script = (
        IS_FORKED
        + "import os; print(sorted(os.listdir('/opt/ml')))\nprint(open('input/config/hyperparameters.json').read())"
    )
    rank = world.rank(sandbox, script)
    assert finished(*world.start_in(standby, rank)) == (
        [(0, None)],
        f"forked\n{sorted(['input', rank.argv[2]])}\nsecret\n",
    )


def test_a_link_at_opt_made_by_the_zygote_does_not_lead_into_a_late_root(isolated):
    world = isolated
    cache = world.folder("cache")
    spy = (
        "import os\n"
        "try: os.rename('/opt', '/opt-aside'); os.symlink('/run/.clary-late/1', '/opt')\n"
        "except OSError: pass\n"  # in a user namespace /opt is a mount
        "open(__file__ + '.done', 'w').close()\n"
    )
    sandbox = world.sandbox_with("spy", spy, hidden_folders=(str(cache),))
    standby = world.prepare(sandbox, preload=("spy",), environment=world.variables(sandbox), late_roots=(str(cache),))
    eventually((world.base / "modules" / "spy.py.done").exists)
    program, listener = world.start_in(standby, world.rank(sandbox, "import os; print(os.getcwd())"))
    assert finished(program, listener) == ([(0, None)], "/opt/ml\n")
    assert os.listdir(cache) == []


def test_files_written_to_opt_ml_after_prepare_are_visible(world):
    sandbox = world.sandbox()
    standby = world.prepare(sandbox)
    data = Path(sandbox.ml_folder) / "input" / "data"
    data.mkdir(parents=True)
    (data / "late.txt").write_text("late")
    code = world.code(sandbox)
    script = f"print(open('{code}/input/data/late.txt').read()); open('{code}/out', 'w').write('result')"
    if world.mode == "user" and os.geteuid() == 0:
        os.chown(sandbox.ml_folder, NOBODY, NOBODY)
    program, listener = world.start_in(standby, world.rank(sandbox, script))
    assert finished(program, listener) == ([(0, None)], "late\n")
    assert (Path(sandbox.ml_folder) / "out").read_text() == "result"


def test_a_program_that_the_standby_host_cannot_run_gets_a_new_host(isolated):
    world = isolated
    elsewhere = world.folder("elsewhere")
    (elsewhere / "x").write_text("content")
    sandbox = world.sandbox()
    standby = world.prepare(sandbox, late_roots=(str(world.folder("cache")),))
    bind = Bind(source=str(elsewhere), target="/srv/data")
    rank = world.rank(sandbox, IS_FORKED + "print(open('/srv/data/x').read())")
    assert "only what lies below" in standby.why_not(dataclasses.replace(sandbox, binds=(bind,)), [rank])
    program, listener = world.start_in(standby, rank, binds=(bind,))
    assert finished(program, listener)[1] == "executed\ncontent\n"


def test_memory_of_the_zygote_counts_against_the_host():
    if os.geteuid() != 0:
        pytest.skip("cgroups need root")
    world = StandbyWorld("root")
    try:
        sandbox = world.sandbox_with("large", "kept = bytearray(64 << 20)", memory_bytes=256 << 20)
        rank = world.rank(sandbox, "import large; print(len(large.kept))")
        standby = world.prepare(sandbox, preload=("large",), environment=rank.environment)
        program, listener = world.start_in(standby, rank)
        exits, text = finished(program, listener)
        result = program.wait(0)
        assert (exits, text, program.num_forked) == ([(0, None)], f"{64 << 20}\n", 1)
        assert result.peak_memory_bytes is None or result.peak_memory_bytes > 64 << 20
    finally:
        world.close()


def test_without_a_standby_host_program_start_executes_ranks(world):
    sandbox = world.sandbox()
    rank = world.rank(sandbox, IS_FORKED)
    listener = Listener()
    with Program.start([rank], sandbox, on_output=listener) as program:
        assert program.wait(DEADLINE_S) is not None
        assert (program.num_forked, listener.text()) == (0, "executed\n")
