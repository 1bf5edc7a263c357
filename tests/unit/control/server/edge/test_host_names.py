"""Names under which the service answers."""

import pytest

from clary.control.server.edge.host_names import HostNames
from clary.control.server.edge.tls import service_names

NAMES = HostNames(["127.0.0.1", "gpu-box", " Clary.Lan ", "*.jobs.example", ""], service_names("us-west-2"))


@pytest.mark.parametrize(
    "host",
    [
        None,
        "127.0.0.1:4570",
        "[::1]:4570",
        "192.168.1.7",
        "localhost:4570",
        "LOCALHOST.",
        "bucket.localhost:4570",
        "gpu-box:4570",
        "clary.lan",
        "my.bucket.clary.lan:80",
        "a.jobs.example",
        "sts.us-west-2.amazonaws.com",
        "sts.eu-central-1.amazonaws.com:443",
        "clary.s3.us-west-2.amazonaws.com",
        "a.b.s3.amazonaws.com",
    ],
)
def test_the_service_answers_under_its_own_names(host):
    assert NAMES.why_refused(host) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:4570",
        "localhost.evil.example",
        "127.0.0.1.evil.example:4570",
        "evillocalhost",
        "notclary.lan",
        "jobs.example",
        "evil.amazonaws.com",
        "x",
        "",
        "\u00e9.example",
        "0x7f.1",
    ],
)
def test_a_foreign_name_is_refused_with_the_setting_that_adds_it(host):
    reason = NAMES.why_refused(host)
    assert "host_names" in reason
    assert reason.isascii()


@pytest.mark.parametrize(
    ("host", "bucket"),
    [
        ("bucket.localhost:4570", "bucket"),
        ("a.b.clary.lan", "a.b"),
        ("localhost", None),
        ("clary.lan:80", None),
        ("127.0.0.1:4570", None),
        ("bucket.sts.us-west-2.amazonaws.com", None),
        ("evil.example", None),
    ],
)
def test_a_bucket_is_accepted_only_in_front_of_the_service_s_own_names(host, bucket):
    assert NAMES.bucket_of(host) == bucket
