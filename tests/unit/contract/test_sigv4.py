"""SigV4 signatures compared with those of botocore's own signers."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from unittest import mock
from urllib.parse import quote, urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials
from hypothesis import given
from hypothesis import strategies as st

from clary.base.errors import ContractError
from clary.contract import sigv4
from clary.contract.launch_plan import Credentials

NOW = datetime(2026, 1, 31, 23, 59, 58, tzinfo=UTC)
AMZ_DATE = "20260131T235958Z"
HOST = "127.0.0.1:4570"
KEY = Credentials(access_key_id="AKIDEXAMPLE", secret_access_key="wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
BOTOCORE_KEY = BotocoreCredentials(KEY.access_key_id, KEY.secret_access_key)
GOOD = (
    f"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260131/us-west-2/s3/aws4_request, "
    f"SignedHeaders=host;x-amz-date, Signature={'ab' * 32}"
)

# Paths and queries as clients write them: percent-encoded, with difficult cases of encoding and sorting.
SEGMENTS = st.text(max_size=8).map(lambda text: quote(text, safe="~")) | st.sampled_from(["", ".", "..", "a%2Fb", "~"])
PATHS = st.lists(SEGMENTS, max_size=5).map(lambda parts: "/" + "/".join(parts))
WORDS = st.text(max_size=6).map(lambda text: quote(text, safe="-_.~"))
QUERIES = st.lists(st.tuples(WORDS, WORDS | st.none()), max_size=5).map(
    lambda pairs: "&".join(name if value is None else f"{name}={value}" for name, value in pairs)
)
HEADER_VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
HEADERS = st.dictionaries(
    st.sampled_from(["Content-Type", "X-Amz-Target", "x-amz-meta-A", "Range", "amz-sdk-invocation-id", "If-Match"]),
    HEADER_VALUES,
)


def signed_by_botocore(signer, method: str, path: str, query: str, headers: dict[str, str], body: bytes) -> AWSRequest:
    url = f"http://{HOST}{path}" + (f"?{query}" if query else "")
    request = AWSRequest(method=method, url=url, headers={"Host": HOST, **headers}, data=body)
    with mock.patch("botocore.auth.get_current_datetime", return_value=NOW):
        signer.add_auth(request)
    return request


def signature_of(request: AWSRequest, path: str, query: str, *, payload_hash: str) -> tuple[str, str]:
    """Return the signature that botocore made, and the signature that we compute for the same request."""
    authorization = sigv4.parse_authorization(request.headers["Authorization"])
    signing = sigv4.SigningRequest(request.method, path, query, list(request.headers.items()))
    canonical = sigv4.canonical_request(
        signing, authorization.signed_headers, payload_hash=payload_hash, service=authorization.service
    )
    key = sigv4.signing_key(
        KEY.secret_access_key,
        date=authorization.date,
        region=authorization.region,
        service=authorization.service,
    )
    text = sigv4.string_to_sign(canonical, amz_date=AMZ_DATE, scope=authorization.scope)
    return authorization.signature, sigv4.signature(key, text)


@given(PATHS, QUERIES, HEADERS, st.binary(max_size=20))
def test_requests_signed_by_botocore_verify(path, query, headers, body):
    request = signed_by_botocore(SigV4Auth(BOTOCORE_KEY, "sagemaker", "us-west-2"), "POST", path, query, headers, body)
    theirs, ours = signature_of(request, path, query, payload_hash=sigv4.payload_hash(body))
    assert ours == theirs


@given(PATHS, QUERIES, HEADERS, st.binary(max_size=20))
def test_s3_requests_signed_by_botocore_verify(path, query, headers, body):
    request = signed_by_botocore(S3SigV4Auth(BOTOCORE_KEY, "s3", "us-west-2"), "PUT", path, query, headers, body)
    theirs, ours = signature_of(request, path, query, payload_hash=sigv4.payload_hash(body))
    assert ours == theirs


@given(PATHS, QUERIES, HEADERS, st.sampled_from(["s3", "sagemaker"]))
def test_our_own_signatures_are_the_ones_that_botocore_makes(path, query, headers, service):
    payload_hash = sigv4.payload_hash(b"body")
    headers = {"Host": HOST, **headers}
    added = sigv4.sign(
        "PUT",
        path,
        query,
        headers,
        payload_hash,
        credentials=KEY,
        region="us-west-2",
        service=service,
        now=NOW,
    )
    signer = {"s3": S3SigV4Auth, "sagemaker": SigV4Auth}[service](BOTOCORE_KEY, service, "us-west-2")
    headers["X-Amz-Content-SHA256"] = payload_hash
    request = signed_by_botocore(signer, "PUT", path, query, headers, b"body")
    assert added["x-amz-date"] == AMZ_DATE
    assert added["x-amz-content-sha256"] == payload_hash
    assert sigv4.parse_authorization(added["authorization"]) == sigv4.parse_authorization(
        request.headers["Authorization"]
    )


@given(PATHS, QUERIES)
def test_presigned_urls_are_the_ones_that_botocore_makes(path, query):
    # botocore keeps one value of each name when it presigns.
    names = [part.partition("=")[0] for part in query.split("&")]
    if len(set(names)) != len(names) or "" in names:
        query = ""
    ours = sigv4.presign_url(
        "GET",
        f"http://{HOST}{path}" + (f"?{query}" if query else ""),
        credentials=KEY,
        region="us-west-2",
        now=NOW,
        expires_s=600,
    )
    request = AWSRequest(method="GET", url=f"http://{HOST}{path}" + (f"?{query}" if query else ""))
    with mock.patch("botocore.auth.get_current_datetime", return_value=NOW):
        S3SigV4QueryAuth(BOTOCORE_KEY, "s3", "us-west-2", expires=600).add_auth(request)
    mine = sigv4.parse_presigned(urlsplit(ours).query)
    theirs = sigv4.parse_presigned(urlsplit(request.url).query)
    assert mine is not None
    assert theirs is not None
    assert mine.authorization == theirs.authorization
    assert (mine.amz_date, mine.expires_s, mine.payload_hash) == (AMZ_DATE, 600, sigv4.UNSIGNED_PAYLOAD)
    # Our verification accepts botocore's presigned request from its query alone.
    canonical = sigv4.canonical_request(
        sigv4.SigningRequest("GET", path, theirs.unsigned_query, [("Host", HOST)]),
        theirs.authorization.signed_headers,
        payload_hash=theirs.payload_hash,
        service="s3",
    )
    key = sigv4.signing_key(KEY.secret_access_key, date="20260131", region="us-west-2", service="s3")
    text = sigv4.string_to_sign(canonical, amz_date=AMZ_DATE, scope=theirs.authorization.scope)
    assert sigv4.signature(key, text) == theirs.authorization.signature


def test_the_worked_example_of_s3_streaming_matches():
    """Amazon S3 API reference, "Signature calculations: transferring payload in multiple chunks"."""
    secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    scope = "20130524/us-east-1/s3/aws4_request"
    key = sigv4.signing_key(secret, date="20130524", region="us-east-1", service="s3")
    headers = [
        ("Host", "s3.amazonaws.com"),
        ("x-amz-date", "20130524T000000Z"),
        ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ("x-amz-content-sha256", sigv4.STREAMING_PAYLOAD),
        ("Content-Encoding", "aws-chunked"),
        ("x-amz-decoded-content-length", "66560"),
        ("Content-Length", "66824"),
    ]
    signed = tuple(sorted(name.lower() for name, _ in headers))
    canonical = sigv4.canonical_request(
        sigv4.SigningRequest("PUT", "/examplebucket/chunkObject.txt", "", headers),
        signed,
        payload_hash=sigv4.STREAMING_PAYLOAD,
        service="s3",
    )
    at = "20130524T000000Z"
    seed = sigv4.signature(key, sigv4.string_to_sign(canonical, amz_date=at, scope=scope))
    assert seed == "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
    wanted = [
        (65536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
        (1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
        (0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
    ]
    previous = seed
    for size, expected in wanted:
        chunk_hash = hashlib.sha256(b"a" * size).hexdigest()
        previous = sigv4.chunk_signature(key, previous=previous, chunk_hash=chunk_hash, amz_date=at, scope=scope)
        assert previous == expected


def test_trailers_are_signed_after_the_last_chunk():
    key = sigv4.signing_key("s", date="20260131", region="r", service="s3")
    signed = sigv4.trailer_signature(key, previous="ab", trailer_hash="cd", amz_date=AMZ_DATE, scope="scope")
    assert signed == sigv4.signature(key, f"AWS4-HMAC-SHA256-TRAILER\n{AMZ_DATE}\nscope\nab\ncd")


def test_authorization_is_read_with_and_without_spaces():
    expected = sigv4.Authorization(
        access_key_id="AKIDEXAMPLE",
        date="20260131",
        region="us-west-2",
        service="s3",
        signed_headers=("host", "x-amz-date"),
        signature="ab" * 32,
    )
    assert sigv4.parse_authorization(GOOD) == expected
    assert sigv4.parse_authorization(GOOD.replace(", ", ",")) == expected
    assert expected.scope == "20260131/us-west-2/s3/aws4_request"


def test_access_keys_may_hold_slashes():
    found = sigv4.parse_authorization(GOOD.replace("AKIDEXAMPLE", "job/a/1"))
    assert found.access_key_id == "job/a/1"


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("", "AWS4-HMAC-SHA256"),
        ("Bearer abc", "AWS4-HMAC-SHA256"),
        ("AWS4-HMAC-SHA256 Signature=ab", "requires 'Credential'"),
        (GOOD.replace("SignedHeaders=", "Headers="), "requires 'SignedHeaders'"),
        (GOOD.replace("Signature=", "Sig="), "requires 'Signature'"),
        (GOOD.replace("/s3/", "/"), "Credential must be"),
        (GOOD.replace("/us-west-2/", "//"), "Credential must be"),
        (GOOD.replace("aws4_request", "aws4"), "terminator"),
        (GOOD.replace("20260131", "2026013"), "YYYYMMDD"),
        (GOOD.replace("ab" * 32, "AB" * 32), "64 lower-case"),
        (GOOD.replace("ab" * 32, "ab"), "64 lower-case"),
        (GOOD + " x", "expected"),
    ],
)
def test_malformed_authorization_is_refused_without_being_repeated(header, words):
    with pytest.raises(ContractError) as caught:
        sigv4.parse_authorization(header)
    assert words in caught.value.message
    assert "ab" * 32 not in caught.value.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("X-Amz-Algorithm=AWS4-HMAC-SHA256", "X-Amz-Algorithm=AWS4-ECDSA"), "x-amz-algorithm"),
        (("X-Amz-Date=", "X-Other="), "x-amz-date"),
        (("X-Amz-Expires=600", "X-Amz-Expires=0"), "from 1 to"),
        (("X-Amz-Expires=600", "X-Amz-Expires=604801"), "from 1 to"),
        (("X-Amz-Expires=600", "X-Amz-Expires=-1"), "number of seconds"),
        (("X-Amz-Expires=600", f"X-Amz-Expires={'9' * 5000}"), "number of seconds"),
        (("X-Amz-Credential=AKIDEXAMPLE", "X-Amz-Credential="), "Credential must be"),
    ],
)
def test_malformed_presigned_urls_are_refused(change, words):
    url = sigv4.presign_url(
        "GET", f"http://{HOST}/b/k", credentials=KEY, region="us-west-2", now=NOW, expires_s=600
    ).replace(*change)
    with pytest.raises(ContractError) as caught:
        sigv4.parse_presigned(urlsplit(url).query)
    assert words in caught.value.message


def test_a_query_without_signature_is_not_presigned():
    assert sigv4.parse_presigned("list-type=2&X-Amz-Date=x") is None


@pytest.mark.parametrize(
    "text", ["", "20260131T235958", "20260131 235958Z", "20261331T235958Z", "2026013\u0661T235958Z", "20260131T246000Z"]
)
def test_invalid_times_are_refused(text):
    with pytest.raises(ContractError):
        sigv4.parse_date(text)


def test_times_are_read_in_utc():
    assert sigv4.parse_date(AMZ_DATE) == NOW


def test_clients_that_sign_the_canonical_form_of_what_they_send_can_be_verified():
    sent = sigv4.SigningRequest("GET", "/b/a*%2fb+c", "b=%7e&&a=x*y", [("Host", HOST)])
    canonical = sigv4.SigningRequest("GET", "/b/a%2A/b%2Bc", "a=x%2Ay&b=~", [("Host", HOST)])
    kwargs = {"payload_hash": sigv4.EMPTY_HASH, "service": "s3"}
    assert sigv4.canonical_request(sent, ("host",), normalize=True, **kwargs) == sigv4.canonical_request(
        canonical, ("host",), **kwargs
    )


@pytest.mark.parametrize(
    ("signed", "sent"),
    [
        (("/a/b", ""), ("/a%2Fb", "")),  # an encoded slash does not split a path segment
        (("/", ""), ("/%2F", "")),
        (("/", "a=%2B"), ("/", "a=+")),  # a plus sign in a form is a space
    ],
)
def test_other_spellings_of_a_request_that_mean_something_else_have_another_canonical_form(signed, sent):
    kwargs = {"payload_hash": sigv4.EMPTY_HASH, "service": "sagemaker-metrics"}
    first = sigv4.SigningRequest("GET", *signed, [("Host", HOST)])
    second = sigv4.SigningRequest("GET", *sent, [("Host", HOST)])
    forms = {sigv4.canonical_request(first, ("host",), normalize=normalize, **kwargs) for normalize in (False, True)}
    for normalize in (False, True):
        assert sigv4.canonical_request(second, ("host",), normalize=normalize, **kwargs) not in forms


def test_a_plus_in_a_query_is_the_space_that_the_service_reads():
    sent = sigv4.SigningRequest("GET", "/", "a=b+c", [("Host", HOST)])
    meant = sigv4.SigningRequest("GET", "/", "a=b%20c", [("Host", HOST)])
    kwargs = {"payload_hash": sigv4.EMPTY_HASH, "service": "iam"}
    assert sigv4.canonical_request(sent, ("host",), normalize=True, **kwargs) == sigv4.canonical_request(
        meant, ("host",), **kwargs
    )


@pytest.mark.parametrize("value", ["\u00a0bucket.s3.amazonaws.com", "a\u2003b", "a\x0bb", "\x85a"])
def test_only_spaces_and_tabs_of_a_header_count_as_spaces(value):
    kwargs = {"payload_hash": sigv4.EMPTY_HASH, "service": "s3"}
    first = sigv4.SigningRequest("GET", "/", "", [("Host", value)])
    second = sigv4.SigningRequest("GET", "/", "", [("Host", " ".join(value.split()))])
    assert sigv4.canonical_request(first, ("host",), **kwargs) != sigv4.canonical_request(second, ("host",), **kwargs)
    spaced = sigv4.SigningRequest("GET", "/", "", [("Host", f" \t{value}  ")])
    assert sigv4.canonical_request(spaced, ("host",), **kwargs) == sigv4.canonical_request(first, ("host",), **kwargs)


def test_signing_needs_a_host():
    with pytest.raises(ContractError, match="'host' header"):
        sigv4.sign("GET", "/", "", [], sigv4.EMPTY_HASH, credentials=KEY, region="us-west-2", service="s3", now=NOW)


def test_only_chosen_headers_are_signed():
    added = sigv4.sign(
        "GET",
        "/",
        "",
        [("Host", HOST), ("X-Other", "1"), ("Range", "bytes=0-1")],
        sigv4.EMPTY_HASH,
        credentials=KEY,
        region="us-west-2",
        service="s3",
        now=NOW,
        signed_header_names=["HOST", "Range"],
    )
    signed = sigv4.parse_authorization(added["authorization"]).signed_headers
    assert signed == ("host", "range", "x-amz-content-sha256", "x-amz-date")


def test_signing_keys_differ_by_every_part_and_the_cache_is_bounded():
    parts = {"date": "20260131", "region": "us-west-2", "service": "s3"}
    first = sigv4.signing_key("secret", **parts)
    assert sigv4.signing_key("secret", **parts) is first
    others = {sigv4.signing_key("secret2", **parts)} | {
        sigv4.signing_key("secret", **{**parts, name: "20270101"}) for name in parts
    }
    assert len(others) == 4
    assert first not in others
    for number in range(sigv4.KEY_CACHE_SIZE + 10):
        sigv4.signing_key("secret", date=str(number), region="r", service="s")
    assert len(sigv4._KEYS._keys) == sigv4.KEY_CACHE_SIZE
    again = sigv4.signing_key("secret", **parts)
    assert again == first
    assert again is not first
