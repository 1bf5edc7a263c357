"""Hostile input: archives, keys, requests, many clients. Each is refused or works; the service keeps running."""

import gzip
import io
import json
import os
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from boto3_clients import Clients, job_request, log_of, raw_request, unique, wait
from botocore.exceptions import ClientError
from program_jobs import (
    BUCKET,
    channel,
    failure_of,
    model_of,
    processes_with,
    put,
    run_script,
    script_request,
    start,
    wait_for_none,
)
from signed_requests import signed_bytes, status_of

pytestmark = [pytest.mark.clients, pytest.mark.timeout(120), pytest.mark.xdist_group("hostile-input")]

TARGET = "SageMaker."


@pytest.fixture(autouse=True)
def _service_lives_on(aws):
    """Check after every test that the service responds."""
    yield
    assert aws.sagemaker.list_training_jobs(MaxResults=1)["ResponseMetadata"]["HTTPStatusCode"] == 200


def member(name, *, kind=tarfile.REGTYPE, target="", body=b"stolen", mode=0o644):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, mode
    info.size = len(body) if kind == tarfile.REGTYPE else 0
    if kind in (tarfile.CHRTYPE, tarfile.BLKTYPE):
        info.devmajor, info.devminor = 1, 3
    return info, body


def archive_with(*members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for info, body in (*members, member("train.py", body=b"print('ran')")):
            archive.addfile(info, io.BytesIO(body) if info.isreg() else None)
    return buffer.getvalue()


def bomb():
    """Return a small gzip file with a tar member that claims 100 GB."""
    info, _ = member("zeros")
    info.size = 100 << 30
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=9) as packed:
        packed.write(info.tobuf())
        for _ in range(64):
            packed.write(bytes(1 << 20))
    return buffer.getvalue()


MARK = f"clary-hostile-{os.getpid()}"
ARCHIVES = {
    "absolute": (archive_with(member(f"/tmp/{MARK}")), MARK),
    "parent": (archive_with(member(f"a/../../../../../../../../tmp/{MARK}")), MARK),
    "symlink-out": (archive_with(member("out", kind=tarfile.SYMTYPE, target="/etc/passwd")), "out"),
    "symlink-up": (archive_with(member("a/up", kind=tarfile.SYMTYPE, target="../../..")), "a/up"),
    "through-symlink": (
        archive_with(member("link", kind=tarfile.SYMTYPE, target="/tmp"), member(f"link/{MARK}")),
        "link",
    ),
    "hardlink-out": (archive_with(member("hard", kind=tarfile.LNKTYPE, target="/etc/passwd")), "hard"),
    "hardlink-up": (archive_with(member("hard", kind=tarfile.LNKTYPE, target="../../../../agent.log")), "hard"),
    "device": (archive_with(member("null", kind=tarfile.CHRTYPE)), "null"),
    "fifo": (archive_with(member("pipe", kind=tarfile.FIFOTYPE)), "pipe"),
    "bomb": (bomb(), "zeros"),
    "truncated": (archive_with(member("big", body=os.urandom(100_000)))[:50_000], "sourcedir.tar.gz"),
    "no-tar": (b"#!/bin/sh\necho I am no archive\n", "sourcedir.tar.gz"),
    "no-tar-gzip": (gzip.compress(b"still no archive" * 1000), "sourcedir.tar.gz"),
    "empty": (b"", "sourcedir.tar.gz"),
}


@pytest.fixture(scope="module")
def archive_jobs(aws):
    """Run a job for each hostile archive, all at once; label -> description of the ended job."""
    names = {
        label: start(aws, script_request(aws, unique(f"tar-{label}"), archive))
        for label, (archive, _) in ARCHIVES.items()
    }
    return {label: wait(aws, name) for label, name in names.items()}


