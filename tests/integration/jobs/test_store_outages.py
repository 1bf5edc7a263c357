"""An object store that is away longer than the retries of one request: jobs wait for it and lose nothing."""

import json

import pytest
from boto3_clients import Clients, job_request, unique, wait
from faulty_gateway import faulty_gateway
from program_jobs import channel, put, start
from running_service import SETTINGS, start_service

from clary.control.state_folder import StateFolder

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("store-outages")]
REQUEST_ATTEMPTS = 8  # of an agent's request


@pytest.mark.long
def test_a_store_that_is_away_while_a_job_fetches_and_uploads_costs_nothing_but_time(tmp_path_factory):
    running = start_service(tmp_path_factory.mktemp("store"), SETTINGS)
    try:
        port = json.loads((running.home / "run" / "seaweed.json").read_text())["ports"]["s3"]
        keys = StateFolder(running.home).load_secrets().store_credentials
        with faulty_gateway(f"http://127.0.0.1:{port}") as gateway:
            external = (
                f's3_endpoint_url = "{gateway.url}"\ns3_access_key_id = "{keys.access_key_id}"\n'
                f's3_secret_access_key = "{keys.secret_access_key}"\n'
            )
            behind = start_service(tmp_path_factory.mktemp("behind"), external + SETTINGS)
            try:
                aws = Clients(behind)
                name = unique("outage")
                uri = put(aws, f"{name}/part-0.csv", "1,2\n")
                for method, what in (("GET", "part-0.csv"), ("PUT", "model.tar.gz")):
                    gateway.fail(
                        "drop",
                        lambda seen, path, method=method, what=what: seen == method and path.endswith(f"/{what}"),
                        times=REQUEST_ATTEMPTS + 1,
                    )
                command = "cp /opt/ml/input/data/train/part-0.csv /opt/ml/model/"
                start(aws, job_request(name, command, InputDataConfig=[channel("train", uri)]))
                described = wait(aws, name, timeout_s=240)
                assert described["TrainingJobStatus"] == "Completed", described
                facts = json.loads(behind.clary("describe", "--json", name).stdout)
                told = json.dumps(facts)
                assert "channel:train could not be fetched yet" in told
                assert "results could not be uploaded yet; they are kept" in told
                assert all(fault.times == 0 for fault in gateway.faults)
            finally:
                behind.clary("down")
    finally:
        running.clary("down")
