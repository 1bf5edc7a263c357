"""Variables by which libraries that do not read AWS_ENDPOINT_URL find an object store.

Where: agents set them in jobs, and `clary env` prints them for clients.
Source: tensorflow/io, `s3_filesystem.cc` (S3_ENDPOINT, S3_USE_HTTPS, S3_VERIFY_SSL); tensorboard, `gfile.py`, which
hands S3_ENDPOINT to boto3; s5cmd's README (S3_ENDPOINT_URL); object_store 0.11, `aws/builder.rs` (AWS_ALLOW_HTTP).
"""

from __future__ import annotations

from collections.abc import Mapping

ENDPOINT = "S3_ENDPOINT"
# Variables that describe the server of `ENDPOINT`: an owner of that variable sets these too.
OF_ENDPOINT = ("S3_USE_HTTPS", "S3_VERIFY_SSL")


def library_variables(url: str) -> Mapping[str, str]:
    """Return the variables for the object store at a URL; their names are the same for http and https.

    A shell that has had the values for http thus gets those for https.
    """
    is_plain = url.startswith("http://")
    return {
        ENDPOINT: url,  # with its scheme: boto3 refuses an endpoint without one
        **dict.fromkeys(OF_ENDPOINT, "0" if is_plain else "1"),
        "S3_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true" if is_plain else "false",
    }
