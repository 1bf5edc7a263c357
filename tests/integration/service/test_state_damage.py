"""A real service with a damaged state folder: it starts, reports the damage, and keeps all intact data."""

import contextlib
import json
import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest
from boto3_clients import Clients, job_request, unique, wait
from botocore.exceptions import ClientError
from running_service import start_service

from clary.control.engines.local.attempt_record import pool_folder

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture
def service(tmp_path):
    service = start_service(tmp_path / "home")
    yield service
    service.clary("down", check=False)


def service_pid(service):
    return json.loads((service.home / "run" / "service.json").read_text())["pid"]


def agent_pids(service, name):
    record = pool_folder(service.home / "jobs" / name / "1") / "engine.json"
    return [agent["pid"] for agent in json.loads(record.read_text())["agents"].values()]


def soon(condition, *, within_s=30):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.2)


def kill(service):
    os.kill(service_pid(service), signal.SIGKILL)
    time.sleep(0.5)


def execute(service, statement, *values):
    with contextlib.closing(sqlite3.connect(service.home / "clary.db", timeout=20)) as connection:
        connection.execute(statement, values)
        connection.commit()


@pytest.mark.long
def test_one_unreadable_job_affects_no_other_job(service):
    aws = Clients(service)
    bad, good, ended = unique("bad"), unique("good"), unique("ended")
    aws.sagemaker.create_training_job(**job_request(ended, "true"))
    wait(aws, ended)
    for name in (bad, good):
        aws.sagemaker.create_training_job(**job_request(name, "sleep 8; echo kept > /opt/ml/model/kept"))
        wait(aws, name, until=("Training",))
    agents = agent_pids(service, bad)
    kill(service)
    for name in (bad, ended):
        execute(service, "UPDATE jobs SET document = substr(document, 1, 60) WHERE name = ?", name)

    assert "of the database cannot be read" in service.clary("up").stdout
    soon(lambda: not any(Path(f"/proc/{pid}").exists() for pid in agents))  # the agents of the unreadable job end
    facts = wait(aws, good)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    for name in (bad, ended):
        with pytest.raises(ClientError, match="clary quarantine release") as told:
            aws.sagemaker.describe_training_job(TrainingJobName=name)
        assert told.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    with pytest.raises(ClientError, match="must be unique"):
        aws.sagemaker.create_training_job(**job_request(bad, "true"))
    assert good in service.clary("jobs").stdout
    assert "2 records of the database" in service.clary("jobs").stderr
    assert "2 records of the database" in service.clary("doctor", check=False).stdout
    listed = service.clary("quarantine", check=False)
    assert listed.returncode == 1
    (line,) = [line for line in listed.stdout.splitlines() if f" {bad} " in line]
    number = line.split()[0]
    assert "document (text): {" in service.clary("quarantine", "show", number).stdout
    assert service.clary("quarantine", "release", number, check=False).returncode == 1
    service.clary("quarantine", "drop", number)
    aws.sagemaker.create_training_job(**job_request(bad, "true"))
    facts = wait(aws, bad)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")


@pytest.mark.long
def test_files_deleted_under_a_running_service_are_restored(service):
    aws = Clients(service)
    name = unique("job")
    aws.sagemaker.create_training_job(**job_request(name, "sleep 12"))
    wait(aws, name, until=("Training",))
    record, keys = service.home / "run" / "service.json", service.home / "secrets" / "root.json"
    before = record.read_text(), keys.read_text()
    for path in (record, keys, *service.home.glob("clary.db*")):
        path.unlink()
    soon(lambda: record.exists() and keys.exists() and (record.read_text(), keys.read_text()) == before)
    soon(lambda: (service.home / "clary.db").exists())
    kill(service)
    service.clary("up")
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")


@pytest.fixture
def service_without_own_backups(tmp_path):
    service = start_service(tmp_path / "home", CLARY_BACKUP_INTERVAL_S="0")  # only the test's own backup exists
    yield service
    service.clary("down", check=False)


@pytest.mark.long
def test_a_service_without_its_database_does_not_start_with_an_empty_one(service_without_own_backups):
    service = service_without_own_backups
    aws = Clients(service)
    name = unique("job")
    aws.sagemaker.create_training_job(**job_request(name, "sleep 300"))
    wait(aws, name, until=("Training",))
    assert "backup made" in service.clary("backup", "make").stdout
    late = unique("late")
    aws.sagemaker.create_training_job(**job_request(late, "sleep 300"))
    wait(aws, late, until=("Training",))
    agents = agent_pids(service, late)
    kill(service)
    for path in service.home.glob("clary.db*"):
        path.unlink()

    refused = service.clary("up", check=False)
    assert refused.returncode == 1
    assert "clary backup restore" in refused.stderr
    assert "clary up --new-database" in refused.stderr
    assert not (service.home / "clary.db").exists()
    service.clary("backup", "restore")
    service.clary("up")
    assert aws.sagemaker.describe_training_job(TrainingJobName=name)["TrainingJobStatus"] == "InProgress"
    soon(lambda: not any(Path(f"/proc/{pid}").exists() for pid in agents))  # the job is newer than the backup
    assert list((service.home / "set-aside" / "jobs").glob(f"{late}.*"))

    kill(service)
    (service.home / "clary.db").write_bytes(b"")
    for side in service.home.glob("clary.db-*"):
        side.unlink()
    assert "is empty" in service.clary("up", check=False).stderr
    service.clary("up", "--new-database")
    assert aws.sagemaker.list_training_jobs()["TrainingJobSummaries"] == []
    soon(lambda: not list(service.home.glob("jobs/*")))
