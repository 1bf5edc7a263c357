"""The service as a whole: killed and started again, without root, without namespaces, without a network."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from boto3_clients import Clients, job_request, log_of, refusal, unique, wait
from postgres_server import PostgresServer
from running_service import ROOT, SDK2_PYTHON, SETTINGS, start_service
from service_processes import service_pid

pytestmark = [pytest.mark.timeout(300)]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes namespaces of its own")


@pytest.fixture
def own_service(tmp_path):
    """Services of one test, stopped at its end."""
    running = []

    def start(settings=SETTINGS, **variables):
        running.append(start_service(tmp_path / f"home-{len(running)}", settings, **variables))
        return running[-1]

    yield start
    for service in running:
        service.clary("down", check=False)
        assert "left behind" not in service.clary("doctor", check=False).stdout


def agent_pids(service):
    record = next(service.home.glob("jobs/pool_*/1/engine.json"))
    return [agent["pid"] for agent in json.loads(record.read_text())["agents"].values()]


@pytest.mark.long(10)
def test_a_restarted_service_finds_its_jobs_and_loses_or_duplicates_no_log_line(own_service):
    service = own_service()
    aws = Clients(service)
    name = unique("survivor")
    request = job_request(name, "for i in $(seq 60); do echo line $i; sleep 0.1; done; echo kept > /opt/ml/model/kept")
    request["ResourceConfig"]["InstanceCount"] = 2
    aws.sagemaker.create_training_job(**request)
    wait(aws, name, until=("Training",))
    time.sleep(1)
    os.kill(service_pid(service), signal.SIGKILL)
    time.sleep(1)
    service.clary("up")
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    for stream in aws.logs.describe_log_streams(
        logGroupName="/aws/sagemaker/TrainingJobs", logStreamNamePrefix=f"{name}/"
    )["logStreams"]:
        page = aws.logs.get_log_events(
            logGroupName="/aws/sagemaker/TrainingJobs", logStreamName=stream["logStreamName"], startFromHead=True
        )
        lines = [event["message"] for event in page["events"] if event["message"].startswith("line ")]
        assert lines == [f"line {number}" for number in range(1, 61)], stream["logStreamName"]


@pytest.mark.long
def test_when_all_processes_are_killed_objects_stay_and_the_job_fails_with_a_reason(own_service):
    service = own_service()
    aws = Clients(service)
    aws.s3.put_object(Bucket="clary", Key="kept", Body=b"kept")
    name = unique("victim")
    aws.sagemaker.create_training_job(**job_request(name, "sleep 60"))
    wait(aws, name, until=("Training",))
    weed = json.loads((service.home / "run" / "seaweed.json").read_text())
    pids = [service_pid(service), *agent_pids(service), (weed.get("process") or weed)["pid"]]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    service.clary("up")
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Failed"
    assert "algo-1 was lost" in facts["FailureReason"]
    assert aws.s3.get_object(Bucket="clary", Key="kept")["Body"].read() == b"kept"


@pytest.mark.long(25)
def test_plain_processes_run_ddp_on_two_hosts_and_report_missing_isolation(own_service):
    service = own_service(SETTINGS, CLARY_ISOLATION="processes")
    output, facts = service.run_client(SDK2_PYTHON, "v2_pytorch.py")
    assert "rank 3 of 4 sum: 10" in output
    described = service.clary("describe", facts["name"]).stdout
    assert "not isolated" in described
    request = job_request(unique("alone"), "true", EnableNetworkIsolation=True)
    code, message = refusal(Clients(service).sagemaker.create_training_job, **request)
    assert code == "ValidationException"
    assert message.startswith("EnableNetworkIsolation can not be kept here: hosts share the network of this machine")


@needs_root
@pytest.mark.long
def test_the_whole_path_works_with_no_interface_but_loopback(tmp_path):
    """Service, object store, SDK v2 and a two-host job inside a network namespace with only a loopback interface."""
    script = f"""
