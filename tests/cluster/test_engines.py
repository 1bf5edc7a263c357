"""The same jobs on every engine: this machine, a real Slurm, boxes with a real sshd. Needs root.

The numbers R4 to R28 are those of the acceptance list in docs/machines.md, which says what an engine cannot do and why.
"""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from boto3_clients import job_request, log_of, refusal, unique, wait
from program_jobs import channel, members_of, object_at, put, run, script_request, start
from running_service import CLIENTS, SDK2_PYTHON, SDK3_PYTHON
from warm_pools import wait_for_pool

from needs import NEEDS, require

pytest_plugins = ["engine_services"]
pytestmark = [pytest.mark.clients, pytest.mark.timeout(240)]

ALLREDUCE = (CLIENTS / "source/allreduce.py").read_text()
DDP = {"sagemaker_torch_distributed_enabled": "true", "sagemaker_instance_type": '"ml.m5.large"'}

SAYS_WHERE = """
import json, os, socket
config = json.load(open("/opt/ml/input/config/resourceconfig.json"))
addresses = {host: socket.gethostbyname(host) for host in config["hosts"]}
facts = {
    "config": config,
    "is_own": socket.gethostname() == os.environ["SM_CURRENT_HOST"],
    "num_addresses": len(set(addresses.values())),
    "hosts": json.loads(os.environ["SM_HOSTS"]),
    "master": os.environ.get("SM_MASTER", os.environ.get("MASTER_ADDR", "algo-1")),
}
open(os.path.join(os.environ["SM_MODEL_DIR"], os.environ["SM_CURRENT_HOST"] + ".json"), "w").write(json.dumps(facts))
"""
READS = """
import json, os, time
host = os.environ["SM_CURRENT_HOST"]
facts = {"shard": sorted(os.listdir("/opt/ml/input/data/sharded")), "epochs": []}
for epoch in range(2):
    while not os.path.exists(f"/opt/ml/input/data/piped_{epoch}"):  # as AWS's own example waits
        time.sleep(0.01)
    with open(f"/opt/ml/input/data/piped_{epoch}", "rb") as fifo:
        facts["epochs"].append(fifo.read().decode())
with open("/opt/ml/input/data/fast/big", "rb") as file:
    file.seek(2_000_000)
    facts["byte"] = file.read(1).decode()
open(f"/opt/ml/model/{host}.json", "w").write(json.dumps(facts))
"""
# Stores its last step after SIGTERM, and prints how many SIGTERMs it has received.
STOPS = """
import os, signal, sys, time
path = "/opt/ml/checkpoints/step"
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
begun = int(open(path).read()) if os.path.exists(path) else 0
print(f"{os.environ['SM_CURRENT_HOST']} begins at {begun}", flush=True)
for step in range(begun, 3000):
    if heard:
        break
    time.sleep(0.05)
time.sleep(0.5)
open(path, "w").write(str(step))
print(f"{os.environ['SM_CURRENT_HOST']} heard SIGTERM {len(heard)} times at {step}", flush=True)
sys.exit(0)
"""
# Prints numbered lines until SIGTERM.
COUNTS_ON = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
number = 0
while True:
    number += 1
    print("line", os.environ["SM_CURRENT_HOST"], number, flush=True)
    time.sleep(0.2)
"""
# Counts steps up to its hyperparameter; a new attempt resumes from the checkpoint.
COUNTS = """
import os, time
path = "/opt/ml/checkpoints/step"
step = int(open(path).read()) if os.path.exists(path) else 0
print(f"{os.environ['SM_CURRENT_HOST']} begins at {step}", flush=True)
while step < 60:
    time.sleep(0.1)
    step += 1
    open(path + ".new", "w").write(str(step))
    os.replace(path + ".new", path)
print(f"{os.environ['SM_CURRENT_HOST']} is done at {step}", flush=True)
"""


@pytest.fixture
def aws(engine):
    """Clients of an engine's service; after each test no job runs."""
    yield engine.aws
    for job in engine.aws.sagemaker.list_training_jobs(StatusEquals="InProgress")["TrainingJobSummaries"]:
        engine.aws.sagemaker.stop_training_job(TrainingJobName=job["TrainingJobName"])  # jobs left by a failed test
        wait(engine.aws, job["TrainingJobName"])


