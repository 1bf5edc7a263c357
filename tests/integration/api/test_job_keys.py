"""The access key of a job, tried by a real program on a real service: it opens the job's own resources and no others.

One idle job is the victim; a second job tries every operation with boto3 and reports each error code. Its key is tried
again from outside after the job's end.
"""

import json
import time
import urllib.error
import urllib.request

import boto3
import pytest
from boto3_clients import Clients, job_request, log_of, unique, wait
from botocore.config import Config
from botocore.exceptions import ClientError
from program_jobs import BUCKET, channel, object_at, put, run, script_request, start
from running_service import SETTINGS, start_service

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("job-keys")]

PROGRAM = """
import json, os, boto3
from botocore.config import Config
from botocore.exceptions import ClientError

told = json.loads(os.environ["SM_HP_TOLD"])
me, bucket, own = os.environ["TRAINING_JOB_NAME"], told["bucket"], told["own"]
victim, theirs, request = told["victim"], told["theirs"], told["request"]
config = Config(retries={"max_attempts": 1}, connect_timeout=10, read_timeout=30)
s3, sagemaker, logs, sts = (boto3.client(name, config=config) for name in ("s3", "sagemaker", "logs", "sts"))
metrics = boto3.client("sagemaker-metrics", config=config)
found, texts = {}, {}
request["OutputDataConfig"] = {"S3OutputPath": "s3:" + f"//{bucket}/out"}

def tries(label, act):
    try:
        answer = act()
        found[label] = "ok"
        return answer
    except ClientError as error:
        found[label] = error.response["Error"]["Code"]
        texts[label] = str(error)

def delete(*keys):
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys]})
    assert not answer.get("Errors"), answer

def copy(key, source):
    s3.copy_object(Bucket=bucket, Key=key, CopySource={"Bucket": bucket, "Key": source})

group = {"logGroupName": "/aws/sagemaker/TrainingJobs"}
part = {"Bucket": bucket, "Key": own + "/l", "UploadId": "x", "PartNumber": 1}

# What is its own.
tries("own: identity", sts.get_caller_identity)
tries("own: describe", lambda: sagemaker.describe_training_job(TrainingJobName=me))
tries("own: logs", lambda: logs.filter_log_events(**group, logStreamNamePrefix=me + "/"))
tries("own: input", lambda: s3.get_object(Bucket=bucket, Key=told["input"])["Body"].read())
tries("own: list input", lambda: s3.list_objects_v2(Bucket=bucket, Prefix=told["input"].rpartition("/")[0] + "/"))
tries("own: bucket", lambda: s3.head_bucket(Bucket=bucket))
tries("own: put", lambda: s3.put_object(Bucket=bucket, Key=own + "/x", Body=b"mine"))
tries("own: copy", lambda: copy(own + "/copied +x", own + "/x"))
tries("own: copy back", lambda: copy(own + "/back", own + "/copied +x"))
tries("own: get", lambda: s3.get_object(Bucket=bucket, Key=own + "/back")["Body"].read())
tries("own: remove", lambda: delete(own + "/back"))
named = tries("own: list without slash", lambda: s3.list_objects_v2(Bucket=bucket, Prefix=own))
found["listed"] = sorted(item["Key"] for item in named["Contents"])
found["counted"] = named["KeyCount"]
folders = tries("own: folders without slash", lambda: s3.list_objects_v2(Bucket=bucket, Prefix=own, Delimiter="/"))
found["folders"] = [item["Prefix"] for item in folders.get("CommonPrefixes", [])]
tries("own: named place", lambda: s3.put_object(Bucket=bucket, Key=told["named"] + "/y", Body=b"mine"))
def multipart():
    upload = s3.create_multipart_upload(Bucket=bucket, Key=own + "/large")["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key=own + "/large", UploadId=upload, PartNumber=1, Body=b"a" * 1000)
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3.complete_multipart_upload(Bucket=bucket, Key=own + "/large", UploadId=upload, MultipartUpload=parts)
tries("own: multipart", multipart)
component = me + "-aws-training-job"
tries("own: component", lambda: sagemaker.describe_trial_component(TrialComponentName=component))
data = [{"MetricName": "m", "Timestamp": 1.8e9, "Step": 0, "Value": 1.0}]
tries("own: metrics", lambda: metrics.batch_put_metrics(TrialComponentName=component, MetricData=data))
made = me[-40:] + "-made"
tries("own: new experiment", lambda: sagemaker.create_experiment(ExperimentName=made))
tries("own: its experiment", lambda: sagemaker.describe_experiment(ExperimentName=made))

# What is not.
tries("other: create", lambda: sagemaker.create_training_job(**request))
tries("other: describe", lambda: sagemaker.describe_training_job(TrainingJobName=victim))
tries("other: stop", lambda: sagemaker.stop_training_job(TrainingJobName=victim))
tries("other: delete", lambda: sagemaker.delete_training_job(TrainingJobName=victim))
tries("other: list jobs", sagemaker.list_training_jobs)
tries("other: search", lambda: sagemaker.search(Resource="TrainingJob"))
tries("other: component", lambda: sagemaker.describe_trial_component(TrialComponentName=victim + "-aws-training-job"))
tries("other: experiment", lambda: sagemaker.describe_experiment(ExperimentName=told["experiment"]))
tries("other: logs", lambda: logs.filter_log_events(**group, logStreamNamePrefix=victim))
tries("other: retention", lambda: logs.put_retention_policy(**group, retentionInDays=1))
tries("other: buckets", s3.list_buckets)
tries("other: new bucket", lambda: s3.create_bucket(Bucket=me.lower()[-30:] + "-b"))
tries("other: list all", lambda: s3.list_objects_v2(Bucket=bucket))
tries("other: list", lambda: s3.list_objects_v2(Bucket=bucket, Prefix=theirs))
tries("other: get", lambda: s3.get_object(Bucket=bucket, Key=theirs))
tries("other: put", lambda: s3.put_object(Bucket=bucket, Key=theirs, Body=b"stolen"))
tries("other: put input", lambda: s3.put_object(Bucket=bucket, Key=told["input"], Body=b"stolen"))
tries("other: remove", lambda: s3.delete_object(Bucket=bucket, Key=theirs))
tries("other: remove many", lambda: delete(own + "/x", theirs))
tries("other: copy", lambda: copy(own + "/stolen", theirs))
tries("other: part copy", lambda: s3.upload_part_copy(**part, CopySource={"Bucket": bucket, "Key": theirs}))
tries("other: uploads", lambda: s3.list_multipart_uploads(Bucket=bucket))
tries("other: policy", lambda: s3.get_bucket_policy(Bucket=bucket))
tries("other: acl", lambda: s3.put_object_acl(Bucket=bucket, Key=own + "/x", ACL="public-read"))
sign = lambda method, key: s3.generate_presigned_url(method, Params={"Bucket": bucket, "Key": key}, ExpiresIn=3600)
report = {
    "found": found,
    "texts": texts,
    "urls": {"own": sign("get_object", own + "/x"), "theirs": sign("get_object", theirs)},
    "key": [os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]],
}
s3.put_object(Bucket=bucket, Key=own + "/report.json", Body=json.dumps(report).encode())
"""


