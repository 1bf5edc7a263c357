"""Environments with requirements: cloned, kept, and the original never touched. Real uv, local wheels, no network.

These tests use plain processes; untrusted installations in hosts with namespaces are tested in
`tests/cluster/test_host_installation.py`.
"""

import base64
import contextlib
import errno
import hashlib
import os
import socket
import subprocess
import sys
import threading
import uuid
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from clary.agent.environments import installation, requirements
from clary.agent.environments.installation import InstallationWorld
from clary.agent.environments.package_index import local_folders, uv_index_variables, with_credentials
from clary.agent.environments.requirements import PreparedEnvironment, prepare_environment
from clary.agent.host import kernel
from clary.agent.host.sandbox import Sandbox
from clary.agent.metrics.memory_watch import watch_memory
from clary.base.errors import AgentError, Fault
from clary.contract.launch_plan import Environment, Isolation, Resources


def write_wheel(folder: Path, name: str, version: str, files: dict[str, str], script: str = "") -> Path:
    info = f"{name}-{version}.dist-info"
    files = dict(files)
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if script:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{script}\n"
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    body = "import sys\ndef main(): print(sys.executable)\n"
    write_wheel(folder, "alpha", "1.0", {"alpha/__init__.py": "V = 1\n", "shared/x.py": "OLD = 1\n"})
    write_wheel(folder, "alpha", "2.0", {"alpha/__init__.py": "V = 2\n", "shared/x.py": "OLD = 2\n"})
    write_wheel(folder, "beta", "1.0", {"beta/__init__.py": body, "shared/x.py": "NEW = 1\n"}, "beta = beta:main")
    write_wheel(folder, "tool", "1.0", {"tool.py": body}, "tool = tool:main")
    return folder


def uv(*arguments: str, cache: Path) -> None:
    command = [str(Path(sys.executable).parent / "uv"), *arguments]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "UV_CACHE_DIR": str(cache)})


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Environment:
    root = tmp_path_factory.mktemp("original") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root)], check=True)
    python = root / "bin" / "python"
    cache = root.parent / "uv"
    chosen = [str(wheels / "alpha-1.0-py3-none-any.whl"), str(wheels / "tool-1.0-py3-none-any.whl")]
    uv("pip", "install", "--python", str(python), *chosen, cache=cache)
    (root / "share").mkdir()
    (root / "share" / "data.txt").write_text("data of a package\n")
    return Environment(name="original", python=str(python), image="x")


