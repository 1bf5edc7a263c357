"""Lasting hosts: trials of a tuning job follow each other in one host, forked from one zygote, without any trace."""

import dataclasses
import glob
import os
import signal
from pathlib import Path

import pytest
from host_world import DEADLINE_S, PACKAGE_FOLDER, PATH, PYTHON, HostWorld, Listener, eventually, process
from host_worlds import ISOLATED, world_of
from keeper_world import HOST, LEAVES, SERIES, WAITS, KeeperWorld, finish

from clary.agent.host.sandbox import Bind
from clary.agent.host.standby import StandbyHost
from clary.agent.supervisor.standby_keeping import PLACES_FOLDER
from clary.agent.zygote.interpreter_start import RANK_SHIM

# Folders of /opt/ml that the keeper makes before it knows the next program.
OF_EVERY_JOB = [".clary", "checkpoints", "code", "input", "model", "output"]
# A default ACL (acl(5)) that gives new files no permissions: not for owner, group or others.
ACL_WITHOUT_RIGHTS = "02000000" + "".join(f"{tag:02x}000000ffffffff" for tag in (1, 4, 0x20))

world = world_of((pytest.param("root", marks=pytest.mark.root),), lambda mode: KeeperWorld(mode))
bare = world_of(ISOLATED, lambda mode: BareWorld(mode))


class BareWorld(HostWorld):
    """One lasting host, and programs in it, without a keeper."""

    def __init__(self, mode):
        super().__init__(mode)
        self.cache = self.folder("cache")
        place = self.folder("place")
        self.ml_folder = self.folder("place/ml")
        sandbox = dataclasses.replace(self.sandbox(), host_folder=str(place), ml_folder=str(self.ml_folder))
        self.environment = {"PATH": PATH, "PYTHONPATH": f"/opt/ml:{PACKAGE_FOLDER}"}
        self.host = StandbyHost.prepare(
            sandbox,
            python=PYTHON,
            environment=self.environment,
            preload=("json",),
            late_roots=(str(self.cache),),
            lasts=True,
        )
        self.freed = []

    def follow(self, script, *, binds=()):
        """Run a program and release the host; return its output, and the reason if the host serves no other program."""
        (self.ml_folder / "train.py").write_text(script)
        rank = process(PYTHON, RANK_SHIM, "train.py", environment=self.environment, working_folder="/opt/ml")
        listener = Listener()
        program = self.host.start(
            (rank,), binds=binds, on_output=listener, on_free=lambda *freed: self.freed.append(freed)
        )
        self._programs.append(program)
        assert program.wait(DEADLINE_S) is not None, listener.text()
        assert (program.num_forked, program.why_not_forked) == (1, "")
        program.close()
        host, why_not = self.freed.pop()
        assert host is (None if why_not else self.host)
        return listener.text(), why_not

    def new_tree(self):
        """Replace the /opt/ml of the last program by a new, empty one."""
        self.ml_folder.rename(self.ml_folder.with_name(f"ml-{len(list(self.ml_folder.parent.iterdir()))}"))
        self.ml_folder.mkdir()
        owner = self.cache.stat()
        os.chown(self.ml_folder, owner.st_uid, owner.st_gid)

    def close(self):
        self.host.close()
        super().close()


def first(world, script=LEAVES, plan=None):
    """Run the program after which a lasting host stands by; return the plan."""
    plan = plan or world.plan(series=SERIES)
    finish(*world.attempt(plan, script)[:2])
    eventually(lambda: world.ready_place() is not None)
    world.keeper.prepare()
    return plan


def follow(world, plan, script):
    """Run a program in the host of the previous program; return its output and the host's folder."""
    program, listener, place = world.attempt(plan, script)
    assert (program.num_forked, program.why_not_forked) == (1, ""), listener.text()
    finish(program, listener)
    world.keeper.prepare()
    return listener.text(), place


