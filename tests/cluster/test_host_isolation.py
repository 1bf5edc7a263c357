"""Isolation of a host: files, network, processes, rights; as root and in a user namespace."""

import os
import subprocess
from pathlib import Path

import pytest
from host_world import DEADLINE_S, NOBODY, PATH, PYTHON, python, shell
from host_worlds import ISOLATED, world_of

import clary
from clary.agent.host import kernel
from clary.agent.host.sandbox import Bind
from clary.base.errors import AgentError

LISTEN = """
import socket, sys
server = socket.create_server(("127.0.0.1", 7777))
print("listening on", server.getsockname()[1], "as", socket.gethostname())
sys.stdin = open("/opt/ml/go")
sys.stdin.read()
"""


world = world_of(ISOLATED)


def test_two_hosts_have_the_same_name_and_port_at_once(world):
    started = []
    for _ in range(2):
        sandbox = world.sandbox("algo-1", own_network=True)
        os.mkfifo(f"{sandbox.ml_folder}/go")
        started.append((sandbox, *world.start(python(LISTEN), sandbox=sandbox)))
    for sandbox, program, listener in started:
        listener.wait_for("listening on 7777 as algo-1")
        assert program.not_isolated == ()
        Path(f"{sandbox.ml_folder}/go").write_text("")
    assert [program.wait(DEADLINE_S).exits[0].exit_code for _, program, _ in started] == [0, 0]


def test_a_host_without_its_own_network_reports_it(world):
    program, _ = world.start(shell("true"))
    assert "Network: the program shares this machine's network and its ports." in program.not_isolated


def test_names_of_all_hosts_resolve(world):
    output = world.run("hostname; cat /etc/hostname; getent hosts algo-2 localhost")
    assert output.split() == ["algo-1", "algo-1", "10.9.0.2", "algo-2", *output.split()[4:]]
    assert "localhost" in output


def test_ml_folder_is_at_opt_ml_and_writes_reach_it(world):
    sandbox = world.sandbox()
    (Path(sandbox.ml_folder) / "in").write_text("data")
    existed = os.path.exists("/opt/ml")
    assert world.run("cat /opt/ml/in; mkdir -p /opt/ml/model; echo w > /opt/ml/model/m", sandbox=sandbox) == "data"
    assert (Path(sandbox.ml_folder) / "model" / "m").read_text() == "w\n"
    assert os.path.exists("/opt/ml") == existed


def test_temporary_folders_and_shared_memory_are_private_and_writable(world):
    other = world.sandbox()
    other_program, listener = world.start(
        shell("for d in /tmp /var/tmp /dev/shm /run; do touch $d/of-other-host || echo no; done; echo on; sleep 600"),
        sandbox=other,
    )
    listener.wait_for("on")
    assert listener.text() == "on\n"
    assert world.run("ls /tmp /var/tmp; ls /dev/shm /run").split() == [
        *("/tmp:", "/var/tmp:", "/dev/shm:", "/run:", "lock")
    ]
    for folder in ("/tmp", "/var/tmp", "/dev/shm", "/run"):
        assert not Path(f"{folder}/of-other-host").exists()
    other_program.close()


def test_changes_to_the_machines_files_stay_private(world):
    marker = world.base.name
    script = f"touch /usr/{marker} /etc/{marker} /{marker} && rm /etc/passwd && ls /usr/{marker}; ls /etc/passwd; :"
    output = world.run(script)
    assert output.startswith(f"/usr/{marker}\n"), output
    assert "/etc/passwd: No such file" in output or "cannot access '/etc/passwd'" in output
    assert Path("/etc/passwd").exists()
    assert not any(Path(folder, marker).exists() for folder in ("/usr", "/etc", "/"))


def test_changes_of_a_program_are_gone_at_the_next_start(world):
    sandbox = world.sandbox()
    world.run("touch /usr/changed; mkdir -m 0 /var/closed", sandbox=sandbox)
    assert "No such file" in world.run("ls /usr/changed 2>&1; :", sandbox=sandbox)
    assert os.listdir(sandbox.host_folder) == []