class Tried:
    """The results of a program's tries with its own key, and clients with that key after the program's end."""

    def __init__(self, service):
        self.aws = Clients(service)
        self.endpoint = service.environment["AWS_ENDPOINT_URL"]
        self.victim = start(self.aws, job_request(unique("victim"), "sleep 200"))
        self.name = unique("keyed")
        self.experiment = unique("owners")
        self.aws.sagemaker.create_experiment(ExperimentName=self.experiment)
        self.own = f"out/{self.name}"
        put(self.aws, f"{self.own}0/secret", "of a job whose name begins alike")
        theirs = f"out/{self.victim}/output/secret"
        put(self.aws, theirs, "theirs")
        told = {
            "bucket": BUCKET,
            "own": self.own,
            "input": f"inputs/{self.name}/x",
            "victim": self.victim,
            "theirs": theirs,
            "named": f"named/{self.name}",
            "experiment": self.experiment,
            # No S3 address here: a key may open addresses that the owner writes into hyperparameters.
            "request": {**job_request(unique("born"), "true"), "OutputDataConfig": {}},
        }
        self.theirs, self.input = theirs, told["input"]
        uri = put(self.aws, told["input"], "input").rpartition("/")[0]
        request = script_request(
            self.aws,
            self.name,
            {"train.py": PROGRAM},
            hyperparameters={"told": json.dumps(told), "place": json.dumps(f"s3://{BUCKET}/{told['named']}")},
            InputDataConfig=[channel("train", f"{uri}/")],
        )
        request["AlgorithmSpecification"]["TrainingImage"] = "team/remote:1"  # its environment has boto3
        self.described = run(self.aws, request, timeout_s=200)
        assert self.described["TrainingJobStatus"] == "Completed", (self.described, log_of(self.aws, self.name))
        report = json.loads(object_at(self.aws, f"s3://{BUCKET}/{self.own}/report.json"))
        self.found, self.texts, self.urls, self.key = (report[name] for name in ("found", "texts", "urls", "key"))

    def client(self, name):
        """Return a client with the job's key."""
        return boto3.client(
            name,
            endpoint_url=self.endpoint,
            region_name="us-west-2",
            aws_access_key_id=self.key[0],
            aws_secret_access_key=self.key[1],
            config=Config(retries={"max_attempts": 1}),
        )


