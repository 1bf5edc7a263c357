"""Compiled code kept between jobs: only of the same program, only regular files, never beyond the limit."""

import fcntl
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from clary.agent.environments import compiled_code
from clary.agent.environments.compiled_code import CACHE_FOLDER, CompiledCode
from clary.agent.host import kernel
from clary.contract.launch_plan import LaunchPlan
from clary.contract.ml_tree import MlTree
from clary.testing.launch_plans import make_plan

COMPILER = {"sagemaker_training_compiler_enabled": "true"}
ENVIRONMENT = Path("/envs/train")


def plan_in(cache: Path, hyperparameters: dict[str, str] | None = None) -> LaunchPlan:
    plan = make_plan(hyperparameters=COMPILER if hyperparameters is None else hyperparameters)
    return replace(plan, cache_folder=str(cache))


class Job:
    """The tree of a host with a program of this text, into which kept code is copied."""

    def __init__(self, place: Path, plan: LaunchPlan, text: str = "x = 1", *, timeout_s: float = 5.0) -> None:
        self.tree = MlTree(place / "ml")
        self.tree.code.mkdir(parents=True)
        (self.tree.code / "train.py").write_text(text)
        self.compiled = CompiledCode(plan, self.tree)
        self.compiled.bring(ENVIRONMENT, timeout_s=timeout_s)

    @property
    def folder(self) -> Path:
        return self.tree.root / ".clary" / "compiled"

    def write(self, name: str, text: str = "compiled") -> Path:
        place = self.folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        return place

    def files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_a_job_of_the_same_program_gets_the_compiled_code_of_an_earlier_job(tmp_path: Path, cache: Path) -> None:
    first = Job(tmp_path / "1", plan_in(cache))
    assert "none is kept" in first.compiled.summaries[0]
    first.write("ab/kernel.so").chmod(0o4755)
    first.write("locks/ab.lock")
    assert first.compiled.keep() == ()
    second = Job(tmp_path / "2", plan_in(cache))
    assert second.files() == {"ab/kernel.so"}
    assert "1 files" in second.compiled.summaries[0]
    assert (second.folder / "ab/kernel.so").stat().st_mode & 0o7000 == 0
    other = Job(tmp_path / "3", plan_in(cache), "x = 2")
    assert other.files() == set()
    assert cache.joinpath(CACHE_FOLDER).stat().st_mode & 0o077 == 0


def test_kept_code_is_a_copy_that_no_job_can_change(tmp_path: Path, cache: Path) -> None:
    first = Job(tmp_path / "1", plan_in(cache))
    first.write("ab/kernel.so", "good")
    first.compiled.keep()
    second = Job(tmp_path / "2", plan_in(cache))
    second.write("ab/kernel.so", "evil")
    second.write("cd/more.so")
    second.compiled.keep()
    third = Job(tmp_path / "3", plan_in(cache))
    assert (third.folder / "ab/kernel.so").read_text() == "good"
    assert third.files() == {"ab/kernel.so", "cd/more.so"}


def test_links_pipes_and_deep_folders_are_not_kept(tmp_path: Path, cache: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the machine")
    job = Job(tmp_path / "1", plan_in(cache))
    job.write("good")
    (job.folder / "link").symlink_to(secret)
    (job.folder / "folder").symlink_to(tmp_path)
    os.mkfifo(job.folder / "pipe")
    job.write("/".join(["deep"] * 12))
    assert job.compiled.keep() == ()
    assert Job(tmp_path / "2", plan_in(cache)).files() == {"good"}


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path, cache: Path) -> None:
    job = Job(tmp_path / "1", plan_in(cache))
    job.folder.rmdir()
    job.folder.symlink_to(tmp_path)
    (told,) = job.compiled.keep()
    assert "not kept for later jobs" in told
    assert [path.name for path in cache.joinpath(CACHE_FOLDER).iterdir()] == [".lock"]


def test_code_beyond_the_size_limit_is_not_kept_and_old_entries_are_evicted(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_code, "MAX_BYTES", 10)
    monkeypatch.setattr(compiled_code, "MAX_NAMES", 2)
    job = Job(tmp_path / "0", plan_in(cache))
    job.write("large", "x" * 11)
    (told,) = job.compiled.keep()
    assert "more than" in told
    for number in range(1, 4):
        job = Job(tmp_path / str(number), plan_in(cache), f"x = {number}")
        job.write("small")
        job.compiled.keep()
        for age, path in enumerate(sorted(cache.joinpath(CACHE_FOLDER).glob("[0-9a-f]*"), key=os.path.getmtime)):
            os.utime(path, (age, age))
    assert len(list(cache.joinpath(CACHE_FOLDER).glob("[0-9a-f]*"))) == 2
    assert Job(tmp_path / "4", plan_in(cache), "x = 3").files() == {"small"}


def test_a_job_without_a_compiler_and_a_service_without_a_cache_keep_nothing(tmp_path: Path, cache: Path) -> None:
    for number, plan in enumerate((plan_in(cache, {}), replace(plan_in(cache), cache_folder=""))):
        job = Job(tmp_path / str(number), plan)
        assert job.compiled.summaries == ()
        assert job.compiled.keep() == ()
    assert not cache.exists()


