"""Malicious packages in installations: their build scripts run in a real host. No network."""

import json
import os
import pickle
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import uuid
import zipfile
from pathlib import Path

import pytest
from host_world import HostWorld, eventually, pids_with

from clary.agent.environments import requirements
from clary.agent.environments.installation import InstallationWorld
from clary.agent.environments.requirements import PreparedEnvironment, prepare_environment
from clary.agent.host import first_process
from clary.agent.host.limits.cgroups import CgroupTree, HostCgroup
from clary.agent.host.mounts.interpreter_folders import interpreter_binds
from clary.agent.metrics.memory_watch import watch_memory
from clary.base.errors import AgentError, Fault
from clary.contract.launch_plan import Environment
from clary.control.jobs.verdicts import Verdict, judge

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "evil"
version = "1.0"
"""
# Builds a wheel whose module holds the return value of `attack`.
BACKEND = """
import json, os, zipfile
CACHES, HOME, BASE = {caches!r}, {home!r}, {base!r}
import glob
(ENVIRONMENT,) = glob.glob(CACHES + "/environments/*/bin")[:1] or [""]
ENVIRONMENT = os.path.dirname(ENVIRONMENT)
def attack():
{attack}
def build_wheel(folder, config_settings=None, metadata_directory=None):
    facts = attack()
    name = "evil-1.0-py3-none-any.whl"
    files = {{
        "evil.py": "FACTS = " + repr(json.dumps(facts)),
        "evil-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: evil\\nVersion: 1.0\\n",
        "evil-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        "evil-1.0.dist-info/RECORD": "evil.py,,\\n",
    }}
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return name
"""


class Lab:
    """A service's home with an image's environment, and jobs that install into copies of it."""

    def __init__(self, world: HostWorld) -> None:
        self.world = world
        self.home = world.folder("home")
        self.caches = self.home / "cache"
        (self.home / "secret").write_text("the service's key")
        image = world.base / "image"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(image)], check=True)
        self.image = Environment(name="image", python=str(image / "bin" / "python"), image="x")
        self.interpreter = interpreter_binds(image, self.image.python, hidden=self.home)
        (library,) = image.glob("lib/python3*/site-packages")
        self.module = library / "alpha.py"
        self.module.write_text("V = 1\n")

    def source(self, attack: str, *, requirements: str = "./evil\n") -> Path:
        """Write the source folder of a job whose local package runs `attack` during its build."""
        source = self.world.folder(f"source-{uuid.uuid4().hex[:8]}")
        (source / "evil").mkdir()
        (source / "evil" / "pyproject.toml").write_text(PROJECT)
        body = "\n".join(f"    {line}" for line in attack.strip().splitlines())
        text = BACKEND.format(caches=str(self.caches), home=str(self.home), base=str(self.world.base), attack=body)
        (source / "evil" / "backend.py").write_text(text)
        (source / "requirements.txt").write_text(requirements)
        return source

    def index(self, *archives: Path) -> Path:
        """Write the owner's package index with these archives; return its folder `simple`."""
        simple = self.world.folder("mirror/simple")
        for archive in archives:
            page = simple / archive.name.partition("-")[0] / "index.html"
            page.parent.mkdir()
            page.write_text(f'<a href="../../{archive.name}">{archive.name}</a>')
            archive.rename(simple.parent / archive.name)
        return simple

    def prepare(
        self,
        source: Path,
        *,
        memory_bytes: int | None = None,
        index: Path | None = None,
        **options: object,
    ) -> PreparedEnvironment:
        sandbox = self.world.sandbox(
            own_network=True, memory_bytes=memory_bytes, hidden_folders=(str(self.home),), binds=self.interpreter
        )
        machine = {"PATH": os.environ["PATH"], "HOME": str(self.home)}
        machine |= {"PIP_NO_INDEX": "1"} if index is None else {"UV_DEFAULT_INDEX": index.as_uri()}
        return prepare_environment(
            self.image,
            source / "requirements.txt",
            self.caches,
            make_world=lambda: InstallationWorld(
                sandbox=sandbox, watch_memory=watch_memory, proxies={}, is_offline=index is None
            ),
            machine=machine,
            **options,
        )


