"""Variables of the caller's shell: which ones lead elsewhere, and which exceptions keep requests from a proxy."""

import urllib.request

import pytest

from clary.control.clients.caller_variables import (
    AWS_DOMAINS,
    exceptions_within_aws,
    foreign_variables,
    proxy_exceptions,
    with_service,
)
from clary.control.server.edge import connect_proxy

PROXY = {"HTTP_PROXY": "http://proxy.corp:3128"}


def test_foreign_variables_are_those_that_lead_to_another_server_to_aws_or_to_other_keys():
    leading = {
        "AWS_ENDPOINT_URL_S3": "another server",
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": "another server",
        "WR_S3_ENDPOINT_URL": "another server",
        "FSSPEC_S3_ENDPOINT_URL": "another server",
        "FSSPEC_S3": "another server",
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "AWS's own addresses",
        "AWS_USE_DUALSTACK_ENDPOINT": "AWS's own addresses",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "other keys",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "other keys",
        "FSSPEC_S3_KEY": "other keys",
    }
    others = ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_MAX_ATTEMPTS", "AWS_ROLE_ARN", "S3_ENDPOINT_URL", "PATH")
    assert foreign_variables(dict.fromkeys((*leading, *others), "x")) == leading


@pytest.mark.parametrize(
    "name", ["AWS_ENDPOINT_URL_S3;id", "AWS_ENDPOINT_URL_S3\n", "AWS_ENDPOINT_URL_$(id)", "xWR_A_ENDPOINT_URL"]
)
def test_a_name_that_a_shell_would_run_is_not_printed(name):
    assert foreign_variables({name: "x"}) == {}


def test_no_exceptions_are_needed_without_a_proxy_or_where_all_servers_are_exceptions():
    assert proxy_exceptions({"NO_PROXY": "a"}, url="http://127.0.0.1:1") == {}
    assert proxy_exceptions({"HTTP_PROXY": ""}, url="http://127.0.0.1:1") == {}
    assert proxy_exceptions(PROXY, url="http://127.0.0.1:1", without=("HTTP_PROXY",)) == {}
    assert proxy_exceptions({**PROXY, "no_proxy": "*"}, url="http://127.0.0.1:1") == {}


def test_the_exceptions_of_both_spellings_are_kept():
    kept = proxy_exceptions({**PROXY, "no_proxy": "a, b,", "NO_PROXY": "b,c"}, url="http://127.0.0.1:1")
    assert kept == dict.fromkeys(("NO_PROXY", "no_proxy"), "a,b,c,localhost,127.0.0.1,::1")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:4570", "http://[::1]:4570", "http://[fd00::2]:1", "https://gpu1:4571"]
)
def test_pythons_clients_reach_the_service_without_the_proxy(url, monkeypatch):
    for name, value in with_service((), url).items():
        monkeypatch.setenv(name, value)
    assert urllib.request.proxy_bypass_environment(url.partition("//")[2])
    assert not urllib.request.proxy_bypass_environment("pypi.org:443")


def test_exceptions_within_aws_are_all_that_stand_for_a_name_of_aws():
    within = ["*", "com", ".amazonaws.com", "*.amazonaws.com", "STS.us-west-2.amazonaws.com:443", "api.aws"]
    others = ["intranet", ".corp", "127.0.0.1", "::1", "[::1]", "10.0.0.0/8", "notamazonaws.com", ".", "*.corp"]
    assert exceptions_within_aws({"NO_PROXY": ",".join(within + others)}) == within


def test_the_domains_of_aws_are_those_that_the_proxy_knows():
    assert AWS_DOMAINS == connect_proxy.AWS_DOMAINS
