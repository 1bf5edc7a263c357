"""Answers of AWS, or of a mirror, as clients of this service get them: under the address of the console."""

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from clary.base.clock import SystemClock
from clary.control.objects.public.public_door import PublicDoor
from clary.control.objects.public.public_store import PublicBuckets
from clary.control.objects.s3_request import S3Request

OF_S3 = {
    "Content-Type": "text/csv",
    "Content-Disposition": "attachment",
    "Cache-Control": "max-age=5",
    "Expires": "Wed, 21 Oct 2026 07:28:00 GMT",
    "ETag": '"abc"',
    "Last-Modified": "Wed, 21 Oct 2020 07:28:00 GMT",
    "Accept-Ranges": "bytes",
    "x-amz-meta-rows": "1",
    "x-amz-version-id": "v1",
}
OF_A_SITE = {
    "Set-Cookie": "clary_session=theirs; Path=/",
    "Clear-Site-Data": '"*"',
    "Refresh": "0;url=https://elsewhere.example/",
    "Link": "</x.js>; rel=preload",
    "Service-Worker-Allowed": "/",
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Credentials": "true",
    "Strict-Transport-Security": "max-age=9999",
    "Alt-Svc": 'h2="elsewhere.example:443"',
    "WWW-Authenticate": "Basic",
    "NEL": "{}",
}


@pytest.fixture
async def answered():
    """The answer to a read whose source sends headers of S3 and others."""

    async def mirror(request):
        return web.Response(body=b"data", headers={**OF_S3, **OF_A_SITE})

    async def front(request):
        return await door.answer(request, S3Request(method="GET", bucket="open-data", key="a", query=()), [])

    source, own = web.Application(), web.Application()
    source.router.add_get("/{rest:.*}", mirror)
    own.router.add_get("/{rest:.*}", front)
    async with TestServer(source) as behind, TestServer(own) as server, ClientSession() as client:
        public = PublicBuckets(["open-data"], url=f"http://127.0.0.1:{behind.port}")
        door = PublicDoor(
            public,
            None,
            clock=SystemClock(),
            region="us-west-2",
            forward_encryption=False,
            refuse_where_full=lambda answer: None,
        )
        await door.open()
        async with client.get(server.make_url("/open-data/a")) as answer:
            yield answer, await answer.read()
        await door.close()


async def test_headers_of_objects_are_passed_on(answered):
    answer, content = answered
    assert content == b"data"
    assert {name: answer.headers.get(name) for name in OF_S3} == OF_S3


async def test_headers_with_which_a_site_acts_in_its_origin_are_not(answered):
    answer, _ = answered
    assert [name for name in OF_A_SITE if name in answer.headers] == []
    assert answer.headers["Content-Security-Policy"].startswith("sandbox")