def test_a_locked_or_read_only_cache_is_reported_and_does_not_fail_the_job(tmp_path: Path, cache: Path) -> None:
    job = Job(tmp_path / "1", plan_in(cache))
    job.write("x")
    with open(cache / CACHE_FOLDER / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (told,) = job.compiled.keep(timeout_s=0.1)
        assert "has held" in told
        other = Job(tmp_path / "2", plan_in(cache), timeout_s=0.1)
        assert "not used" in other.compiled.summaries[0]
        assert other.compiled.keep() == ()
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the cache would be")
    assert "not used" in Job(tmp_path / "3", plan_in(blocked)).compiled.summaries[0]


def open_to_all(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)


def open_to_a_group(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o770)


def of_another_user(folder: Path) -> None:
    folder.mkdir(parents=True)
    os.chown(folder, 12345, 12345)


def elsewhere(folder: Path) -> None:
    other = folder.parent.parent / "of-a-stranger"
    other.mkdir(parents=True)
    folder.parent.mkdir()
    folder.symlink_to(other)


@pytest.mark.parametrize(
    "plant",
    [
        open_to_all,
        open_to_a_group,
        elsewhere,
        pytest.param(
            of_another_user,
            marks=[pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")],
        ),
    ],
)
def test_code_from_a_cache_that_others_can_write_is_not_run(tmp_path: Path, cache: Path, plant) -> None:
    plant(cache / CACHE_FOLDER)
    first = Job(tmp_path / "1", plan_in(cache))
    name = compiled_code.compiled_name(plan_in(cache), code_digest=digest_of(first), environment=ENVIRONMENT)
    (cache / CACHE_FOLDER / name).mkdir()
    (cache / CACHE_FOLDER / name / "kernel.so").write_text("of somebody else")
    second = Job(tmp_path / "2", plan_in(cache))
    assert second.files() == set()
    assert "is not used" in second.compiled.summaries[0]
    assert "emove it" in second.compiled.summaries[0]
    assert second.compiled.keep() == ()


def digest_of(job: Job) -> str:
    """Return the digest of a job's source, from which another user can compute the name of its kept code."""
    return compiled_code.source_digest(job.tree.code, check=lambda: None)


def as_stranger(work) -> int:
    """Run `work` in a process of another user; return its exit code, 0 if `work` raised nothing."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(12345, 12345, 12345)
            os.setresuid(12345, 12345, 12345)
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a fork must not go on as the test
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_neither_reads_nor_writes_kept_code() -> None:
    with tempfile.TemporaryDirectory(prefix="clary-compiled-") as home:
        os.chmod(home, 0o755)  # the most permissive mode that a home may have
        cache = Path(home, "cache")
        job = Job(Path(home, "1"), plan_in(cache))
        job.write("ab/kernel.so")
        job.compiled.keep()
        (place,) = cache.joinpath(CACHE_FOLDER).glob("[0-9a-f]*")
        assert (place / "ab/kernel.so").read_text() == "compiled"
        attempts = (
            lambda: os.listdir(place.parent),
            lambda: (place / "ab/kernel.so").read_bytes(),
            lambda: (place / "ab/planted.so").write_text("evil"),
            lambda: (place.parent / "0123").mkdir(),
            lambda: os.rename(place.parent, cache / "gone"),
            lambda: (cache / CACHE_FOLDER / ".lock").unlink(),
        )
        assert [as_stranger(attempt) for attempt in attempts] == [1] * len(attempts)


def test_a_file_gets_its_name_in_the_cache_only_after_its_content_is_on_the_disk(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named_when_flushed: list[list[str]] = []

    def kept() -> list[str]:
        return sorted(path.name for path in cache.glob(f"{CACHE_FOLDER}/[0-9a-f]*/**/*") if path.is_file())

    monkeypatch.setattr(kernel, "flush_file_system", lambda folder: named_when_flushed.append(kept()))
    first = Job(tmp_path / "1", plan_in(cache))
    first.write("ab/kernel.so")
    assert first.compiled.keep() == ()
    assert (named_when_flushed, kept()) == ([[]], ["kernel.so"])
    second = Job(tmp_path / "2", plan_in(cache))
    assert second.compiled.keep() == ()
    assert len(named_when_flushed) == 1, "nothing is new, and nothing is flushed"
    second.write("cd/more.so")
    second.compiled.keep()
    assert (named_when_flushed[1:], kept()) == ([["kernel.so"]], ["kernel.so", "more.so"])


def test_files_that_cannot_be_forced_to_the_disk_are_not_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(folder: str) -> None:
        raise OSError(5, "Input/output error", folder)

    first = Job(tmp_path / "1", plan_in(cache))
    first.write("ab/kernel.so")
    with monkeypatch.context() as patch:
        patch.setattr(kernel, "flush_file_system", broken)
        (told,) = first.compiled.keep()
    assert "Input/output error" in told
    second = Job(tmp_path / "2", plan_in(cache))
    assert second.files() == set()
    second.write("cd/more.so")
    assert second.compiled.keep() == ()
    assert Job(tmp_path / "3", plan_in(cache)).files() == {"cd/more.so"}


def test_files_that_a_power_cut_has_emptied_are_not_used_and_are_replaced(tmp_path: Path, cache: Path) -> None:
    first = Job(tmp_path / "1", plan_in(cache))
    first.write("ab/kernel.so")
    first.write("cd/more.so")
    first.compiled.keep()
    (emptied,) = cache.glob(f"{CACHE_FOLDER}/*/ab/kernel.so")
    os.truncate(emptied, 0)
    second = Job(tmp_path / "2", plan_in(cache))
    assert second.files() == {"cd/more.so"}
    assert "1 files" in second.compiled.summaries[0]
    second.write("ab/kernel.so", "compiled again")
    second.compiled.keep()
    third = Job(tmp_path / "3", plan_in(cache))
    assert (third.folder / "ab/kernel.so").read_text() == "compiled again"