import json, subprocess, sys
sys.path[:0] = {[str(ROOT / "tests"), str(ROOT / "tests/integration")]!r}
from pathlib import Path
from running_service import SDK2_PYTHON, start_service
links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout.split("\\n")
routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
assert [line.split()[0] for line in links if line] == ["lo"], links
assert routes == "", routes
service = start_service(Path({str(tmp_path / "home")!r}))
try:
    output, facts = service.run_client(SDK2_PYTHON, "v2_generic.py")
    print(json.dumps(facts))
finally:
    service.clary("down")
"""
    command = ["unshare", "--net", "bash", "-c", 'ip link set lo up && exec "$@"', "bash", sys.executable, "-c", script]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert completed.returncode == 0, completed.stdout[-3000:] + completed.stderr[-6000:]
    assert "my own words" in completed.stdout


@needs_root
@pytest.mark.long(25)
def test_an_unprivileged_user_runs_a_job_in_user_namespaces():
    folder = Path("/var/tmp") / f"clary-nobody-{os.getpid()}"
    folder.mkdir()
    source = folder / "site"
    shutil.copytree(ROOT / "src", source)
    shutil.copytree(Path(sys.prefix) / "lib/python3.11/site-packages", source, dirs_exist_ok=True)
    weed = next(path for path in (Path(sys.prefix) / "bin").glob("weed"))
    (folder / "bin").mkdir()
    shutil.copy(weed, folder / "bin")
    subprocess.run(["chown", "-R", "65534:65534", str(folder)], check=True)
    script = """
import os, sys
sys.path.insert(0, os.environ["SITE"])
from pathlib import Path
import json, time, boto3
from clary.cli.main import main
assert os.geteuid() == 65534
assert main(["up"]) == 0
from clary.cli.connection import connect
connection = connect()
try:
    options = dict(endpoint_url=connection.record.url, region_name="us-west-2",
        aws_access_key_id=connection.secrets.access_key_id,
        aws_secret_access_key=connection.secrets.secret_access_key)
    client = boto3.client("sagemaker", **options)
    client.create_training_job(TrainingJobName="rootless", RoleArn="arn:aws:iam::000000000000:role/x-y-z",
        AlgorithmSpecification={"TrainingImage": "own:1", "TrainingInputMode": "File", "ContainerEntrypoint": [
            "bash", "-c", "hostname; ls /opt/ml; id -u; getent hosts algo-2; echo x > /opt/ml/model/$(hostname)"]},
        OutputDataConfig={"S3OutputPath": "s3://clary/o"},
        ResourceConfig={"InstanceCount": 2, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 1},
        StoppingCondition={"MaxRuntimeInSeconds": 60})
    deadline = time.monotonic() + 60
    facts = {"TrainingJobStatus": "InProgress"}
    while facts["TrainingJobStatus"] == "InProgress" and time.monotonic() < deadline:
        time.sleep(0.2)
        facts = client.describe_training_job(TrainingJobName="rootless")
    main(["describe", "rootless"])
    main(["logs", "rootless"])
    print("STATUS", facts["TrainingJobStatus"], facts.get("FailureReason", ""))
finally:
    main(["down"])