@pytest.mark.parametrize("label", ARCHIVES)
@pytest.mark.long
def test_a_hostile_archive_fails_its_job_and_is_named(archive_jobs, label):
    reason = failure_of(archive_jobs[label])
    assert reason.startswith("ClientError"), reason
    assert ARCHIVES[label][1] in reason
    assert "Training" not in [row["Status"] for row in archive_jobs[label]["SecondaryStatusTransitions"]]


@pytest.mark.long(10)
def test_hostile_archives_write_no_file_outside_their_folder(archive_jobs, service):
    assert archive_jobs
    for folder in (Path("/tmp"), Path("/"), Path("/opt"), service.home, service.home / "jobs"):
        assert not (folder / MARK).exists()


def with_channel(aws, base, script, **members):
    return run_script(
        aws, "keys", script, InputDataConfig=[channel("data", f"s3://{BUCKET}/{base}/", **members)], timeout_s=60
    )


LIST_DATA = """
import json, os
found = {os.path.join(parent, name)[len("/opt/ml/input/data/data/"):]: os.path.getsize(os.path.join(parent, name))
         for parent, _, files in os.walk("/opt/ml/input/data/data") for name in files}
with open("/opt/ml/model/found.json", "w") as file:
    json.dump(found, file)
"""


@pytest.mark.parametrize(
    ("keys", "named"),
    [(["a", "a/b"], "a"), (["fine", "x" * 300], "xxx"), (["x/y", "x//y"], "x//y"), (["fine", "./x"], "./x")],
    ids=["file-and-folder", "long-name", "two-keys-of-one-file", "dot"],
)
def test_keys_that_cannot_be_files_fail_the_job_and_are_named(aws, keys, named):
    base = unique("bad-keys")
    refusals = [refusal for key in keys if (refusal := refusal_of_put(aws, f"{base}/{key}"))]
    if refusals:  # the object store may refuse such a key, if its error names the key
        assert all(named in refusal and "InvalidArgument" in refusal for refusal in refusals)
        return
    reason = failure_of(with_channel(aws, base, LIST_DATA))
    assert reason.startswith("ClientError"), reason
    assert named in reason


def refusal_of_put(aws, key):
    try:
        put(aws, key, "x")
    except ClientError as error:
        return str(error)
    return None


def test_keys_with_parent_folders_never_leave_the_channel(aws, service):
    """A client may refuse to send `..`; a raw request does not."""
    base = unique("climb")
    put(aws, f"{base}/fine", "x")
    for key in (f"{base}/../../../{MARK}", f"{base}/%2e%2e/%2e%2e/{MARK}"):
        answer = signed_bytes(service, b"stolen", service_name="s3", method="PUT", path=f"/{BUCKET}/{key}")
        raw_request(service, answer)
    described = with_channel(aws, base, LIST_DATA)
    if described["TrainingJobStatus"] == "Completed":
        assert json.loads(model_of(aws, described)["found.json"]) == {"fine": 1}
    else:
        assert ".." in failure_of(described)
    assert not (service.home / MARK).exists()


def test_unusual_keys_arrive_under_their_own_names(aws):
    base = unique("awkward")
    keys = ["sp ace", "\u00fc\u6f22\U0001f642", "pl+us&am=p", "per%20cent", "quo'te\"", "-rf", "new\nline", "a" * 200]
    kept = []
    for key in keys:
        try:
            put(aws, f"{base}/{key}", "12")
            kept.append(key)
        except ClientError:
            assert key == "new\nline", "only control characters may be refused by the store"
    found = json.loads(model_of(aws, with_channel(aws, base, LIST_DATA))["found.json"])
    assert found == dict.fromkeys(kept, 2)


def test_a_signed_request_made_by_hand_is_accepted(service):
    assert status_of(raw_request(service, signed_bytes(service, b"{}"))) == 200


