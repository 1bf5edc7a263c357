"""A real service: `clary top` sees a job live, and a collector gets its trace once it has ended."""

import http.server
import json
import shutil
import threading
import time

import boto3
import pytest
from running_service import start_service

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("top-and-traces")]

DEADLINE_S = 90


class FakeCollector(http.server.BaseHTTPRequestHandler):
    """Accepts and records every POST, and answers 200."""

    bodies: list = []  # shared by the only collector of this module

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append((self.path, self.headers.get("X-Key"), body))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def collector():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeCollector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def service(tmp_path_factory, collector):
    home = tmp_path_factory.mktemp("clary-top")
    running = start_service(home, CLARY_OTLP_ENDPOINT=collector, CLARY_OTLP_HEADERS="x-key=k")
    yield running
    running.clary("down")
    shutil.rmtree(home, ignore_errors=True)


def until(read, what):
    """Call `read` until its result is true; return the result."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = read()
        if found:
            return found
        time.sleep(0.5)
    raise AssertionError(f"not within {DEADLINE_S} s: {what}")


@pytest.mark.long
def test_a_running_job_is_shown_by_top_and_an_ended_one_is_exported_as_a_trace(service):
    client = boto3.client(
        "sagemaker",
        endpoint_url=service.environment["AWS_ENDPOINT_URL"],
        region_name=service.environment["AWS_REGION"],
        aws_access_key_id=service.environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=service.environment["AWS_SECRET_ACCESS_KEY"],
    )
    assert json.loads(service.clary("top", "--json").stdout) == []
    client.create_training_job(
        TrainingJobName="seen",
        RoleArn="arn:aws:iam::000000000000:role/ClaryExecutionRole",
        AlgorithmSpecification={
            "TrainingImage": "registry.example/team/bring-your-own:1",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["/bin/bash", "-c"],
            "ContainerArguments": ["echo loss=0.5; while [ ! -e /opt/ml/never ]; do sleep 0.2; done"],
            "MetricDefinitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
        },
        OutputDataConfig={"S3OutputPath": "s3://clary/out"},
        ResourceConfig={"InstanceCount": 1, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 10},
        StoppingCondition={"MaxRuntimeInSeconds": 600},
    )

    def live():
        (job,) = json.loads(service.clary("top", "--json").stdout)
        hosts = job["hosts"]
        return job if job["metrics"] and hosts and "host/memory_bytes" in hosts[0]["latest"] else None

    job = until(live, "a value of loss and a measured host in clary top")
    assert (job["name"], job["status"], job["hosts"][0]["name"]) == ("seen", "InProgress", "algo-1")
    header, row, host = service.clary("top").stdout.splitlines()
    assert header.split()[:3] == ["NAME", "STATUS", "PHASE"]
    assert (row.split()[0], "loss=0.5" in row, host.split()[0]) == ("seen", True, "algo-1")
    client.stop_training_job(TrainingJobName="seen")
    path, key, body = until(lambda: FakeCollector.bodies, "the trace")[0]
    assert (path, key) == ("/v1/traces", "k")
    spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert spans[0]["name"] == "training job seen"
    assert spans[1]["name"] == "attempt 1"
    assert "algo-1 lost_to_stop" in {span["name"] for span in spans}
    assert json.loads(service.clary("top", "--json").stdout) == []
    lines = [json.loads(line) for line in service.clary("logs", "seen", "--json").stdout.splitlines()]
    assert any(line["text"] == "loss=0.5" and line["host"] == "algo-1" for line in lines)
    assert json.loads(service.clary("env", "--json").stdout)["AWS_ENDPOINT_URL"].startswith("http")
    assert json.loads(service.clary("plan", "seen", "--json").stdout)["job_name"] == "seen"
