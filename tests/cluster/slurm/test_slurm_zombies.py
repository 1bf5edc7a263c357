"""A node that returns after its job has been restarted on another node: its output is not stored.

Needs root. All processes of a node are stopped, so that neither Slurm nor the service can end them. The job continues
on another node. Then all stopped processes except Slurm's daemons are continued.
"""

import http.client
import json
import os
import sqlite3
import time
from urllib.parse import urlsplit

import boto3
import pytest
from boto3_clients import log_of, unique, wait
from botocore.config import Config
from botocore.exceptions import ClientError
from program_jobs import script_request

pytest_plugins = ["slurm_service"]
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="machines of a cluster are namespaces: needs root"),
    pytest.mark.needs("slurm"),
    pytest.mark.xdist_group("slurm-zombies"),
    pytest.mark.timeout(240),
]

CLUSTER_BED = {"are_alike": True, "options": "SlurmdTimeout=300\n"}  # the default: the node is not marked down
# Prints and stores its host, run and step: the log and the checkpoints show a run that continues unnoticed.
COUNTS = """
import os, secrets, time
host, run, step = os.environ["SM_CURRENT_HOST"], secrets.token_hex(4), 0
path = f"/opt/ml/checkpoints/{host}-{run}"
while not os.path.exists("/opt/ml/checkpoints/enough") and step < 600:
    step += 1
    with open(path + ".new", "w") as file:
        file.write(str(step))
    os.replace(path + ".new", path)
    print(f"{host} {run} is at {step}", flush=True)
    time.sleep(0.2)
"""
LEAVES_IN_S = 30.0  # limit for the end of a host that no attempt needs
WATCHED_S = 12.0  # long enough for a zombie to ship lines and checkpoints twice


def soon(look, *, within_s=60.0, what="it"):
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what() if callable(what) else what} did not come to be"
        time.sleep(0.2)
    return found


def runs_in(lines):
    """Return run -> last step that it has printed, from the log lines."""
    found = {}
    for line in lines:
        words = line.split()
        if len(words) == 5 and words[2:4] == ["is", "at"]:
            found[words[1]] = int(words[4])
    return found


def stored_plan(service, name):
    """Return the plan of a job's attempt from the service's database."""
    with sqlite3.connect(f"file:{service.home / 'clary.db'}?mode=ro", uri=True) as database:
        (document,) = database.execute("SELECT document FROM jobs WHERE name = ?", (name,)).fetchone()
    return json.loads(document)["plan"]


def objects_below(aws, prefix):
    pages = aws.s3.get_paginator("list_objects_v2").paginate(Bucket="clary", Prefix=prefix)
    return {entry["Key"]: entry["ETag"] for page in pages for entry in page.get("Contents", ())}


def step_stored_of(aws, prefix, run):
    """Return the highest step of a run in any checkpoint, by the content of its objects."""
    steps = [0]
    for key in objects_below(aws, prefix):
        if f"-{run}" in key:
            steps.append(int(aws.s3.get_object(Bucket="clary", Key=key)["Body"].read() or 0))
    return max(steps)


def refused(call, **parameters):
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    return caught.value.response["ResponseMetadata"]["HTTPStatusCode"]