@pytest.mark.parametrize("change", ["body", "signature", "target", "date"])
def test_a_tampered_request_is_refused(service, change):
    request = signed_bytes(service, b'{"MaxResults": 1}')
    if change == "body":
        request = request.replace(b'"MaxResults": 1', b'"MaxResults": 9')
    elif change == "signature":
        head, _, rest = request.partition(b"Signature=")
        request = head + b"Signature=" + (b"0" if rest[:1] != b"0" else b"1") + rest[1:]
    elif change == "target":
        request = request.replace(b"SageMaker.ListTrainingJobs", b"SageMaker.ListModels")
    else:
        year = f"X-Amz-Date: {datetime.now(UTC).year}".encode()
        request = request.replace(year, b"X-Amz-Date: 2001")
    answer = raw_request(service, request)
    assert status_of(answer) in (400, 403)
    assert b"SignatureException" in answer or b"SignatureDoesNotMatch" in answer or b"AccessDenied" in answer


@pytest.mark.parametrize("minutes", [-20, 20])
def test_a_clock_that_is_far_off_is_refused(service, minutes):
    request = signed_bytes(service, b"{}", at=datetime.now(UTC) + timedelta(minutes=minutes))
    answer = raw_request(service, request)
    assert status_of(answer) in (400, 403)
    assert b"InvalidSignatureException" in answer


def test_a_clock_that_is_a_minute_off_is_accepted(service):
    request = signed_bytes(service, b"{}", at=datetime.now(UTC) - timedelta(minutes=1))
    assert status_of(raw_request(service, request)) == 200


def test_a_recorded_create_request_cannot_be_sent_again(service, aws):
    name = unique("replay")
    body = json.dumps(job_request(name, "true")).encode()
    request = signed_bytes(service, body, target="SageMaker.CreateTrainingJob")
    assert status_of(raw_request(service, request)) == 200
    wait(aws, name)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            aws.sagemaker.delete_training_job(TrainingJobName=name)
            break
        except ClientError:
            time.sleep(0.1)
    answer = raw_request(service, request)  # the name is free again, so that only the replay can be refused
    assert status_of(answer) in (400, 403), answer
    with pytest.raises(ClientError, match="Requested resource not found"):
        aws.sagemaker.describe_training_job(TrainingJobName=name)


DEEP = b'{"HyperParameters": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}"


@pytest.mark.parametrize(
    ("body", "content_type", "target"),
    [
        (DEEP, "application/x-amz-json-1.1", "CreateTrainingJob"),
        (b"[" * 50_000, "application/x-amz-json-1.1", "CreateTrainingJob"),
        (b'{"TrainingJobName": "' + b"x" * (5 << 20) + b'"}', "application/x-amz-json-1.1", "CreateTrainingJob"),
        (b"{}", "text/html", "CreateTrainingJob"),
        (b"\xff\xfe\x00", "application/x-amz-json-1.1", "CreateTrainingJob"),
        (b'{"TrainingJobName": NaN}', "application/x-amz-json-1.1", "DescribeTrainingJob"),
        (b'"text"', "application/x-amz-json-1.1", "DescribeTrainingJob"),
        (b"null", "application/x-amz-json-1.1", "DescribeTrainingJob"),
        (b'{"MaxResults": 1e400}', "application/x-amz-json-1.1", "ListTrainingJobs"),
        (b'{"MaxResults": ' + b"9" * 5000 + b"}", "application/x-amz-json-1.1", "ListTrainingJobs"),
        (b'{"TrainingJobName": "a\\ud800"}', "application/x-amz-json-1.1", "DescribeTrainingJob"),
        (b'{"TrainingJobName": "a\\u0000b"}', "application/x-amz-json-1.1", "DescribeTrainingJob"),
        (b"Action=CreateTrainingJob&Version=2017-07-24", "application/x-www-form-urlencoded", "CreateTrainingJob"),
    ],
    ids=[
        "deep",
        "unclosed",
        "5MB",
        "html",
        "no-utf8",
        "nan",
        "text",
        "null",
        "infinite",
        "digits",
        "half",
        "nul",
        "form",
    ],
)
@pytest.mark.long
def test_malformed_bodies_are_refused_at_once(service, body, content_type, target):
    request = signed_bytes(service, body, content_type=content_type, target=TARGET + target)
    began = time.monotonic()
    answer = raw_request(service, request)
    assert status_of(answer) in (400, 413, 415), answer[:500]
    assert b"x-amzn-" in answer.lower(), "an error of AWS's shape has a request id"
    assert time.monotonic() - began < 5