def test_environment_folder_can_be_changed_without_changing_the_original(world):
    environment = world.folder("envs/torch")
    (environment / "lib").mkdir()
    (environment / "lib" / "old.py").write_text("old")
    if world.mode == "user" and os.geteuid() == 0:
        for path in (environment / "lib", environment / "lib" / "old.py"):
            os.chown(path, NOBODY, NOBODY)
    bind = Bind(source=str(environment), target=str(environment), overlay=True)
    program, listener = world.start(
        shell(f"cd {environment}/lib && rm old.py && echo new > new.py && ls && umask 077 && touch ../closed"),
        sandbox=world.sandbox(binds=(bind,)),
    )
    assert program.wait(DEADLINE_S).exits[0].exit_code == 0, listener.text()
    assert listener.text() == "new.py\n"
    assert not [sentence for sentence in program.not_isolated if "Files" in sentence]
    assert sorted(path.name for path in environment.rglob("*")) == ["lib", "old.py"]


def test_read_only_binds_refuse_writes_and_show_nested_binds(world):
    data, extra = world.folder("data"), world.folder("extra")
    (data / "train.csv").write_text("1,2")
    (extra / "more").write_text("3")
    binds = (
        Bind(source=str(extra), target="/opt/ml/input/data/extra"),
        Bind(source=str(data), target="/opt/ml/input/data/training", read_only=True),
        Bind(source=str(data / "train.csv"), target="/srv/of clary/one,file:x"),
    )
    output = world.run(
        "cat /opt/ml/input/data/training/train.csv '/srv/of clary/one,file:x' /opt/ml/input/data/extra/more;"
        "touch /opt/ml/input/data/training/no; touch /opt/ml/input/data/extra/yes",
        sandbox=world.sandbox(binds=binds),
    )
    assert output.startswith("1,21,23")
    assert "Read-only file system" in output
    assert (extra / "yes").exists()


def test_hidden_folder_is_empty_except_for_binds_below_it(world):
    state = world.folder("state")
    (state / "keys").write_text("secret")
    environment = world.folder("state/envs/torch")
    (environment / "python").write_text("shown")
    target = "/usr/share/doc/clary-test/envs/torch"
    # The host shows nothing below /var/tmp in any case, so this test hides a system folder of the machine.
    hidden = world.sandbox(
        hidden_folders=("/usr/share/doc", str(state), "/no/such/folder"),
        binds=(
            Bind(source=str(environment), target=target),
            Bind(source=str(environment), target=str(environment)),
        ),
    )
    output = world.run(
        f"ls /usr/share/doc; cat {target}/python; cat {environment}/python; cat {state}/keys; touch /usr/share/doc/x;"
        "umount /usr/share/doc; ls /usr/share/doc",
        sandbox=hidden,
    )
    assert output.startswith("clary-test\nshownshown")
    assert "secret" not in output
    assert output.count("Read-only file system") == 1
    assert output.endswith("clary-test\n")


def test_a_hosts_own_state_folder_is_not_visible_to_its_program(world):
    sandbox = world.sandbox()
    assert "No such file" in world.run(f"ls -A {sandbox.host_folder} 2>&1; :", sandbox=sandbox)


@pytest.mark.parametrize("name", ["with space", "with,comma", "with:colon", "back\\slash", 'quote"', "ünïcode"])
def test_host_folders_of_any_name_work(world, name):
    environment = world.folder(f"env {name}")
    sandbox = world.sandbox(
        folder=world.folder(name), binds=(Bind(source=str(environment), target="/srv/env", overlay=True),)
    )
    program, listener = world.start(shell("touch /srv/env/x /usr/x && echo private"), sandbox=sandbox)
    assert program.wait(DEADLINE_S) is not None
    assert listener.text() == "private\n"
    assert not [sentence for sentence in program.not_isolated if "Files" in sentence]
    assert os.listdir(environment) == []


def test_program_sees_no_processes_but_its_own(world):
    output = world.run("echo $$; ls /proc | grep -c '^[0-9]'; cat /proc/1/cmdline | tr '\\0' ' '; cat /proc/1/environ")
    pid, count, *rest = output.split()
    assert int(pid) <= 4
    assert int(count) <= 5
    assert "Permission denied" in " ".join(rest)  # the first process holds the job's secrets


def test_program_has_devices_and_terminals_of_its_own(world):
    script = (
        "echo x > /dev/null; head -c 4 /dev/urandom | wc -c; ls /dev/pts; ls /dev | grep -c -E '^(sd|vd|kmsg|mem)';"
        f"{PYTHON} -c 'import os; print(os.ttyname(os.openpty()[1]))'"
    )
    assert world.run(script).split() == ["4", "ptmx", "0", "/dev/pts/0"]


