"""A host whose program fails on a GPU: the driver's errors are read before the failure is reported."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest
from fake_steps import FakeSteps

from clary.agent.metrics import host_metrics
from clary.agent.metrics.xid_log import XidLog
from clary.contract.agent_protocol import HostPhase
from clary.testing.fake_service import FakeService


@pytest.mark.parametrize("interval_s", [0.0, 0.1])
def test_errors_of_the_hosts_gpus_are_reported_with_the_exits_and_noted(
    service: FakeService, host_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval_s: float
) -> None:
    kernel = tmp_path / "kmsg"
    kernel.touch()
    (tmp_path / "gpus/0000:65:00.0").mkdir(parents=True)
    xid_log = functools.partial(XidLog, kernel_log=str(kernel), gpus_folder=str(tmp_path / "gpus"))
    monkeypatch.setattr(host_metrics, "XidLog", xid_log)
    # the real log would report errors of this machine's own GPUs
    monkeypatch.setattr(host_metrics.shutil, "which", lambda name: None)
    first, *others = service.plan.hosts
    first = replace(first, resources=replace(first.resources, gpu_indices=(0,)))
    service.plan = replace(service.plan, hosts=(first, *others), metrics_interval_s=interval_s)
    service.lead_through_life()
    host = host_of(FakeSteps())
    program = host.program
    kernel.write_text("3,17,4711,-;NVRM: Xid (PCI:0000:65:00): 79, pid=1, name=python, GPU has fallen off the bus.\n")
    program.print("RuntimeError: CUDA error: unspecified launch failure\n")
    program.end(1)
    service.wait_for_phase(HostPhase.EXITED)
    (error,) = service.facts.gpu_errors
    assert (error.gpu, error.xid) == (0, 79)
    assert error.not_before <= service.facts.exits[0].ended_at
    assert "GPU 0: Xid 79, the GPU has fallen off the bus" in service.facts.notes
    assert "clary: GPU 0: Xid 79, the GPU has fallen off the bus" in service.texts
    host.join()
