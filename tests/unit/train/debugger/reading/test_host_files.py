"""The tensors of several hosts as the first host sees them: its own folder, and the stored files of the others."""

import struct
from pathlib import Path

import pytest

from clary.contract.job_rules import host_end
from clary.train.debugger import evaluation
from clary.train.debugger.errors import StoreError
from clary.train.debugger.files import HOST_FILE, LocalFiles, step_file
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.reading.host_files import AWAY_S, HostsFiles
from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.tensor_files import StepIndex, TensorEntry, write_step

OWN_END = "algo-1.try-2.of-2"
RULE = """
from clary.train.debugger import Rule

class SeesTwo(Rule):
    def invoke_at_step(self, step):
        tensor = self.base_trial.tensor("weight")
        return tensor.workers(step) == ["worker_0", "worker_1"]

class SeesNothing(Rule):
    def invoke_at_step(self, step):
        return False
"""


class FakeFar(LocalFiles):
    """A prefix of S3 whose requests may fail."""

    interval_s = 5.0
    is_down = False
    num_listings = 0

    def listing(self, folder: str, after: str = "") -> dict[str, str]:
        self.num_listings += 1
        if self.is_down:
            raise StoreError(f"could not list s3://bucket/{folder}/: no route")
        return super().listing(folder, after)