def test_program_can_neither_mount_nor_make_devices_nor_change_the_kernel(world):
    output = world.run(
        "mount -t tmpfs none /mnt && echo mounted; mknod /tmp/disk b 254 0 && echo made; "
        "echo 1 > /proc/sys/vm/overcommit_memory && echo set; echo b > /proc/sysrq-trigger && echo reset; "
        "chroot / true && echo allowed"
    )
    assert [line for line in output.splitlines() if line in ("mounted", "made", "set", "reset", "allowed")] == [
        "allowed"
    ]


def test_program_cannot_reach_the_machines_root_through_its_first_process(world):
    marker = world.folder("on-the-machine")
    assert str(marker.name) not in world.run(f"ls /proc/1/root{world.base} /proc/1/cwd{world.base}; :")


def test_system_folders_belong_to_the_host_and_not_to_the_machine(world):
    sandbox = world.sandbox(own_network=True)
    assert world.run("ls /sys/class/net; touch /sys/x", sandbox=sandbox).splitlines()[0] == "lo"


def test_bind_of_a_missing_source_is_refused_by_name(world):
    sandbox = world.sandbox(binds=(Bind(source="/no/such/source", target="/srv/x"),))
    with pytest.raises(AgentError, match=r"algo-1 \(namespaces\) could not be made.*/no/such/source"):
        world.start(shell("true"), sandbox=sandbox)
    assert os.listdir(sandbox.host_folder) == []


def test_missing_network_namespace_is_refused_by_name(world):
    sandbox = world.sandbox()
    object.__setattr__(sandbox, "network_namespace_path", "/proc/1/no-such-namespace")
    with pytest.raises(AgentError, match="no-such-namespace"):
        world.start(shell("true"), sandbox=sandbox)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount on the machine")
def test_mounts_of_the_machine_are_visible_and_private(world):
    place = world.base.parent.parent / "lib" / world.base.name
    place.mkdir()
    try:
        kernel.mount("tmpfs", str(place), kind="tmpfs")
        (place / "on mount").write_text("seen")
        (place / "deep").mkdir()
        (place / "deep").chmod(0o777)
        script = f"cat '{place}/on mount'; rm -rf {place}/deep; touch {place}/deep/x; ls {place}"
        output = world.run(script, sandbox=world.sandbox(visible_folders=(str(place),)))
        assert output.startswith("seen")
        assert sorted(os.listdir(place)) == ["deep", "on mount"]
        assert os.listdir(place / "deep") == []
    finally:
        kernel.unmount(str(place), flags=kernel.MNT_DETACH)
        place.rmdir()


# A job that wants later programs of the machine to run its code.
ATTACK = """
for file in /etc/{marker} /usr/{marker} /usr/local/lib/{marker} {site}/{marker}.pth {site}/module.py \\
    {shown}/{marker}; do
  echo evil 2>/dev/null >> $file && echo wrote $file
done
for folder in /etc /usr {environment} {site} {shown}; do
  touch $folder/{marker} 2>/dev/null && echo made $folder/{marker}
  mount -o remount,rw,bind $folder 2>/dev/null && echo remounted $folder
done
rm -f {site}/module.py 2>/dev/null && echo removed {site}/module.py
mv {site} {site}.old 2>/dev/null && echo moved {site}
{python} -c 'open("/opt/ml/x", "w"); open("/tmp/x", "w"); import sys; sys.path.append("{site}"); import module'
ls -d /opt/ml /usr/bin/env; touch /etc/hosts && cat {shown}/kept
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to lay an overlay")
@pytest.mark.parametrize("is_whole", [False, True])
def test_without_overlays_the_machines_files_are_read_only_and_a_note_reports_it(world, is_whole):
    """Programs of a root service are the machine's root here: nothing they write may be run by others later."""
    lower, upper, work, merged = (world.folder(name) for name in ("lower", "upper", "work", "merged"))
    kernel.mount(
        "overlay", str(merged), kind="overlay", options=f"lowerdir={lower},upperdir={upper},workdir={work},xino=off"
    )
    marker = f"clary-attack-{world.base.name}"
    shown = Path("/opt") / world.base.name
    shown.mkdir()
    (shown / "kept").write_text("visible\n")
    try:
        # The kernel accepts no folder on an overlay as the upper layer of another overlay.
        stacked = merged / "host"
        stacked.mkdir()
        environment, site = world.folder("env"), world.folder("env/lib/python3/site-packages")
        (site / "module.py").write_text("")
        if world.mode == "user":
            for path in (stacked, shown, *environment.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
        bind = Bind(source=str(environment), target="/srv/env", overlay=True)
        sandbox = world.sandbox(folder=stacked, binds=(bind,), shows_whole_machine=is_whole)
        existed = os.path.exists("/opt/ml")
        site_inside = "/srv/env/lib/python3/site-packages"
        script = ATTACK.format(marker=marker, site=site_inside, environment="/srv/env", shown=shown, python=PYTHON)
        program, listener = world.start(shell(script), sandbox=sandbox)
        assert program.wait(DEADLINE_S).exits[0].exit_code == 0, listener.text()
        assert listener.text() == "/opt/ml\n/usr/bin/env\nvisible\n"
        told = " ".join(program.not_isolated)
        assert "the program can change nothing below" in told
        assert "the program can change nothing in /srv/env" in told
        assert "Private layers need a state folder on a local disk" in told
        assert [path.name for path in site.iterdir()] == ["module.py"]
        assert (site / "module.py").read_text() == ""
        assert not [
            place for place in ("/etc", "/usr", "/usr/local/lib", environment, shown) if marker in os.listdir(place)
        ]
        assert os.path.exists("/opt/ml") == existed
        program.close()
        assert os.listdir(stacked) == []
    finally:
        kernel.unmount(str(merged), flags=kernel.MNT_DETACH)
        for place in ("/etc", "/usr", "/usr/local/lib", str(shown)):
            Path(place, marker).unlink(missing_ok=True)
        (shown / "kept").unlink()
        shown.rmdir()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="is root's way to test without root")
