"""Attacks on nodes of a real Slurm: by programs of jobs, and by strangers on the network. Needs root."""

import base64
import json
import os
import secrets
import ssl
import time
import urllib.error
import urllib.request

import pytest
from boto3_clients import job_request, log_of, unique, wait
from program_jobs import script_request

from clary.testing.slurm_bed import HEAD_ADDRESS

pytest_plugins = ["slurm_service"]
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="machines of a cluster are namespaces: needs root"),
    pytest.mark.needs("slurm"),
    pytest.mark.xdist_group("slurm-intruders"),
    pytest.mark.timeout(150),
]

URL = f"https://{HEAD_ADDRESS}:4571/clary/v1"
REPORT = {"node": "n", "addresses": [], "used_address": "10.88.0.3", "num_cpus": 1, "memory_bytes": 1}
# A program that tries every access that it can; it prints its findings as one line of JSON.
PROGRAM = """
import glob, json, os, re, socket, ssl, subprocess, time, urllib.error, urllib.request

URL, TAG, SCRATCH, PLACES = @ORDER@
found = {"uid": open("/proc/self/uid_map").read().split()}

def output_of(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except OSError as error:
        return f"failed: {error}"
    return done.stdout.strip() or f"failed: {done.stderr.strip()}"

def opens(path):
    try:
        with socket.socket(socket.AF_UNIX) as trying:
            trying.connect(path)
        return True
    except OSError:
        return False

found["credential"] = output_of("munge", "--string", f"{TAG} 1")
found["queue"] = output_of("squeue", "--noheader")
found["submitted"] = output_of("sbatch", "--parsable", "--wrap=true", "--output=/dev/null")
found["sockets"] = [path for path in PLACES if opens(path)]
names = [line.split()[-1] for line in open("/proc/net/unix") if line.split()[-1].startswith(("/", "@"))]
found["listening"] = [name for name in names if "munge" in name and opens(name)]
found["tokens"], found["boots"] = [], []
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        text = open(path, "rb").read().decode("utf-8", "replace")
        line = open(path.replace("environ", "cmdline"), "rb").read().decode("utf-8", "replace")
    except OSError:
        continue
    found["tokens"] += [word for word in text.split("\\0") if word.startswith(("CLARY_POOL_", "CLARY_AGENT_"))]
    found["boots"] += [line] if "boot.py" in line or "-m\\0clary.agent" in line else []
files = [os.path.join(top, name) for top, _, names in os.walk(SCRATCH) for name in names]
library = re.compile(r".*/agent/[0-9a-f]{64}/clary/.*")  # which programs import; later agents of the node do, too
found["scratch"] = [path for path in files if not library.fullmatch(path)]
found["changed"] = []
for path in [path for path in files if library.fullmatch(path)][:5]:
    for changed in (path, os.path.dirname(path) + "/new.py"):
        try:
            open(changed, "a").close()
            found["changed"].append(changed)
        except OSError:
            continue
found["hosts"] = glob.glob("/proc/[0-9]*/root" + SCRATCH + "/clary-*/*/hosts/*")
found["key"] = [path for path in ("/etc/munge/munge.key", "/run/munge/key") if os.access(path, os.R_OK)]

context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
def enrol(index, proof):
    report = {"node": "n", "addresses": [], "used_address": "10.88.0.3", "num_cpus": 1, "memory_bytes": 1}
    body = json.dumps({"claim": "c" * 32, "proof": proof, "report": report, "wait_s": 0.0}).encode()
    request = urllib.request.Request(f"{URL}/allocations/{TAG}/{index}", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
proofs = ("", "MUNGE:" + "A" * 64 + ":", found["credential"])
found["enrolled"] = [enrol(index, proof) for index in (0, 1) for proof in proofs]
print("FOUND " + json.dumps(found), flush=True)
"""


@pytest.fixture
def aws(cluster):
    """Clients of the service; after each test the cluster is empty again."""
    yield cluster.aws
    deadline = time.monotonic() + 60
    while cluster.queue() or cluster.processes():
        assert time.monotonic() < deadline, (cluster.queue(), cluster.processes())
        time.sleep(0.2)