"""
    environment = {
        "PATH": f"{folder / 'bin'}:/usr/bin:/bin:/usr/sbin:/sbin",
        "SITE": str(source),
        "PYTHONPATH": str(source),
        "HOME": str(folder),
        "CLARY_HOME": str(folder / "home"),
        "CLARY_PORT": "0",
        "CLARY_TLS_PORT": "0",
    }
    (folder / "home").mkdir()
    (folder / "home" / "settings.toml").write_text(
        '[images]\n"own:*" = "own"\n[environments]\nown = "/usr/bin/python3"\n'
    )
    subprocess.run(["chown", "-R", "65534:65534", str(folder / "home")], check=True)
    command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "/usr/bin/python3", "-c", script]
    try:
        completed = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=150, cwd=str(folder)
        )
        output = completed.stdout + completed.stderr
        assert "STATUS Completed" in completed.stdout, output[-6000:]
        assert "algo-1 | algo-1" in completed.stdout, output[-6000:]
        assert "isolation: namespaces" in (folder / "home" / "service.log").read_text()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.long
def test_links_have_the_rate_and_delay_of_the_settings(own_service):
    if os.geteuid() != 0 and not os.access("/dev/net/tun", os.W_OK):
        pytest.skip("delay needs /dev/net/tun")
    service = own_service(SETTINGS + '\n[instance_types."ml.far.away"]\ndelay_ms = 20\n')
    aws = Clients(service)
    name = unique("far")
    measure = (
        "import socket, time, json, os\n"
        "host = json.load(open('/opt/ml/input/config/resourceconfig.json'))['current_host']\n"
        "if host == 'algo-2':\n"
        "    with socket.create_server(('0.0.0.0', 9000)) as server:\n"
        "        server.settimeout(30)\n"
        "        peer, _ = server.accept()\n"
        "        [peer.sendall(peer.recv(1)) for _ in range(5)]\n"
        "else:\n"
        "    for _ in range(100):\n"
        "        try:\n"
        "            peer = socket.create_connection(('algo-2', 9000), timeout=5); break\n"
        "        except OSError: time.sleep(0.1)\n"
        "    times = []\n"
        "    for _ in range(5):\n"
        "        start = time.monotonic(); peer.sendall(b'x'); peer.recv(1); times.append(time.monotonic() - start)\n"
        "    print(f'rtt_ms={sorted(times)[2] * 1000:.1f}', flush=True)\n"
    )
    request = job_request(name, "true")
    request["ResourceConfig"] = {"InstanceCount": 2, "InstanceType": "ml.far.away", "VolumeSizeInGB": 1}
    aws.s3.put_object(Bucket="clary", Key="far/measure.py", Body=measure.encode())
    request["InputDataConfig"] = [
        {
            "ChannelName": "script",
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://clary/far/measure.py"}},
        }
    ]
    request["AlgorithmSpecification"]["ContainerEntrypoint"] = ["python3", "/opt/ml/input/data/script/measure.py"]
    del request["AlgorithmSpecification"]["ContainerArguments"]
    aws.sagemaker.create_training_job(**request)
    facts = wait(aws, name)
    lines = log_of(aws, name)
    assert facts["TrainingJobStatus"] == "Completed", lines
    rtt_ms = next(float(line.split("=")[1]) for line in lines if line.startswith("rtt_ms="))
    assert 38 <= rtt_ms <= 120, "20 ms each way"


@pytest.mark.long
def test_the_external_object_store_of_the_settings_is_used(own_service):
    """The embedded store of one service is the external store of another."""
    first = own_service()
    record = json.loads((first.home / "run" / "seaweed.json").read_text())
    port = record["ports"]["s3"]
    # The store's own key is derived from the state folder's master key, in the same way as by the service.
    from clary.control.state_folder import StateFolder

    credentials = StateFolder(first.home).load_secrets().store_credentials
    settings = (
        f's3_endpoint_url = "http://127.0.0.1:{port}"\ns3_access_key_id = "{credentials.access_key_id}"\n'
        f's3_secret_access_key = "{credentials.secret_access_key}"\n' + SETTINGS
    )
    second = own_service(settings)
    assert not (second.home / "run" / "seaweed.json").exists()
    aws = Clients(second)
    name = unique("external")
    aws.sagemaker.create_training_job(**job_request(name, "echo kept > /opt/ml/model/kept"))
    assert wait(aws, name)["TrainingJobStatus"] == "Completed"
    assert Clients(first).s3.head_object(Bucket="clary", Key=f"out/{name}/output/model.tar.gz")


@pytest.mark.long
def test_jobs_in_postgresql_survive_a_restart_of_the_service(own_service):
    postgres = PostgresServer()
    try:
        database = postgres.create_database()
        service = own_service(SETTINGS, CLARY_DATABASE_URL=postgres.url(database))
        aws = Clients(service)
        name = unique("postgres")
        aws.sagemaker.create_training_job(**job_request(name, "echo loss=0.5"))
        assert wait(aws, name)["TrainingJobStatus"] == "Completed"
        assert not (service.home / "clary.db").exists()
        os.kill(service_pid(service), signal.SIGKILL)
        service.clary("up")
        facts = aws.sagemaker.describe_training_job(TrainingJobName=name)
        assert facts["FinalMetricDataList"][0]["Value"] == 0.5
        service.clary("down")
    finally:
        postgres.remove()
