"""HTTP routes of agents: paths, tokens, numbers and bodies, for all input of agents and strangers."""

import asyncio
import json

import pytest
from own_pages import FewParts
from server_parts import START, document, request, running_job

from clary.base.errors import WireError
from clary.base.plain import from_plain, to_plain
from clary.contract.agent_protocol import (
    HostFacts,
    HostPhase,
    LogBatch,
    LogBlock,
    LogReceipt,
    Order,
    OrderKind,
    Report,
    ReportReceipt,
)
from clary.contract.launch_plan import LaunchPlan
from clary.contract.metric_samples import SampleBatch
from clary.control.server.agent_routes import MAX_WAIT_S

AGENT = "/clary/v1/agents/job-1/1/algo-1"


class FakeGateway:
    """Accepts the token of job-1, attempt 1, and records its calls."""

    def __init__(self):
        self.told = []

    def authorize(self, name, attempt, host, token):
        self.told.append((name, attempt, host, token))
        if token != "token":
            raise WireError("AccessDenied", "wrong token", http_status=403)
        return running_job()

    def assignment(self, job):
        return from_plain(LaunchPlan, job.plan)

    async def next_order(self, job, host, *, after, wait_s):
        self.told.append((host, after, wait_s))
        return Order(number=after + 1, kind=OrderKind.RUN)

    async def report(self, job, host, report):
        self.told.append((host, report))
        return ReportReceipt(accepted=True, order_number=report.number)

    async def append_logs(self, job, host, batch):
        self.told.append((host, batch))
        return LogReceipt(next_sequence=batch.end_sequence)


@pytest.fixture
def gateway():
    return FakeGateway()


async def refusal(gateway, *args, **options):
    with pytest.raises(WireError) as refused:
        await FewParts(agents=gateway).handle(request(*args, **options))
    return refused.value


def posted(path, message):
    return request(path, method="POST", body=json.dumps(to_plain(message)).encode())


async def turns_beside(work):
    """Run `work`; return the number of turns of the event loop that other tasks got meanwhile."""
    task = asyncio.ensure_future(work)
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    await task
    return turns


async def test_a_large_body_of_an_agent_does_not_block_the_event_loop(gateway):
    lines = tuple(LogBlock(at_ms=number, text=f"loss {number}", rank=1) for number in range(60_000))
    batch = LogBatch(first_sequence=0, blocks=lines)
    turns = await turns_beside(FewParts(agents=gateway).handle(posted(f"{AGENT}/logs", batch)))
    assert gateway.told[-1] == ("algo-1", batch)
    assert turns > 10  # parsed on the event loop, a body leaves two or three turns


async def test_a_small_body_is_parsed_on_the_event_loop(gateway):
    batch = LogBatch(first_sequence=0, blocks=(LogBlock(at_ms=1, text="loss", rank=1),))
    assert await turns_beside(FewParts(agents=gateway).handle(posted(f"{AGENT}/logs", batch))) < 5


async def test_numbers_of_metrics_beyond_the_limits_are_refused(gateway):
    batch = SampleBatch(first_row=0, at_ms=(0,), names=("a",), columns=(tuple(map(float, range(140_000))),))
    refused = await refusal(gateway, f"{AGENT}/samples", method="POST", body=json.dumps(to_plain(batch)).encode())
    assert refused.message == "the body has more than 131072 values"


async def test_the_assignment_is_the_whole_plan(gateway):
    answer = document(await FewParts(agents=gateway).handle(request(f"{AGENT}/assignment")))
    assert answer == running_job().plan


async def test_reports_and_lines_reach_the_gateway_unchanged(gateway):
    report = Report(number=4, facts=HostFacts(phase=HostPhase.RUNNING, phase_started_at=START))
    answer = document(await FewParts(agents=gateway).handle(posted(f"{AGENT}/reports", report)))
    expected = {"accepted": True, "order_number": 4, "dump_number": 0, "dump_reason": "", "profile": None}
    assert {name: answer[name] for name in expected} == expected
    batch = LogBatch(first_sequence=7, blocks=(LogBlock(at_ms=1, text="\U0001f600 \x00"),))
    answer = document(await FewParts(agents=gateway).handle(posted(f"{AGENT}/logs", batch)))
    assert answer == {"next_sequence": 8}
    assert [told for told in gateway.told if len(told) == 2] == [("algo-1", report), ("algo-1", batch)]


async def test_the_poll_for_an_order_takes_no_longer_than_the_service_allows(gateway):
    answer = document(await FewParts(agents=gateway).handle(request(f"{AGENT}/orders", query="after=3&wait_s=1e9")))
    assert (answer["number"], answer["kind"]) == (4, "run")
    assert gateway.told[-1] == ("algo-1", 3, MAX_WAIT_S)


@pytest.mark.parametrize(
    "query", ["after=x", "after=1.5", "wait_s=soon", "wait_s=nan", "wait_s=-inf", "after=" + "9" * 5000]
)
async def test_invalid_numbers_are_refused(gateway, query):
    refused = await refusal(gateway, f"{AGENT}/orders", query=query)
    assert (refused.code, refused.http_status) == ("ValidationException", 400)


@pytest.mark.parametrize("token", [None, "", "wrong", "t\udcff"])
async def test_a_stranger_is_refused(gateway, token):
    refused = await refusal(gateway, f"{AGENT}/assignment", token=token)
    assert refused.http_status == 403


@pytest.mark.parametrize(
    "path",
    [
        "job-1/1/algo-1",
        "job-1/1/algo-1/assignment/more",
        "job-1/one/algo-1/assignment",
        "job-1/%C2%B2/algo-1/assignment",
        "job-1/%D9%A1/algo-1/assignment",
        f"job-1/{'1' * 5000}/algo-1/assignment",
        "job-1/-1/algo-1/assignment",
        "",
    ],
)
async def test_a_malformed_path_gives_404_and_reaches_no_gateway(gateway, path):
    refused = await refusal(gateway, f"/clary/v1/agents/{path}")
    assert (refused.code, refused.http_status) == ("NotFound", 404)
    assert gateway.told == []


@pytest.mark.parametrize(
    ("method", "action"), [("POST", "assignment"), ("GET", "reports"), ("DELETE", "logs"), ("GET", "x")]
)
async def test_a_request_with_another_method_gives_404(gateway, method, action):
    assert (await refusal(gateway, f"{AGENT}/{action}", method=method)).http_status == 404


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b"[]", b"null", b'{"number": "x"}', b"[" * 100_000, b'{"first_sequence": 1, "lines": [1]}'],
)
async def test_a_body_that_is_no_message_is_refused(gateway, body):
    for action in ("reports", "logs"):
        refused = await refusal(gateway, f"{AGENT}/{action}", method="POST", body=body)
        assert refused.http_status == 400
        assert refused.code in ("ValidationException", "SerializationException")


async def test_the_handler_turns_refusals_into_responses_in_the_form_of_aws(gateway):
    handler = FewParts(agents=gateway).handler
    answer = await handler.handle(request(f"{AGENT}/assignment", token="wrong"))
    assert (answer.status, document(answer)) == (403, {"__type": "AccessDenied", "message": "wrong token"})
    answer = await handler.handle(request("/clary/v1/elsewhere"))
    assert (answer.status, document(answer)["__type"]) == (404, "NotFound")