@pytest.fixture
def waiting(cluster, aws):
    """The tag of a job of two hosts that waits, because only one node is free."""
    holder = cluster.bed.run(
        "sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 300"
    )
    name = unique("waits")
    hosts = {"InstanceCount": 2, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 10}
    aws.sagemaker.create_training_job(**job_request(name, "true", ResourceConfig=hosts))
    wait(aws, name, until=("Pending",))
    deadline = time.monotonic() + 30
    while not (tags := tags_of(cluster)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield tags[0]
    aws.sagemaker.stop_training_job(TrainingJobName=name)
    assert wait(aws, name)["TrainingJobStatus"] == "Stopped"
    cluster.bed.run("scancel", holder)


def tags_of(cluster):
    comments = cluster.bed.run("squeue", "--noheader", "--states=PENDING", "--format=%k").splitlines()
    return [comment.split(":")[2] for comment in comments if comment.startswith("clary:")]


def enrol(tag, index, proof, *, claim=None):
    """Send an enrolment request as a boot does; return the status and the message."""
    body = {"claim": claim or secrets.token_hex(16), "proof": proof, "report": REPORT, "wait_s": 0.0}
    request = urllib.request.Request(
        f"{URL}/allocations/{tag}/{index}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def credential(cluster, words, *, user=None):
    return cluster.bed.run("munge", "--string", words, machine="node-3", user=user)


def test_a_jobs_program_cannot_reach_slurm_or_other_hosts(cluster, aws, waiting):
    name = unique("intruder")
    places = [
        "/run/munge/munge.socket.2",
        "/var/run/munge/munge.socket.2",
        f"{cluster.bed.folder}/munge/munge.socket.2",
    ]
    order = repr((URL, waiting, str(cluster.bed.scratch), places))
    aws.sagemaker.create_training_job(**script_request(aws, name, {"train.py": PROGRAM.replace("@ORDER@", order)}))
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    (line,) = [line for line in log_of(aws, name) if "FOUND {" in line]
    found = json.loads(line.partition("FOUND ")[2])
    assert found["credential"].startswith("failed: ")
    assert found["queue"].startswith("failed: ")
    assert found["submitted"].startswith("failed: ")
    for kind in ("sockets", "listening", "tokens", "boots", "scratch", "changed", "hosts", "key"):
        assert found[kind] == [], kind
    assert found["enrolled"] == [410] * 6
    assert tags_of(cluster) == [waiting]


def test_only_the_services_user_can_prove_a_boot_and_each_proof_is_valid_once(cluster, waiting):
    right, claim = credential(cluster, f"{waiting} 0"), secrets.token_hex(16)
    assert enrol(waiting, 0, "")[0] == 410
    assert enrol(waiting, 0, f"MUNGE:{base64.b64encode(os.urandom(120)).decode()}:")[0] == 410
    for user in (1000, 65534, 100_000):
        status, words = enrol(waiting, 0, credential(cluster, f"{waiting} 0", user=user))
        assert (status, f"made by user {user}" in words) == (410, True)
    assert enrol(waiting, 1, credential(cluster, f"{waiting} 0"))[0] == 410
    assert enrol("pool_ffffffffffff", 0, credential(cluster, "pool_ffffffffffff 0"))[0] == 410
    assert enrol(waiting, 2, credential(cluster, f"{waiting} 2"))[0] == 410
    assert enrol(waiting, 0, right, claim=claim)[0] == 202
    status, words = enrol(waiting, 0, right, claim=claim)
    assert (status, "used before" in words) == (410, True)
    # A claim without a proof cannot replace the enrolled boot, nor can a proof without the claim.
    assert enrol(waiting, 0, "", claim=claim)[0] == 410
    status, words = enrol(waiting, 0, credential(cluster, f"{waiting} 0"))
    assert (status, "enrolled by another boot" in words) == (410, True)
    assert enrol(waiting, 0, credential(cluster, f"{waiting} 0"), claim=claim)[0] == 202
