"""Public buckets of AWS, read through the service: every kind of client, copies, inputs of jobs, and refusals.

A moto server stands for AWS: it answers unsigned reads of S3, as AWS does for public buckets.
"""

import http.server
import json
import shutil
import subprocess
import threading
import urllib.request

import boto3
import pytest
from boto3_clients import Clients, log_of, unique
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer
from program_jobs import BUCKET, channel, model_of, run, script_request
from running_service import ROOT, start_service

pytestmark = [pytest.mark.clients, pytest.mark.timeout(180), pytest.mark.xdist_group("public-buckets")]

PUBLIC = "sagemaker-sample-files"
READABLE = {"ACL": "public-read"}
FLAT = b"rings,length\n7,0.4\n"
LARGE = bytes(range(256)) * 40_000  # 10 MB: clients read and copy it in parts
AWS_CLI = ROOT / ".venvs/awscli1/bin/aws"

# A job reads its channels, and with its own key what everybody may read.
SCRIPT = """
import json, os
import boto3
seen = {}
for channel in ("train", "fast"):
    folder = "/opt/ml/input/data/" + channel
    folder = os.environ.get("SM_CHANNEL_" + channel.upper(), folder)
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            content = file.read()
        seen[channel + "/" + name] = [len(content), content[:10].decode("latin-1")]
body = boto3.client("s3").get_object(Bucket="sagemaker-sample-files", Key="datasets/abalone/train.csv")["Body"]
seen["boto3"] = [len(body.read()), ""]
with open(os.path.join(os.environ["SM_MODEL_DIR"], "seen.json"), "w") as file:
    json.dump(seen, file)
"""


class BreakingMirror:
    """A server that announces more bytes than it sends."""

    def __init__(self, content):
        self._content = content

    def __enter__(self):
        content = self._content

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Length", str(2 * len(content)))
                self.end_headers()
                self.wfile.write(content)
                self.wfile.flush()
                self.connection.close()

            def log_message(self, *arguments):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


class Mirror:
    """The public data, and the server that has it."""

    def __init__(self):
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        own = boto3.client(
            "s3", endpoint_url=self.url, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
        )
        own.create_bucket(Bucket=PUBLIC, **READABLE)
        for key, body in (("datasets/abalone/train.csv", FLAT), ("datasets/abalone/large.bin", LARGE)):
            own.put_object(
                Bucket=PUBLIC, Key=key, Body=body, ContentType="text/csv", Metadata={"rows": "1"}, **READABLE
            )
        own.put_object(Bucket=PUBLIC, Key="datasets/abalone2/other.csv", Body=b"other", **READABLE)
        own.create_bucket(Bucket="not-named", **READABLE)
        own.put_object(Bucket="not-named", Key="a", Body=b"a", **READABLE)
        own.close()

    def close(self):
        self._server.stop()
        self._server._server.server_close()  # `stop` leaves the socket open


@pytest.fixture(scope="module")
def mirror():
    opened = Mirror()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def service(mirror, tmp_path_factory):
    home = tmp_path_factory.mktemp("clary-public")
    started = start_service(home, CLARY_PUBLIC_BUCKETS_URL=mirror.url)
    yield started
    started.clary("down")
    leftovers = started.clary("doctor", check=False).stdout
    assert "left behind" not in leftovers, leftovers
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def aws(service):
    return Clients(service)


