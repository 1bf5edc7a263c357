"""Script that prints results of S3 clients of the service: boto3 of this environment, and pyarrow if installed.

Clients are configured only by the variables of `clary env`; the bucket is new.
"""

import os
import urllib.error
import urllib.request
from importlib.util import find_spec
from urllib.parse import urlsplit

import boto3
import botocore
from botocore.config import Config
from botocore.exceptions import ClientError
from common_client import report

BOUNDARY = "----boundary"


def refusal(call, **arguments):
    try:
        call(**arguments)
    except ClientError as error:
        return [error.response["Error"]["Code"], error.response["Error"].get("Region", "")]
    return ["", ""]


def post(made, content):
    """Upload by an HTML form, as a browser does."""
    body = b""
    for name, value in made["fields"].items():
        body += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
    body += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'.encode() + content
    body += f"\r\n--{BOUNDARY}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    try:
        request = urllib.request.Request(made["url"], body, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def temporary():
    """Return the results of calls with temporary keys of STS, and the refusals with a wrong session token."""
    role = "arn:aws:iam::000000000000:role/Any"
    made = boto3.client("sts").assume_role(RoleArn=role, RoleSessionName="me", DurationSeconds=900)["Credentials"]
    keys = {"aws_access_key_id": made["AccessKeyId"], "aws_secret_access_key": made["SecretAccessKey"]}
    session = boto3.Session(**keys, aws_session_token=made["SessionToken"])
    buckets = session.client("s3").list_buckets()["Buckets"]
    jobs = session.client("sagemaker").list_training_jobs()["ResponseMetadata"]["HTTPStatusCode"]
    other = boto3.Session(**keys, aws_session_token="garbage")
    return {
        "buckets": len(buckets),
        "jobs": jobs,
        "renewed": refusal(session.client("sts").get_session_token)[0],
        "s3": refusal(other.client("s3").list_buckets)[0],
        "sagemaker": refusal(other.client("sagemaker").list_training_jobs)[0],
        "sts": refusal(other.client("sts").get_caller_identity)[0],
    }


def arrow(bucket):
    """Return the objects read by pyarrow, configured by AWS_ENDPOINT_URL only, and with the bucket in the host name."""
    if find_spec("pyarrow") is None:
        return None
    from pyarrow import fs

    found = []
    files, path = fs.FileSystem.from_uri(f"s3://{bucket}/arrow")
    port = urlsplit(os.environ["AWS_ENDPOINT_URL"]).port
    by_host = fs.S3FileSystem(force_virtual_addressing=True, endpoint_override=f"http://localhost:{port}")
    for number, each in enumerate((files, by_host)):
        with each.open_output_stream(f"{path}/{number}") as stream:
            stream.write(b"hello")
        with each.open_input_stream(f"{path}/{number}") as stream:
            found.append(stream.read().decode())
    return found


def main():
    s3 = boto3.client("s3", config=Config(retries={"max_attempts": 1}))
    bucket = f"door-{os.getpid()}"
    place = {"Bucket": bucket, "Key": "a/object"}
    s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": s3.meta.region_name})
    s3.put_object(**place, Body=b"x", ServerSideEncryption="aws:kms", SSEKMSKeyId="mine")
    head = s3.head_object(**place)
    rules = s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
    forms = []
    for version in (None, "s3v4"):
        signer = boto3.client("s3", config=Config(signature_version=version))
        made = signer.generate_presigned_post(bucket, "form/a", Conditions=[["content-length-range", 1, 5]])
        forms.append([post(made, b"hello"), post(made, b"too long")])
    elsewhere = boto3.client("s3", region_name="eu-central-1")
    report(
        botocore=botocore.__version__,
        encryption=[head["ServerSideEncryption"], head["SSEKMSKeyId"]],
        default=rules[0]["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"],
        forms=forms,
        form=s3.get_object(Bucket=bucket, Key="form/a")["Body"].read().decode(),
        foreign=refusal(elsewhere.list_buckets),
        led=elsewhere.get_object(**place)["Body"].read().decode(),
        temporary=temporary(),
        arrow=arrow(bucket),
    )


main()