@pytest.fixture
def lab():
    world = HostWorld("root")
    try:
        yield Lab(world)
    finally:
        world.close()


def library_of(prepared: PreparedEnvironment) -> Path:
    (library,) = prepared.folder.glob("lib/python3*/site-packages")
    return library


def facts_of(prepared: PreparedEnvironment) -> dict[str, object]:
    """Return the findings of an attack; the module's text is parsed, not executed."""
    text = (library_of(prepared) / "evil.py").read_text()
    return json.loads(eval(text.removeprefix("FACTS = "), {"__builtins__": {}}))


def test_build_scripts_run_in_the_jobs_host_and_reach_nothing_outside_it(lab: Lab) -> None:
    prepared = lab.prepare(
        lab.source(
            """
open(BASE + "/victim", "w").write("was here")
def read(path):
    try:
        return open(path).read()
    except OSError as error:
        return type(error).__name__
return {
    "name": os.uname().nodename,
    "mounts": os.readlink("/proc/self/ns/mnt"),
    "interfaces": os.listdir("/sys/class/net"),
    "secret": read(HOME + "/secret"),
    "job": sorted(os.listdir("/opt/ml")),
}
"""
        )
    )
    facts = facts_of(prepared)
    assert facts["name"] == "algo-1"
    assert facts["mounts"] != os.readlink("/proc/self/ns/mnt")
    assert facts["interfaces"] == ["lo"]
    assert facts["secret"] == "FileNotFoundError"
    assert facts["job"] == ["code"]
    assert not (lab.world.base / "victim").exists()
    assert prepared.notes == ("installed evil==1.0",)


def test_a_write_to_a_shared_file_of_environments_changes_only_one_copy(lab: Lab) -> None:
    plain = lab.source("return {}")
    other = lab.prepare(plain)
    shared = library_of(other) / "alpha.py"
    assert shared.stat().st_ino == lab.module.stat().st_ino, "copies are expected to share files with the image"
    attack = """
(path,) = glob.glob(ENVIRONMENT + "/lib/python3*/site-packages/alpha.py")
with open(path, "r+") as file:
    file.write("V = 666")
os.utime(path, (1, 1))
os.chmod(path, 0o4777)
return {}
"""
    attacked = lab.prepare(lab.source(attack))
    assert (library_of(attacked) / "alpha.py").read_text().startswith("V = 666")
    assert lab.module.read_text() == shared.read_text() == "V = 1\n"
    assert stat.S_IMODE(lab.module.stat().st_mode) == 0o644


def test_without_overlays_an_environment_is_copied_and_shares_no_file(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements, "why_no_overlay", lambda folder: "this kernel refuses it")
    attack = """
(path,) = glob.glob(ENVIRONMENT + "/lib/python3*/site-packages/alpha.py")
open(path, "r+").write("V = 666")
return {}
"""
    prepared = lab.prepare(lab.source(attack))
    copy = library_of(prepared) / "alpha.py"
    assert (copy.read_text(), lab.module.read_text()) == ("V = 666", "V = 1\n")
    assert copy.stat().st_nlink == 1
    assert "a full copy, because an overlay cannot" in prepared.notes[-1]


