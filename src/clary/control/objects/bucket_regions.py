"""The region of buckets: always the service's, even if the store answers otherwise.

Where: `front` checks requests for new buckets and answers GetBucketLocation. Pure.
Clients sign again for the region that an answer names, so all answers must name the same region.
Source: Amazon S3 API reference, CreateBucket, GetBucketLocation; an empty constraint stands for us-east-1.
"""

from __future__ import annotations

import re

from clary.base.errors import WireError
from clary.control.objects.s3_request import S3Request

UNNAMED = "us-east-1"
_CONSTRAINT = re.compile(rb"<(?:\w+:)?LocationConstraint>([^<]*)</")


def makes_bucket(asked: S3Request) -> bool:
    """Whether a request is CreateBucket."""
    names = {name.lower() for name, _ in asked.query}
    return asked.method == "PUT" and bool(asked.bucket) and not asked.key and names <= {"x-id"}


def is_location(asked: S3Request) -> bool:
    """Whether a request is GetBucketLocation."""
    return asked.method == "GET" and bool(asked.bucket) and not asked.key and asked.has("location")


def asks_from_anywhere(method: str, raw_query: str) -> bool:
    """Whether a request is GetBucketLocation, whose sender does not know the region yet.

    It is called before the signature is verified; the signature of such a request may name any region.
    """
    return method == "GET" and "location" in {part.partition("=")[0] for part in raw_query.split("&")}


def check_constraint(content: bytes, region: str) -> None:
    """Refuse to make a bucket in another region; a request without a region means this one.

    Raises: WireError IllegalLocationConstraintException.
    """
    found = _CONSTRAINT.search(content)
    wanted = found[1].strip().decode("utf-8", "replace") if found else ""
    if wanted in ("", region) or (wanted == "EU" and region == "eu-west-1"):
        return
    raise WireError(
        "IllegalLocationConstraintException",
        f"The {wanted[:40]} location constraint is incompatible for the region specific endpoint this request was sent "
        f"to: buckets here lie in {region}.",
    )


def location_document(region: str) -> bytes:
    """Return the answer to GetBucketLocation."""
    namespace = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
    told = "" if region == UNNAMED else region
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<LocationConstraint {namespace}>{told}</LocationConstraint>'.encode()
    )
