"""A training program can read only its own job's key, and no output of the service holds a key.

One job of the service has secrets; another job searches for them everywhere (`clients/source/snoop.py`). The state
folder is not below /tmp, which each host has for itself, but where hosts see the machine's files.
"""

import hashlib
import json
import shutil
import sqlite3
import time
import urllib.error
import urllib.request

import pytest
from boto3_clients import Clients, job_request, log_of, unique, wait
from program_jobs import members_of, object_at, script_request, start
from running_service import CLIENTS, ROOT, SETTINGS, start_service

from clary.agent.environments.variables import collective_secret
from clary.base.plain import from_plain
from clary.contract.launch_plan import LaunchPlan
from clary.control.server.edge.guesses import MAX_WRONG

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600), pytest.mark.xdist_group("job-secrets")]

START_TIMEOUT_S = 150
SNOOP_TIMEOUT_S = 300
VICTIM_RUNS_S = 900
FULL = 'job_api_access = "full"'  # the search covers everything that the service could show a job
ISOLATIONS = ("namespaces", "processes")


class Snooped:
    """The findings of a program that searches for secrets, and the real secrets."""

    def __init__(self, service, isolation):
        self.service = service
        self.isolation = isolation
        aws = Clients(service)
        self.victim = start(aws, job_request(unique("victim"), f"echo victim runs; sleep {VICTIM_RUNS_S}"))
        wait(aws, self.victim, until=("Training", "Failed"), timeout_s=START_TIMEOUT_S)
        is_thorough = isolation == "namespaces"  # plain processes would read the whole machine, which proves nothing
        request = script_request(
            aws,
            unique("snoop"),
            {"train.py": (CLIENTS / "source" / "snoop.py").read_text()},
            hyperparameters={"victim": json.dumps(self.victim), "thorough": json.dumps(is_thorough)},
        )
        request["AlgorithmSpecification"]["TrainingImage"] = "team/remote:1"  # its environment has boto3
        self.name = start(aws, request)
        self.described = wait(aws, self.name, timeout_s=SNOOP_TIMEOUT_S)
        self.log = log_of(aws, self.name)
        assert self.described["TrainingJobStatus"] == "Completed", (self.described.get("FailureReason"), self.log)
        model = object_at(aws, self.described["ModelArtifacts"]["S3ModelArtifacts"])
        self.facts = json.loads(members_of(model)["facts.json"])
        self.secrets = secrets_of(service.home, self.victim, self.name)
        self.outputs = self._outputs(aws)
        aws.sagemaker.stop_training_job(TrainingJobName=self.victim)
        wait(aws, self.victim, timeout_s=START_TIMEOUT_S)

    def _outputs(self, aws):
        """Return the output shown to people and clients, by command or call."""
        outputs = {"service.log": (self.service.home / "service.log").read_text()}
        outputs["doctor"] = self.service.clary("doctor", check=False).stdout
        # Each command starts an interpreter, which takes seconds on a busy machine.
        outputs["describe"] = self.service.clary("describe", self.name).stdout
        outputs["describe --why"] = self.service.clary("describe", self.name, "--why").stdout
        outputs["describe --json"] = self.service.clary("describe", self.victim, "--json").stdout
        outputs["plan"] = self.service.clary("plan", self.victim).stdout
        for name in (self.victim, self.name):
            outputs[f"log of {name}"] = "\n".join(log_of(aws, name))
            outputs[f"DescribeTrainingJob {name}"] = str(aws.sagemaker.describe_training_job(TrainingJobName=name))
            for path in (self.service.home / "jobs" / name).rglob("agent.log"):
                outputs[str(path)] = path.read_text()
        for path in ("agents/{}/1/algo-1/assignment", "jobs/{}", "jobs/{}/plan"):
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                outputs[f"refusal of {path} {headers}"] = refusal_of(aws, path.format(self.victim), headers)
        return outputs

    def found(self):
        """Return label -> place of the real secrets that the program found."""
        digests = {hashlib.sha256(text.encode()).hexdigest()[:32]: label for label, text in self.secrets.items()}
        return {digests[digest]: place for digest, place in self.facts["keys"].items() if digest in digests}


