"""Bodies of DeleteObjects are read one at a time: parsing threads slow down each other and all other answers."""

import asyncio
import threading
import time
from types import SimpleNamespace

from clary.control.objects import outgoing_bodies
from clary.control.objects.deletions import deletion_bodies
from clary.control.objects.deletions.deletion_limit import MOST_OF_A_KEY, DeletionLimit
from clary.control.objects.outgoing_bodies import Outgoing

BODY = b"<Delete><Object><Key>a</Key></Object></Delete>"


async def test_bodies_of_many_requests_are_read_one_after_the_other(monkeypatch):
    reading, most = [], []
    read = deletion_bodies.read_deletion

    def slow(content):
        reading.append(threading.get_ident())
        most.append(len(reading))
        time.sleep(0.01)
        reading.pop()
        return read(content)

    monkeypatch.setattr(deletion_bodies, "read_deletion", slow)
    permit, limit = SimpleNamespace(check_deleted=lambda keys: None), DeletionLimit()
    asked = Outgoing(headers=[], payload_hash="", data=BODY)
    calls = [
        outgoing_bodies.look_at_deleted_keys(asked, permit, aliases_keys=True, turn=limit.turn("key"))
        for _ in range(MOST_OF_A_KEY)
    ]
    assert [found.data for found in await asyncio.gather(*calls)] == [BODY] * MOST_OF_A_KEY
    assert max(most) == 1


async def test_a_key_s_many_bodies_delay_another_key_by_one():
    limit, order = DeletionLimit(), []

    async def read(key):
        async with limit.turn(key):
            await asyncio.sleep(0)
            order.append(key)

    jobs = [asyncio.create_task(read("job")) for _ in range(MOST_OF_A_KEY)]
    await asyncio.sleep(0)
    await asyncio.gather(read("owner"), *jobs)
    assert order.index("owner") <= 2
    assert len(order) == MOST_OF_A_KEY + 1