@pytest.fixture(scope="module")
def tried(service):
    tried = Tried(service)
    yield tried
    tried.aws.sagemaker.stop_training_job(TrainingJobName=tried.victim)
    wait(tried.aws, tried.victim, timeout_s=100)


def test_a_program_reads_its_inputs_writes_its_outputs_and_describes_itself(tried):
    own = {label: code for label, code in tried.found.items() if label.startswith("own: ")}
    assert len(own) == 19
    assert own == dict.fromkeys(own, "ok"), tried.texts


def test_a_listing_without_a_slash_shows_no_key_of_a_job_with_a_longer_name(tried):
    assert tried.found["listed"]
    assert all(key.startswith(f"{tried.own}/") for key in tried.found["listed"])
    assert tried.found["counted"] == len(tried.found["listed"])
    assert tried.found["folders"] == [f"{tried.own}/"]


def test_a_program_cannot_access_another_job_bucket_or_key(tried):
    other = {label: code for label, code in tried.found.items() if label.startswith("other: ")}
    assert len(other) == 24
    for label, code in other.items():
        assert code in ("AccessDenied", "AccessDeniedException"), (label, code, tried.texts.get(label))
        for word in (f"job {tried.name}", "not authorized to perform", 'job_api_access = "full"'):
            assert word in tried.texts[label], (label, tried.texts[label])
    assert object_at(tried.aws, f"s3://{BUCKET}/{tried.theirs}") == b"theirs"
    assert object_at(tried.aws, f"s3://{BUCKET}/{tried.input}") == b"input"
    described = tried.aws.sagemaker.describe_training_job(TrainingJobName=tried.victim)
    assert described["TrainingJobStatus"] == "InProgress"


def has_ended(tried):
    """Return whether the key is refused; it stays valid until the last host is gone, shortly after the final status."""
    try:
        tried.client("sts").get_caller_identity()
    except ClientError:
        return True
    return False


def test_the_key_and_the_urls_that_it_signed_end_with_the_attempt(tried):
    deadline_s = time.monotonic() + 20
    while not has_ended(tried) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    with pytest.raises(ClientError) as refused:
        tried.client("sts").get_caller_identity()
    assert refused.value.response["Error"]["Code"] == "InvalidClientTokenId"
    with pytest.raises(ClientError) as refused:
        tried.client("s3").get_object(Bucket=BUCKET, Key=f"{tried.own}/x")
    assert refused.value.response["Error"]["Code"] == "InvalidAccessKeyId"
    for url in tried.urls.values():
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url, timeout=20)
        with refused.value as answer:
            assert answer.code == 403


@pytest.mark.long(15)
def test_with_full_access_a_key_opens_every_bucket_and_commands_warn_of_it(tmp_path):
    service = start_service(tmp_path / "home", f'job_api_access = "full"\n{SETTINGS}')
    try:
        aws = Clients(service)
        put(aws, "anything/x", "x")
        request = script_request(
            aws,
            unique("full"),
            {"train.py": "import boto3\nboto3.client('s3').get_object(Bucket='clary', Key='anything/x')\n"},
        )
        request["AlgorithmSpecification"]["TrainingImage"] = "team/remote:1"
        described = run(aws, request, timeout_s=200)
        assert described["TrainingJobStatus"] == "Completed", described.get("FailureReason")
        sentence = "gives access to every bucket and job of this service"
        assert sentence in service.clary("describe", request["TrainingJobName"]).stdout.replace("\n", " ")
        assert sentence in service.clary("doctor", check=False).stdout
    finally:
        service.clary("down", check=False)
