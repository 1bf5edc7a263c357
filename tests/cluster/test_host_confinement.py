"""Accesses that the kernel refuses to a host's programs: system calls, keys, files and sockets of the machine."""

import ctypes
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from pathlib import Path

import pytest
from host_world import DEADLINE_S, HostWorld, process, python, shell
from host_worlds import ISOLATED, world_of

from clary.agent.autopsy.spy_room import room_command
from clary.agent.autopsy.stacks import find_py_spy, read_stacks
from clary.agent.host.call_filter import refused_calls
from clary.agent.host.mounts import closed_files
from clary.agent.host.mounts.closed_files import find_closed
from clary.agent.host.mounts.interpreter_folders import interpreter_binds
from clary.agent.host.mounts.shown_folders import links_on_the_way, shown_folders
from clary.agent.host.sandbox import Bind
from clary.base.processes import live_descendants

CALLS = """
import ctypes, errno, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
said = {}
for name, (number, *arguments) in json.loads(sys.argv[1]).items():
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(argument) for argument in arguments])
    if result == 0 and name in ("clone",):
        os._exit(0)
    said[name] = errno.errorcode.get(ctypes.get_errno(), "?") if result < 0 else "done"
print(json.dumps(said))
"""
NEW_USER_NAMESPACE = 0x10000000
# Values of personality(2): UNAME26, 32-bit Linux, both, plain Linux, query of the current value.
KINDS = (0x20000, 0x8, 0x20008, 0x0, 0xFFFFFFFF)
ODD_KINDS = (
    0x40000,
    0x100000,
    0x400000,
    0x1,
    0x10,
)  # ADDR_NO_RANDOMIZE, MMAP_PAGE_ZERO, READ_IMPLIES_EXEC, SVr4, HP-UX


world = world_of(ISOLATED)


def outcome(world, script, *arguments, sandbox=None):
    """Run a Python script in a host; return its output, parsed as JSON."""
    spec = python(script)
    spec = type(spec)(**{**vars(spec), "argv": (*spec.argv, *arguments)})
    program, listener = world.start(spec, sandbox=sandbox)
    result = program.wait(DEADLINE_S)
    assert result is not None, listener.text()
    assert result.exits[0].exit_code == 0, listener.text()
    program.close()
    return json.loads(listener.text())


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers below are x86-64's")
def test_system_calls_that_containers_refuse_are_refused(world):
    calls = {name: [number, -1, 0, 0, 0, 0] for name, number in refused_calls("x86_64").items()}
    calls |= {"clone3": [435, 0, 0], "newer than the table": [471], "x32": [0x40000000 | 39]}
    calls |= {"unshare": [272, NEW_USER_NAMESPACE], "clone": [56, NEW_USER_NAMESPACE | 17, 0, 0, 0, 0]}
    calls |= {"vsock": [41, 40, 1, 0], "tcp": [41, 2, 1, 0], "unshare files": [272, 0x400], "getpid": [39]}
    calls |= {f"be {value:#x}": [135, value] for value in (*KINDS, *ODD_KINDS)}
    said = outcome(world, CALLS, json.dumps(calls))
    allowed = {
        name: said.pop(name) for name in ("tcp", "unshare files", "getpid", *(f"be {value:#x}" for value in KINDS))
    }
    assert set(allowed.values()) == {"done"}
    missing = {name: said.pop(name) for name in ("clone3", "newer than the table", "x32")}
    assert set(missing.values()) == {"ENOSYS"}
    assert {name: word for name, word in said.items() if word != "EPERM"} == {}
    assert len(said) > 45


def test_ordinary_python_programs_run_under_the_system_call_filter(world):
    script = (
        "import json, multiprocessing, subprocess, threading\n"
        "box = []; thread = threading.Thread(target=lambda: box.append(1)); thread.start(); thread.join()\n"
        "process = multiprocessing.get_context('fork').Process(target=print, args=('',)); process.start()\n"
        "process.join(); said = subprocess.run(['uname'], capture_output=True, text=True).stdout.strip()\n"
        "print(json.dumps([box, process.exitcode, said]))"
    )
    assert outcome(world, script) == [[1], 0, "Linux"]


