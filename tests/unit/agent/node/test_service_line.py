"""Responses of the service whose body is cut short."""

import http.client
import io

import pytest

from clary.agent.node.service_line import ServiceLine


class FakeSocket:
    def __init__(self, data):
        self._data = data

    def makefile(self, mode):
        return io.BytesIO(self._data)


class FakeConnection:
    """A connection that delivers one response and then ends."""

    sock = None

    def __init__(self, body):
        self._body = body
        self.is_closed = False

    def request(self, *_):
        pass

    def getresponse(self):
        answer = http.client.HTTPResponse(FakeSocket(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n" + self._body))
        answer.begin()
        return answer

    def close(self):
        self.is_closed = True


@pytest.fixture
def line():
    return ServiceLine.__new__(ServiceLine)


def ask(line, monkeypatch, body):
    connection = FakeConnection(body)
    line._token, line._kept = "token", connection
    monkeypatch.setattr(line, "_connection", lambda: connection, raising=False)
    monkeypatch.setattr(line, "_wait", lambda *_: None, raising=False)
    try:
        return line.ask("GET", "/leases"), connection
    except OSError as error:
        return error, connection


def test_a_whole_answer_is_returned(line, monkeypatch):
    assert ask(line, monkeypatch, b"0123456789")[0] == b"0123456789"


@pytest.mark.parametrize("sent", [b"", b"012345678"])
def test_an_answer_that_ends_early_is_an_error_and_ends_the_connection(line, monkeypatch, sent):
    answer, connection = ask(line, monkeypatch, sent)
    assert isinstance(answer, OSError)
    assert f"ended {10 - len(sent)} bytes early" in str(answer)
    assert connection.is_closed
