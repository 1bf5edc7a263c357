"""Failures injected into jobs: FailureReason names host, rank and cause, not the cascade that follows from it.

Jobs of four ranks on two hosts, over plain TCP, gloo and mpirun: peers hold connections to the failing rank and die
within milliseconds after it. Further cases need only one rank, or remove hosts and links from a running job.
"""

import json
import os
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import failing_programs
import pytest
from boto3_clients import Clients, job_request, unique, wait
from fail_fast_jobs import start_gang
from faulty_gateway import faulty_gateway
from program_jobs import channel, put, script_request, start
from running_service import SETTINGS, start_service

from clary.contract.failure_reasons import MAX_FAILURE_REASON
from clary.control.analysis.failure_hints import category
from clary.control.state_folder import StateFolder
from clary.testing.gangs import INSTANCE_SETTINGS, INSTANCE_TYPE, has_namespaces

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("first-cause")]

NUM_RANKS = 4
SMALL_TYPE = "ml.two.small.ranks"
SMALL_SETTINGS = f'\n[instance_types."{SMALL_TYPE}"]\nprocesses = 2\nmemory_gib = 0.25\n'
JOB_TIMEOUT_S = 240
PROGRAM_PREFIX = "AlgorithmError: "


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kind of failure, and the first cause that must be named."""

    group: str  # function that injects the failure
    kind: str
    words: str
    verdict: str
    is_retryable: bool = False
    prefix: str = PROGRAM_PREFIX
    rank: int | None = None
    host: str | None = "algo-1"

    def at(self, rank):
        """Return the case for a failure of this rank; unchanged if the failure affects no single rank."""
        return replace(self, rank=rank, host=f"algo-{rank // 2 + 1}") if self.group in GANGS else self


def of_gang(group, kind, words, verdict="user", *, is_retryable=False):
    return Case(group=group, kind=kind, words=words, verdict=verdict, is_retryable=is_retryable)


GANGS = ("sockets", "gloo", "mpi")
CASES = (
    of_gang("sockets", "value", "ValueError: no such column: label"),
    of_gang("sockets", "module", "ModuleNotFoundError: No module named 'no_such_module'"),
    of_gang("sockets", "exit", "exit code: 3"),
    of_gang("sockets", "words", "the learning rate is negative"),
    of_gang("sockets", "kill", "signal 9 (SIGKILL)", "host", is_retryable=True),
    of_gang("sockets", "segv", "signal 11 (SIGSEGV)"),
    of_gang("sockets", "abort", "signal 6 (SIGABRT)"),
    of_gang("sockets", "memory", "MemoryError", "memory"),
    of_gang("sockets", "limit", "OutOfMemory: the host's memory limit of 256 MiB was reached", "memory"),
    of_gang("sockets", "cuda", "CUDA out of memory", "memory"),
    of_gang("sockets", "disk", "No space left on device: '/opt/ml/checkpoints/a.pt'", "disk"),
    of_gang("sockets", "data", "/opt/ml/input/data/none/part-0.csv", "data"),
    of_gang("sockets", "refused", "ConnectionRefusedError", "network", is_retryable=True),
    of_gang("sockets", "hard", "exit code: 7"),
    of_gang("sockets", "passing", "RuntimeError: bucket 7 of channel 2: set NCCL_DEBUG and use gloo"),
    of_gang("sockets", "file", "the table has no rows"),
    of_gang("sockets", "late", "KeyError: 'late'"),
    of_gang("sockets", "chain", "RuntimeError: while reading the index"),
    of_gang("sockets", "long", "ValueError: xxx"),
    of_gang("gloo", "value", "ValueError: no such column: label"),
    of_gang("gloo", "exit", "exit code: 3"),
    of_gang("gloo", "kill", "signal 9 (SIGKILL)", "host", is_retryable=True),
    of_gang("gloo", "segv", "signal 11 (SIGSEGV)"),
    of_gang("mpi", "value", "ValueError: no such column: label"),
    of_gang("mpi", "segv", "signal 11"),
    Case(group="command", kind="missing", words="/opt/none/train: no such file", verdict="launcher"),
    Case(group="command", kind="unknown", words="no-such-trainer: command not found", verdict="launcher"),
    Case(group="command", kind="in-bash", words="no-such-trainer: command not found", verdict="launcher"),
    Case(
        group="data",
        kind="manifest",
        words="NoSuchKey",
        verdict="data",
        prefix="ClientError: ",
    ),
    Case(
        group="requirements",
        kind="version",
        words="iniconfig==999.0",
        verdict="user",
        prefix="ClientError: ",
    ),
    Case(group="store", kind="own", words="EndpointConnectionError", verdict="network", is_retryable=True),
    Case(
        group="store",
        kind="platform",
        words="check that the object store runs",
        verdict="network",
        is_retryable=True,
        prefix="InternalServerError: ",
    ),
    Case(
        group="loss",
        kind="agent",
        words="algo-2 was lost: its agent ended",
        verdict="host",
        is_retryable=True,
        prefix="InternalServerError: ",
        host="algo-2",
    ),
    Case(
        group="loss",
        kind="first process",
        words="the first process of algo-2 ended before its program did",
        verdict="host",
        is_retryable=True,
        prefix="InternalServerError: ",
        host="algo-2",
    ),
    Case(
        group="loss",
        kind="link",
        words="algo-2 was lost: its link",
        verdict="host",
        is_retryable=True,
        prefix="InternalServerError: ",
        host="algo-2",
    ),
)


class World:
    """The service and clients with which failures are injected."""

    def __init__(self, service, behind_gateway, gateway):
        self.service = service
        self.behind_gateway = behind_gateway
        self.gateway = gateway
        doctor = service.clary("doctor", check=False).stdout.splitlines()
        self.has_memory_limits = any("memory limits" in line and "kept by the kernel" in line for line in doctor)
        self.has_namespaces = has_namespaces(service.home)

    def why_not(self, case):
        """Return the reason why this machine cannot run a case; None if it can."""
        if case.kind == "limit" and not self.has_memory_limits:
            return "no cgroup limits the memory of hosts here: the agent watches it, and reports it in other words"
        if case.group == "loss" and case.kind != "agent" and not self.has_namespaces:
            return "hosts are plain processes here: they have no first process and no network of their own"
        return None

    def inject(self, case):
        """Make a job fail; return its facts from `clary describe --json`, and the text of `--why`."""
        service = self.behind_gateway if (case.group, case.kind) == ("store", "platform") else self.service
        aws = Clients(service)
        name = getattr(self, f"_{case.group}")(aws, case)
        described = wait(aws, name, timeout_s=JOB_TIMEOUT_S)
        facts = json.loads(service.clary("describe", "--json", name).stdout)
        assert described["TrainingJobStatus"] == "Failed", described
        assert facts["failure_reason"] == described["FailureReason"]
        print(f"{case.group:12} {case.kind:13} rank {case.rank}: {facts['failure_reason'][:300]}", flush=True)
        return facts, service.clary("describe", "--why", name).stdout

    def _gang(self, aws, case, script, distribution):
        hyperparameters = {**distribution, "doomed": str(case.rank), "kind": json.dumps(case.kind)}
        name = unique(f"cause-{case.group}-{case.kind}")
        request = script_request(aws, name, {"train.py": script}, instance_count=2, hyperparameters=hyperparameters)
        request["ResourceConfig"]["InstanceType"] = SMALL_TYPE if case.kind == "limit" else INSTANCE_TYPE
        return start(aws, request)

    def _sockets(self, aws, case):
        return self._gang(aws, case, failing_programs.SOCKETS, {"sagemaker_torch_distributed_enabled": "true"})

    def _gloo(self, aws, case):
        return self._gang(aws, case, failing_programs.GLOO, {"sagemaker_torch_distributed_enabled": "true"})

    def _mpi(self, aws, case):
        distribution = {
            "sagemaker_mpi_enabled": "true",
            "sagemaker_mpi_num_of_processes_per_host": "2",
            "sagemaker_mpi_custom_mpi_options": json.dumps(""),
        }
        return self._gang(aws, case, failing_programs.MPI, distribution)

    def _command(self, aws, case):
        request = job_request(unique(f"cause-{case.kind}"), "no-such-trainer --epochs 3")
        if case.kind != "in-bash":
            program = {"missing": "/opt/none/train", "unknown": "no-such-trainer"}[case.kind]
            request["AlgorithmSpecification"]["ContainerEntrypoint"] = [program]
            del request["AlgorithmSpecification"]["ContainerArguments"]
        return start(aws, request)

    def _data(self, aws, case):
        name = unique("cause-data")
        manifest = put(aws, f"{name}/all.manifest", json.dumps([{"prefix": f"s3://clary/{name}/"}, "none.csv"]))
        entry = channel("train", manifest, S3DataType="ManifestFile")
        return start(aws, job_request(name, "true", InputDataConfig=[entry]))

    def _requirements(self, aws, case):
        files = {"train.py": "print(1)", "requirements.txt": "iniconfig==999.0\n"}
        return start(aws, script_request(aws, unique("cause-requirements"), files))

    def _store(self, aws, case):
        name = unique("cause-store")
        if case.kind == "own":
            request = script_request(aws, name, {"train.py": failing_programs.STORE})
            request["AlgorithmSpecification"]["TrainingImage"] = "team/remote:1"  # its environment has boto3
            return start(aws, request)
        uri = put(aws, f"{name}/part-0.csv", "1,2\n")
        self.gateway.fail("drop", lambda method, path: method == "GET" and path.startswith(f"/clary/{name}/"), times=99)
        return start(aws, job_request(name, "true", InputDataConfig=[channel("train", uri)]))

    def _loss(self, aws, case):
        gang = start_gang(self.service, aws, "cause-loss")
        {"agent": gang.kill_agent, "first process": gang.kill_host, "link": gang.cut_link}[case.kind]("algo-2")
        return gang.name


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    settings = SETTINGS + INSTANCE_SETTINGS + SMALL_SETTINGS
    running = start_service(tmp_path_factory.mktemp("first-cause"), settings)
    port = json.loads((running.home / "run" / "seaweed.json").read_text())["ports"]["s3"]
    keys = StateFolder(running.home).load_secrets().store_credentials
    with faulty_gateway(f"http://127.0.0.1:{port}") as gateway:
        external = (
            f's3_endpoint_url = "{gateway.url}"\ns3_access_key_id = "{keys.access_key_id}"\n'
            f's3_secret_access_key = "{keys.secret_access_key}"\n'
        )
        behind_gateway = start_service(tmp_path_factory.mktemp("behind-gateway"), external + settings)
        yield World(running, behind_gateway, gateway)
        behind_gateway.clary("down")
        running.clary("down")


@pytest.mark.long
def test_the_first_cause_is_named_for_every_kind_of_failure_on_every_rank(world):
    """Print one line per case and the confusion matrix of verdicts; check host, rank, words, verdict and advice.

    Each failure of a rank hits one rank; with CLARY_CAUSE_ROUNDS=4 it hits each rank in turn.
    CLARY_CAUSE_ONLY=gloo,link limits the run to these groups or kinds.
    """
    rounds = int(os.environ.get("CLARY_CAUSE_ROUNDS", "1"))
    only = os.environ.get("CLARY_CAUSE_ONLY", "").split(",")
    chosen = [case for case in CASES if only == [""] or {case.group, case.kind} & {*only}]
    cases = [case.at((number + shift) % NUM_RANKS) for shift in range(rounds) for number, case in enumerate(chosen)]
    for case in [case for case in chosen if world.why_not(case) is not None]:
        print(f"left out: {case.group} {case.kind}: {world.why_not(case)}")
    cases = [case for case in cases if world.why_not(case) is None]
    assert cases, f"no case is chosen by CLARY_CAUSE_ONLY={','.join(only)}"
    random.Random(rounds).shuffle(cases)
    with ThreadPoolExecutor(max_workers=2) as pool:
        results = list(pool.map(world.inject, cases))
    wrong = []
    confusion = Counter()
    for case, (facts, text) in zip(cases, results, strict=True):
        cause, reason = facts["cause"], facts["failure_reason"]
        found = (cause["host"], cause["rank"], cause["verdict"], cause["is_retryable"])
        confusion[case.verdict, case.is_retryable, cause["verdict"], cause["is_retryable"]] += 1
        is_right = (
            found == (case.host, case.rank, case.verdict, case.is_retryable)
            and case.words in reason
            and reason.startswith(case.prefix)
            and len(reason) <= MAX_FAILURE_REASON
            and f"  verdict   {category(case.verdict)}\n" in text
            and [row["kind"] for row in facts["timeline"]].count("cause") == 1
        )
        if not is_right:
            wrong.append({"case": str(case), "found": found, "reason": reason, "timeline": facts["timeline"]})
    print(f"first cause named: {len(cases) - len(wrong)} of {len(cases)}")
    for (injected, may_retry, named, retry_named), count in sorted(confusion.items()):
        advice = f"retry {'may help' if may_retry else 'is vain':8} advised {'yes' if retry_named else 'no':3}"
        print(f"injected {injected:8} named {named:8} {advice} {count}")
    assert not wrong, json.dumps(wrong, indent=1)
    if any(case.group == "sockets" for case in cases):
        assert any("cascade" in text for _, text in results)