READ = """
import json, os, sys
said = {}
for path in sys.argv[1:]:
    try: said[path] = "read" if os.path.isdir(path) and os.listdir(path) or open(path, "rb").read(9) else "empty"
    except OSError as error: said[path] = type(error).__name__
print(json.dumps(said))
"""


@pytest.fixture
def planted():
    """Files that only root may read, in folders that hosts show, and one file readable by all; their paths."""
    folders = [tempfile.mkdtemp(prefix="clary-planted-", dir=top) for top in ("/opt", "/usr/local/etc", "/etc")]
    try:
        paths = {"closed": [], "open": []}
        for folder in folders:
            os.chmod(folder, 0o755)
            for name, mode in (("closed", 0o600), ("open", 0o644)):
                place = Path(folder, name)
                place.write_text("of the machine")
                place.chmod(mode)
                paths[name].append(str(place))
        Path(folders[0], "of a user").write_text("of the machine")
        os.chown(Path(folders[0], "of a user"), 1234, 1234)
        os.chmod(Path(folders[0], "of a user"), 0o600)
        paths["closed"].append(f"{folders[0]}/of a user")
        yield paths
    finally:
        for folder in folders:
            shutil.rmtree(folder)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to plant files")
def test_programs_cannot_read_files_that_are_not_readable_by_all(world, planted):
    elsewhere = [
        "/root/.bashrc",
        "/home",
        "/var/log/btmp",
        "/var/lib/postgresql",
        "/etc/ssl/private",
        "/proc/kcore",
    ]
    elsewhere += [f"/proc/1/{name}" for name in ("root/etc/shadow", "environ", "mem", "cwd/etc/shadow", "fd", "maps")]
    said = outcome(world, READ, *planted["closed"], *planted["open"], *elsewhere)
    assert {path: said.pop(path) for path in planted["open"]} == dict.fromkeys(planted["open"], "read")
    assert [path for path, word in said.items() if word == "read"] == []
    passwords = world.run("cut -d: -f2 /etc/shadow 2>/dev/null | sort -u").split()
    assert passwords in ([], ["*"])


READ_LATER = """
import os, sys, time
print("ready", flush=True)
while not os.path.exists("/opt/ml/mark"): time.sleep(0.02)
for path in sys.argv[1:]:
    try: print(path, "read" if open(path, "rb").read(9) else "empty", flush=True)
    except OSError as error: print(path, type(error).__name__, flush=True)
print("done", flush=True)
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to plant files")
def test_programs_cannot_read_closed_files_that_appear_in_etc_while_they_run(world):
    folder = Path(tempfile.mkdtemp(prefix="clary-planted-", dir="/etc"))
    beside = Path(f"{folder}.keytab")
    folder.chmod(0o755)
    try:
        (folder / "before").write_text("of the machine")
        (folder / "of another").write_text("of the machine")
        (folder / "of another").chmod(0o640)
        os.chown(folder / "of another", 3, 4)
        later = [folder / "k3s.yaml", beside]
        sandbox = world.sandbox()
        spec = python(READ_LATER)
        places = [str(place) for place in (*later, folder / "of another", folder / "before")]
        spec = type(spec)(**{**vars(spec), "argv": (*spec.argv, *places)})
        program, listener = world.start(spec, sandbox=sandbox)
        listener.wait_for("ready")
        for place in later:
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(descriptor, b"a secret of the machine")
            os.close(descriptor)
        Path(sandbox.ml_folder, "mark").touch()
        listener.wait_for("done")
        program.close()
    finally:
        shutil.rmtree(folder)
        beside.unlink(missing_ok=True)
    said = dict(line.rsplit(" ", 1) for line in listener.text().splitlines() if line.startswith("/"))
    assert said.pop(str(folder / "before")) == "read"
    assert [path for path, word in said.items() if word == "read"] == [], "of the machine's secrets"
    assert len(said) == 3


IMPORT = """
import json, sys
import of_project, of_base
said = {"imported": [of_project.__file__, of_base.__file__], "prefix": sys.prefix}
for path in sys.argv[1:]:
    try: said[path] = open(path, "rb").read(9).decode()
    except OSError as error: said[path] = type(error).__name__
