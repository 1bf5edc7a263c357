"""Traces on their way to a collector: retried, given up, counted, and never a delay for a job."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from clary.control.reconcile import trace_exporter
from clary.control.reconcile.trace_exporter import TraceExporter, headers_of
from clary.testing.control_plane import ControlPlane

WAIT_S = 30


class FakeCollector:
    """Answers OTLP/HTTP on its own port with statuses from a list, then with 200; checks the shape of every body."""

    def __init__(self, statuses=(), *, headers=None):
        self.statuses = list(statuses)
        self.headers = headers or {}
        self.requests = []
        self.taken = []

    async def answer(self, request):
        assert request.path == "/v1/traces"
        assert request.content_type == "application/json"
        body = await request.json()
        self.requests.append(request)
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 200:
            self.taken += [check_span(span) for one in body["resourceSpans"] for span in one["scopeSpans"][0]["spans"]]
        return web.json_response({"partialSuccess": {}}, status=status, headers=self.headers)


def check_span(span):
    """Check that a span has the required members and no unknown ones; return its name."""
    known = {"traceId", "spanId", "parentSpanId", "name", "kind", "startTimeUnixNano", "endTimeUnixNano"}
    assert span.keys() <= known | {"attributes", "status"}, span
    assert (len(bytes.fromhex(span["traceId"])), len(bytes.fromhex(span["spanId"]))) == (16, 8)
    assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
    return span["name"]


@asynccontextmanager
async def collecting(fake):
    application = web.Application()
    application.router.add_post("/{tail:.*}", fake.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def sending(exporter):
    task = asyncio.create_task(exporter.send_all())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition):
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(trace_exporter, "FIRST_PAUSE_S", 0.01)


@pytest.fixture
async def ended(tmp_path):
    """A job that has ended, and a job that runs."""
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create()
        await plane.run_to_end()
        await plane.create("runs")
        yield await plane.job(), await plane.job("runs")


async def test_the_trace_of_a_job_is_sent_once_when_the_job_has_ended(ended):
    job, running = ended
    fake = FakeCollector()
    async with collecting(fake) as url:
        exporter = TraceExporter(url + "/", headers="x-key = secret,,y=2", region="r")
        async with sending(exporter):
            exporter.take(running)
            for _ in range(3):
                exporter.take(job)
            await until(lambda: exporter.num_sent == 1)
            await asyncio.sleep(0.05)
    assert [name for name in fake.taken if name.startswith("training job")] == ["training job job"]
    assert (fake.requests[0].headers["x-key"], fake.requests[0].headers["y"]) == ("secret", "2")


@pytest.mark.parametrize("status", sorted(trace_exporter.RETRIED))
async def test_a_busy_collector_is_retried(ended, status):
    fake = FakeCollector([status, status])
    async with collecting(fake) as url:
        exporter = TraceExporter(url)
        async with sending(exporter):
            exporter.take(ended[0])
            await until(lambda: exporter.num_sent == 1)
    assert (len(fake.requests), exporter.num_dropped) == (3, 0)


async def test_a_refused_trace_is_dropped_at_once_and_logged_without_the_address(ended, caplog):
    fake = FakeCollector([400])
    async with collecting(fake) as url:
        exporter = TraceExporter(url)
        async with sending(exporter):
            exporter.take(ended[0])
            await until(lambda: exporter.num_dropped == 1)
        assert url not in caplog.text
    assert len(fake.requests) == 1
    assert "status 400; 1 dropped so far" in caplog.text


@pytest.mark.parametrize("kind", ["nobody listens", "never willing", "asks for an hour"])
async def test_a_trace_is_given_up_at_its_deadline(ended, kind):
    headers = {"Retry-After": "3600"} if kind == "asks for an hour" else {}
    async with collecting(FakeCollector([503] * 100_000, headers=headers)) as url:
        exporter = TraceExporter("http://127.0.0.1:1" if kind == "nobody listens" else url, deadline_s=0.3)
        async with sending(exporter):
            exporter.take(ended[0])
            await until(lambda: exporter.num_dropped == 1)
    assert exporter.num_sent == 0


async def test_jobs_beyond_the_queue_limit_are_counted_as_dropped(ended, monkeypatch):
    monkeypatch.setattr(trace_exporter, "MAX_WAITING", 0)
    exporter = TraceExporter("http://127.0.0.1:1")
    exporter.take(ended[0])
    assert exporter.num_dropped == 1


async def test_a_record_that_can_not_be_exported_blocks_no_other_record(ended, monkeypatch, tmp_path):
    whole = trace_exporter.trace_request
    calls = []

    def first_fails(jobs, *, region):
        calls.append(jobs)
        if len(calls) == 1:
            raise KeyError("odd")
        return whole(jobs, region=region)

    monkeypatch.setattr(trace_exporter, "trace_request", first_fails)
    (tmp_path / "other").mkdir()
    async with ControlPlane.open(tmp_path / "other") as plane, collecting(FakeCollector()) as url:
        await plane.create("second")
        await plane.run_to_end("second")
        exporter = TraceExporter(url)
        async with sending(exporter):
            exporter.take(ended[0])
            exporter.take(await plane.job("second"))
            await until(lambda: exporter.num_sent == 1)
    assert exporter.num_dropped == 1


async def test_without_an_endpoint_no_trace_is_kept_or_sent(ended):
    exporter = TraceExporter("")
    exporter.take(ended[0])
    await exporter.send_all()
    assert (exporter.num_sent, exporter.num_dropped) == (0, 0)


def test_headers_are_parsed_from_pairs():
    assert headers_of("") == {}
    assert headers_of("a=b=c, d = e ,=f") == {"a": "b=c", "d": "e"}