def test_successive_programs_in_one_host_see_no_files_of_each_other(world):
    plan = first(world)
    ready = world.keeper._ready.host
    for number in range(4):
        said, place = follow(world, plan, f"import os; print(sorted(os.listdir())); open('left-{number}', 'w').close()")
        assert said == f"{[*OF_EVERY_JOB, 'train.py']}\n"
        assert world.keeper._ready.host is ready
        assert place == world.ready_place()
    assert sorted(path.name for path in place.glob("ml/*")) == OF_EVERY_JOB
    eventually(lambda: [path.name for path in (world.pool / HOST / PLACES_FOLDER).iterdir()] == ["1"])


def test_no_second_interpreter_is_prepared_while_a_program_runs_in_a_lasting_host(world):
    plan = first(world)
    program, listener, place = world.attempt(plan, WAITS)
    listener.wait_for("runs")
    assert world.ready_place() is None
    program.close()
    world.keeper.prepare()
    assert world.ready_place() not in (None, place), "it was ended before its last process: nobody looked for traces"


@pytest.mark.long(16)
@pytest.mark.parametrize(
    "script",
    [
        "open('/tmp/left', 'w').close(); import os; os.makedirs('/var/tmp/a/b'); os.chmod('/var/tmp/a', 0)",
        "import os; os.makedirs('/root/.cache/x', exist_ok=True); open('/root/.cache/x/y', 'w').close()",
        "open('/dev/shm/left', 'w').close(); open('/run/left', 'w').close()",
        "import os; os.symlink('/etc/passwd', '/tmp/link'); os.symlink('/', '/tmp/root')",
        "import os; os.fork() or __import__('time').sleep(60)",
        "import os; os.setsid() if os.fork() == 0 else None; os.fork() or __import__('time').sleep(60)",
        "import os\nif os.fork() == 0:\n    while True:\n        if os.fork(): os._exit(0)",
        "import os; os.mkfifo('/tmp/a'); os.mkdir(b'/tmp/\\xff\\n'); open(b'/tmp/\\xff\\n/a', 'wb').truncate(1 << 40)",
        "import os; os.chdir('/tmp'); [(os.mkdir('d' * 200, 0o700), os.chdir('d' * 200)) for _ in range(3000)]",
        "import os, socket; socket.socket(socket.AF_UNIX).bind('/tmp/s'); os.mknod('/run/n'); os.mkfifo('/dev/shm/n')",
    ],
)
def test_files_added_to_the_hosts_folders_and_leftover_processes_are_removed(world, script):
    plan = first(world)
    ready = world.keeper._ready.host
    follow(world, plan, script)
    assert world.keeper._ready.host is ready, "the host serves the next one"
    listing = "[os.listdir(p) for p in ('/tmp', '/var/tmp', '/root', '/dev/shm')], os.path.exists('/run/left')"
    alive = "[p for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getpid())]"
    said, _ = follow(world, plan, f"import os; print({listing}, len({alive}))")
    assert said == "[[], [], [], []] False 1\n", "the interpreter alone is left"


@pytest.mark.long(30)
@pytest.mark.parametrize(
    "script",
    [
        "open('/etc/left', 'w').close()",
        "open('/etc/hostname', 'a').write('x')",
        "import os; os.unlink('/etc/debian_version')",
        "import os; os.chmod('/root', 0o777)",
        "import os; os.rmdir('/mnt')",
        "import ctypes; assert ctypes.CDLL(None).shmget(7, 4096, 0o1600) >= 0",
        "import ctypes; assert ctypes.CDLL(None).msgget(7, 0o1600) >= 0",
        "import ctypes; assert ctypes.CDLL(None).semget(7, 1, 0o1600) >= 0",
        "import os; os.chmod('/tmp', 0o700)",
        "import os; os.chown('/var/tmp', 7, 7)",
        "import os; os.chmod('/etc/hosts', 0o600)",
        f"import os; os.setxattr('/tmp', 'system.posix_acl_default', bytes.fromhex('{ACL_WITHOUT_RIGHTS}'))",
        f"import os; os.setxattr('/etc', 'system.posix_acl_default', bytes.fromhex('{ACL_WITHOUT_RIGHTS}'))",
        "import os, signal; [os.kill(int(p), signal.SIGSTOP) for p in os.listdir('/proc') if p.isdigit() and "
        "int(p) not in (1, os.getpid())]",
    ],
)
def test_a_program_that_leaves_a_trace_gives_the_next_one_another_host(world, script):
    plan = first(world)
    said, place = follow(world, plan, script)
    assert "Error" not in said
    assert world.ready_place() not in (None, place)
    assert not world.keeper._ready.host.lasts, "the next ones would leave a trace as well"
    said, _ = follow(world, plan, "import os; print(os.path.exists('/etc/left'), sorted(os.listdir()))")
    assert said == f"False {[*OF_EVERY_JOB, 'train.py']}\n"


