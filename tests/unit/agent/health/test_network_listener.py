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
    """Return a port that is free for TCP and UDP at every address."""
    for _ in range(100):
        with socket.socket() as stream, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            stream.bind(("0.0.0.0", 0))
            with contextlib.suppress(OSError):
                datagrams.bind(stream.getsockname())
                return datagrams.getsockname()[1]
    raise AssertionError("no port is free for both TCP and UDP")


def with_listener(act, names=NAMES):
    """Run `act(listener, port)` while a listener is open."""

    async def run():
        port = free_port()
        listener = Listener(names, "algo-1", port=port, interface="lo")
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


async def asked(port, *lines, source=OWN):
    """Return the answers to lines; an empty answer where the conversation has ended."""
    reader, writer = await asyncio.open_connection(OWN, port, local_addr=(source, 0))
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
        strange = [await asyncio.open_connection(OWN, port, local_addr=(STRANGER, 0)) for _ in range(40)]
        await asyncio.sleep(0.2)
        held = len(listener._conversations)
        answers = await asked(port, "hello algo-2 stay", source=PEER)
        for _, writer in (*streams, *strange):
            writer.close()
        await asyncio.sleep(0.2)
        return held, answers, await asked(port, "echo x", source=STRANGER)

    assert with_listener(act) == (8 + 4 * len(NAMES), ["hello"], ["x"])


async def counted(port, *lines, source):
    answers = await asked(port, *lines, "count", source=source)
    return int(answers[-1].split()[0])


LOST = [datagram(LOSS, place=1, number=number) for number in range(3)]


def test_datagrams_count_from_the_address_of_a_conversation_that_the_network_translates():
    async def act(listener, port):
        await asked(port, "hello algo-2 stay", source=STRANGER)
        send(port, LOST, source=STRANGER)
        send(port, [datagram(LOSS, place=0, number=1)], source=STRANGER)
        return await counted(port, "hello algo-2 stay", source=OWN), dict(listener.num_heard)

    assert with_listener(act) == (3, {"algo-2": 3})


def test_no_other_address_claims_a_host_that_was_met_at_its_own():
    async def act(listener, port):
        await asked(port, "hello algo-2 stay", source=STRANGER)  # before
        await asked(port, "hello algo-2 stay", source=PEER)
        await asked(port, f"hello algo-2 stay {STRANGER}", source=STRANGER)  # later
        send(port, LOST, source=STRANGER)
        return await counted(port, "hello algo-2 stay", source=OWN)

    assert with_listener(act) == 0


def test_datagrams_count_from_the_source_that_a_host_tells():
    async def act(listener, port):
        assert listener.told_source(PEER) == ""
        await asked(port, f"hello algo-2 stay {STRANGER}", source=PEER)
        await asked(port, "hello algo-2 once", source=PEER)
        send(port, LOST, source=STRANGER)
        return await counted(port, "hello algo-2 stay", source=OWN)

    assert with_listener(act) == 3


def test_a_host_without_its_planned_address_tells_the_source_of_its_datagrams():
    async def act(listener, port):
        return listener.told_source(PEER)

    assert with_listener(act, NAMES | {"algo-1": "192.0.2.1"}) == OWN