def cli(service, *arguments):
    completed = subprocess.run(
        [str(AWS_CLI), *arguments], env=service.environment, capture_output=True, text=True, timeout=60
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def test_boto3_reads_and_lists(aws, tmp_path):
    s3 = aws.s3
    answer = s3.get_object(Bucket=PUBLIC, Key="datasets/abalone/train.csv", Range="bytes=0-4")
    assert answer["Body"].read() == FLAT[:5]
    head = s3.head_object(Bucket=PUBLIC, Key="datasets/abalone/large.bin")
    assert (head["ContentLength"], head["ContentType"], head["Metadata"]) == (len(LARGE), "text/csv", {"rows": "1"})
    s3.download_file(PUBLIC, "datasets/abalone/large.bin", str(tmp_path / "large"))
    assert (tmp_path / "large").read_bytes() == LARGE
    pages = s3.get_paginator("list_objects_v2").paginate(
        Bucket=PUBLIC, Prefix="datasets/", PaginationConfig={"PageSize": 1}
    )
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
    assert keys == ["datasets/abalone/large.bin", "datasets/abalone/train.csv", "datasets/abalone2/other.csv"]
    folders = s3.list_objects_v2(Bucket=PUBLIC, Prefix="datasets/", Delimiter="/")["CommonPrefixes"]
    assert [entry["Prefix"] for entry in folders] == ["datasets/abalone/", "datasets/abalone2/"]
    s3.head_bucket(Bucket=PUBLIC)
    address = s3.generate_presigned_url(
        "get_object", Params={"Bucket": PUBLIC, "Key": "datasets/abalone/train.csv"}, ExpiresIn=60
    )
    with urllib.request.urlopen(address, timeout=20) as opened:
        assert opened.read() == FLAT


def test_copies_into_own_buckets_keep_content_and_metadata(aws):
    s3, prefix = aws.s3, unique("copies")
    source = {"Bucket": PUBLIC, "Key": "datasets/abalone/train.csv"}
    told = s3.copy_object(Bucket=BUCKET, Key=f"{prefix}/small", CopySource=source, ServerSideEncryption="AES256")
    stored = s3.get_object(Bucket=BUCKET, Key=f"{prefix}/small")
    assert (stored["Body"].read(), stored["ETag"]) == (FLAT, told["CopyObjectResult"]["ETag"])
    assert (stored["ContentType"], stored["Metadata"]) == ("text/csv", {"rows": "1"})
    source = {"Bucket": PUBLIC, "Key": "datasets/abalone/large.bin"}
    s3.copy(source, BUCKET, f"{prefix}/large")  # in parts of 8 MiB
    assert s3.get_object(Bucket=BUCKET, Key=f"{prefix}/large")["Body"].read() == LARGE
    with pytest.raises(ClientError) as missing:
        s3.copy_object(Bucket=BUCKET, Key=f"{prefix}/no", CopySource={"Bucket": PUBLIC, "Key": "no"})
    assert missing.value.response["Error"]["Code"] == "NoSuchKey"
    assert s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/no")["KeyCount"] == 0


def test_the_cli_copies_and_syncs(service, aws, tmp_path):
    prefix = unique("cli")
    cli(service, "s3", "cp", f"s3://{PUBLIC}/datasets/abalone/train.csv", str(tmp_path / "here"))
    assert (tmp_path / "here").read_bytes() == FLAT
    cli(service, "s3", "sync", f"s3://{PUBLIC}/datasets/abalone", f"s3://{BUCKET}/{prefix}")
    assert aws.s3.get_object(Bucket=BUCKET, Key=f"{prefix}/large.bin")["Body"].read() == LARGE
    assert "train.csv" in cli(service, "s3", "ls", f"s3://{PUBLIC}/datasets/abalone/")


@pytest.mark.long
@pytest.mark.parametrize("mode", ["File", "FastFile"])
def test_a_job_reads_its_inputs_there(aws, mode):
    name = unique(f"public-{mode.lower()}")
    request = script_request(aws, name, {"train.py": SCRIPT})
    request["AlgorithmSpecification"]["TrainingImage"] = "registry.example/team/remote:1"  # with boto3
    request["InputDataConfig"] = [
        channel("train", f"s3://{PUBLIC}/datasets/abalone/"),
        channel("fast", f"s3://{PUBLIC}/datasets/abalone/", InputMode=mode),
    ]
    described = run(aws, request)
    assert described["TrainingJobStatus"] == "Completed", log_of(aws, name)
    files = {"large.bin": [len(LARGE), LARGE[:10].decode("latin-1")], "train.csv": [len(FLAT), FLAT[:10].decode()]}
    expected = {f"{place}/{file}": seen for place in ("train", "fast") for file, seen in files.items()}
    assert json.loads(model_of(aws, described)["seen.json"]) == {**expected, "boto3": [len(FLAT), ""]}


def test_an_own_bucket_hides_the_public_one(aws):
    aws.s3.create_bucket(Bucket=PUBLIC, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    try:
        with pytest.raises(ClientError) as missing:
            aws.s3.get_object(Bucket=PUBLIC, Key="datasets/abalone/train.csv")
        assert missing.value.response["Error"]["Code"] == "NoSuchKey"
        assert "Contents" not in aws.s3.list_objects_v2(Bucket=PUBLIC)
    finally:
        aws.s3.delete_bucket(Bucket=PUBLIC)
    assert aws.s3.head_object(Bucket=PUBLIC, Key="datasets/abalone/train.csv")["ContentLength"] == len(FLAT)


def refusal(call, **arguments):
    with pytest.raises(ClientError) as refused:
        call(**arguments)
    return refused.value.response["Error"]["Code"]


def test_what_is_not_public_is_refused_as_before(service, aws):
    s3 = aws.s3
    assert refusal(s3.get_object, Bucket="not-named", Key="a") in ("NoSuchBucket", "NoSuchKey")
    assert refusal(s3.put_object, Bucket=PUBLIC, Key="mine", Body=b"x") == "NoSuchBucket"
    assert refusal(s3.delete_object, Bucket=PUBLIC, Key="datasets/abalone/train.csv") == "NoSuchBucket"
    assert refusal(s3.get_object, Bucket=PUBLIC, Key="no") == "NoSuchKey"
    anonymous = boto3.client(
        "s3",
        endpoint_url=service.environment["AWS_ENDPOINT_URL"],
        region_name="us-west-2",
        config=Config(signature_version=UNSIGNED),
    )
    assert refusal(anonymous.get_object, Bucket=PUBLIC, Key="datasets/abalone/train.csv") == "AccessDenied"


def test_inputs_that_do_not_exist_there_are_refused(aws):
    request = script_request(aws, unique("none"), {"train.py": "pass"})
    request["InputDataConfig"] = [channel("train", f"s3://{PUBLIC}/datasets/none/")]
    with pytest.raises(ClientError, match="No S3 objects found under S3 URL"):
        aws.sagemaker.create_training_job(**request)


def test_without_an_answer_the_error_names_the_reason(tmp_path_factory):
    home = tmp_path_factory.mktemp("clary-offline")
    service = start_service(home, CLARY_PUBLIC_BUCKETS_URL="http://127.0.0.1:1")
    try:
        aws = Clients(service)
        request = script_request(aws, unique("offline"), {"train.py": "pass"})
        request["InputDataConfig"] = [channel("train", f"s3://{PUBLIC}/datasets/abalone/")]
        with pytest.raises(ClientError, match=r"ValidationException.*gave no answer.*Check the connection"):
            aws.sagemaker.create_training_job(**request)
        service.clary("down")
        again = start_service(home, CLARY_PUBLIC_BUCKETS_URL="http://127.0.0.1:1", CLARY_INTERNET="false")
        aws = Clients(again)
        assert refusal(aws.s3.get_object, Bucket=PUBLIC, Key="a") == "NoSuchBucket"
        with pytest.raises(ClientError, match="setting public_buckets"):
            aws.sagemaker.create_training_job(**request)
    finally:
        service.clary("down")
        shutil.rmtree(home, ignore_errors=True)


def test_a_copy_whose_source_breaks_off_stores_nothing(tmp_path):
    """A source that ends early must not become a shorter object."""
    prefix = unique("broken")
    with BreakingMirror(FLAT * 1000) as broken:
        home = tmp_path / "home"
        other = start_service(home, CLARY_PUBLIC_BUCKETS_URL=broken.url)
        try:
            clients = Clients(other)
            assert refusal(
                clients.s3.copy_object,
                Bucket=BUCKET,
                Key=f"{prefix}/a",
                CopySource={"Bucket": PUBLIC, "Key": "a"},
            ) in ("ServiceUnavailable", "503")
            assert clients.s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["KeyCount"] == 0
            with pytest.raises(Exception, match=r"(?i)incomplete|broken|closed|read"):
                clients.s3.get_object(Bucket=PUBLIC, Key="a")["Body"].read()
        finally:
            other.clary("down")