def test_files_that_a_build_leaves_keep_no_setuid_bit_and_redirect_no_path(lab: Lab) -> None:
    private = lab.world.folder("private")
    attack = f"""
import glob, shutil
(library,) = glob.glob(ENVIRONMENT + "/lib/python3*/site-packages")
shutil.copy("/bin/true", library + "/root-for-all")
os.chmod(library + "/root-for-all", 0o6777)
os.chown(library + "/root-for-all", 0, 7)
os.mkfifo(library + "/pipe")
os.symlink("/etc/shadow", library + "/link.py")
os.mkdir(library + "/closed", 0)
os.unlink(library + "/alpha.py")
shutil.rmtree(ENVIRONMENT + "/bin")
os.mkdir(ENVIRONMENT + "/bin")
os.symlink("{private}/bin/python", ENVIRONMENT + "/bin/python")
os.unlink(ENVIRONMENT + "/pyvenv.cfg")
open(ENVIRONMENT + "/pyvenv.cfg", "w").write("home = {private}/bin")
open(ENVIRONMENT + "/bin/python._pth", "w").write("{private}/lib")
return {{}}
"""
    source = lab.source(attack)
    # The build breaks the interpreter after uv has inspected it; the test checks the environment that the agent takes
    # over.
    prepared = lab.prepare(source)
    library = library_of(prepared)
    left = (library / "root-for-all").stat()
    assert (stat.S_IMODE(left.st_mode), left.st_uid, left.st_gid) == (0o755, 0, os.getegid())
    assert os.readlink(library / "link.py") == "/etc/shadow"
    assert stat.S_IMODE((library / "closed").stat().st_mode) == 0o755
    assert not (library / "alpha.py").exists()
    assert not (library / "pipe").exists()
    assert str(private) not in (prepared.folder / "pyvenv.cfg").read_text()
    assert str(private) not in os.readlink(prepared.folder / "bin" / "python")
    assert not (prepared.folder / "bin" / "python._pth").exists()
    assert any("pipe" in note for note in prepared.notes)
    done = subprocess.run([prepared.python, "-Ic", "import sys; print(sys.prefix)"], capture_output=True, text=True)
    assert done.stdout.strip() == str(prepared.folder)


def test_a_build_that_fails_cannot_pass_for_a_whole_environment(lab: Lab) -> None:
    attack = """
for path in (ENVIRONMENT + "/.clary-complete", ENVIRONMENT + ".complete"):
    try:
        open(path, "w").close()
    except OSError:
        pass
raise SystemExit("no wheel \\x1b]52;c;evil\\x07 today")
"""
    source = lab.source(attack)
    for _ in range(2):
        with pytest.raises(AgentError, match="no wheel") as info:
            lab.prepare(source)
        assert info.value.fault is Fault.USER
        assert "\x1b" not in info.value.message
    assert [path.suffix for path in (lab.caches / "environments").iterdir()] == [".lock"]


def test_a_build_cannot_write_to_caches_or_sources_of_other_jobs(lab: Lab) -> None:
    attack = """
cache = os.environ.get("UV_CACHE_DIR") or "/opt/clary/install/cache"
os.makedirs(cache + "/wheels-v5/poison", exist_ok=True)
open(cache + "/wheels-v5/poison/x", "w").close()
open("/opt/ml/code/beside.txt", "w").close()
return {}
"""
    source = lab.source(attack)
    lab.prepare(source)
    assert not list(lab.caches.rglob("poison"))
    assert not (source / "beside.txt").exists()