@pytest.mark.long(11)
@pytest.mark.parametrize(
    "act",
    [
        "resource.prlimit(other, resource.RLIMIT_NOFILE, (200, 200))",
        "resource.prlimit(other, resource.RLIMIT_CPU, (1, resource.RLIM_INFINITY))",
        "os.setpriority(os.PRIO_PROCESS, other, 19)",
        "os.sched_setscheduler(other, os.SCHED_BATCH, os.sched_param(0))",
        "os.sched_setaffinity(other, {min(os.sched_getaffinity(0))})",
        "open(f'/proc/{other}/oom_score_adj', 'w').write('900')",
        "assert ctypes.CDLL(None).syscall({'x86_64': 251}.get(os.uname().machine, 30), 1, other, 3 << 13) == 0",
    ],
)
def test_changes_of_the_zygote_that_the_next_program_would_inherit_count_as_a_trace(world, act):
    plan = first(world)
    follow(world, plan, LEAVES)
    find = "other = next(int(p) for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getpid()))"
    said, place = follow(world, plan, f"import ctypes, os, resource\n{find}\n{act}\nprint('done')")
    assert said == "done\n"
    assert world.ready_place() not in (None, place)


def test_after_a_program_kills_the_zygote_the_next_one_starts_in_another_host(world):
    plan = first(world)
    kills = (
        "import os; [os.kill(int(p), 9) for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getpid())]"
    )
    _, place = follow(world, plan, kills)
    assert world.ready_place() not in (None, place)


@pytest.mark.parametrize(
    "attempt",
    [
        "open(f'/proc/{other}/mem', 'r+b')",
        "open(f'/proc/{other}/environ', 'rb').read()",
        "os.readlink(f'/proc/{other}/fd/1')",
        "os.listdir(f'/proc/{other}/root/')",
        "os.listdir('/proc/1/root/')",
        "os.listdir('/proc/1/cwd/')",
        "sys.exit(0) if ctypes.CDLL(None).ptrace(16, other, 0, 0) == 0 else os.listdir('/proc/1/fd')",
    ],
)
def test_programs_cannot_trace_the_zygote_or_the_first_process(world, attempt):
    plan = first(world)
    follow(world, plan, LEAVES)
    find = "other = next(int(p) for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getpid()))"
    script = f"import ctypes, os, sys\n{find}\ntry:\n    {attempt}\nexcept PermissionError:\n    print('refused')"
    said, _ = follow(world, plan, script)
    assert said == "refused\n"


def test_programs_can_read_their_own_environ_and_have_no_signal_blocked(world):
    plan = first(world)
    script = (
        "import os, signal, sys\n"
        "print(os.access('/proc/self/environ', os.R_OK), open('/proc/self/environ').read() != '')\n"
        "print(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))))"
    )
    said, _ = follow(world, plan, script)
    assert said == "True True\n[]\n"


