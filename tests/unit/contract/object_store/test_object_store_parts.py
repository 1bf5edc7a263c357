"""Decisions of the S3 client without a network: URIs, addresses, pauses, error documents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.base.clock import SystemClock
from clary.base.errors import AgentError, ContractError, Fault, ObjectStoreError
from clary.contract.launch_plan import Credentials, Endpoint
from clary.contract.object_store import ObjectStore, S3Uri, parse_s3_uri
from clary.contract.object_store.connections import ConnectionPool
from clary.contract.object_store.exchange import Exchange, S3Request, Trouble, error_facts

ENDPOINT = Endpoint(
    url="http://localhost:1", region="us-west-2", credentials=Credentials(access_key_id="a", secret_access_key="s")
)


def make_exchange(attempts: int, pauses: list[float]) -> Exchange:
    return Exchange(ENDPOINT, timeout_s=1, attempts=attempts, clock=SystemClock(), sleep=pauses.append)


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("s3://b", S3Uri("b", "")),
        ("s3://b/", S3Uri("b", "")),
        ("s3://b/k", S3Uri("b", "k")),
        ("s3://b/a//b/", S3Uri("b", "a//b/")),
        ("s3://b/k?x#y", S3Uri("b", "k?x#y")),
        ("s3://b//k", S3Uri("b", "/k")),
    ],
)
def test_s3_uris_are_split_after_the_bucket(text, uri):
    assert parse_s3_uri(text) == uri


@given(bucket=st.from_regex(r"[a-z0-9.-]{3,20}", fullmatch=True), key=st.text(min_size=1))
def test_s3_uris_survive_the_round_trip(bucket, key):
    uri = S3Uri(bucket, key)
    assert parse_s3_uri(str(uri)) == uri


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("https://b.s3.amazonaws.com/k", "https forms"),
        ("http://s3.amazonaws.com/b/k", "https forms"),
        ("b/k", "does not start"),
        ("", "does not start"),
        ("S3://b/k", "does not start"),
        ("s3://", "no bucket"),
        ("s3:///k", "no bucket"),
        ("s3://../k", "no bucket"),
        ("s3://a b/k", "no bucket"),
    ],
)
def test_other_uris_are_refused_with_the_reason(text, reason):
    with pytest.raises(AgentError, match=reason) as caught:
        parse_s3_uri(text)
    assert caught.value.fault is Fault.USER


def test_child_of_a_uri_has_one_slash_between():
    assert str(parse_s3_uri("s3://b").child("k")) == "s3://b/k"
    assert str(parse_s3_uri("s3://b/p/").child("k")) == "s3://b/p/k"


@pytest.mark.parametrize(
    ("url", "header"),
    [
        ("http://store:8333", "store:8333"),
        ("http://store:80/base", "store"),
        ("https://store", "store"),
        ("https://store:443", "store"),
        ("https://store:80", "store:80"),
        ("http://[::1]:9000", "[::1]:9000"),
    ],
)
def test_host_header_names_the_port_unless_the_scheme_implies_it(url, header):
    assert ConnectionPool(url, timeout_s=1).host_header == header


@pytest.mark.parametrize("url", ["store:8333", "ftp://store", "http://", ""])
def test_endpoints_that_are_no_urls_are_refused(url):
    with pytest.raises(ContractError, match="expected http"):
        ConnectionPool(url, timeout_s=1)


def test_lasting_errors_are_retried_up_to_the_limit_with_growing_pauses():
    pauses: list[float] = []
    exchange = make_exchange(8, pauses)

    def attempt() -> None:
        raise Trouble("S3 answered 503", status=503)

    with pytest.raises(ObjectStoreError) as caught:
        exchange.retrying(attempt, S3Request(method="GET", bucket="b", key="k"))
    assert caught.value.details["attempts"] == 8
    assert caught.value.retryable
    longest = [0.5, 1, 2, 4, 8, 10, 10]
    assert len(pauses) == 7
    assert all(limit / 2 <= pause <= limit for pause, limit in zip(pauses, longest, strict=True))


def test_a_retry_that_succeeds_hides_earlier_errors():
    pauses: list[float] = []
    outcomes = [Trouble("once"), Trouble("twice"), None]

    def attempt() -> str:
        outcome = outcomes.pop(0)
        if outcome:
            raise outcome
        return "done"

    assert make_exchange(5, pauses).retrying(attempt, S3Request(method="GET", bucket="b")) == "done"
    assert len(pauses) == 2


def test_a_refusal_is_not_retried_and_is_the_users_fault():
    pauses: list[float] = []

    def attempt() -> None:
        raise Trouble("S3 answered 403 AccessDenied", status=403, is_retryable=False)

    with pytest.raises(ObjectStoreError, match="access key may read") as caught:
        make_exchange(5, pauses).retrying(attempt, S3Request(method="GET", bucket="b", key="k"))
    assert caught.value.fault is Fault.USER
    assert not caught.value.retryable
    assert pauses == []


def test_key_that_is_no_text_is_refused_by_name():
    with (
        ObjectStore(ENDPOINT, attempts=1) as store,
        pytest.raises(ObjectStoreError, match=r"dcff.*not\. Rename") as caught,
    ):
        store.put_bytes("b", "raw\udcff", b"")
    assert caught.value.fault is Fault.USER


def test_error_documents_give_code_and_message_with_and_without_a_namespace():
    assert error_facts(b"<Error><Code>NoSuchKey</Code><Message>gone</Message></Error>") == ("NoSuchKey", "gone")
    assert error_facts(b'<Error xmlns="http://s3"><Code>X</Code></Error>') == ("X", "")
    assert error_facts(b"<CompleteMultipartUploadResult/>") == ("", "")
    assert error_facts(b"not xml") == ("", "")