print(json.dumps(said))
"""


@pytest.fixture
def owned_environment():
    """A virtual environment in a 0700 folder of root, its base and a .pth file's project, with unreadable files."""
    parent = Path(tempfile.mkdtemp(prefix="clary-owned-", dir="/root"))
    try:
        base, project, environment = parent / "base", parent / "project", parent / "env"
        library = f"lib/python{sysconfig.get_python_version()}"
        (base / "bin").mkdir(parents=True)
        (base / "lib").mkdir()
        real = Path(sys.base_prefix)
        (base / library).symlink_to(real / library)  # the real library is shown too, as the folder of another image
        shutil.copy(os.path.realpath(sys.executable), base / "bin/python3")
        site = environment / library / "site-packages"
        (environment / "bin").mkdir(parents=True)
        site.mkdir(parents=True)
        (environment / "bin/python").symlink_to(base / "bin/python3")
        (environment / "pyvenv.cfg").write_text(f"home = {base}/bin\ninclude-system-site-packages = false\n")
        (project / "deep").mkdir(parents=True)
        (site / "project.pth").write_text(f"{project}\n{base}/more\n{real}\n")
        (base / "more").mkdir()
        (project / "of_project.py").write_text("")
        (base / "more/of_base.py").write_text("")
        for folder, names in ((project, (".env", "deep/key")), (base, (".netrc", "more/key"))):
            for name in names:
                (folder / name).write_text("of the machine")
                (folder / name).chmod(0o600)
        yield environment
    finally:
        shutil.rmtree(parent)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs a host with users of its own")
def test_unreadable_files_of_an_environment_stay_unread_and_its_imports_work(owned_environment):
    world = HostWorld("root")
    try:
        parent, python_program = owned_environment.parent, str(owned_environment / "bin/python")
        binds = (
            *interpreter_binds(owned_environment, python_program),
            Bind(source=str(owned_environment), target=str(owned_environment), overlay=True),
        )
        closed = [str(parent / name) for name in ("project/.env", "project/deep/key", "base/.netrc", "base/more/key")]
        spec = process(python_program, "-c", IMPORT, *closed)
        program, listener = world.start(spec, sandbox=world.sandbox(binds=binds))
        assert program.wait(DEADLINE_S).exits[0].exit_code == 0, listener.text()
        said = json.loads(listener.text())
        assert said.pop("imported") == [f"{parent}/project/of_project.py", f"{parent}/base/more/of_base.py"]
        assert said.pop("prefix") == str(owned_environment)
        assert said == dict.fromkeys(closed, "PermissionError")
        assert not [sentence for sentence in program.not_isolated if str(parent) in sentence]
        (parent / "project").chmod(0o700)
        program, listener = world.start(shell("true"), sandbox=world.sandbox(binds=binds))
        assert program.wait(DEADLINE_S) is not None
        told = [sentence for sentence in program.not_isolated if str(parent) in sentence]
        assert len(told) == 1
        assert f"chmod -R o+rX {parent}/project" in told[0]
    finally:
        world.close()


WRITABLE = """
import json, os, stat
found = []
for top in ("/proc", "/sys"):
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if not name.isdigit() and name not in ("self", "thread-self")]
        for path in (f"{folder}/{name}" for name in files):
            try:
                if stat.S_ISREG(os.lstat(path).st_mode):
                    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                    found.append(path)
            except OSError: pass
print(json.dumps(found))
"""


def test_machine_wide_kernel_settings_cannot_be_written(world):
    found = outcome(world, WRITABLE)
    if world.mode == "user":  # settings of the host's own namespaces
        found = [path for path in found if not path.startswith("/proc/sys/")]
    assert found == []


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make the socket")
def test_sockets_of_the_machine_below_shown_folders_cannot_be_connected(world, planted):
    script = (
        "import json, socket, sys\nsaid = []\n"
        "for path in sys.argv[1:]:\n"
        "    try: socket.socket(socket.AF_UNIX).connect(path); said.append('connected')\n"
        "    except OSError as error: said.append(type(error).__name__)\n"
        "print(json.dumps(said))"
    )
    paths = [f"{os.path.dirname(path)}/socket" for path in planted["open"]]
    with (
        socket.socket(socket.AF_UNIX) as one,
        socket.socket(socket.AF_UNIX) as two,
        socket.socket(socket.AF_UNIX) as third,
    ):
        for server, path in zip((one, two, third), paths, strict=True):
            server.bind(path)
            server.listen()
        assert "connected" not in outcome(world, script, *paths)


