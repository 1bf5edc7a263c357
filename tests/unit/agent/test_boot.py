"""The boot on its node: its report, its folder, its proof, the bundle; untrusted input is refused."""

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import http.client
import io
import json
import os
import socket
import stat
import subprocess
import sys
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from hard_trees import grow_hard_to_remove, plain_user_folder

from clary.agent import boot
from clary.agent.node_view import NodeView, read_node_view
from clary.base.errors import AgentError
from clary.base.plain import from_plain
from clary.contract.enrolment import Enrolment, Gpu, NodeReport
from clary.contract.launch_plan import Isolation
from clary.control.server.edge.tls import ensure_certificates
from clary.testing.launch_plans import make_hosts, make_plan

TAG = "pool_0123456789ab"


@pytest.fixture(autouse=True)
def no_allocation(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("SLURM", "CUDA_VISIBLE")):
            monkeypatch.delenv(name)


class FakeService:
    """Answers every request with the same response; `asked` holds the paths."""

    host, port = "head", 4571

    def __init__(self, status, data):
        self.answer = status, data
        self.asked = []

    def address(self):
        return "10.0.0.1"

    def ask(self, method, path, body, most_bytes):
        self.asked.append(path)
        return self.answer


def archive(**members):
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as file:
        for name, text in members.items():
            file.writestr(name, text)
    return written.getvalue()


def test_the_report_matches_the_contract(tmp_path):
    plain = boot.node_report(FakeService(200, b""), str(tmp_path))
    report = from_plain(NodeReport, plain)
    assert report.num_cpus == len(os.sched_getaffinity(0))
    assert report.memory_bytes > 1 << 20
    assert report.isolation in ("namespaces", "processes")
    assert bool(report.isolation_why) == (report.isolation == "processes")
    assert set(plain) == set(NodeReport.__dataclass_fields__)
    assert from_plain(Enrolment, {"claim": "a" * 32, "proof": "p", "report": plain, "wait_s": 0.0}).report == report


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, (2, 3)),
        ({"SLURM_JOB_ID": "1", "SLURM_STEP_GPUS": "1", "CUDA_VISIBLE_DEVICES": "0"}, (1,)),
        ({"SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "0"}, ()),  # a host of another component of a heterogeneous job
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1234"}, ()),
    ],
)
def test_gpus_are_those_that_the_allocation_names(monkeypatch, variables, expected):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", "/nowhere")
    assert tuple(gpu["index"] for gpu in boot._gpus()) == expected


