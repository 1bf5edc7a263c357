"""Which responses of a store cause a retry."""

import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from clary.base.errors import ObjectStoreError
from clary.contract.launch_plan import Credentials, Endpoint
from clary.contract.object_store import Listing, ObjectInfo, ObjectStore
from clary.contract.object_store.store_time import StoreTime
from clary.testing.fake_clock import FakeClock

KEYS = Credentials(access_key_id="agent-key", secret_access_key="agent-secret")
UNREAD = (400, {"Content-Type": "text/plain"}, b"400 Bad Request")
REFUSED = (400, {"x-amz-request-id": "1"}, b"<Error><Code>InvalidRequest</Code></Error>")
REFUSED_IN_BRIEF = (400, {"x-amz-request-id": "1"}, b"")
STORED = (200, {"x-amz-request-id": "2", "ETag": '"e"'}, b"")


@contextmanager
def store_that_answers(*answers):
    """Yield a client of a store that gives these responses in order, and the list of the requests' methods."""
    left, asked = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            """Log nothing."""

        def handle_any(self):
            self.rfile.read(int(self.headers.get("content-length") or 0))
            asked.append(self.command)
            status, headers, body = left.pop(0)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_PUT = do_HEAD = do_GET = handle_any

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        endpoint = Endpoint(url=f"http://127.0.0.1:{server.server_port}", region="us-west-2", credentials=KEYS)
        try:
            with ObjectStore(endpoint, attempts=3, sleep=lambda pause_s: None) as store:
                yield store, asked
        finally:
            server.shutdown()
            thread.join()


def test_a_request_that_arrived_damaged_is_sent_again():
    with store_that_answers(UNREAD, STORED) as (store, asked):
        store.put_bytes("data", "key", b"x")
        assert asked == ["PUT", "PUT"]


@pytest.mark.parametrize("ahead_s", [86_400.0, -86_400.0, 3600.0])
@pytest.mark.parametrize("method", ["PUT", "HEAD"])
def test_a_clock_that_the_store_refuses_is_corrected_from_its_response(ahead_s, method):
    clock = FakeClock(datetime.now(UTC) + timedelta(seconds=ahead_s))
    skewed = (403, {}, b"<Error><Code>RequestTimeTooSkewed</Code></Error>")
    with store_that_answers(skewed, STORED, STORED) as (store, asked):
        store._exchange._time = StoreTime(clock)
        store.put_bytes("data", "key", b"x") if method == "PUT" else store.head("data", "key")
        store.put_bytes("data", "other", b"x")
        assert asked == [method, method, "PUT"]
        assert abs(store._exchange._time.now() - datetime.now(UTC)) < timedelta(seconds=60)


def test_a_refusal_that_no_clock_offset_explains_is_not_retried():
    refused = (403, {}, b"<Error><Code>AccessDenied</Code></Error>")
    with store_that_answers(refused) as (store, asked):
        with pytest.raises(ObjectStoreError):
            store.put_bytes("data", "key", b"x")
        assert asked == ["PUT"]


@pytest.mark.parametrize("date", [None, "", "yesterday", "Thu, 01 Jan 2026 00:00:00 GMT"])
def test_an_invalid_or_older_date_does_not_correct_the_clock(date):
    assert not StoreTime(FakeClock(datetime(2026, 1, 1, tzinfo=UTC))).learn(403, "RequestTimeTooSkewed", date)


def test_a_response_with_another_version_than_requested_is_refused(tmp_path):
    other = (200, {"ETag": '"new"'}, b"xyz")
    with store_that_answers(other, other, (200, {"ETag": '"old"'}, b"abc"), (200, {}, b"abc")) as (store, asked):
        with pytest.raises(ObjectStoreError, match="was replaced since it was listed") as caught:
            store.download("data", "key", tmp_path / "file", size_bytes=3, etag='"old"')
        assert caught.value.details["status"] == 412
        with pytest.raises(ObjectStoreError, match="was replaced since it was listed"):
            store.open_reader("data", "key", etag='"old"')
        assert not (tmp_path / "file").exists()
        for _ in range(2):  # the requested version, and a store that names no version
            store.download("data", "key", tmp_path / "file", size_bytes=3, etag='"old"')
            assert (tmp_path / "file").read_bytes() == b"abc"
        assert asked == ["GET"] * 4


@pytest.mark.parametrize("answer", [REFUSED, REFUSED_IN_BRIEF])
def test_a_request_that_s3_calls_bad_is_not_retried(answer):
    with store_that_answers(answer) as (store, asked):
        with pytest.raises(ObjectStoreError, match="Not retried"):
            store.put_bytes("data", "key", b"x")
        assert asked == ["PUT"]


def listing(inner):
    """Return a store's response with one page of a listing."""
    return (
        200,
        {},
        f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{inner}</ListBucketResult>'.encode(),
    )


def test_a_folder_is_listed_without_its_subfolders_content():
    first = listing(
        "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated><NextContinuationToken>a+/=</NextContinuationToken>"
        "<Contents><Key>t/a%20b</Key><Size>3</Size><ETag>&quot;1&quot;</ETag></Contents>"
    )
    second = listing("<CommonPrefixes><Prefix>t/steps/</Prefix></CommonPrefixes>")
    with store_that_answers(first, second) as (store, asked):
        found = store.list_folder("data", "t/", after="t/0")
        assert found == Listing([ObjectInfo(key="t/a b", size_bytes=3, etag='"1"')], ["t/steps/"])
        assert asked == ["GET", "GET"]


@pytest.mark.parametrize(
    "inner", ["<Contents><Size>3</Size></Contents>", "<Contents><Key>a</Key><Size>b</Size></Contents>"]
)
def test_a_listing_that_cannot_be_parsed_is_retried(inner):
    with store_that_answers(listing(inner), listing("<Contents><Key>a</Key></Contents>")) as (store, _):
        assert [info.key for info in store.list_objects("data", "")] == ["a"]


def test_a_range_ends_where_the_object_ends_and_is_never_the_whole_by_mistake():
    with store_that_answers((206, {}, b"ab"), (200, {}, b"abcdef")) as (store, _):
        assert store.get_range("data", "key", 4, 6) == b"ab"
        with pytest.raises(ObjectStoreError, match="the store ignored the range"):
            store.get_range("data", "key", 4, 6)