def test_programs_are_root_inside_the_host_and_unprivileged_on_the_machine(world):
    program, listener = world.start(shell("id -u; id -g; echo up; exec sleep 60"))
    listener.wait_for("up")
    assert listener.text() == "0\n0\nup\n"
    (pid,) = program.ranks_by_pid()
    status = Path(f"/proc/{pid}/status").read_text()
    user = int(status.partition("Uid:")[2].split()[0])
    if world.mode == "root":
        assert 1_879_048_192 <= user < 2_147_483_648
        assert "CapEff:\t00000000a00425fb" in status  # Docker's default without MKNOD
        namespaces = {os.readlink(f"/proc/{pid}/ns/user") for pid in (pid, os.getpid())}
        assert len(namespaces) == 2
    assert "Seccomp:\t2" in status
    program.close()


def test_the_first_process_cannot_be_attacked_from_inside(world):
    script = (
        "import ctypes, json, os, signal\n"
        "said = []\n"
        "def attempt(what):\n"
        "    try: what(); said.append('done')\n"
        "    except OSError as error: said.append(type(error).__name__)\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "def trace():\n"
        "    if libc.ptrace(16, 1, 0, 0): raise OSError(ctypes.get_errno(), '')\n"
        "def peek():\n"
        "    fd = os.pidfd_open(1)\n"
        "    if libc.syscall(438, fd, 3, 0) < 0: raise OSError(ctypes.get_errno(), '')\n"
        "attempt(trace); attempt(peek)\n"
        "attempt(lambda: os.open('/proc/1/mem', os.O_RDWR)); attempt(lambda: os.readlink('/proc/1/root'))\n"
        "attempt(lambda: os.readlink('/proc/1/ns/mnt')); attempt(lambda: os.listdir('/proc/1/map_files'))\n"
        "try: os.kill(1, signal.SIGKILL); os.kill(1, signal.SIGTERM)\n"
        "except OSError: pass\n"
        "print(json.dumps(said))"
    )
    assert outcome(world, script) == ["PermissionError"] * 6


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs a host with users of its own")
def test_packages_and_users_work_inside_and_leave_no_trace_outside():
    world = HostWorld("root")
    try:
        environment = world.folder("env")
        (environment / "old.py").write_text("old\n")
        before = Path("/etc/passwd").read_text()
        script = (
            "set -e; useradd -m -s /bin/sh worker; su worker -c 'id -un; echo of worker > /tmp/file; touch ~/x';"
            "stat -c %U /tmp/file; touch /usr/lib/python3/dist-packages/new.py /usr/local/lib/new.so /var/lib/dpkg/x;"
            "ln /var/lib/dpkg/status /var/lib/dpkg/status-other; cd /srv/env; sed -i s/old/new/ old.py; cat old.py;"
            "stat -c %u:%g /srv/env/old.py /opt/ml/given; echo mine > /opt/ml/made; chown worker /opt/ml/made"
        )
        sandbox = world.sandbox(binds=(Bind(source=str(environment), target="/srv/env", overlay=True),))
        Path(sandbox.ml_folder, "given").write_text("x")
        output = world.run(script, sandbox=sandbox)
        assert output.split() == ["worker", "worker", "new", "0:0", "0:0"]
        assert Path("/etc/passwd").read_text() == before
        assert (environment / "old.py").read_text() == "old\n"
        assert not any(Path(path).exists() for path in ("/usr/local/lib/new.so", "/var/lib/dpkg/status-other"))
        made = os.stat(f"{sandbox.ml_folder}/made")
        assert 0 < made.st_uid < 65536  # the owner as seen inside the host
    finally:
        world.close()


