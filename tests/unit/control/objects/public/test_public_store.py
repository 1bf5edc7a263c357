"""The client of public buckets: requests to AWS, and its answers."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from clary.base.errors import WireError
from clary.control.objects.public import public_store
from clary.control.objects.public.public_store import PublicBuckets
from clary.control.objects.s3_request import S3Request

NAME = "open-data"


class FakeAws:
    """Answers as S3 does, and keeps the requests."""

    def __init__(self):
        self.asked = []
        self.answers = []

    async def handle(self, request):
        self.asked.append((request.method, request.raw_path, dict(request.headers)))
        return self.answers.pop(0) if self.answers else web.Response(body=b"data")


@pytest.fixture
async def aws():
    fake = FakeAws()
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", fake.handle)
    async with TestServer(app) as server:
        fake.url = f"http://127.0.0.1:{server.port}"
        yield fake


@pytest.fixture
async def buckets(aws):
    public = PublicBuckets([NAME], url=aws.url)
    await public.open()
    yield public
    await public.close()


def read(key="", *, method="GET", bucket=NAME, query=()):
    return S3Request(method=method, bucket=bucket, key=key, query=tuple(query))


@pytest.mark.parametrize(
    ("asked", "is_read"),
    [
        (read("a"), True),
        (read("a", method="HEAD"), True),
        (read(), True),
        (read(query=[("list-type", "2"), ("prefix", "a")]), True),
        (read("a", query=[("partNumber", "1"), ("X-Amz-Expires", "60")]), True),
        (read("a", method="PUT"), False),
        (read("a", method="DELETE"), False),
        (read("a", query=[("acl", "")]), False),
        (read(query=[("policy", "")]), False),
        (read(query=[("location", "")]), False),
        (read("a", bucket="mine"), False),
        (read(bucket=""), False),
    ],
)
def test_only_reads_of_named_buckets_are_public(asked, is_read):
    assert PublicBuckets([NAME]).reads(asked) is is_read


async def test_a_read_is_sent_without_the_clients_key_and_cookies(aws, buckets):
    given = [
        ("authorization", "AWS4-HMAC-SHA256 Credential=MINE"),
        ("x-amz-security-token", "secret"),
        ("cookie", "session=1"),
        ("range", "bytes=0-3"),
        ("user-agent", "boto3"),
    ]
    query = [("versionId", "v1"), ("X-Amz-Signature", "abc")]
    answer = await buckets.send(read("a b/ü+", query=query), given)
    assert await answer.read() == b"data"
    method, path, headers = aws.asked[0]
    assert (method, path) == ("GET", f"/{NAME}/a%20b/%C3%BC%2B?versionId=v1")
    assert {name.lower() for name in headers} == {"host", "range"}


async def test_an_error_of_aws_is_returned(aws, buckets):
    aws.answers.append(web.Response(status=403, body=b"<Error><Code>AccessDenied</Code></Error>"))
    answer = await buckets.send(read("a"))
    assert (answer.status, await answer.read()) == (403, b"<Error><Code>AccessDenied</Code></Error>")


async def test_a_bucket_of_another_region_is_asked_there_from_then_on(aws, buckets, monkeypatch):
    monkeypatch.setattr(public_store, "_region_of", lambda bucket, location: location or None)
    aws.answers.append(web.Response(status=307, headers={"Location": f"{aws.url}/eu"}))
    assert (await buckets.send(read("a"))).status == 200
    await buckets.send(read("b"))
    assert [path for _, path, _ in aws.asked] == [f"/{NAME}/a", "/eu/a", "/eu/b"]


async def test_a_region_that_does_not_answer_is_asked_for_one_request_only(aws, buckets, monkeypatch):
    monkeypatch.setattr(public_store, "_region_of", lambda bucket, location: location or None)
    aws.answers.append(web.Response(status=307, headers={"Location": "http://127.0.0.1:1"}))
    with pytest.raises(WireError, match="gave no answer"):
        await buckets.send(read("a"))
    assert (await buckets.send(read("b"))).status == 200
    assert [path for _, path, _ in aws.asked] == [f"/{NAME}/a", f"/{NAME}/b"]


async def test_a_region_that_answers_no_longer_is_left(aws, buckets, monkeypatch):
    monkeypatch.setattr(public_store, "_region_of", lambda bucket, location: location or None)
    async with TestServer(web.Application()) as region:
        url = f"http://127.0.0.1:{region.port}"
        aws.answers.append(web.Response(status=307, headers={"Location": url}))
        assert (await buckets.send(read("a"))).status == 404
    with pytest.raises(WireError, match="gave no answer"):
        await buckets.send(read("b"))
    assert (await buckets.send(read("c"))).status == 200


async def test_a_redirect_to_any_other_place_is_not_followed(aws, buckets):
    aws.answers.append(web.Response(status=307, headers={"Location": f"{aws.url}/elsewhere"}))
    assert (await buckets.send(read("a"))).status == 307
    assert len(aws.asked) == 1


@pytest.mark.parametrize(
    ("location", "origin"),
    [
        ("https://open-data.s3.eu-west-1.amazonaws.com/a", "https://open-data.s3.eu-west-1.amazonaws.com"),
        ("https://open-data.s3-us-west-2.amazonaws.com/", "https://open-data.s3-us-west-2.amazonaws.com"),
        ("http://open-data.s3.eu-west-1.amazonaws.com/a", None),
        ("https://open-data.s3.eu-west-1.amazonaws.com.evil.example/", None),
        ("https://evil@open-data.s3.eu-west-1.amazonaws.com/", None),
        ("https://open-data.s3.eu-west-1.amazonaws.com:8443/", None),
        ("https://other.s3.eu-west-1.amazonaws.com/", None),
        ("https://[::1/", None),
        ("/a", None),
        ("", None),
    ],
)
def test_only_the_buckets_own_name_in_a_region_is_followed(location, origin):
    assert public_store._region_of(NAME, location) == origin


async def test_keys_are_found_below_a_prefix(aws, buckets):
    aws.answers.append(web.Response(body=b"<ListBucketResult><Contents><Key>p/a</Key></Contents></ListBucketResult>"))
    aws.answers.append(web.Response(body=b"<ListBucketResult></ListBucketResult>"))
    aws.answers.append(web.Response(status=403))
    assert [await buckets.has_objects(NAME, "p/") for _ in range(3)] == [True, False, False]
    assert aws.asked[0][1] == f"/{NAME}?list-type=2&max-keys=1&prefix=p%2F"


@pytest.mark.parametrize("status", [429, 500, 503, 302])
async def test_a_busy_aws_does_not_count_as_an_empty_prefix(aws, buckets, status):
    aws.answers.append(web.Response(status=status, body=b"<Error><Code>SlowDown</Code></Error>"))
    with pytest.raises(WireError, match=f"gave no answer .{status}") as error:
        await buckets.has_objects(NAME, "p/")
    assert error.value.code == "ServiceUnavailable"


async def test_no_answer_names_the_bucket_and_the_way_out():
    public = PublicBuckets([NAME], url="http://127.0.0.1:1")
    await public.open()
    with pytest.raises(WireError, match=r"no bucket open-data in this service.*Check the connection") as error:
        await public.send(read("a"))
    assert (error.value.code, error.value.http_status) == ("ServiceUnavailable", 503)
    await public.close()
