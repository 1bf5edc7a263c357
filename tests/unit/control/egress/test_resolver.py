"""Names are resolved in threads, and no client can occupy the threads of all others."""

import asyncio
import threading

import pytest

from clary.control.egress import resolver
from clary.control.egress.resolver import NUM_THREADS, THREADS_OF_ONE, Resolver

DEADLINE_S = 5


@pytest.fixture
def lookups(monkeypatch):
    """Delay the answers for names that begin with `slow` until the returned event is set."""
    answered = threading.Event()

    def addresses_of(name, port):
        if name.startswith("slow"):
            answered.wait(DEADLINE_S)
        if name.startswith("none"):
            raise OSError("no such name")
        return [f"{name}:{port}"]

    monkeypatch.setattr(resolver, "addresses_of", addresses_of)
    yield answered
    answered.set()


async def test_names_that_never_resolve_delay_only_their_client(lookups):
    names = Resolver()
    slow = [asyncio.create_task(names.resolve(f"slow-{number}", 1, client="job")) for number in range(NUM_THREADS + 8)]
    await asyncio.sleep(0.05)
    assert await asyncio.wait_for(names.resolve("fast", 2, client="other"), DEADLINE_S) == ["fast:2"]
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    # The lookups have timed out, but their threads are still busy: the client's next lookup waits for one of them.
    own = asyncio.create_task(names.resolve("fast", 3, client="job"))
    assert not (await asyncio.wait([own], timeout=0.05))[0]
    lookups.set()
    assert await asyncio.wait_for(own, DEADLINE_S) == ["fast:3"]
    names.close()


async def test_a_client_with_all_answers_is_forgotten(lookups):
    names = Resolver()
    asked = [names.resolve(name, 1, client="job") for name in ["fast", "none"] * THREADS_OF_ONE * 2]
    answers = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), DEADLINE_S)
    assert [type(answer) for answer in answers] == [list, OSError] * THREADS_OF_ONE * 2
    await asyncio.sleep(0)
    assert len(names._turns) == 0
    names.close()