def test_hyperparameters_beyond_the_limit_are_refused(aws):
    request = job_request(unique("many"), "true", HyperParameters={f"k{index}": "v" for index in range(101)})
    with pytest.raises(ClientError, match="less than or equal to 100"):
        aws.sagemaker.create_training_job(**request)


def test_of_twenty_concurrent_creations_of_one_name_exactly_one_succeeds(service):
    name = unique("crowd")
    clients = [Clients(service) for _ in range(4)]
    for client in clients:
        assert client.sagemaker

    def create(index):
        try:
            clients[index % 4].sagemaker.create_training_job(**job_request(name, f"echo {index}"))
        except ClientError as error:
            return error.response["Error"]["Code"]
        return "won"

    with ThreadPoolExecutor(20) as pool:
        outcomes = list(pool.map(create, range(20)))
    assert sorted(outcomes) == ["ResourceInUse"] * 19 + ["won"]
    assert wait(clients[0], name)["TrainingJobStatus"] == "Completed"
    said = [line for line in log_of(clients[0], name) if line.isdigit()]
    assert said == [str(outcomes.index("won"))]


def test_twenty_stops_at_once_stop_the_job_once(service):
    aws = Clients(service)
    name = unique("stops")
    command = "trap 'echo TERM; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    aws.sagemaker.create_training_job(**job_request(name, command))
    deadline = time.monotonic() + 20
    while "ready" not in log_of(aws, name) and time.monotonic() < deadline:
        time.sleep(0.1)

    def stop(_):
        try:
            aws.sagemaker.stop_training_job(TrainingJobName=name)
        except ClientError as error:
            return error.response["Error"]["Code"]
        return "accepted"

    with ThreadPoolExecutor(20) as pool:
        outcomes = list(pool.map(stop, range(20)))
    # Requests with the same signature, signed in the same second, cannot be distinguished from replays; clients retry
    # them.
    assert set(outcomes) <= {"accepted", "ValidationException", "ThrottlingException"}
    assert "accepted" in outcomes
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Stopped"
    rows = [row["Status"] for row in facts["SecondaryStatusTransitions"]]
    assert rows.count("Stopping") == 1
    assert rows.count("Stopped") == 1
    assert log_of(aws, name).count("TERM") == 1


def mounts_of(text):
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if text in line]


def cgroups_of(text):
    return [parent for parent, _, _ in os.walk("/sys/fs/cgroup") if text in parent]


@pytest.mark.long
def test_fifty_quick_jobs_leave_no_files_mounts_or_cgroups(service):
    aws = Clients(service)
    prefix = unique("quick")
    names = [f"{prefix}-{index}" for index in range(50)]
    for name in names:
        aws.sagemaker.create_training_job(**job_request(name, f"echo {name} > /opt/ml/model/name"))
    for name in names:
        described = wait(aws, name, timeout_s=100)
        assert described["TrainingJobStatus"] == "Completed", described.get("FailureReason")
    for name in names[::10]:
        described = aws.sagemaker.describe_training_job(TrainingJobName=name)
        assert model_of(aws, described) == {"name": f"{name}\n".encode()}

    def left():
        return [*processes_with(prefix).values(), *mounts_of(prefix), *cgroups_of(prefix)]

    assert wait_for_none(left, timeout_s=20) == []
    doctor = service.clary("doctor", check=False).stdout
    assert "left behind" not in doctor, doctor
    assert prefix not in doctor