def hosts(number, **members):
    return {"InstanceCount": number, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 10, **members}


def require_completed(facts):
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")


def messages(facts):
    return " ".join(row["StatusMessage"] for row in facts["SecondaryStatusTransitions"])


def lines_of(aws, name, word):
    return [line for line in log_of(aws, name) if word in line and not line.startswith("clary:")]


def checkpointing(aws, name, script, **members):
    place = {"S3Uri": f"s3://clary/checkpoints/{name}", "LocalPath": "/opt/ml/checkpoints"}
    return script_request(aws, name, {"train.py": script}, CheckpointConfig=place, **members)


def model_of(aws, facts):
    return members_of(object_at(aws, facts["ModelArtifacts"]["S3ModelArtifacts"]))


class TestClients:
    """R27: every client, unmodified, trains on two hosts."""

    @pytest.mark.long(28)
    def test_boto3(self, aws):
        request = script_request(aws, unique("boto3"), {"train.py": ALLREDUCE}, instance_count=2, hyperparameters=DDP)
        facts = run(aws, request)
        require_completed(facts)
        assert lines_of(aws, facts["TrainingJobName"], " sum: ")

    @pytest.mark.long(20)
    def test_the_aws_command_line(self, engine, aws):
        require("awscli1")
        request = script_request(aws, unique("cli"), {"train.py": ALLREDUCE}, instance_count=2, hyperparameters=DDP)
        environment = {**engine.service.environment, "AWS_PAGER": ""}
        command = [NEEDS["awscli1"].path, "sagemaker", "create-training-job", "--cli-input-json", json.dumps(request)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        require_completed(wait(aws, request["TrainingJobName"]))
        assert lines_of(aws, request["TrainingJobName"], " sum: ")

    @pytest.mark.parametrize("script", ["v2_generic.py", "v2_pytorch.py"])
    @pytest.mark.long(10)
    def test_sdk_v2_estimators(self, engine, aws, script):
        _, facts = engine.service.run_client(SDK2_PYTHON, script)
        require_completed(aws.sagemaker.describe_training_job(TrainingJobName=facts["name"]))

    @pytest.mark.parametrize("form", ["smdistributed", "torch_distributed", "pytorchddp"])
    @pytest.mark.long(120)
    def test_sdk_v2(self, engine, aws, form):
        _, facts = engine.service.run_client(SDK2_PYTHON, "v2_smddp.py", form, "allreduce.py")
        assert len(facts["ranks"]) == 4
        assert all('"sum": 10.0' in text for text in facts["ranks"].values())

    @pytest.mark.parametrize("form", ["none", "torchrun", "local-data"])
    @pytest.mark.long(190)
    def test_sdk_v3(self, engine, aws, form):
        _, facts = engine.service.run_client(SDK3_PYTHON, "v3_model_trainer.py", form)
        require_completed(aws.sagemaker.describe_training_job(TrainingJobName=facts["name"]))


@pytest.mark.long(45)
@pytest.mark.parametrize("instance_type", ["ml.p4d.24xlarge", "ml.unknown.1x"])
def test_r4_any_instance_type_is_mapped_and_explained(engine, aws, instance_type):
    resources = {**hosts(1), "InstanceType": instance_type}
    name = start(aws, job_request(unique("type"), "echo ran", ResourceConfig=resources))
    require_completed(wait(aws, name))
    assert any(instance_type in line for line in log_of(aws, name) if line.startswith("clary:")), log_of(aws, name)


@pytest.mark.long(15)
def test_r5_two_hosts_see_what_sagemaker_shows_and_two_jobs_run_at_once(engine, aws):
    alone = start(aws, job_request(unique("beside"), "sleep 2", ResourceConfig=hosts(1)))
    facts = run(aws, script_request(aws, unique("sees"), {"train.py": SAYS_WHERE}, instance_count=2))
    require_completed(facts)
    seen = {name: json.loads(body) for name, body in model_of(aws, facts).items()}
    assert sorted(seen) == ["algo-1.json", "algo-2.json"]
    for name, one in seen.items():
        assert one["config"]["current_host"] == name.removesuffix(".json")
        assert one["config"]["hosts"] == one["hosts"] == ["algo-1", "algo-2"]
        assert one["is_own"]
        assert one["num_addresses"] == 2
        assert one["master"] == "algo-1"
    require_completed(wait(aws, alone))
    both = [aws.sagemaker.describe_training_job(TrainingJobName=name) for name in (alone, facts["TrainingJobName"])]
    assert both[0]["TrainingEndTime"] > both[1]["TrainingStartTime"]


@pytest.mark.long(10)
def test_r6_shards_pipes_and_fast_files(engine, aws):
    base = unique("channels")
    for index in range(5):
        put(aws, f"{base}/shards/{index}", str(index))
    put(aws, f"{base}/fast/big", b"a" * 2_000_000 + b"b" + b"c" * 2_000_000)
    prefix = f"s3://clary/{base}"
    channels = [
        channel("sharded", f"{prefix}/shards/", S3DataDistributionType="ShardedByS3Key"),
        channel("piped", f"{prefix}/shards/", InputMode="Pipe"),
        channel("fast", f"{prefix}/fast/", InputMode="FastFile"),
    ]
    facts = run(aws, script_request(aws, base, {"train.py": READS}, instance_count=2, InputDataConfig=channels))
    require_completed(facts)
    seen = [json.loads(body) for body in model_of(aws, facts).values()]
    assert sorted(name for one in seen for name in one["shard"]) == list("01234")
    assert all(one["epochs"] == ["01234", "01234"] and one["byte"] == "b" for one in seen)


@pytest.mark.parametrize("cause", ["stop", "runtime"])
@pytest.mark.long
def test_r7_r8_each_host_gets_sigterm_once_and_its_last_checkpoint_is_stored(engine, aws, cause):
    name = unique(cause)
    limits = {"StoppingCondition": {"MaxRuntimeInSeconds": 4}} if cause == "runtime" else {}
    start(aws, checkpointing(aws, name, STOPS, instance_count=2, **limits))
    if cause == "stop":
        wait(aws, name, until=("Training",))
        soon(lambda: len(lines_of(aws, name, "begins at")) == 2)
        aws.sagemaker.stop_training_job(TrainingJobName=name)
    facts = wait(aws, name)
    ended = "Stopped" if cause == "stop" else "MaxRuntimeExceeded"
    assert ended in (facts["TrainingJobStatus"], facts["SecondaryStatus"])
    heard = lines_of(aws, name, "heard SIGTERM")
    assert len(heard) == 2
    assert all("heard SIGTERM 1 times" in line for line in heard)
    stored = int(object_at(aws, f"s3://clary/checkpoints/{name}/step"))
    assert stored in {int(line.rpartition(" ")[2]) for line in heard}


@pytest.fixture
def full_disk(engine):
    """A small disk for the hosts of this engine: a file system mounted over their folder, for one test."""
    engine.on_machines('mkdir -p "$FOLDER"; mount -t tmpfs -o size=64m,mode=755 clary-small "$FOLDER"')
    yield
    engine.on_machines('umount --lazy "$FOLDER"')


@pytest.mark.long(10)
def test_r10_a_full_disk_fails_the_job_with_a_reason_that_names_the_disk(full_disk, aws):
    name = unique("full")
    script = "open('/opt/ml/model/big', 'wb').write(bytes(80 << 20))\n"
    facts = run(aws, script_request(aws, name, {"train.py": script}))
    assert facts["TrainingJobStatus"] == "Failed"
    assert "No space left on device" in facts["FailureReason"]


@pytest.mark.long(25)
def test_r11_the_error_of_the_program_is_the_failure_reason(engine, aws):
    facts = run(aws, job_request(unique("failure"), "echo it is mine > /opt/ml/output/failure; exit 3"))
    assert facts["TrainingJobStatus"] == "Failed"
    assert "it is mine" in facts["FailureReason"]


@pytest.mark.long(15)
def test_r12_a_failed_rank_ends_all_ranks_within_seconds(engine, aws):
    name = unique("rank")
    script = "import os, sys, time\n"
    script += "print('here', flush=True)\ntime.sleep(1)\n"
    script += "if os.environ['SM_CURRENT_HOST'] == 'algo-2':\n    print('fails', flush=True)\n    sys.exit(1)\n"
    script += "time.sleep(300)\n"
    start(aws, script_request(aws, name, {"train.py": script}, instance_count=2))
    soon(lambda: lines_of(aws, name, "fails"))
    began_s = time.monotonic()
    facts = wait(aws, name)
    assert time.monotonic() - began_s < 5 + 8  # five seconds, and the grace of a host that ignores SIGTERM
    assert facts["TrainingJobStatus"] == "Failed"
    assert "algo-2" in facts["FailureReason"]


@pytest.mark.long(70)
def test_r13_r18_r22_a_dead_host_costs_an_attempt_and_the_job_resumes(engine, aws):
    name = unique("dies")
    start(aws, checkpointing(aws, name, COUNTS, instance_count=2, RetryStrategy={"MaximumRetryAttempts": 2}))
    soon(lambda: len(lines_of(aws, name, "begins at")) == 2)
    time.sleep(2.5)
    os.kill(agent_of(name), signal.SIGKILL)
    killed_s = time.monotonic()
    wait(aws, name, until=("Restarting",))
    assert time.monotonic() - killed_s < 3 * engine.host_timeout_s
    facts = wait(aws, name)
    require_completed(facts)
    engine.kill_service()
    begun = lines_of(aws, name, "begins at")
    assert len(begun) == 4
    assert max(int(line.rpartition(" ")[2]) for line in begun) > 0
    assert facts["RetryStrategy"] == {"MaximumRetryAttempts": 2}


@pytest.mark.long(10)
def test_r15_r16_attempts_and_the_final_status_survive_restarts_of_the_service(engine, aws):
    name = unique("tries")
    script = "import time\nprint('attempt', flush=True)\ntime.sleep(300)\n"
    tries = {"RetryStrategy": {"MaximumRetryAttempts": 1}}
    start(aws, script_request(aws, name, {"train.py": script}, instance_count=2, **tries))
    for num_begun in (2, 4):
        soon(lambda num_begun=num_begun: len(lines_of(aws, name, "attempt")) == num_begun)
        engine.kill_service()
        os.kill(agent_of(name), signal.SIGKILL)
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Failed"
    assert "algo-2" in facts["FailureReason"]
    engine.kill_service()
    assert aws.sagemaker.describe_training_job(TrainingJobName=name)["FailureReason"] == facts["FailureReason"]


@pytest.mark.long(40)
def test_a_running_job_goes_on_over_clary_restart(engine, aws):
    name = unique("handed")
    start(aws, script_request(aws, name, {"train.py": COUNTS_ON}, instance_count=2))
    soon(lambda: lines_of(aws, name, "line algo-2 5"))
    for _ in range(2):
        said = json.loads(engine.service.clary("restart", "--json").stdout)
        assert said["go_on"] == [name]
        assert said["problems"] == []
    printed = len(lines_of(aws, name, "line "))
    soon(lambda: len(lines_of(aws, name, "line ")) > printed + 10)
    aws.sagemaker.stop_training_job(TrainingJobName=name)
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Stopped", facts.get("FailureReason")
    assert [row["Status"] for row in facts["SecondaryStatusTransitions"]].count("Training") == 1, "one attempt"
    for host in ("algo-1", "algo-2"):
        lines = lines_of(aws, name, f"line {host} ")
        assert lines == [f"line {host} {number}" for number in range(1, len(lines) + 1)]


@pytest.mark.long(10)
def test_r14_a_missing_module_is_not_retried(engine, aws):
    name = unique("import")
    script = "print('attempt', flush=True)\nimport no_such_module\n"
    start(aws, script_request(aws, name, {"train.py": script}, RetryStrategy={"MaximumRetryAttempts": 2}))
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Failed"
    assert "no_such_module" in facts["FailureReason"]
    assert len(lines_of(aws, name, "attempt")) == 1


@pytest.mark.long(35)
def test_r19_r20_r25_progress_bars_bytes_and_metrics(engine, aws):
    name = unique("words")
    command = (
        r"""for i in $(seq 200); do printf "\r%d%%" $i; done; echo; printf "bytes \xff\xfe end\n"; """
        r"""echo loss=0.5; echo loss=0.25; echo last"""
    )
    start(aws, job_request(name, command))
    require_completed(facts := wait(aws, name))
    said = lines_of(aws, name, "")
    assert len(said) < 100
    assert any("end" in line and "bytes" in line for line in said)
    assert said[-1] == "last"
    assert {one["MetricName"]: one["Value"] for one in facts["FinalMetricDataList"]} == {"loss": 0.25}


@pytest.mark.long(20)
def test_r23_a_pending_job_reports_the_reason(engine, aws):
    first = start(aws, job_request(unique("holds"), "sleep 300", ResourceConfig=hosts(engine.num_hosts)))
    wait(aws, first, until=("Training",))
    second = start(aws, job_request(unique("waits"), "true", ResourceConfig=hosts(1)))
    words = {"local": "1 host", "slurm": "waits: ", "boxes": "waits for 1 box"}[engine.name]
    wait(aws, second, until=("Pending",))
    soon(lambda: words in messages(aws.sagemaker.describe_training_job(TrainingJobName=second)))
    aws.sagemaker.stop_training_job(TrainingJobName=first)
    assert wait(aws, first)["TrainingJobStatus"] == "Stopped"
    require_completed(wait(aws, second))


@pytest.mark.long
def test_r24_the_next_job_gets_warm_hosts_and_another_job_can_claim_them(engine, aws):
    kept = hosts(2, KeepAlivePeriodInSeconds=300)
    first = start(aws, job_request(unique("warm"), "true", ResourceConfig=kept))
    require_completed(wait(aws, first))
    wait_for_pool(aws, first, "Available")
    second = start(aws, job_request(unique("warm"), "true", ResourceConfig=kept))
    require_completed(wait(aws, second))
    assert wait_for_pool(aws, first, "Reused")["ReusedByJob"] == second
    wait_for_pool(aws, second, "Available")
    other = start(aws, job_request(unique("wants"), "true", ResourceConfig=hosts(engine.num_hosts)))
    require_completed(wait(aws, other))
    wait_for_pool(aws, second, "Terminated")


@pytest.mark.long(10)
def test_r26_hyperparameters_arrive_as_they_were_sent(engine, aws):
    name = unique("hyper")
    sent = {"quote": 'it\'s "so"', "dollar": "$HOME `id`", "unicode": "größe ☃", "json": '{"a": [1, null]}'}
    script = "import json, os\n"
    script += "told = json.load(open('/opt/ml/input/config/hyperparameters.json'))\n"
    script += "open('/opt/ml/model/told.json', 'w').write(json.dumps(told))\n"
    facts = run(aws, script_request(aws, name, {"train.py": script}, hyperparameters=sent))
    require_completed(facts)
    told = json.loads(model_of(aws, facts)["told.json"])
    assert {key: told[key] for key in sent} == sent
    request = job_request(unique("lines"), "true", HyperParameters={"lines": "a\nb"})
    code, words = refusal(aws.sagemaker.create_training_job, **request)
    assert code == "ValidationException"
    assert "hyperParameters" in words


@pytest.mark.long(15)
def test_r28_a_secret_of_the_environment_is_in_no_log_line_and_no_reason(engine, aws):
    name = unique("secret")
    request = job_request(name, 'test "$API_TOKEN" = hunter2-hunter2 || exit 9; echo had it; exit 3')
    request["Environment"] = {"API_TOKEN": "hunter2-hunter2"}
    start(aws, request)
    facts = wait(aws, name)
    assert lines_of(aws, name, "had it")
    assert "exit code: 3" in facts["FailureReason"]
    assert not [line for line in [facts["FailureReason"], *log_of(aws, name)] if "hunter2" in line]


def soon(look, *, within_s=40.0):
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"the condition was not met within {within_s:g} s"
        time.sleep(0.1)
    return found


def agent_of(name):
    """Return the pid, on this machine, of the agent of a job's host algo-2; the job's program must be running."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if f"TRAINING_JOB_NAME={name}".encode() in variables and b"SM_CURRENT_HOST=algo-2" in variables:
            pid = int(path.parent.name)
            while b"clary.agent" not in (line := Path(f"/proc/{pid}/cmdline").read_bytes()):
                assert pid > 1, line
                pid = int(re.search(rb"\) \S (\d+)", Path(f"/proc/{pid}/stat").read_bytes())[1])
            return pid
    raise AssertionError(f"no program of {name} runs on algo-2")