def asked(service, method, path, token, body=None):
    """Send a request as an agent does; return the status and the body of the response."""
    address = urlsplit(service.environment["AWS_ENDPOINT_URL"])
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.long(70)
def test_a_zombie_stores_no_line_or_checkpoint_and_ends(cluster):
    aws, bed, name = cluster.aws, cluster.bed, unique("zombie")
    prefix = f"checkpoints/{name}/"
    request = script_request(
        aws,
        name,
        {"train.py": COUNTS},
        instance_count=2,
        CheckpointConfig={"S3Uri": f"s3://clary/{prefix}", "LocalPath": "/opt/ml/checkpoints"},
        RetryStrategy={"MaximumRetryAttempts": 2},
    )
    aws.sagemaker.create_training_job(**request)
    wait(aws, name, until=("Training",))
    soon(lambda: len(runs_in(log_of(aws, name))) == 2, what="two runs")
    soon(lambda: len([key for key in objects_below(aws, prefix) if "algo-" in key]) >= 2, what="a checkpoint of each")
    old = stored_plan(cluster.service, name)
    granted = next(m for m in messages(aws, name) if "2 hosts were granted" in m)
    node = granted.split()[-1]  # node of algo-2
    bed.freeze(node)
    try:
        frozen = runs_in(log_of(aws, name))
        soon(lambda: len(runs_in(log_of(aws, name))) >= 4, what="two more runs", within_s=90)
        (zombie,) = {run for run in frozen if any(f"algo-2 {run}" in line for line in log_of(aws, name))}
        said, stored = runs_in(log_of(aws, name))[zombie], step_stored_of(aws, prefix, zombie)
        assert [process for process in bed.processes(node) if "clary.agent" in process]  # the service could not end it
        attack(cluster, name, old, prefix)
        woken_at = time.monotonic()
        bed.wake(node, slurm=False)
        soon(
            lambda: not zombies(bed, node),
            within_s=LEAVES_IN_S,
            what=lambda: f"a node without {zombies(bed, node)}, whose agent says {agent_log(bed, node)}",
        )
        print(f"the zombie left {time.monotonic() - woken_at:.1f} s after it woke")
        time.sleep(max(0.0, WATCHED_S - (time.monotonic() - woken_at)))
        assert runs_in(log_of(aws, name))[zombie] == said
        assert step_stored_of(aws, prefix, zombie) == stored
        assert len(runs_in(log_of(aws, name))) == 4  # the zombie did not start as a host of the new attempt
        attack(cluster, name, old, prefix)
    finally:
        bed.wake(node, slurm=False)
        bed.wake(node, slurm=True)
    aws.sagemaker.stop_training_job(TrainingJobName=name)
    assert wait(aws, name)["TrainingJobStatus"] == "Stopped"
    soon(
        lambda: not cluster.queue() and not cluster.processes(),
        within_s=120.0,  # Slurm polls the returned node at its own interval
        what=lambda: f"a clean cluster: {cluster.queue()} {cluster.processes()} {bed.states()}",
    )
    bed.wait_for_states(dict.fromkeys(bed.nodes, "idle"))
    assert step_stored_of(aws, prefix, zombie) == stored


def zombies(bed, node):
    """Return the living processes of the job on a node; their parent, a stopped process of Slurm, reaps no child."""
    lines = bed.processes(node)
    return [line for line in lines if "slurm" not in line.split()[1] and not line.endswith("<defunct>")]


def agent_log(bed, node):
    """Return the last 3000 bytes of the log of a node's agent."""
    return bed.run("bash", "-c", f"tail -c 3000 $(find {bed.scratch} -name agent.log)", machine=node, check=False)


def messages(aws, name):
    facts = aws.sagemaker.describe_training_job(TrainingJobName=name)
    return [row["StatusMessage"] for row in facts["SecondaryStatusTransitions"]]


def attack(cluster, name, old, prefix):
    """Use the keys and tokens of the first attempt, as a thief would; check that each request is refused."""
    key = old["object_store"]["credentials"]
    s3 = boto3.client(
        "s3",
        endpoint_url=cluster.service.environment["AWS_ENDPOINT_URL"],
        region_name=old["region"],
        aws_access_key_id=key["access_key_id"],
        aws_secret_access_key=key["secret_access_key"],
        config=Config(retries={"max_attempts": 1}),
    )
    before = set(objects_below(cluster.aws, prefix))
    some = min(before)
    assert refused(s3.put_object, Bucket="clary", Key=f"{prefix}intruder", Body=b"x") == 403
    assert refused(s3.get_object, Bucket="clary", Key=some) == 403
    assert refused(s3.delete_object, Bucket="clary", Key=some) == 403
    assert refused(s3.list_objects_v2, Bucket="clary", Prefix=prefix) == 403
    assert refused(s3.create_multipart_upload, Bucket="clary", Key=f"{prefix}intruder") == 403
    assert f"{prefix}intruder" not in objects_below(cluster.aws, prefix)
    host = f"/clary/v1/agents/{name}/1/algo-2"
    for method, path, body in (
        ("GET", f"{host}/assignment", None),
        ("POST", f"{host}/reports", {}),
        ("POST", f"{host}/logs", {}),
    ):
        status, answer = asked(cluster.service, method, path, old["agent_token"], body)
        assert status == 410, (path, status, answer)
    # The pool continues, and its token admits only the hosts that the pool has now.
    path = f"/clary/v1/pools/{old['pool']}/algo-2/assignment?after={name}:1&wait_s=0"
    status, answer = asked(cluster.service, "GET", path, old["pool_token"])
    assert status in (403, 410), answer
