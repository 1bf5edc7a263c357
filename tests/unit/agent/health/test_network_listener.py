"""The server side of a host's network program against programs of the job and strangers."""

import asyncio
import contextlib
import socket

import pytest

from clary.agent.health.listener import (
    LOSS,
    LOSS_ROUNDS,
    MOST_LOSS_DATAGRAMS,
    NO_SUM,
    Listener,
    datagram,
)

OWN, PEER, STRANGER = "127.0.0.1", "127.0.0.2", "127.0.0.3"
NAMES = {"algo-1": OWN, "algo-2": PEER}
LIMIT_S = 10.0


def free_port():
    with socket.socket() as probe:
        probe.bind((OWN, 0))
        return probe.getsockname()[1]


def with_listener(act):
    """Run `act(listener, port)` while a listener is open."""

    async def run():
        port = free_port()
        listener = Listener(NAMES, "algo-1", port=port, interface="lo")
        await listener.open()
        try:
            return await asyncio.wait_for(act(listener, port), LIMIT_S)
        finally:
            await listener.close()

    return asyncio.run(run())


def send(port, datagrams, *, source=PEER):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        sending.bind((source, 0))
        for data in datagrams:
            sending.sendto(data, (OWN, port))


async def asked(port, *lines):
    """Return the answers to lines; an empty answer where the conversation has ended."""
    reader, writer = await asyncio.open_connection(OWN, port)
    answers = []
    with contextlib.suppress(ConnectionError):
        for line in lines:
            writer.write(f"{line}\n".encode())
            answers.append((await reader.readline()).decode().strip())
    writer.close()
    return answers


def test_loss_datagrams_count_by_their_planned_numbers_alone():
    async def act(listener, port):
        numbers = [0, 1, 1, 2999, 3000, 2**32 - 1]
        send(port, [datagram(LOSS, place=1, number=number) for number in numbers])
        return await asked(port, "hello algo-2 stay", "count")

    assert LOSS_ROUNDS * MOST_LOSS_DATAGRAMS == 3000
    assert with_listener(act)[1].split()[0] == "3"


def test_datagrams_of_strangers_do_not_count():
    async def act(listener, port):
        send(port, [datagram(LOSS, place=1, number=1), datagram(NO_SUM, place=1)], source=STRANGER)
        answers = await asked(port, "hello algo-2 stay", "count")
        return answers[1].split()[0], dict(listener.num_heard), listener.sums.qsize()

    assert with_listener(act) == ("0", {}, 0)


@pytest.mark.parametrize("first", ["hello stranger stay", "hello algo-2 stay\nhello algo-1 stay", f"sum 0 {'9' * 30}"])
def test_a_conversation_under_a_name_that_is_not_planned_is_ended(first):
    async def act(listener, port):
        answers = await asked(port, *first.split("\n"))
        await asyncio.sleep(0.05)
        return answers[-1], listener.left

    last, left = with_listener(act)
    assert last == ""
    assert left <= {"algo-2"}


def test_the_queue_of_the_sum_is_limited():
    async def act(listener, port):
        send(port, [datagram(NO_SUM, place=1)] * 50)
        answers = await asked(port, "hello algo-2 stay", *["sum 0 1"] * 50)
        return answers, listener.sums.qsize()

    answers, waiting = with_listener(act)
    assert answers[1:6] == ["ok"] * 5
    assert answers[-1] == ""
    assert waiting == 2 * len(NAMES) + 2


def test_conversations_are_limited():
    async def act(listener, port):
        streams = [await asyncio.open_connection(OWN, port) for _ in range(40)]
        await asyncio.sleep(0.2)
        held = len(listener._conversations)
        for _, writer in streams:
            writer.close()
        return held

    assert with_listener(act) == 16