@pytest.mark.timeout(300)
@pytest.mark.long
def test_the_isolation_tests_pass_for_an_unprivileged_user(tmp_path_factory):
    """Run these tests again as a user that owns no files; the tests create their own user namespaces."""
    packages = Path(pytest.__file__).parents[1]
    sources = Path(clary.__file__).parents[1]
    here = Path(__file__).parent
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    environment = {"PYTHONPATH": f"{sources}:{packages}", "PATH": PATH, "PYTHONDONTWRITEBYTECODE": "1"}
    probe = subprocess.run(
        [*drop, PYTHON, "-c", "import sys, pytest, clary; assert sys.version_info >= (3, 11)"],
        env=environment, capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    if probe.returncode != 0:
        pytest.skip(f"{PYTHON} cannot run these tests as user {NOBODY}: {probe.stderr[-300:]}")
    done = subprocess.run(
        [*drop, PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", here.parents[1] / "pyproject.toml",
         "--rootdir", here.parents[1], here / "test_host_isolation.py", here / "test_host_program.py"],
        env=environment, capture_output=True, text=True, check=False, cwd="/", timeout=280,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


HIDE = 'mount -t proc -o hidepid="$1" proc "$2" && mount --bind "$2" /proc && shift 2 && exec "$@"'
RUN_AS_USER = """
import sys
sys.path.insert(0, sys.argv[1])
from host_world import HostWorld
world = HostWorld("user")
try:
    print(world.run("echo said by process $$; exit 3"))
finally:
    world.close()
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="is root's way to test without root")
@pytest.mark.parametrize("hidepid", ["1", "2"])
def test_an_agent_without_root_makes_hosts_where_proc_hides_their_first_process(tmp_path, hidepid):
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    environment = {"PYTHONPATH": str(Path(clary.__file__).parents[1]), "PATH": PATH, "PYTHONDONTWRITEBYTECODE": "1"}
    probe = "import sys, clary; assert sys.version_info >= (3, 11)"
    outcome = subprocess.run([*drop, PYTHON, "-c", probe], env=environment, capture_output=True, check=False, cwd="/")
    if outcome.returncode != 0:
        pytest.skip(f"{PYTHON} cannot run a host as user {NOBODY}: {outcome.stderr[-300:].decode()}")
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", HIDE, "sh", hidepid, tmp_path,
         *drop, PYTHON, "-c", RUN_AS_USER, Path(__file__).parent],
        env=environment, capture_output=True, text=True, check=False, cwd="/", timeout=50,
    )  # fmt: skip
    assert "said by process" in done.stdout, done.stdout + done.stderr


def test_a_host_has_its_own_namespaces(world):
    names = ("mnt", "pid", "uts", "ipc", "cgroup")
    inside = world.run("cd /proc/self/ns; readlink mnt pid uts ipc cgroup").split()
    assert [
        name for name, link in zip(names, inside, strict=True) if link == os.readlink(f"/proc/self/ns/{name}")
    ] == []
