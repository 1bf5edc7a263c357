"""Buckets that are named in the Host header."""

import pytest

from clary.control.objects.s3_request import bucket_of_host


@pytest.mark.parametrize(
    ("host", "bucket"),
    [
        ("clary.s3.us-west-2.amazonaws.com", "clary"),
        ("clary.s3.us-west-2.amazonaws.com:443", "clary"),
        ("a.b-c.s3.amazonaws.com", "a.b-c"),
        ("clary.s3-us-west-2.amazonaws.com", "clary"),
        ("data.s3-accelerate.dualstack.amazonaws.com", "data"),
        ("data.s3.dualstack.us-gov-west-1.amazonaws.com", "data"),
        ("s3.us-west-2.amazonaws.com", None),
        ("s3.dualstack.us-west-2.amazonaws.com", None),
        ("123456789012.s3-control.us-west-2.amazonaws.com", None),
        ("site.s3-website-us-west-2.amazonaws.com", None),
        ("127.0.0.1:4570", None),
        ("localhost", None),
        ("clary.s3.evil.example", None),
        ("", None),
    ],
)
def test_only_host_names_of_s3_contain_a_bucket(host, bucket):
    assert bucket_of_host(host) == bucket
