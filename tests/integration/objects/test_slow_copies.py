"""Copies from a public bucket that take long: the client hears of them, and their errors reach it."""

import http.server
import threading
import time

import pytest
from botocore.exceptions import ClientError
from objects_service import BUCKET, ServiceThread, keys_under, read

from clary.control.objects.public import public_door
from clary.control.objects.public.public_store import PublicBuckets

PUBLIC = "open-data"
PIECE = b"x" * 1000
NUM_PIECES = 10
PIECE_S = 0.1


class SlowHandler(http.server.BaseHTTPRequestHandler):
    """Sends ten pieces of an object, or five if its key is `short`, one each tenth of a second."""

    num_sent = 0

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(NUM_PIECES * len(PIECE)))
        self.end_headers()
        for _ in range(5 if self.path.endswith("short") else NUM_PIECES):
            self.wfile.write(PIECE)
            SlowHandler.num_sent += 1
            time.sleep(PIECE_S)
        self.close_connection = True

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    mirror = http.server.ThreadingHTTPServer(("127.0.0.1", 0), SlowHandler)
    threading.Thread(target=mirror.serve_forever, daemon=True).start()
    public = PublicBuckets([PUBLIC], url=f"http://127.0.0.1:{mirror.server_address[1]}")
    thread = ServiceThread(tmp_path_factory.mktemp("home"), public=public)
    yield thread.service
    thread.close()
    mirror.shutdown()
    mirror.server_close()


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    monkeypatch.setattr(public_door, "PATIENCE_S", 0.2)


def test_a_client_that_waits_for_each_byte_gets_the_copy(service):
    client = service.client(read_timeout=0.6)  # the copy takes a second
    copied = client.copy_object(Bucket=BUCKET, Key="slow/a", CopySource={"Bucket": PUBLIC, "Key": "a"})
    assert read(client, "slow/a") == PIECE * NUM_PIECES
    assert copied["CopyObjectResult"]["ETag"] == client.head_object(Bucket=BUCKET, Key="slow/a")["ETag"]
    client.close()


def test_a_source_that_breaks_off_late_is_an_error_of_the_client(service):
    client = service.client()
    with pytest.raises(ClientError, match="was not read to its end") as error:
        client.copy_object(Bucket=BUCKET, Key="broken/a", CopySource={"Bucket": PUBLIC, "Key": "short"})
    assert error.value.response["Error"]["Code"] == "ServiceUnavailable"
    assert keys_under(client, "broken/") == []
    client.close()


def test_a_client_that_leaves_ends_its_copy(service):
    client = service.client(read_timeout=0.1)
    before = SlowHandler.num_sent
    with pytest.raises(Exception, match=r"(?i)timeout|timed out"):
        client.copy_object(Bucket=BUCKET, Key="left/a", CopySource={"Bucket": PUBLIC, "Key": "a"})
    client.close()
    time.sleep(2 * NUM_PIECES * PIECE_S)
    assert SlowHandler.num_sent - before <= NUM_PIECES, "neither of two attempts was read to its end"
    assert keys_under(service.client(), "left/") == []
