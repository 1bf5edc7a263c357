"""Matching of messages and receives: by peer and tag, in order, with equal sizes."""

import ctypes

from clary.train._native.interface import ANY_RANK, Code
from clary.train._native.reference_transfers import Arrival, Receive, Send, TransferBook


def call(ticket, peer, tag, memory, deadline_s=10.0):
    return Receive(ticket, peer, tag, ctypes.addressof(memory), len(memory), deadline_s)


def memory_of(num_bytes=2):
    return (ctypes.c_char * num_bytes)()


def test_messages_match_receives_of_their_peer_and_tag_in_order():
    book, first, second, other = TransferBook(), memory_of(), memory_of(), memory_of()
    assert book.receive(call(1, 4, 7, first)) is None
    assert book.receive(call(2, 4, 7, second)) is None
    assert book.receive(call(3, 5, 7, other)) is None
    assert book.arrive(Arrival(4, 8, 1, b"no")) is None
    assert book.arrive(Arrival(4, 7, 2, b"ab")).ticket == 1
    assert book.arrive(Arrival(4, 7, 3, b"cd")).ticket == 2
    assert (first.raw, second.raw, other.raw) == (b"ab", b"cd", b"\0\0")


def test_early_messages_wait_and_a_receive_from_any_rank_matches_the_first():
    book, memory = TransferBook(), memory_of()
    book.arrive(Arrival(4, 7, 1, b"ab"))
    book.arrive(Arrival(5, 7, 2, b"cd"))
    match = book.receive(call(1, ANY_RANK, 7, memory))
    assert (match.arrival.peer, memory.raw) == (4, b"ab")
    assert book.receive(call(2, 5, 7, memory)).arrival.payload == b"cd"


def test_a_message_of_another_size_is_reported_and_not_copied():
    book, memory = TransferBook(), memory_of(3)
    book.arrive(Arrival(4, 7, 1, b"ab"))
    match = book.receive(call(1, 4, 7, memory))
    assert "rank 4 sent 2 bytes with tag 7, the receive is for 3 bytes" in match.problem
    assert memory.raw == bytes(3)


def test_overdue_transfers_are_reported_with_their_peers():
    book = TransferBook()
    assert book.next_deadline_s() is None
    book.receive(call(1, 4, 7, memory_of(), deadline_s=5.0))
    book.sends[2] = Send(2, 6, 8, 100, deadline_s=3.0)
    assert book.next_deadline_s() == 3.0
    assert book.overdue(2.9, str) is None
    code, culprit, words = book.overdue(3.0, lambda rank: f"rank {rank} on algo-1")
    assert (code, culprit) == (Code.TIMEOUT, 6)
    assert words == "send of 100 bytes with tag 8 was not received by rank 6 on algo-1 within its limit"
    book.sends.clear()
    assert book.overdue(6.0, str)[1:] == (4, "receive of 2 bytes with tag 7 got nothing from 4 within its limit")
