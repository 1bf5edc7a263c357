"""Jobs with a test's own code: sources and archives in S3, requests in script mode, and their outcomes."""

import io
import json
import tarfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from boto3_clients import job_request, unique, wait

BUCKET = "clary"


def put(aws, key, body):
    """Store an object and return its URI."""
    aws.s3.put_object(Bucket=BUCKET, Key=key, Body=body if isinstance(body, bytes) else body.encode())
    return f"s3://{BUCKET}/{key}"


def archive_of(files):
    """Return a tar.gz with the given texts or bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, body in files.items():
            data = body if isinstance(body, bytes) else body.encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def channel(name, uri, *, content_type=None, **members):
    """Return one entry of InputDataConfig; members named S3... belong to the data source."""
    source = {"S3DataType": "S3Prefix", "S3Uri": uri}
    source |= {key: members.pop(key) for key in list(members) if key.startswith("S3")}
    entry = {"ChannelName": name, "DataSource": {"S3DataSource": source}, **members}
    return entry if content_type is None else {**entry, "ContentType": content_type}


def script_request(aws, name, files, *, program="train.py", hyperparameters=None, instance_count=1, **members):
    """Return a request in script mode like SDK v2's: the platform's hyperparameters are JSON.

    `files` is the content of the source folder, or the bytes of its archive.
    """
    source = files if isinstance(files, bytes) else archive_of(files)
    request = job_request(name, "true", **members)
    del request["AlgorithmSpecification"]["ContainerEntrypoint"]
    del request["AlgorithmSpecification"]["ContainerArguments"]
    request["ResourceConfig"]["InstanceCount"] = instance_count
    request["HyperParameters"] = {
        "sagemaker_program": json.dumps(program),
        "sagemaker_submit_directory": json.dumps(put(aws, f"code/{name}/sourcedir.tar.gz", source)),
        **(hyperparameters or {}),
    }
    return request


def start(aws, request):
    """Create the job and return its name."""
    aws.sagemaker.create_training_job(**request)
    return request["TrainingJobName"]


def run(aws, request, *, timeout_s=100):
    """Run the job to its end; return its description."""
    return wait(aws, start(aws, request), timeout_s=timeout_s)


def run_script(aws, label, script, *, files=None, timeout_s=100, **options):
    """Run a job with this text as `train.py` to its end; return its description."""
    request = script_request(aws, unique(label), {"train.py": script, **(files or {})}, **options)
    return run(aws, request, timeout_s=timeout_s)


def run_command(aws, label, command, *, timeout_s=100, **members):
    """Run a job with a bash command as entry point to its end; return its description."""
    return run(aws, job_request(unique(label), command, **members), timeout_s=timeout_s)


def object_at(aws, uri):
    """Return the bytes of an object."""
    place = urlsplit(uri)
    return aws.s3.get_object(Bucket=place.netloc, Key=place.path[1:])["Body"].read()


def members_of(archive):
    """Return name -> bytes of the files in a tar.gz."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}


def model_of(aws, facts):
    """Return name -> bytes of the files in a completed job's model."""
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    return members_of(object_at(aws, facts["ModelArtifacts"]["S3ModelArtifacts"]))


def failure_of(facts):
    """Return the FailureReason of a job that failed."""
    assert facts["TrainingJobStatus"] == "Failed", facts
    return facts["FailureReason"]


def processes_with(text):
    """Return pid -> command line of the processes that name `text` in it."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in command:
            found[int(folder.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def wait_for_none(look, *, timeout_s=10.0):
    """Wait until `look` returns an empty result; return its last result, which is not empty after a timeout."""
    deadline = time.monotonic() + timeout_s
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