def test_a_hosts_folder_is_private_and_folders_of_ended_hosts_are_removed(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    first = Path(boot._own_folder(str(tmp_path), TAG, 0))
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert stat.S_IMODE(first.parent.parent.parent.stat().st_mode) == 0o700
    left = first.with_name(f"{TAG}-1-{ended.pid}")
    left.mkdir()
    (left / "owner").write_text(f"{ended.pid} 1 {boot._boot_id()}")
    fresh = first.with_name("being-made")
    fresh.mkdir()
    boot._own_folder(str(tmp_path), TAG, 2)
    assert first.exists()
    assert fresh.exists()
    assert not left.exists()


def test_what_a_killed_host_left_is_removed_and_stops_no_later_host(tmp_path):
    """A program may nest folders deeper than a function may recurse; overlayfs leaves work folders of mode 0."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with plain_user_folder() as scratch:
        hosts = Path(scratch / "hosts")
        left = hosts / f"{TAG}-1-{ended.pid}"
        left.mkdir(parents=True)
        (left / "owner").write_text(f"{ended.pid} 1 {boot._boot_id()}")
        grow_hard_to_remove(left)
        (left / "link").symlink_to(tmp_path)
        boot._remove_ended(str(hosts))
        assert list(hosts.iterdir()) == []
    assert tmp_path.exists()


@pytest.mark.parametrize("refused", ["owner", "boot_id", "stat"])
def test_the_folder_of_a_living_host_stays_if_the_machine_has_too_many_open_files(tmp_path, monkeypatch, refused):
    living = Path(boot._own_folder(str(tmp_path), TAG, 0))
    real = open

    def refuse(path, *arguments, **options):
        if str(path).endswith(f"/{refused}"):
            raise OSError(errno.ENFILE, "Too many open files in system")
        return real(path, *arguments, **options)

    os.utime(living, (0, 0))
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        boot._remove_ended(str(living.parent))
    assert living.exists()


def test_a_full_disk_is_named_with_its_folder(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    options = SimpleNamespace(service="https://head:1", ca="ca.pem", scratch=str(tmp_path), tag=TAG, index=0)
    monkeypatch.setattr(boot, "_options", lambda: options)
    monkeypatch.setattr(boot, "Service", lambda *_: None)
    monkeypatch.setattr(boot, "node_report", refuse)
    monkeypatch.setattr(boot.signal, "signal", lambda *_: None)
    assert boot.main() == boot.EXIT_FAILED
    told = capsys.readouterr().err
    assert "No space left on device; free space at " in told
    assert str(tmp_path) in told


def test_a_folder_that_others_could_write_is_refused(tmp_path):
    planted = tmp_path / f"clary-{os.getuid()}"
    planted.mkdir(mode=0o777)
    planted.chmod(0o777)
    with pytest.raises(boot.Failed, match="closed to others"):
        boot._own_folder(str(tmp_path), TAG, 0)
    planted.rmdir()
    (tmp_path / "elsewhere").mkdir()
    planted.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(boot.Failed, match="closed to others"):
        boot._own_folder(str(tmp_path), TAG, 0)


def test_the_bundle_is_identified_by_its_digest_and_fetched_once(tmp_path):
    data = archive(**{"clary/__init__.py": "", "clary/agent/bin/tool": "#!"})
    digest = hashlib.sha256(data).hexdigest()
    service = FakeService(200, data)
    host = tmp_path / "hosts" / "one"
    host.mkdir(parents=True)
    code = Path(boot._bundle(service, digest, str(host)))
    assert (code / "clary/__init__.py").exists()
    assert os.access(code / "clary/agent/bin/tool", os.X_OK)
    assert boot._bundle(service, digest, str(host)) == str(code)
    assert service.asked == [f"/clary/v1/agent/{digest}"]


BUNDLE = {"clary/__init__.py": "", "clary/agent/__main__.py": "good", "clary/agent/bin/tool": "#!"}


def write_anew(code):
    (code / "clary/agent/__main__.py").write_text("evil")


def add_module(code):
    (code / "sitecustomize.py").write_text("evil")  # runs at the start of each interpreter with this path


def add_bytecode(code):
    (code / "clary/agent/__pycache__").mkdir()
    (code / "clary/agent/__pycache__/__main__.cpython-312.pyc").write_bytes(b"evil")


def link_a_file(code):
    (code.parent / "evil.py").write_text("good")  # the content may change after the check
    (code / "clary/agent/__main__.py").unlink()
    (code / "clary/agent/__main__.py").symlink_to(code.parent / "evil.py")


def link_a_folder(code):
    (code / "clary/agent").rename(code.parent / "evil")
    (code / "clary/agent").symlink_to(code.parent / "evil")


def link_all(code):
    code.rename(code.parent / "evil")
    code.symlink_to(code.parent / "evil")


def remove_a_file(code):
    (code / "clary/agent/__main__.py").unlink()


def put_a_folder_in_place_of_a_file(code):
    remove_a_file(code)
    (code / "clary/agent/__main__.py/deep").mkdir(parents=True)


def put_a_file_in_place_of_all(code):
    code.rename(code.parent / "evil")
    code.write_text("")


def take_a_right(code):
    (code / "clary/agent/bin/tool").chmod(0o644)


def tree_of(code):
    assert not code.is_symlink()
    paths = [path for path in code.rglob("*") if path.is_symlink() or not path.is_dir()]
    assert all(path.is_file() and not path.is_symlink() for path in paths)
    return {str(path.relative_to(code)): path.read_text() for path in paths}


@pytest.mark.parametrize(
    "change",
    [
        write_anew,
        add_module,
        link_a_file,
        link_a_folder,
        link_all,
        remove_a_file,
        put_a_folder_in_place_of_a_file,
        put_a_file_in_place_of_all,
        take_a_right,
    ],
)
def test_what_a_program_has_changed_in_the_unpacked_bundle_is_not_run_by_the_next_host(tmp_path, capsys, change):
    """In plain processes programs have the agent's user; the next host gets the tokens of another job."""
    data = archive(**BUNDLE)
    digest = hashlib.sha256(data).hexdigest()
    service = FakeService(200, data)
    host = tmp_path / "hosts" / "one"
    host.mkdir(parents=True)
    code = Path(boot._bundle(service, digest, str(host)))
    change(code)
    assert boot._bundle(service, digest, str(host)) == str(code)
    assert tree_of(code) == BUNDLE
    assert os.access(code / "clary/agent/bin/tool", os.X_OK)
    assert len(service.asked) == 1, "the archive is kept"
    assert f"something has changed {code}" in capsys.readouterr().err
    assert boot._bundle(service, digest, str(host)) == str(code)
    assert capsys.readouterr().err == ""
    left = {path.name for path in code.parent.iterdir()} - {"evil", "evil.py"}
    assert left == {digest, f"{digest}.zip"}


def test_bytecode_that_an_interpreter_left_is_removed_without_a_word(tmp_path, capsys):
    data = archive(**BUNDLE)
    digest = hashlib.sha256(data).hexdigest()
    host = tmp_path / "hosts" / "one"
    host.mkdir(parents=True)
    code = Path(boot._bundle(FakeService(200, data), digest, str(host)))
    add_bytecode(code)
    boot._bundle(FakeService(200, data), digest, str(host))
    assert tree_of(code) == BUNDLE
    assert capsys.readouterr().err == ""


def hold_the_lock(code):
    descriptor = os.open(code.parent, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def refuse_changes(code):
    """As a folder without the right to write does for any user but root."""
    raise PermissionError(13, "Permission denied", str(code))


@pytest.mark.parametrize("trouble", ["lock", "refusal"])
def test_a_folder_that_cannot_be_restored_costs_a_copy_and_stops_no_host(tmp_path, monkeypatch, capsys, trouble):
    data = archive(**BUNDLE)
    digest = hashlib.sha256(data).hexdigest()
    host = tmp_path / "hosts" / "one"
    host.mkdir(parents=True)
    service = FakeService(200, data)
    code = Path(boot._bundle(service, digest, str(host)))
    write_anew(code)
    monkeypatch.setattr(boot, "LOCK_LIMIT_S", 0.1)
    descriptor = hold_the_lock(code) if trouble == "lock" else None
    if trouble == "refusal":
        monkeypatch.setattr(boot, "_restore", lambda archive, target: refuse_changes(target))
    try:
        for _ in range(2):
            own = Path(boot._bundle(service, digest, str(host)))
            assert own == host / "agent" / digest
            assert tree_of(own) == BUNDLE
    finally:
        if descriptor is not None:
            os.close(descriptor)
    assert f"{code} cannot be restored" in capsys.readouterr().err
    assert len(service.asked) == 1


def test_a_pipe_in_place_of_the_kept_archive_stops_no_boot(tmp_path):
    data = archive(**BUNDLE)
    digest = hashlib.sha256(data).hexdigest()
    host = tmp_path / "hosts" / "one"
    host.mkdir(parents=True)
    service = FakeService(200, data)
    code = Path(boot._bundle(service, digest, str(host)))
    kept = code.parent / f"{digest}.zip"
    kept.unlink()
    os.mkfifo(kept)
    assert boot._bundle(service, digest, str(host)) == str(code)
    assert kept.read_bytes() == data
    assert len(service.asked) == 2


def test_before_the_gang_is_complete_the_code_is_only_unpacked(tmp_path):
    data = archive(**BUNDLE)
    digest = hashlib.sha256(data).hexdigest()
    host = tmp_path / "hosts" / "one"
    host.mkdir(parents=True)
    service = FakeService(200, data)
    code = Path(boot._bundle(service, digest, str(host), is_final=False))
    write_anew(code)
    changed = tree_of(code)
    assert boot._bundle(service, digest, str(host), is_final=False) == str(code)
    assert tree_of(code) == changed
    boot._bundle(service, digest, str(host))
    assert tree_of(code) == BUNDLE


@pytest.mark.parametrize(
    "content", [b"", b"evil", archive(**{"clary/__init__.py": "evil"})], ids=["empty", "no archive", "another archive"]
)
def test_a_kept_archive_of_another_digest_is_fetched_again(tmp_path, content):
    data = archive(**BUNDLE)
    digest = hashlib.sha256(data).hexdigest()
    service = FakeService(200, data)
    host = tmp_path / "hosts" / "one"
    host.mkdir(parents=True)
    code = Path(boot._bundle(service, digest, str(host)))
    (code.parent / f"{digest}.zip").write_bytes(content)
    write_anew(code)
    assert boot._bundle(service, digest, str(host)) == str(code)
    assert tree_of(code) == BUNDLE
    assert len(service.asked) == 2


def test_a_tree_without_its_archive_is_checked_against_the_services(tmp_path):
    """As a boot of an earlier version has left it, which kept no archive."""
    data = archive(**BUNDLE)
    digest = hashlib.sha256(data).hexdigest()
    host, code = tmp_path / "hosts" / "one", tmp_path / "agent" / digest
    host.mkdir(parents=True)
    (code / "clary/agent").mkdir(parents=True)
    write_anew(code)
    assert boot._bundle(FakeService(200, data), digest, str(host)) == str(code)
    assert tree_of(code) == BUNDLE


@pytest.mark.parametrize(("status", "data"), [(200, b"another"), (403, b"")])
def test_a_bundle_of_another_digest_is_not_unpacked(tmp_path, status, data):
    host = tmp_path / "hosts" / "one"
    host.mkdir(parents=True)
    with pytest.raises(boot.Failed, match="was not received intact"):
        boot._bundle(FakeService(status, data), "a" * 64, str(host))
    assert list((tmp_path / "agent").iterdir()) == []
    with pytest.raises(boot.Failed, match="no valid digest"):
        boot._bundle(FakeService(200, b""), "../../etc", str(host))


class FakeUpgradedService(FakeService):
    """Admits a boot to a bundle that is gone at the fetch: a service of another release was started in between."""

    def __init__(self, data):
        super().__init__(200, data)
        self.digests = ["0" * 64, hashlib.sha256(data).hexdigest()]
        self.claims = []

    def ask(self, method, path, body, most_bytes):
        if method == "POST":
            self.claims.append(json.loads(body)["claim"])
            standby = len(self.claims) == 1
            digest = self.digests[len(self.claims) > 2]
            return (202 if standby else 200), json.dumps({"bundle": digest}).encode()
        return (200, self.answer[1]) if path.endswith(self.digests[1]) else (404, b"this release has another bundle")


def test_a_boot_enrols_again_for_the_bundle_of_a_newly_started_release(tmp_path, monkeypatch):
    monkeypatch.setattr(boot.time, "sleep", lambda seconds: None)
    (tmp_path / "token").write_text("secret")
    options = SimpleNamespace(tag=TAG, index=0, proof=f"file:{tmp_path / 'token'}")
    host = tmp_path / "hosts" / "one"
    host.mkdir(parents=True)
    service = FakeUpgradedService(archive(**{"clary/__init__.py": ""}))
    answer, code = boot.admission(service, options, {}, str(host))
    assert answer == {"bundle": service.digests[1]}
    assert Path(code).name == service.digests[1]
    assert len(service.claims) == 3
    assert len(set(service.claims)) == 1, "another claim would be another boot, which is refused"


def test_a_boot_that_the_service_does_not_want_exits(tmp_path):
    token = tmp_path / "token"
    token.write_text("secret\n")
    options = SimpleNamespace(tag=TAG, index=0, proof=f"file:{token}")
    assert boot._proof(options) == "secret"
    with pytest.raises(boot.Unwanted, match="over"):
        boot.enrol(FakeService(410, b"it is over"), options, {}, str(tmp_path))
    with pytest.raises(boot.Failed, match="expected munge or file"):
        boot._proof(SimpleNamespace(tag=TAG, index=0, proof="other"))


@pytest.mark.parametrize("arguments", [["--tag", "../x"], ["--index", "-1"], ["--index", "x"]])
def test_a_wrong_command_line_is_refused(arguments):
    command = [sys.executable, boot.__file__, "--service", "https://h:1", "--ca", "/f", "--proof", "munge"]
    given = {"--tag": TAG, "--index": "0"} | {arguments[0]: arguments[1]}
    done = subprocess.run(
        [*command, *(word for pair in given.items() for word in pair)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert arguments[0] in done.stderr


def test_a_host_sees_its_own_node_in_the_plan_of_all(tmp_path):
    report = NodeReport(
        node="n1",
        addresses=(),
        used_address="10.0.0.1",
        num_cpus=8,
        memory_bytes=1,
        gpus=(Gpu(index=6), Gpu(index=7)),
        isolation="namespaces",
        scratch="/scratch/clary-0/n1/hosts/one",
    )
    plan = make_plan(hosts=make_hosts(2), pool=TAG)
    seen = NodeView(report=report, service_url="http://127.0.0.1:5").seen(plan, "algo-2")
    assert seen.service_url == "http://127.0.0.1:5"
    assert seen.isolation is Isolation.NAMESPACES
    assert seen.work_folder == f"/scratch/clary-0/n1/hosts/one/jobs/{plan.job_name}/{plan.attempt}"
    assert seen.cache_folder == "/scratch/clary-0/n1/cache"
    assert seen.hosts[0] == plan.hosts[0]
    with pytest.raises(KeyError):
        NodeView(report=report, service_url="").seen(plan, "algo-9")


def test_a_file_that_is_no_report_is_named(tmp_path):
    path = tmp_path / "node.json"
    for text in ("", "[]", '{"service_url": "x"}'):
        path.write_text(text)
        with pytest.raises(AgentError, match=r"node\.json"):
            read_node_view(str(path))


class FakeAbsentService(FakeService):
    """Fails in the ways of a killed service for a while, and then answers."""

    def __init__(self, status, data, troubles):
        super().__init__(status, data)
        self.troubles = list(troubles)

    def ask(self, method, path, body, most_bytes):
        if self.troubles:
            trouble = self.troubles.pop(0)
            if isinstance(trouble, Exception):
                raise trouble
            return trouble, b"away"
        return super().ask(method, path, body, most_bytes)


def test_the_fetch_of_the_bundle_is_retried_during_an_outage(tmp_path, monkeypatch):
    monkeypatch.setattr(boot.time, "sleep", lambda _: None)
    folder = tmp_path / "hosts" / "h"
    folder.mkdir(parents=True)
    data = archive(**{"clary/__init__.py": ""})
    digest = hashlib.sha256(data).hexdigest()
    service = FakeAbsentService(200, data, [ConnectionRefusedError("refused"), 503, TimeoutError("silent")])
    assert Path(boot._bundle(service, digest, str(folder))).name == digest
    assert len(service.asked) == 1


def test_a_service_that_stays_unreachable_ends_the_boot(tmp_path, monkeypatch):
    monkeypatch.setattr(boot.time, "sleep", lambda _: None)
    times = iter(range(0, 10_000, 100))
    monkeypatch.setattr(boot.time, "monotonic", lambda: float(next(times)))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # closed: connections are refused
        service = boot.Service(f"https://127.0.0.1:{taken.getsockname()[1]}", authority_of(tmp_path))
        with pytest.raises(boot.Failed, match=r"no answer from 127\.0\.0\.1:.* for 600 s"):
            service.address()


@pytest.mark.parametrize(("sent", "words"), [(b"abc", "ended 7 bytes early"), (b"", "ended 10 bytes early")])
def test_a_body_that_ends_early_is_an_error(tmp_path, monkeypatch, sent, words):
    class FakeSocket:
        def makefile(self, mode):
            return io.BytesIO(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n" + sent)

    class FakeConnection:
        def __init__(self, *_, **__):
            pass

        def request(self, *_):
            pass

        def getresponse(self):
            answer = http.client.HTTPResponse(FakeSocket())
            answer.begin()
            return answer

        def close(self):
            pass

    monkeypatch.setattr(boot.http.client, "HTTPSConnection", FakeConnection)
    service = boot.Service("https://127.0.0.1:1", authority_of(tmp_path))
    with pytest.raises(OSError, match=words):
        service.ask("GET", "/", None, 100)


def test_half_a_response_is_an_error(tmp_path, monkeypatch):
    service = boot.Service("https://127.0.0.1:1", authority_of(tmp_path))

    class FakeConnection:
        def __init__(self, *_, **__):
            pass

        def request(self, *_):
            pass

        def getresponse(self):
            raise http.client.IncompleteRead(b"half")

        def close(self):
            pass

    monkeypatch.setattr(boot.http.client, "HTTPSConnection", FakeConnection)
    with pytest.raises(OSError, match="IncompleteRead"):
        service.ask("GET", "/", None, 100)


def test_a_connect_that_hangs_ends_the_near_connection_on_python_3_10_too(tmp_path, monkeypatch, capsys):
    class FakeTimeout(Exception):
        """`asyncio.TimeoutError` of Python 3.10, which is neither an OSError nor the built-in TimeoutError."""

    async def hang(opening, limit_s):
        opening.close()
        assert limit_s == boot.REQUEST_TIMEOUT_S
        raise FakeTimeout

    async def connect():
        with socket.create_server(("127.0.0.1", 0)) as listening:
            carrying = asyncio.create_task(boot._carry_all(service, listening, os.getppid()))
            near, near_out = await asyncio.open_connection(*listening.getsockname())
            async with asyncio.timeout(60):
                assert await near.read() == b""
            near_out.close()
            carrying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await carrying

    service = boot.Service("https://127.0.0.1:1", authority_of(tmp_path))
    monkeypatch.setattr(boot.asyncio, "TimeoutError", FakeTimeout)
    monkeypatch.setattr(boot.asyncio, "wait_for", hang)
    asyncio.run(connect())
    assert capsys.readouterr().err == "clary boot: 127.0.0.1:1: no connection within 60 s\n"


def authority_of(tmp_path):
    files = ensure_certificates(tmp_path / "tls", region="us-east-1", host="127.0.0.1", now=datetime.now(UTC))
    return str(files.authority)
