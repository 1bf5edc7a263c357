"""Failures injected into one of four ranks on two hosts: FailureReason names the rank and the cause, not the cascade.

The peers hold connections to the rank that fails, as the ranks of a gang do, and die of it within milliseconds.
"""

import json
import os
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from program_jobs import run, script_request
from running_service import SETTINGS, start_service
from test_clients_boto3 import Clients, unique

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("first-cause")]

INSTANCE_TYPE = "ml.two.ranks"
INSTANCE_SETTINGS = f'\n[instance_types."{INSTANCE_TYPE}"]\nprocesses = 2\n'
GANG = """
import os, signal, socket, sys, threading, time
rank, doomed, kind = int(os.environ["RANK"]), int(sys.argv[2]), sys.argv[4]
port = int(os.environ["MASTER_PORT"]) + 7
hosts = __import__("json").loads(os.environ["SM_HOSTS"])

def fail():
    if kind == "value": raise ValueError("no such column: label")
    if kind == "module": import no_such_module
    if kind == "exit": sys.exit(3)
    if kind == "words": sys.exit("the learning rate is negative")
    if kind == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if kind == "segv": os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "abort": os.abort()
    if kind == "memory": bytearray(1 << 60)
    if kind == "cuda": raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if kind == "disk": raise OSError(28, "No space left on device", "/opt/ml/checkpoints/a.pt")
    if kind == "data": open("/opt/ml/input/data/none/part-0.csv")
    if kind == "refused": socket.create_connection(("127.0.0.1", 1), 5)
    if kind == "hard": os._exit(7)
    if kind == "file":
        open("/opt/ml/output/failure", "w").write("the table has no rows")
        sys.exit(1)
    if kind == "late":
        threading.Thread(target=time.sleep, args=(1.5,)).start()
        raise KeyError("late")
    if kind == "chain":
        try:
            {}["first"]
        except KeyError as error:
            raise RuntimeError("while reading the index") from error

if rank == doomed:
    server = socket.create_server(("0.0.0.0", port), backlog=8)
    server.settimeout(30)
    peers = [server.accept()[0] for _ in range(3)]
    fail()
else:
    until = time.monotonic() + 30
    while True:
        try:
            peer = socket.create_connection((hosts[doomed // 2], port), 5)
            break
        except OSError:
            assert time.monotonic() < until, "the doomed rank never listened"
            time.sleep(0.05)
    peer.settimeout(60)
    peer.recv(1)
    raise ConnectionResetError("Connection closed by peer")
"""
# kind -> words of the cause, verdict, whether a retry may be advised
FAILURES = {
    "value": ("ValueError: no such column: label", "user", False),
    "module": ("ModuleNotFoundError: No module named 'no_such_module'", "user", False),
    "exit": ("exit code 3", "user", False),
    "words": ("the learning rate is negative", "user", False),
    "kill": ("signal 9 (SIGKILL)", "host", True),
    "segv": ("signal 11 (SIGSEGV)", "user", False),
    "abort": ("signal 6 (SIGABRT)", "user", False),
    "memory": ("MemoryError", "memory", False),
    "cuda": ("CUDA out of memory", "memory", False),
    "disk": ("No space left on device: '/opt/ml/checkpoints/a.pt'", "disk", False),
    "data": ("/opt/ml/input/data/none/part-0.csv", "data", False),
    "refused": ("ConnectionRefusedError", "network", True),
    "hard": ("exit code 7", "user", False),
    "file": ("the table has no rows", "user", False),
    "late": ("KeyError: 'late'", "user", False),
    "chain": ("RuntimeError: while reading the index", "user", False),
}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    running = start_service(tmp_path_factory.mktemp("first-cause"), SETTINGS + INSTANCE_SETTINGS)
    yield running
    running.clary("down")


def facts_of_failure(service, kind, doomed):
    """Let one rank fail and return what `clary describe --json` prints of the job, and what `--why` does."""
    aws = Clients(service)
    request = script_request(
        aws,
        unique(f"cause-{kind}"),
        {"train.py": GANG},
        instance_count=2,
        hyperparameters={
            "sagemaker_torch_distributed_enabled": "true",
            "doomed": str(doomed),
            "kind": json.dumps(kind),
        },
    )
    request["ResourceConfig"]["InstanceType"] = INSTANCE_TYPE
    described = run(aws, request, timeout_s=120)
    facts = json.loads(service.clary("describe", "--json", request["TrainingJobName"]).stdout)
    assert facts["failure_reason"] == described["FailureReason"]
    return facts, service.clary("describe", "--why", request["TrainingJobName"]).stdout


def test_the_first_cause_is_named_whatever_fails_on_whichever_rank(service):
    """Print one line a case and the confusion matrix of verdicts; demand rank, words, verdict and advice of each.

    A failure strikes one rank; with CLARY_CAUSE_ROUNDS=4 each failure strikes each rank.
    """
    rounds = int(os.environ.get("CLARY_CAUSE_ROUNDS", "1"))
    cases = [(kind, (number + shift) % 4) for shift in range(rounds) for number, kind in enumerate(FAILURES)]
    random.Random(rounds).shuffle(cases)
    with ThreadPoolExecutor(max_workers=2) as pool:
        results = list(pool.map(lambda case: facts_of_failure(service, *case), cases))
    wrong = []
    confusion = Counter()
    for (kind, doomed), (facts, _) in zip(cases, results, strict=True):
        words, verdict, is_retryable = FAILURES[kind]
        cause, reason = facts["cause"], facts["failure_reason"]
        found = (cause["host"], cause["rank"], cause["verdict"], cause["is_retryable"], words in reason)
        expected = (f"algo-{doomed // 2 + 1}", doomed, verdict, is_retryable, True)
        confusion[verdict, cause["verdict"]] += 1
        print(f"{kind:8} rank {doomed}: {reason}")
        if found != expected:
            wrong.append((kind, expected, found, reason, facts["timeline"]))
    for (injected, named), count in sorted(confusion.items()):
        print(f"injected {injected:8} named {named:8} {count}")
    assert not wrong, json.dumps(wrong, indent=1)
    facts, text = results[0]
    assert f"verdict   {facts['cause']['verdict']}" in text
    assert "cause" in text
    assert "cascade" in text