class FakeTime:
    """A clock that only the test advances."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def save(folder: Path, worker: str, *steps: int, value: float = 1.0, num_workers: int = 2, at: float = 2.0) -> None:
    (folder / "collections").mkdir(parents=True, exist_ok=True)
    text = f'{{"num_workers": {num_workers}, "collections": {{}}, "began_at": {at - 1}}}'
    (folder / "collections" / f"{worker}.json").write_text(text)
    for step in steps:
        path = folder / "steps" / step_file(step, worker)
        path.parent.mkdir(parents=True, exist_ok=True)
        index = StepIndex(
            step=step, mode=ModeKeys.GLOBAL, mode_step=step, worker=worker, num_workers=num_workers, written_at=at
        )
        write_step(path, index, [(TensorEntry(name="weight", shape=(1,)), memoryview(struct.pack("<f", value)))])


def end(folder: Path, name: str) -> None:
    (folder / "ended").mkdir(exist_ok=True)
    (folder / "ended" / name).touch()


@pytest.fixture
def near(tmp_path: Path) -> Path:
    (tmp_path / "near").mkdir()
    return tmp_path / "near"


@pytest.fixture
def far(tmp_path: Path) -> Path:
    (tmp_path / "far").mkdir()
    return tmp_path / "far"


class Setup:
    """A trial of two hosts."""

    def __init__(self, near: Path, far: Path) -> None:
        self.clock = FakeTime()
        self.far = FakeFar(far)
        self.files = HostsFiles(LocalFiles(near), self.far, own_end=OWN_END, late_s=40.0, clock=self.clock)
        self.trial = Trial(self.files, name="both")

    def steps_after(self, seconds: float) -> list[int]:
        self.clock.now_s += seconds
        return self.trial.steps()


@pytest.fixture
def setup(near: Path, far: Path) -> Setup:
    return Setup(near, far)


def test_the_end_files_of_agents_have_the_names_that_trials_expect() -> None:
    found = HOST_FILE.fullmatch(host_end("algo-12", attempt=3, num_hosts=16).removeprefix("ended/"))
    assert found is not None
    assert found.groups() == ("algo-12", "3", "16")


def test_a_step_is_complete_once_the_other_host_has_stored_it(setup: Setup, near: Path, far: Path) -> None:
    save(near, "worker_0", 0, 10)
    assert setup.steps_after(0) == []
    save(far, "worker_1", 0, value=3.0)
    assert setup.steps_after(6) == [0]
    assert setup.trial.workers() == ["worker_0", "worker_1"]
    tensor = setup.trial.tensor("weight")
    assert tensor.workers(0) == ["worker_0", "worker_1"]
    read = [setup.trial.values_of(0, worker, tensor._entries[0][worker]) for worker in tensor.workers(0)]
    assert read == [struct.pack("<f", 1.0), struct.pack("<f", 3.0)]


def test_the_host_s_own_files_are_read_from_disk_and_not_from_the_store(setup: Setup, near: Path, far: Path) -> None:
    save(near, "worker_0", 0, value=1.0, num_workers=1)
    save(far, "worker_0", 0, value=2.0, num_workers=1)
    assert setup.steps_after(0) == [0]
    entry = setup.trial.tensor("weight")._entries[0]["worker_0"]
    assert setup.trial.values_of(0, "worker_0", entry) == struct.pack("<f", 1.0)


def test_the_store_is_listed_at_intervals_and_the_own_folder_always(setup: Setup, near: Path) -> None:
    save(near, "worker_0", 0, num_workers=1)
    assert setup.steps_after(0) == [0]
    num_listings = setup.far.num_listings
    save(near, "worker_0", 10, num_workers=1)
    assert setup.steps_after(1) == [0, 10]
    assert setup.far.num_listings == num_listings
    setup.steps_after(5)
    assert setup.far.num_listings > num_listings


def test_the_trial_ends_when_all_hosts_of_this_attempt_have_ended(setup: Setup, near: Path, far: Path) -> None:
    save(near, "worker_0", 0)
    save(far, "worker_1", 0)
    for name in ("algo-1.try-1.of-2", "algo-2.try-1.of-2"):
        end(far, name)
    (far / "END_OF_JOB.ts").touch()
    end(near, OWN_END)
    for _ in range(3):
        assert setup.steps_after(6) == [0]
    assert not setup.trial.has_ended
    save(far, "worker_1", 10)
    end(far, "algo-2.try-2.of-2")
    setup.steps_after(6)
    setup.steps_after(6)
    assert setup.trial.has_ended
    assert setup.trial.steps() == [0, 10]
    assert not setup.files.is_late


def test_the_wait_for_a_host_that_does_not_end_is_limited(setup: Setup, near: Path, far: Path) -> None:
    save(near, "worker_0", 0, 10)
    save(far, "worker_1", 0)
    end(near, OWN_END)
    assert setup.steps_after(6) == [0]
    assert setup.steps_after(39) == [0]
    assert setup.steps_after(6) == [0, 10]
    assert setup.trial.has_ended
    assert setup.files.is_late


def test_a_failing_store_blocks_no_refresh_and_hides_no_end(setup: Setup, near: Path, far: Path) -> None:
    save(near, "worker_0", 0, num_workers=1)
    save(far, "worker_1", 0, num_workers=1)
    assert setup.steps_after(0) == [0]
    setup.far.is_down = True
    save(near, "worker_0", 10, num_workers=1)
    end(near, OWN_END)
    assert setup.steps_after(6) == [0]
    setup.far.is_down = False
    save(far, "worker_1", 20, num_workers=1)
    end(far, "algo-2.try-2.of-2")
    for _ in range(3):
        setup.steps_after(6)
    assert setup.trial.has_ended
    assert setup.trial.steps() == [0, 10, 20]


def test_the_trial_of_a_host_without_a_store_ends_with_the_host(near: Path) -> None:
    save(near, "worker_0", 0)
    trial = Trial(HostsFiles(LocalFiles(near), None, own_end=OWN_END), name="near")
    assert trial.steps() == []
    end(near, OWN_END)
    assert trial.steps() == [0]
    assert trial.has_ended
    with pytest.raises(FileNotFoundError):
        trial._files.size("nothing")


def order(near: Path, rule: str) -> dict[str, object]:
    (near.parent / "mine.py").write_text(RULE)
    return {
        "name": rule,
        "rule": rule,
        "source_file": str(near.parent / "mine.py"),
        "parameters": {},
        "tensors_folder": str(near),
        "other_trials": [],
        "tensors_uri": "s3://bucket/t/",
        "own_end": f"ended/{OWN_END}",
        "status_file": str(near.parent / "rules" / "status.json"),
    }


def test_a_rule_sees_the_workers_of_all_hosts(near: Path, far: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def opened(uri: str, *, cache_bytes: int, cache_place: Path) -> LocalFiles:
        assert cache_place == near.parent / "rules", "killed or not, a rule leaves nothing elsewhere"
        asked.append(uri)
        return LocalFiles(far)

    monkeypatch.setattr(evaluation, "open_s3_files", opened)
    save(near, "worker_0", 0, 10)
    save(far, "worker_1", 0, 10)
    end(near, OWN_END)
    end(far, "algo-2.try-2.of-2")
    assert evaluation.evaluate(order(near, "SeesTwo")) == ("IssuesFound", "rule SeesTwo has fired at step 0")
    told = evaluation.evaluate(order(near, "SeesNothing"))
    assert told == ("NoIssuesFound", "2 of 2 saved steps of 2 workers were looked at")
    assert asked == ["s3://bucket/t/"] * 2


def test_a_result_counts_one_worker_in_the_singular(near: Path) -> None:
    save(near, "worker_0", 0, num_workers=1)
    end(near, OWN_END.replace("of-2", "of-1"))
    given = order(near, "SeesNothing") | {"own_end": OWN_END.replace("of-2", "of-1"), "tensors_uri": ""}
    assert evaluation.evaluate(given) == ("NoIssuesFound", "1 of 1 saved steps of 1 worker were looked at")


def test_steps_that_another_host_stored_in_an_earlier_attempt_are_not_seen(near: Path, far: Path) -> None:
    save(near, "worker_0", 0, at=10.0)
    save(far, "worker_1", 0, 10, 20)
    files = HostsFiles(LocalFiles(near), LocalFiles(far), own_end=OWN_END)
    assert Trial(files, name="of all tries").steps() == [0]
    trial = Trial(files, name="of this try", since=5.0)
    assert trial.steps() == []
    assert trial.workers() == ["worker_0"]
    save(far, "worker_1", 0, at=11.0)
    assert trial.steps() == [0]
    assert trial.workers() == ["worker_0", "worker_1"]
    assert trial.steps(show_incomplete_steps=True) == [0]


def test_a_store_that_is_unreachable_for_a_while_ends_no_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clary.train.debugger.reading.host_files._PAUSE_S", 0.01)
    far, clock = FakeFar(tmp_path / "far"), FakeTime()
    save(tmp_path / "far", "worker_1", 0)
    name = f"steps/{step_file(0, 'worker_1')}"
    num_failures = 3
    read = far.read

    def failing(*given: object) -> bytes:
        nonlocal num_failures
        num_failures -= 1
        if num_failures >= 0:
            raise StoreError(f"could not read s3://bucket/{name}: no route")
        clock.now_s += AWAY_S  # the next failure is past the limit
        return read(name, 0, 4)

    monkeypatch.setattr(far, "read", failing)
    files = HostsFiles(LocalFiles(tmp_path / "near"), far, own_end=OWN_END, clock=clock)
    assert len(files.read(name, 0, 4)) == 4
    with pytest.raises(FileNotFoundError):
        files.size("steps/none")

    def refusing(*_: object) -> bytes:
        clock.now_s += AWAY_S
        raise StoreError("no route")

    monkeypatch.setattr(far, "read", refusing)
    with pytest.raises(StoreError, match="no route"):
        files.read(name, 0, 4)