def secrets_of(home, victim, own):
    """Return label -> text of every key and token, read as the owner of the state folder."""
    root = json.loads((home / "secrets" / "root.json").read_text())
    secrets = {f"root {name}": root[name] for name in ("secret_access_key", "admin_token", "master_key")}
    with sqlite3.connect(f"file:{home / 'clary.db'}?mode=ro", uri=True) as database:
        rows = dict(database.execute("SELECT name, document FROM jobs WHERE name IN (?, ?)", (victim, own)).fetchall())
    database.close()
    for label, name in (("victim", victim), ("own", own)):
        plan = json.loads(rows[name])["plan"]
        secrets[f"{label} agent token"] = plan["agent_token"]
        secrets[f"{label} pool token"] = plan["pool_token"]
        secrets[f"{label} job key"] = plan["job_endpoint"]["credentials"]["secret_access_key"]
        secrets[f"{label} collective secret"] = collective_secret(from_plain(LaunchPlan, plan))
        secrets["store key"] = plan["object_store"]["credentials"]["secret_access_key"]
    for path in (home / "tls").glob("*"):
        text = path.read_text()
        if "PRIVATE KEY" in text:
            secrets[f"tls {path.name}"] = next(line for line in text.split("\n") if len(line) == 64)
    return secrets


def refusal_of(aws, path, headers):
    url = f"{aws.sagemaker.meta.endpoint_url}/clary/v1/{path}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
            raise AssertionError(f"{url} answers a stranger: {answer.status} {answer.read()[:500]}")
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code} {error.read().decode()}"


@pytest.fixture(scope="module", params=ISOLATIONS)
def snooped(request):
    """The program's findings with one kind of isolation."""
    home = ROOT / ".cache" / f"job-secrets-{request.param}-{time.time_ns()}"
    service = start_service(
        home, SETTINGS.replace("max_hosts = 8", f'max_hosts = 8\nisolation = "{request.param}"\n{FULL}')
    )
    try:
        yield Snooped(service, request.param)
    finally:
        service.clary("down", check=False)
        shutil.rmtree(home, ignore_errors=True)


def test_the_program_searches_all_places_and_finds_its_own_key(snooped):
    places = snooped.facts["places"]
    for place in ("environment", "environ of processes", "answers", "answers of the API", "objects"):
        assert places.get(place, 0) > 0, places
    assert places.get("files", 0) > 5 or snooped.isolation == "processes", places
    assert snooped.found()["own job key"] in ("environment", "environ of processes")
    assert len(snooped.secrets) >= 11, snooped.secrets.keys()


def test_an_isolated_program_finds_no_key_but_its_own(snooped):
    if snooped.isolation == "processes":
        pytest.skip("plain processes of one user keep nothing from each other; another test checks that this is said")
    assert set(snooped.found()) == {"own job key", "own collective secret"}


def test_an_isolated_program_sees_only_processes_of_its_own_host(snooped):
    if snooped.isolation == "processes":
        pytest.skip("plain processes see each other; another test checks that this is said")
    for command in snooped.facts["processes"]:
        assert "clary.control" not in command, command
        assert "weed" not in command, command
        assert snooped.victim not in command.replace(f"--victim {snooped.victim}", ""), command


def test_found_tokens_open_no_url_of_another_job(snooped):
    doors = snooped.facts["doors"]
    if snooped.isolation == "processes":
        pytest.skip("plain processes can read each other's tokens; another test checks that this is said")
    assert set(doors) == {"another job's assignment", "own assignment", "another job's page", "another job's plan"}
    answers = [status for statuses in doors.values() for status in statuses]
    assert snooped.facts["empty tokens"] == [403] * len(doors)  # empty tokens do not count as guesses
    # After `MAX_WRONG` wrong tokens the service answers 429.
    assert answers == [403] * min(MAX_WRONG, len(answers)) + [429] * (len(answers) - MAX_WRONG), doors


def test_the_object_store_is_reachable_only_through_the_service(snooped):
    if snooped.isolation == "processes":
        pytest.skip("plain processes share the machine's network; another test checks that this is said")
    store = json.loads((snooped.service.home / "run" / "seaweed.json").read_text())["ports"]
    assert not set(store.values()) & set(snooped.facts["ports"]), (store, snooped.facts["ports"])
    assert snooped.facts["calls"]["the service's own files as objects"] != "answered"


def test_no_output_of_the_service_holds_a_key(snooped):
    assert len(snooped.outputs) >= 15, snooped.outputs.keys()
    for label, text in snooped.outputs.items():
        for secret, value in snooped.secrets.items():
            assert value not in text, f"{label} holds the {secret}"


def test_missing_isolation_is_reported_by_doctor_and_describe(snooped):
    doctor = snooped.outputs["doctor"]
    shown = snooped.outputs["describe"]
    assert "a job's key gives access to every bucket and job" in doctor  # set by job_api_access for the search
    if snooped.isolation == "processes":
        assert "programs can read the service's keys" in doctor
        assert "not isolated" in shown
        assert "can read the keys" in shown