def test_folders_named_in_the_settings_are_visible(world):
    place = Path(tempfile.mkdtemp(prefix="clary-visible-", dir="/usr/lib/../../opt/.."))
    try:
        place.chmod(0o755)
        (place / "data").write_text("seen")
        (place / "data").chmod(0o644)
        assert "No such file" in world.run(f"cat {place}/data 2>&1; :")
        named = world.sandbox(visible_folders=(str(place),))
        assert world.run(f"cat {place}/data; touch {place}/mine && ls {place}", sandbox=named) == "seendata\nmine\n"
        whole = world.sandbox(shows_whole_machine=True)
        program, listener = world.start(shell(f"cat {place}/data; ls -d /root"), sandbox=whole)
        assert program.wait(DEADLINE_S) is not None
        assert listener.text() == "seen/root\n"
        assert "setting machine_view" in " ".join(program.not_isolated)
        assert os.listdir(place) == ["data"]
    finally:
        shutil.rmtree(place)


def test_folders_of_the_settings_in_places_that_a_host_has_of_its_own_are_named(world):
    place = Path(tempfile.mkdtemp(prefix="clary-visible-", dir="/tmp"))
    try:
        named = world.sandbox(visible_folders=(str(place), "/tmp/clary-is-not-there", "/opt"))
        program, listener = world.start(shell(f"ls -d {place} /opt"), sandbox=named)
        assert program.wait(DEADLINE_S) is not None
        assert "/opt" in listener.text().split()
        said = [sentence for sentence in program.not_isolated if "visible_folders" in sentence]
        assert len(said) == 1
        assert str(place) in said[0]
        assert f"visible_folders: {place}: a host has its own" in said[0]
    finally:
        shutil.rmtree(place)


def test_session_keyrings_are_not_visible_inside(world):
    libc = ctypes.CDLL(None, use_errno=True)
    key = libc.syscall(248, b"user", b"clary-test-key", b"of the machine", 14, -3)  # add_key to the session keyring
    assert key > 0
    try:
        assert "clary-test-key" not in world.run("cat /proc/keys; cat /proc/key-users; :")
    finally:
        libc.syscall(250, 3, key, 0, 0, 0)  # KEYCTL_REVOKE


def test_unreadable_files_are_searched_again_in_changed_folders(tmp_path, monkeypatch):
    tree, cache = tmp_path / "tree", tmp_path / "cache"
    (tree / "deep" / "skipped").mkdir(parents=True)
    for name, mode in (("open", 0o644), ("closed", 0o640), ("deep/closed", 0o600), ("deep/skipped/closed", 0o600)):
        (tree / name).write_text(name)
        (tree / name).chmod(mode)

    def found(**changes):
        time.sleep(0.02)
        paths = find_closed(
            str(tree), skipped=[str(tree / "deep" / "skipped")], cache_folder=str(cache), fresh_s=0, **changes
        )
        return [path.removeprefix(f"{tree}/") for path in paths]

    assert found() == found() == ["closed", "deep/closed"]
    (tree / "deep" / "new").mkdir(mode=0o700)
    (tree / "deep" / "closed").unlink()
    os.mkfifo(tree / "deep" / "pipe")
    assert found() == ["closed", "deep/new", "deep/pipe"]
    monkeypatch.setattr(closed_files, "RACY_NS", 0)  # as if the folder had not changed for some seconds
    found()
    (tree / "open").chmod(0o600)
    (tree / "open").write_text("a secret by now")
    assert found() == ["closed", "deep/new", "deep/pipe"], "its folder has not changed"
    assert found(whole_s=0) == found() == ["closed", "deep/new", "deep/pipe", "open"]
    assert subprocess.run(["stat", "-c", "%a", cache], capture_output=True, text=True, check=True).stdout == "700\n"


def test_a_search_waits_for_the_running_one_and_takes_its_result(tmp_path, monkeypatch):
    tree, cache = tmp_path / "tree", tmp_path / "cache"
    tree.mkdir()
    (tree / "closed").write_text("")
    (tree / "closed").chmod(0o600)
    find_closed(str(tree), skipped=(), cache_folder=str(cache))
    stored = cache / f"{str(tree).strip('/').replace('/', '-')}.json"
    os.utime(stored, (0, 0))  # out of date
    found = []
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = threading.Thread(target=lambda: found.append(find_closed(str(tree), skipped=(), cache_folder=cache)))
        waiting.start()
        time.sleep(0.2)
        assert not found
        stored.write_text('["/found by another"]')
    waiting.join(10)
    assert found == [["/found by another"]]
    stored.unlink()
    monkeypatch.setattr(closed_files, "_TURN_S", 0.1)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert find_closed(str(tree), skipped=(), cache_folder=str(cache)) == [str(tree / "closed")], "it hangs"


