"""The block of public access of a bucket, which the embedded store does not implement. Pure.

Where: `front` answers GetPublicAccessBlock, PutPublicAccessBlock and DeletePublicAccessBlock itself. No policy or ACL
lets others in here, so every bucket has the block that AWS gives to new buckets, whatever is put.
Source: Amazon S3 API reference, GetPublicAccessBlock, PutPublicAccessBlock, DeletePublicAccessBlock.
"""

from __future__ import annotations

from clary.base.errors import WireError
from clary.control.objects.s3_request import S3Request

_ROOT = "PublicAccessBlockConfiguration"
_BLOCKS = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
_CONFIGURATION = (
    f'<?xml version="1.0" encoding="UTF-8"?>\n<{_ROOT} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    f"{''.join(f'<{name}>true</{name}>' for name in _BLOCKS)}</{_ROOT}>"
).encode()


def is_of_public_access(asked: S3Request) -> bool:
    """Whether a request is for the block of public access of a bucket."""
    return bool(asked.bucket) and not asked.key and asked.has("publicAccessBlock")


def public_access_answer(method: str, body: object) -> tuple[int, bytes]:
    """Return HTTP status and document of the answer for a bucket that exists.

    Args:
        method: upper case.
        body: bytes of the request's document; anything else is no configuration.
    Raises: WireError(MalformedXML) for PUT without a configuration, WireError(MethodNotAllowed) for other methods.
    """
    match method:
        case "GET":
            return 200, _CONFIGURATION
        case "PUT":
            if not isinstance(body, bytes) or _ROOT.encode() not in body:
                raise WireError("MalformedXML", f"The XML you provided is no {_ROOT}.")
            return 200, b""
        case "DELETE":
            return 204, b""
        case _:
            raise WireError("MethodNotAllowed", "The specified method is not allowed.", http_status=405)
