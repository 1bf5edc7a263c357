"""Exported traces, checked by OpenTelemetry's schema and by a backend that stores them."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
from running_service import SDK3_PYTHON

from clary.control.analysis.job_trace import trace_request
from clary.control.reconcile.trace_exporter import TraceExporter
from clary.testing.control_plane import ControlPlane

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.needs("sdk3")]

PROGRAM = Path(__file__).with_name("otlp_backend_program.py")
SENT_S = 60
END_S = 30


class Backend:
    """MLflow with its OTLP endpoint, in a separate process."""

    def __init__(self, folder):
        self._log = (folder / "backend.log").open("w")
        self._process = subprocess.Popen(
            [SDK3_PYTHON, PROGRAM, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        self._folder = folder

    def ask(self, **question):
        """Send a request, if any, as one line of JSON; return the response."""
        if question:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, (self._folder / "backend.log").read_text()[-4000:]
        return json.loads(line)

    def close(self):
        """End the process."""
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        finally:
            self._process.kill()
            self._process.wait(END_S)
            self._process.stdout.close()
            self._log.close()


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    running = Backend(tmp_path_factory.mktemp("otlp"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def url(backend):
    return f"http://127.0.0.1:{backend.ask()}"


async def ended_job(folder, *, exit_code):
    """Return a completed job whose statuses are seconds apart."""
    async with ControlPlane.open(folder) as plane:
        await plane.create(num_hosts=2)
        plane.clock.advance(7)
        await plane.run_to_end(exit_code=exit_code, num_hosts=2)
        return await plane.job()


def told(span):
    """Return a span's attributes as plain values."""
    values = {item["key"]: item["value"] for item in span["attributes"]}
    return {key: int(one["intValue"]) if "intValue" in one else one["stringValue"] for key, one in values.items()}


@pytest.mark.parametrize("exit_code", [0, 3])
async def test_a_trace_fits_opentelemetrys_schema_and_a_backend_stores_it_unchanged(tmp_path, backend, url, exit_code):
    job = await ended_job(tmp_path, exit_code=exit_code)
    body = json.loads(json.dumps(trace_request([job], region="us-west-2")))
    assert backend.ask(check=body) == body, "every member is known, none is lost, none has another form"

    exporter = TraceExporter(url, headers="x-mlflow-experiment-id=0", region="us-west-2")
    exporter.take(job)
    sending = asyncio.create_task(exporter.send_all())
    async with asyncio.timeout(SENT_S):
        while exporter.num_sent + exporter.num_dropped == 0:
            await asyncio.sleep(0.05)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert (exporter.num_sent, exporter.num_dropped) == (1, 0)

    (resource,) = body["resourceSpans"]
    spans = resource["scopeSpans"][0]["spans"]
    kept = {span["id"]: span for span in backend.ask(trace=spans[0]["traceId"])}
    assert len(kept) == len(spans) > 3
    for span in spans:
        one = kept[span["spanId"]]
        assert (one["name"], one["parent"]) == (span["name"], span.get("parentSpanId"))
        assert [one["start"], one["end"]] == [int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])]
        assert told(span).items() <= one["attributes"].items()
    root = kept[spans[0]["spanId"]]
    assert root["status"][0] == ("OK" if exit_code == 0 else "ERROR")
    assert root["status"][1] == spans[0]["status"].get("message", "")
