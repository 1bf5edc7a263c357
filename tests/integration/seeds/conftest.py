"""Fixtures of the listings: digits in MNIST's files, and the listings' own buckets."""

import shutil
import subprocess

import pytest
from running_service import SDK2_PYTHON
from seed_listings import HERE, printed

from needs import require_python

BUCKETS = ("my-bucket", "your-bucket")  # named in the listings


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The folder of listing.py and the files of MNIST that it loads: 1,500 real digits."""
    require_python(SDK2_PYTHON)
    folder = tmp_path_factory.mktemp("digits")
    subprocess.run([str(SDK2_PYTHON), str(HERE / "digits_maker.py"), str(folder), "1500"], check=True, timeout=60)
    (folder / "listing.py").write_text(printed("mnist_ddp.txt"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def buckets(aws):
    """The buckets named in the listings, the first with an object below data/."""
    for bucket in BUCKETS:
        aws.s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": aws.s3.meta.region_name})
    aws.s3.put_object(Bucket=BUCKETS[0], Key="data/digits.txt", Body=b"0123456789")
    yield BUCKETS
    for bucket in BUCKETS:
        for item in aws.s3.list_objects_v2(Bucket=bucket).get("Contents", []):
            aws.s3.delete_object(Bucket=bucket, Key=item["Key"])
        aws.s3.delete_bucket(Bucket=bucket)