def test_symbolic_links_in_the_path_of_a_folder_are_named(tmp_path):
    (tmp_path / "real" / "envs").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "far").symlink_to(tmp_path / "link" / "envs")
    assert links_on_the_way(f"{tmp_path}/far/./x") == [
        (f"{tmp_path}/far", f"{tmp_path}/link/envs"),
        (f"{tmp_path}/link", "real"),
    ]
    shown = {folder.path: folder.is_system for folder in shown_folders([str(tmp_path / "far"), "/no/such"])}
    assert shown[str(tmp_path / "real/envs")] is False
    assert shown["/usr"] is True
    assert "/no/such" not in shown


WAITS = """
import time
def waits_here():
    print("up", flush=True)
    time.sleep(600)
waits_here()
"""
# The kernel calls the mapped file "/tmp/x/libpython3.11.so.1.0 (deleted)" by now.
LEADS_AWAY = """
import mmap, os, shutil, sys, time
os.mkdir("/tmp/x")
name = "/tmp/x/libpython3.11.so.1.0"
shutil.copy("/bin/true", name)
file = os.open(name, os.O_RDONLY)
mapped = mmap.mmap(file, 0, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE)
os.unlink(name)
os.rmdir("/tmp/x")
os.symlink(sys.argv[1], "/tmp/x")
print("up", flush=True)
time.sleep(600)
"""


def descendants_of(program):
    (pid,) = live_descendants(program.init_pid)
    return pid


@pytest.mark.skipif(find_py_spy() is None, reason="needs py-spy")
def test_stacks_of_programs_are_read_with_rights_over_these_programs_alone(world):
    program, listener = world.start(python(WAITS))
    listener.wait_for("up")
    (thread,), why = read_stacks(descendants_of(program), program=find_py_spy(), limit_s=DEADLINE_S)
    assert why == ""
    assert [frame.function for frame in thread.frames][-2:] == ["waits_here", "<module>"]


@pytest.mark.skipif(find_py_spy() is None, reason="needs py-spy")
def test_a_dump_opens_no_file_of_the_machine_that_a_program_names(world):
    bait = world.base / "bait"
    bait.mkdir()
    place = bait / "libpython3.11.so.1.0 (deleted)"
    os.mkfifo(place, 0o666)  # a reader of a pipe waits for a writer, and a writer sees whether there is a reader
    place.chmod(0o666)
    spec = python(LEADS_AWAY)
    program, listener = world.start(type(spec)(**{**vars(spec), "argv": (*spec.argv, str(bait))}))
    listener.wait_for("up")
    found = []
    pid = descendants_of(program)
    reading = threading.Thread(target=lambda: found.append(read_stacks(pid, program=find_py_spy(), limit_s=2.0)))
    reading.start()
    was_opened = False
    while reading.is_alive():
        try:
            os.close(os.open(place, os.O_WRONLY | os.O_NONBLOCK))
            was_opened = True
        except OSError:
            time.sleep(0.001)
    assert not was_opened
    assert len(found) == 1


@pytest.mark.skipif(find_py_spy() is None, reason="needs py-spy")
def test_a_dump_of_another_process_with_the_same_number_is_refused(world):
    program, listener = world.start(python(WAITS))
    listener.wait_for("up")
    found = read_stacks(descendants_of(program), program="/no/such", limit_s=1.0, started_at=1)
    assert found == ((), "it has ended")
    command = room_command([find_py_spy()], pid=descendants_of(program), started_at=1)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert "has ended" in done.stderr


@pytest.mark.parametrize("kind", ["a script", "with libraries"])
def test_a_py_spy_that_needs_files_of_the_job_is_not_run(world, kind):
    program, listener = world.start(python(WAITS))
    listener.wait_for("up")
    script = world.base / "py-spy"
    if kind == "a script":
        script.write_text("#!/bin/sh\nexit 0\n")
    else:
        shutil.copy("/bin/true", script)
    script.chmod(0o755)
    found, why = read_stacks(descendants_of(program), program=str(script), limit_s=DEADLINE_S)
    assert found == ()
    assert "was not run: it needs other files" in why