def test_a_stop_signals_the_program_but_not_the_zygote(world):
    plan = first(world)
    ready = world.keeper._ready.host
    program, listener, _ = world.attempt(
        plan, "import signal, sys\nsignal.signal(15, lambda *_: sys.exit(3))\n" + WAITS
    )
    listener.wait_for("runs")
    assert program.signal_all(0) == 1, "the interpreter is none of the program's processes"
    program.signal_all(signal.SIGTERM)
    result = program.wait(DEADLINE_S)
    assert [end.exit_code for end in result.exits] == [3]
    program.close()
    world.keeper.prepare()
    assert world.keeper._ready.host is ready


def test_the_interpreter_of_another_series_is_not_used(world):
    plan = first(world)
    place = world.ready_place()
    program, listener, folder = world.attempt(dataclasses.replace(plan, series=SERIES + "2"), LEAVES)
    assert folder != place
    assert program.num_forked == 0
    finish(program, listener)
    eventually(lambda: not place.exists())


def test_oom_kills_and_peak_memory_are_counted_per_program(world):
    plan = first(world)
    program, listener, _ = world.attempt(plan, "x = bytearray(200 << 20); print(len(x))")
    result = program.wait(DEADLINE_S)
    large = result.peak_memory_bytes
    finish(program, listener)
    world.keeper.prepare()
    program, listener, _ = world.attempt(plan, "print('small')")
    small = program.wait(DEADLINE_S).peak_memory_bytes
    finish(program, listener)
    if large is not None and small is not None:
        assert large > 200 << 20 > small


def test_a_lasting_host_serves_programs_with_different_binds(bare):
    (bare.cache / "first").mkdir()
    (bare.cache / "second").mkdir()
    (bare.cache / "first" / "data").write_text("1")
    (bare.cache / "second" / "data").write_text("2")
    shows = (
        "import os; print(sorted(os.listdir('/opt/ml')), open('/opt/ml/in/data').read(), os.path.exists('/env/data'))"
    )
    for name, seen in (("first", "1"), ("second", "2"), ("first", "1")):
        source = str(bare.cache / name)
        binds = [Bind(source=source, target="/opt/ml/in", read_only=True)]
        if name == "second":
            binds.append(Bind(source=source, target="/env", overlay=True))
        said, why_not = bare.follow(
            shows + "\nfor name in ('/opt/ml/in/data', '/env/data'):\n"
            "    try:\n        open(name, 'a').write('!'); print('written')\n"
            "    except OSError:\n        print('refused')",
            binds=binds,
        )
        assert why_not == ""
        is_second = name == "second"
        assert said.splitlines() == [
            f"['in', 'train.py'] {seen} {is_second}",
            "refused",
            "written" if is_second and bare.mode == "root" else "refused",
        ]
        bare.new_tree()
    assert (bare.cache / "second" / "data").read_text() == "2", "what it wrote went into a layer of its own"


def test_traces_are_found_for_a_program_without_root_rights_too(bare):
    said, why_not = bare.follow("open('/tmp/a', 'w').close(); open('/a', 'w').close(); print('done')")
    assert (said, why_not) == ("done\n", "")
    bare.new_tree()
    said, why_not = bare.follow(
        "import os; print(os.path.exists('/a'), os.listdir('/tmp')); open('/etc/a', 'w').close()"
    )
    assert said == "False []\n"
    assert "left a trace" in why_not
    assert why_not.endswith("/a")


def weight_of(sandbox):
    paths = glob.glob(f"/sys/fs/cgroup/**/{sandbox.cgroup_name}/cpu.*", recursive=True)
    (weight,) = (int(Path(path).read_text()) for path in paths if path.endswith(("cpu.shares", "cpu.weight")))
    return weight


@pytest.mark.root
def test_a_host_has_a_tenth_of_its_weight_until_its_first_program_starts():
    world = BareWorld("root")
    try:
        waiting = weight_of(world.host.sandbox)
        world.follow("")
        assert waiting == round(weight_of(world.host.sandbox) / 10)
    finally:
        world.close()
