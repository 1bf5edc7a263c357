"""A host whose attempt may end with its program: saved tensors are stored before the host reports the exit."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fake_steps import FakeSteps

from clary.agent.supervisor import host_life
from clary.base.beneath import Folder
from clary.contract.agent_protocol import HostPhase, OrderKind
from clary.contract.job_rules import MirrorPlan
from clary.testing.fake_service import FakeService

MIRROR = MirrorPlan(what="tensors", local_path="/opt/ml/output/tensors", s3_uri="s3://b/t/", marks_end=True)
LIMIT_S = 30.0


class FakeSlowMirror:
    """Stores all files when the test lets it."""

    num_stored = 1
    error = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[str] = []
        self.is_asked = threading.Event()
        self.is_stored = threading.Event()

    def forget(self, names: Sequence[str]) -> None:
        self.calls.append("forget")

    def start(self) -> None:
        self.calls.append("start")

    @contextlib.contextmanager
    def opened(self) -> Iterator[Folder]:
        with Folder.at(self.folder) as folder:
            yield folder

    def flush(self) -> None:
        self.calls.append("flush")

    def wait_stored(self, timeout_s: float) -> bool:
        self.is_asked.set()
        is_stored = self.is_stored.wait(timeout_s)
        if is_stored:
            self.calls.append("settled")
        return is_stored

    def finish(self, limit_s: float, *, longest_s: float | None = None) -> bool:
        self.calls.append("finish")
        return True

    def abort(self) -> None:
        self.calls.append("give up")

    def join(self, timeout_s: float) -> bool:
        return True


class FakeSavingSteps(FakeSteps):
    """Has one mirror."""

    def __init__(self, mirror: FakeSlowMirror) -> None:
        super().__init__()
        self.mirror = mirror

    def open_mirrors(self) -> dict[MirrorPlan, FakeSlowMirror]:
        return {MIRROR: self.mirror}


@pytest.fixture
def mirror(tmp_path: Path, service: FakeService) -> FakeSlowMirror:
    service.plan = replace(service.plan, mirrors=(MIRROR,))
    (tmp_path / "tensors").mkdir()
    return FakeSlowMirror(tmp_path / "tensors")


def test_a_stopped_host_reports_its_exit_after_its_tensors_are_stored(service: FakeService, host_of, mirror) -> None:
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    host = host_of(FakeSavingSteps(mirror))
    assert host.program
    service.order(OrderKind.STOP, grace_s=60.0, reason="reclaimed")
    assert mirror.is_asked.wait(LIMIT_S)
    assert (mirror.folder / "END_OF_JOB.ts").exists()
    assert HostPhase.EXITED not in service.phases
    mirror.is_stored.set()
    service.wait_for_phase(HostPhase.EXITED)
    assert mirror.calls == ["start", "flush", "settled"]
    service.order(OrderKind.RELEASE)


def test_a_slow_store_delays_the_host_only_up_to_a_limit(service: FakeService, host_of, mirror, monkeypatch) -> None:
    monkeypatch.setattr(host_life, "LAST_FILES_S", 0.2)
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    service.order_at(HostPhase.EXITED, OrderKind.RELEASE)
    host_of(FakeSavingSteps(mirror)).program.end(1)
    service.wait_for_phase(HostPhase.EXITED)
    assert mirror.is_asked.is_set(), "a program that has failed may be tried again"
    assert "settled" not in mirror.calls


def test_a_finished_programs_exit_is_reported_before_its_tensors_are_stored(
    service: FakeService, host_of, mirror
) -> None:
    service.lead_through_life()
    host_of(FakeSavingSteps(mirror)).program.end(0)
    service.wait_for_phase(HostPhase.DONE)
    assert mirror.calls[:3] == ["start", "flush", "finish"]
    assert not mirror.is_asked.is_set()
