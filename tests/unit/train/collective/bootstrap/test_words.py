"""Messages between ranks whose group is being formed: the first cause of a failure."""

import contextlib
import fcntl
import resource
import socket
import threading
import time

import pytest

from clary.train.collective.bootstrap.words import READY, WORDLESS, cause_of, say_farewell

SOON_S = 5.0
HIGH = 1024  # the first descriptor that select.select() refuses


@pytest.fixture
def sides():
    """Streams to ranks 1 and 2, by rank, and the other ends."""
    with contextlib.ExitStack() as stack:
        pairs = {rank: socket.socketpair() for rank in (1, 2)}
        for pair in pairs.values():
            for sock in pair:
                stack.enter_context(sock).setblocking(False)
        yield {rank: pair[0] for rank, pair in pairs.items()}, {rank: pair[1] for rank, pair in pairs.items()}


def test_a_farewell_that_arrives_soon_is_the_cause_of_an_end_without_words(sides):
    own, theirs = sides
    theirs[2].close()
    threading.Timer(0.1, say_farewell, ({0: theirs[1]}, "its disk is full")).start()
    assert cause_of(own, 2, WORDLESS) == (1, "its disk is full")


def test_an_end_without_words_stays_the_cause_if_no_other_rank_gives_up(sides):
    own, theirs = sides
    theirs[2].close()
    theirs[1].send(READY)
    began_s = time.monotonic()
    assert cause_of(own, 2, WORDLESS) == (2, WORDLESS)
    assert time.monotonic() - began_s < SOON_S


def test_two_ends_without_words_name_the_first(sides):
    own, theirs = sides
    theirs[1].close()
    theirs[2].close()
    assert cause_of(own, 2, WORDLESS) == (2, WORDLESS)


def test_a_farewell_is_the_cause_at_once(sides):
    own, theirs = sides
    say_farewell({0: theirs[1]}, "because of rank 2")
    assert cause_of(own, 2, "its memory is full") == (2, "its memory is full")


def test_sockets_above_the_limit_of_select_tell_the_first_cause(sides):
    own, theirs = sides
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < HIGH + len(own):
        pytest.skip(f"this process may open {hard} files")
    with contextlib.ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, HIGH + len(own)), hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        high = {rank: stack.enter_context(_moved_up(sock)) for rank, sock in own.items()}
        theirs[2].close()
        say_farewell({0: theirs[1]}, "its disk is full")
        assert cause_of(high, 2, WORDLESS) == (1, "its disk is full")


def _moved_up(sock: socket.socket) -> socket.socket:
    moved = socket.socket(fileno=fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD_CLOEXEC, HIGH))
    moved.setblocking(False)
    return moved