def test_only_wheels_built_by_an_index_are_cached_for_other_jobs(lab: Lab) -> None:
    place = lab.world.folder("archives")
    wheel = place / "gamma-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {
            "gamma.py": "V = 1",
            "gamma-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: gamma\nVersion: 1.0\n",
            "gamma-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "gamma-1.0.dist-info/RECORD": "gamma.py,,\n",
        }.items():
            archive.writestr(name, text)
    project = lab.source("open(os.environ['UV_CACHE_DIR'] + '/poison', 'w').close()\nreturn 'built'") / "evil"
    (project / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    with tarfile.open(place / "evil-1.0.tar.gz", "w:gz") as archive:
        archive.add(project, "evil-1.0")
    index = lab.index(wheel, place / "evil-1.0.tar.gz")
    lab.prepare(lab.source("", requirements="gamma\n"), index=index)
    kept = {path.name for path in lab.caches.rglob("*")}
    assert "gamma.py" in kept
    prepared = lab.prepare(lab.source("", requirements="gamma\nevil\n"), index=index)
    assert facts_of(prepared) == "built"
    assert {path.name for path in lab.caches.glob("uv-hosts/**/*")}.isdisjoint({"poison", "evil.py", "backend.py"})


def test_packages_that_run_at_every_start_run_in_hosts_only(lab: Lab) -> None:
    attack = """
(library,) = glob.glob(ENVIRONMENT + "/lib/python3*/site-packages")
text = "import os; open(%r, 'a').write(open('/proc/self/mountinfo').read())" % (BASE + "/ran")
open(library + "/evil.pth", "w").write(text)
return {}
"""
    source = lab.source(attack)
    assert [lab.prepare(source).was_cached for _ in range(2)] == [False, True]
    assert not (lab.world.base / "ran").exists()


def test_builds_are_killed_at_the_hosts_memory_limit_and_the_error_names_it(lab: Lab) -> None:
    limit = 192 * 1024 * 1024
    with pytest.raises(AgentError, match="memory limit of 192 MiB was reached"):
        lab.prepare(lab.source("return len(bytearray(2 * 1024**3))"), memory_bytes=limit)


class FakeMachineWithoutCgroups(CgroupTree):
    """Cgroups as seen by a user without rights to them: no hierarchy."""

    def mountinfo(self):
        return ""

    def membership(self):
        return ""


GREEDY = """
import time
kept = []
while len(kept) < 150:
    kept.append(bytearray(b"x" * (8 << 20)))
    time.sleep(0.005)
return len(kept)
"""


def test_without_a_cgroup_builds_are_watched_and_ended_at_the_memory_limit(lab: Lab, monkeypatch) -> None:
    create, tree = HostCgroup.create, FakeMachineWithoutCgroups()
    make = lambda name, resources: create(name, resources, tree=tree)  # noqa: E731
    monkeypatch.setattr(first_process.HostCgroup, "create", make)
    with pytest.raises(AgentError, match=r"cannot be installed: OutOfMemory: algo-1 used 0\.\d+ GiB") as caught:
        lab.prepare(lab.source(GREEDY), memory_bytes=256 * 1024 * 1024)
    assert "its memory limit is 0.25 GiB, and all its processes were ended: python" in caught.value.message
    judgement = judge(caught.value.fault, caught.value.message)
    assert (judgement.verdict, judgement.is_retryable) == (Verdict.MEMORY, False)


def test_a_stop_ends_the_host_of_an_installation(lab: Lab) -> None:
    source = lab.source("import time; time.sleep(3600)")
    stop = threading.Event()
    timer = threading.Timer(1.0, stop.set)
    timer.start()
    with pytest.raises(AgentError, match="given up because the host stops"):
        lab.prepare(source, stop=stop)
    timer.join()
    assert pids_with(str(source)) == []
    assert [path.suffix for path in (lab.caches / "environments").iterdir()] == [".lock"]


CHILD = """
import sys
sys.path[:0] = {paths!r}
import os, pickle
from clary.agent.environments.requirements import prepare_environment
arguments, world, options = pickle.loads(bytes.fromhex({pickled!r}))
prepare_environment(*arguments, make_world=lambda: world, **options)
"""


def _has_begun(caches: Path) -> bool:
    """Return whether the build runs; folders may appear and vanish during the search."""
    return any("begun" in names for _, _, names in os.walk(caches))


def test_an_agent_killed_during_an_installation_leaves_no_complete_environment(lab: Lab) -> None:
    attack = """
import time
open(ENVIRONMENT + "/begun", "w").close()
(module,) = glob.glob(ENVIRONMENT + "/lib/python3*/site-packages/alpha.py")
time.sleep(3600 if "SLOW" in open(module).read() else 0)
return {}
"""
    lab.module.write_text("SLOW = 1\n")
    source = lab.source(attack)
    sandbox = lab.world.sandbox(hidden_folders=(str(lab.home),), binds=lab.interpreter)
    world = InstallationWorld(sandbox=sandbox, watch_memory=watch_memory, proxies={}, is_offline=True)
    machine = {"PATH": os.environ["PATH"], "HOME": str(lab.home), "PIP_NO_INDEX": "1"}
    arguments = (lab.image, source / "requirements.txt", lab.caches)
    pickled = pickle.dumps((arguments, world, {"machine": machine})).hex()
    child = subprocess.Popen([sys.executable, "-c", CHILD.format(paths=sys.path, pickled=pickled)])
    try:
        eventually(lambda: _has_begun(lab.caches))
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(10.0)
    assert not list((lab.caches / "environments").glob("*.complete"))
    lab.module.write_text("V = 1\n")
    assert not lab.prepare(source).was_cached