def fingerprint(environment: Environment) -> dict[str, tuple[str, int]]:
    root = Path(environment.python).parent.parent
    return {
        str(path.relative_to(root)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mode)
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def prepare(
    environment: Environment, folder: Path, text: str, wheels: Path, *, is_offline: bool = False, **options: object
) -> PreparedEnvironment:
    code = folder / "code"
    code.mkdir(exist_ok=True)
    (code / "requirements.txt").write_text(text)
    machine = {"PATH": os.environ["PATH"], "HOME": str(folder), "PIP_FIND_LINKS": str(wheels), "PIP_NO_INDEX": "1"}
    return prepare_environment(
        environment,
        code / "requirements.txt",
        folder / "cache",
        make_world=lambda: replace(plain_world(folder), is_offline=is_offline),
        machine=machine,
        **options,
    )


def plain_world(folder: Path) -> InstallationWorld:
    sandbox = Sandbox(
        isolation=Isolation.PROCESSES,
        hostname="algo-1",
        host_folder=str(folder),
        ml_folder=str(folder),
        hosts_file={},
        resources=Resources(num_cpus=1.0, memory_bytes=None),
        cgroup_name=f"test-{os.getpid()}-{uuid.uuid4().hex[:8]}",
    )
    return InstallationWorld(sandbox=sandbox, watch_memory=watch_memory, proxies={}, is_offline=False)


def evaluate(prepared: PreparedEnvironment, expression: str) -> str:
    done = subprocess.run([prepared.python, "-Ic", f"print({expression})"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_without_requirements_the_environment_is_taken_as_it_is(original: Environment, tmp_path: Path) -> None:
    prepared = prepare_environment(original, None, tmp_path, make_world=lambda: pytest.fail("nothing is installed"))
    assert prepared.python == original.python
    assert prepared.was_cached
    assert not list(tmp_path.iterdir())


def test_original_stays_untouched_while_its_packages_count_as_installed(
    original: Environment, tmp_path: Path, wheels: Path
) -> None:
    before = fingerprint(original)
    prepared = prepare(original, tmp_path, "beta\nalpha>=1.0\n", wheels)
    assert fingerprint(original) == before
    assert prepared.notes == ("installed beta==1.0",)
    assert evaluate(prepared, "__import__('alpha').V") == "1"
    # beta has a file that alpha has, too: it must replace the link and not be written through the link.
    assert evaluate(prepared, "__import__('shared.x').x.NEW") == "1"
    shared = Path(original.python).parent.parent.glob("lib/python3*/site-packages/alpha/__init__.py")
    assert next(shared).stat().st_nlink > 1, "files of the original are expected to be shared, not copied"
    assert (prepared.folder / "share" / "data.txt").read_text() == "data of a package\n"


def test_upgrade_of_a_package_changes_the_copy_only(original: Environment, tmp_path: Path, wheels: Path) -> None:
    before = fingerprint(original)
    prepared = prepare(original, tmp_path, "alpha==2.0\n", wheels)
    assert evaluate(prepared, "__import__('alpha').V") == "2"
    assert fingerprint(original) == before


def test_programs_of_the_copy_name_the_copys_interpreter(original: Environment, tmp_path: Path, wheels: Path) -> None:
    prepared = prepare(original, tmp_path, "beta\n", wheels)
    for program in ("tool", "beta"):  # one command of the original environment, one of a package just installed
        done = subprocess.run([prepared.folder / "bin" / program], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == prepared.python
    assert str(prepared.folder) not in (Path(original.python).parent / "tool").read_text()


def test_second_job_with_the_same_requirements_installs_nothing(
    original: Environment, tmp_path: Path, wheels: Path
) -> None:
    first = prepare(original, tmp_path, "beta\n", wheels)
    second = prepare(original, tmp_path, "beta\n", wheels)
    assert (first.was_cached, second.was_cached) == (False, True)
    assert second.folder == first.folder


def test_a_copy_is_on_disk_before_its_marker_says_that_it_is_whole(
    original: Environment, tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = []

    def flush(folder: str) -> None:
        installed = next(Path(folder).glob("lib/python3*/site-packages/beta"))
        flushed.append((installed.is_dir(), Path(folder).with_suffix(".complete").exists()))
        raise OSError(errno.EIO, "the disk gave up")

    monkeypatch.setattr(kernel, "flush_file_system", flush)
    with pytest.raises(OSError, match="the disk gave up"):
        prepare(original, tmp_path, "beta\n", wheels)
    assert flushed == [(True, False)]
    monkeypatch.undo()
    assert not prepare(original, tmp_path, "beta\n", wheels).was_cached


def test_an_installation_without_the_internet_makes_an_environment_of_its_own(
    original: Environment, tmp_path: Path, wheels: Path
) -> None:
    first = prepare(original, tmp_path, "alpha\n", wheels, is_offline=True)
    second = prepare(original, tmp_path, "alpha\n", wheels)
    assert (first.folder != second.folder, second.was_cached) == (True, False)


def test_a_job_without_the_internet_uses_an_environment_that_was_installed_with_it(
    original: Environment, tmp_path: Path, wheels: Path
) -> None:
    online = prepare(original, tmp_path, "alpha\n", wheels)
    offline = prepare(original, tmp_path, "alpha\n", wheels, is_offline=True)
    assert (offline.folder, offline.was_cached) == (online.folder, True)
    assert offline.notes == ("requirements.txt was installed for an earlier job: its environment is reused",)
    online.folder.with_suffix(".complete").unlink()  # only a whole copy counts
    assert prepare(original, tmp_path, "alpha\n", wheels, is_offline=True).folder != online.folder


def test_change_in_a_nested_file_makes_another_environment(original: Environment, tmp_path: Path, wheels: Path) -> None:
    (tmp_path / "code" / "sub").mkdir(parents=True)
    nested = tmp_path / "code" / "sub" / "more.txt"
    nested.write_text("alpha==1.0\n")
    first = prepare(original, tmp_path, "-r sub/more.txt\n", wheels)
    nested.write_text("alpha==2.0\n")
    second = prepare(original, tmp_path, "-r sub/more.txt\n", wheels)
    assert (evaluate(first, "__import__('alpha').V"), evaluate(second, "__import__('alpha').V")) == ("1", "2")


def test_change_of_a_wheel_in_the_source_folder_makes_another_environment(
    original: Environment, tmp_path: Path, wheels: Path
) -> None:
    (tmp_path / "code").mkdir()
    write_wheel(tmp_path / "code", "gamma", "1.0", {"gamma.py": "V = 1\n"})
    first = prepare(original, tmp_path, "./gamma-1.0-py3-none-any.whl\n", wheels)
    write_wheel(tmp_path / "code", "gamma", "1.0", {"gamma.py": "V = 2\n"})
    second = prepare(original, tmp_path, "./gamma-1.0-py3-none-any.whl\n", wheels)
    assert (evaluate(first, "__import__('gamma').V"), evaluate(second, "__import__('gamma').V")) == ("1", "2")


def test_requirement_that_does_not_exist_is_the_users_error_and_leaves_nothing(
    original: Environment, tmp_path: Path, wheels: Path
) -> None:
    with pytest.raises(AgentError, match="no-such-package") as info:
        prepare(original, tmp_path, "no-such-package==9\n", wheels)
    assert info.value.fault is Fault.USER
    assert "requirements.txt cannot be installed" in info.value.message
    assert [path.suffix for path in (tmp_path / "cache" / "environments").iterdir()] == [".lock"]


def test_the_remains_of_a_failed_installation_are_replaced(original: Environment, tmp_path: Path, wheels: Path) -> None:
    first = prepare(original, tmp_path, "beta\n", wheels)
    first.folder.with_suffix(".complete").unlink()
    (first.folder / "bin" / "beta").write_text("half a file")
    second = prepare(original, tmp_path, "beta\n", wheels)
    assert not second.was_cached
    assert subprocess.run([second.folder / "bin" / "beta"], capture_output=True, check=True).stdout


def test_remains_to_which_an_ending_host_still_writes_are_removed(
    original: Environment, tmp_path: Path, wheels: Path
) -> None:
    rest = prepare(original, tmp_path, "beta\n", wheels).folder
    rest.with_suffix(".complete").unlink()
    under = rest.with_suffix(".building") / "layer"
    under.mkdir(parents=True)
    writing, has_ended = threading.Event(), threading.Event()

    def write() -> None:
        for number in range(5_000):
            with contextlib.suppress(FileNotFoundError):  # the folder or its parent was removed meanwhile
                under.mkdir(parents=True, exist_ok=True)
                (under / str(number)).touch()
            writing.set()
        has_ended.set()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write)
        writing.wait(10.0)
        requirements._remove(rest.with_suffix(".building"))
        assert has_ended.wait(60.0)


def test_builders_at_the_same_time_install_once(original: Environment, tmp_path: Path, wheels: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: prepare(original, tmp_path, "beta\n", wheels), range(4)))
    assert len({prepared.folder for prepared in done}) == 1
    assert sorted(prepared.was_cached for prepared in done) == [False, True, True, True]


def test_a_stop_aborts_an_installation(original: Environment, tmp_path: Path, wheels: Path) -> None:
    (tmp_path / "code").mkdir()
    setup = "import time\ntime.sleep(60)\n"
    (tmp_path / "code" / "slow").mkdir()
    (tmp_path / "code" / "slow" / "setup.py").write_text(setup)
    (tmp_path / "code" / "slow" / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "wait"\nbackend-path = ["."]\n'
    )
    (tmp_path / "code" / "slow" / "wait.py").write_text(setup)
    stop = threading.Event()
    timer = threading.Timer(1.0, stop.set)
    timer.start()
    with pytest.raises(AgentError, match="given up because the host stops"):
        prepare(original, tmp_path, "./slow\n", wheels, stop=stop)
    timer.join()


def test_base_interpreter_can_be_cloned_too(tmp_path: Path, wheels: Path) -> None:
    base = getattr(sys, "_base_executable", sys.executable)
    prepared = prepare(Environment(name="base", python=base, image="x"), tmp_path, "beta\n", wheels)
    assert evaluate(prepared, "__import__('beta').__name__") == "beta"
    assert evaluate(prepared, "__import__('sys').prefix") == str(prepared.folder)


def test_missing_interpreter_is_named(tmp_path: Path) -> None:
    environment = Environment(name="x", python=str(tmp_path / "bin" / "python"), image="x")
    with pytest.raises(AgentError, match=r"bin/python cannot be used: there is no such file") as caught:
        prepare_environment(environment, None, tmp_path, make_world=lambda: plain_world(tmp_path))
    assert f"on {socket.gethostname()}. Correct [environments]" in caught.value.message


def test_pip_configuration_becomes_uvs(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://mirror/simple\nextra-index-url = https://two/simple file:///no/such/folder\n"
        f"find-links = {tmp_path}/links\ntrusted-host = mirror two\n"
    )
    variables = uv_index_variables({"HOME": str(tmp_path), "PIP_INDEX_URL": "https://own/simple"}, str(tmp_path))
    assert variables["UV_DEFAULT_INDEX"] == "https://own/simple"
    assert variables["UV_INDEX"] == "https://two/simple"
    assert variables["UV_FIND_LINKS"] == f"{tmp_path}/links"
    assert variables["UV_INSECURE_HOST"] == "mirror two"
    assert uv_index_variables({"HOME": str(tmp_path), "UV_INDEX_URL": "https://uv"}, str(tmp_path)) == {}


def test_local_package_folders_include_the_parent_of_a_simple_index(tmp_path: Path) -> None:
    for name in ("links", "mirror/simple"):
        (tmp_path / name).mkdir(parents=True)
    variables = {
        "UV_FIND_LINKS": f"{tmp_path}/links,https://far/links,relative",
        "UV_INDEX": f"own=file://{tmp_path}/mirror/simple https://far/simple {tmp_path}/missing",
    }
    assert set(local_folders(variables)) == {tmp_path / "links", tmp_path / "mirror"}


def test_an_installation_gets_the_keys_of_indexes_and_no_others(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text(
        "machine index.example login me password s3/cret\nmachine other.example login root password hidden\n"
        "default login anybody password open\n"
    )
    variables = {
        "UV_DEFAULT_INDEX": "https://index.example/simple",
        "UV_INDEX": "own=https://index.example/own https://me:mine@index.example/x https://unknown.example/simple",
        "SSL_CERT_FILE": "/etc/certs",
    }
    filled = with_credentials(variables, {"HOME": str(tmp_path)})
    assert filled["UV_DEFAULT_INDEX"] == "https://me:s3%2Fcret@index.example/simple"
    assert filled["UV_INDEX"].split() == [
        "own=https://me:s3%2Fcret@index.example/own",
        "https://me:mine@index.example/x",
        "https://unknown.example/simple",
    ]
    assert "hidden" not in str(filled)
    assert "open" not in str(filled)
    assert filled["SSL_CERT_FILE"] == "/etc/certs"


def test_settings_of_uv_in_a_source_folder_have_no_effect(original: Environment, tmp_path: Path, wheels: Path) -> None:
    (tmp_path / "code").mkdir()
    hidden = tmp_path / "code" / "hidden"
    hidden.mkdir()
    write_wheel(hidden, "hidden", "1.0", {"hidden.py": ""})
    for name, table in (("uv.toml", ""), ("pyproject.toml", "[tool.uv]\n")):
        (tmp_path / "code" / name).write_text(f'{table}find-links = ["{hidden}"]\n')
    with pytest.raises(AgentError, match="hidden was not found"):
        prepare(original, tmp_path, "hidden\n", wheels)


@pytest.mark.parametrize("is_isolated", [True, False])
def test_builds_get_the_index_settings_of_the_owner_and_none_of_the_owners_secrets(is_isolated: bool) -> None:
    kept = [
        "UV_DEFAULT_INDEX",
        "UV_INDEX",
        "UV_INDEX_TEAM_USERNAME",
        "UV_INDEX_TEAM_PASSWORD",
        "UV_EXCLUDE_NEWER",
        "PIP_INDEX_URL",
        "PIP_CERT",
        "SSL_CERT_FILE",
        "CARGO_HOME",
        "LC_ALL",
        "REQUESTS_CA_BUNDLE",
        "PATH",
    ]
    secret = [
        "UV_PUBLISH_TOKEN",
        "UV_PUBLISH_USERNAME",
        "UV_PUBLISH_PASSWORD",
        "UV_GITHUB_TOKEN",
        "UV_INDEX_TOKEN",
        "UV_SOMETHING_NEW",
        "UV_KEYRING_TOKEN",
        "PIP_PASSWORD",
        "CARGO_REGISTRY_TOKEN",
        "CARGO_REGISTRIES_TEAM_TOKEN",
        "SSL_KEY_PASSWORD",
        "AWS_SECRET_ACCESS_KEY",
        "TWINE_PASSWORD",
    ]
    passed = [name for name in (*kept, *secret) if installation._is_passed(name, is_isolated=is_isolated)]
    assert passed == kept


@pytest.mark.parametrize("name", ["UV_KEYRING_PROVIDER", "PIP_KEYRING_PROVIDER"])
def test_only_plain_processes_whose_home_is_the_owners_look_for_logins_in_a_keyring(name: str) -> None:
    assert installation._is_passed(name, is_isolated=False)
    assert not installation._is_passed(name, is_isolated=True)
