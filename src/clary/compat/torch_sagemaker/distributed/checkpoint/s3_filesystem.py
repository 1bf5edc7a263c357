"""Checkpoints in S3."""

from clary.train.parallel.fsdp.checkpoint.s3 import (
    S3FileSystem,
    format_s3_path,
    get_s3_region_from_uri,
    is_s3_uri,
    parse_s3_uri,
)
from clary.train.parallel.fsdp.checkpoint.s3_errors import retry_with_jitter

__all__ = [
    "S3FileSystem",
    "format_s3_path",
    "get_s3_region_from_uri",
    "is_s3_uri",
    "parse_s3_uri",
    "retry_with_jitter",
]
