"""The page `profiler-report` of a job: sandboxed HTML, or JSON, for jobs with and without rules."""

import pytest
from own_pages import FewParts
from server_parts import document, request

from clary.contract.agent_protocol import HostPhase
from clary.contract.metric_samples import SampleBatch
from clary.control.profiling.rules import RULES
from clary.control.reconcile.gateways.sample_gateway import SampleGateway
from clary.testing.control_plane import ControlPlane
from clary.testing.fake_clock import START

START_MS = int(START.timestamp() * 1000)
RUNNING = float(list(HostPhase).index(HostPhase.RUNNING))
COLUMNS = {"host/phase": RUNNING, "host/cpu_percent": 70.0, "gpu-0/utilisation_percent": 3.0}
LOW = {
    "RuleConfigurationName": "low",
    "RuleEvaluatorImage": "rules:1",
    "RuleParameters": {"rule_to_invoke": "LowGPUUtilization", "patience": "10", "window": "10"},
}


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create(ProfilerRuleConfigurations=[LOW])
        await plane.passes()
        agent = plane.agent()
        for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
            await agent.report(phase)
        plane.clock.advance(60)
        batch = SampleBatch(
            first_row=0,
            at_ms=tuple(START_MS + 500 * row for row in range(100)),
            names=tuple(COLUMNS),
            columns=tuple((value,) * 100 for value in COLUMNS.values()),
        )
        await SampleGateway(plane.store.series, plane.clock).append(agent.authorize(), "algo-1", batch)
        yield plane


async def answer_to(plane, query=""):
    routes = FewParts(plane.services)
    return await routes.handle(request("/clary/v1/jobs/job/profiler-report", query=query))


async def test_the_page_is_sandboxed_html(plane):
    answer = await answer_to(plane)
    assert answer.status == 200
    assert answer.body.startswith(b"<!DOCTYPE html>")
    assert b"LowGPUUtilization" in answer.body
    assert answer.header("content-type") == "text/html; charset=utf-8"
    assert "sandbox" in answer.header("content-security-policy")
    assert "default-src 'none'" in answer.header("content-security-policy")


async def test_json_has_the_result_of_every_rule_with_the_job_s_parameters(plane):
    page = document(await answer_to(plane, "format=json"))
    rules = {item["rule"]: item for item in page["rules"]}
    assert set(rules) == set(RULES)
    assert rules["LowGPUUtilization"]["fires"]
    assert rules["LowGPUUtilization"]["parameters"]["patience"] == 10
    assert rules["LowGPUUtilization"]["advice"]
    assert not rules["CPUBottleneck"]["was_judged"], "its patience is the default"
    assert "html" not in page
    assert document(await answer_to(plane, "format=json&html=1"))["html"].startswith("<!DOCTYPE html>")
