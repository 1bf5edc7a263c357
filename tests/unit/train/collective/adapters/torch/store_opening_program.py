"""A rank waits until the store of rank 0 listens."""

import socket
import sys
import threading
import time
import types
from datetime import timedelta

import torch.distributed as dist

from clary.train.collective.adapters.torch import store_opening

LATE_S = 0.1


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_the_wait_ends_as_soon_as_the_store_listens():
    port = free_port()
    stores = []

    def open_late():
        time.sleep(LATE_S)
        stores.append(dist.TCPStore("127.0.0.1", port, 1, is_master=True, wait_for_workers=False))

    opener = threading.Thread(target=open_late)
    began_s = time.monotonic()
    opener.start()
    assert store_opening.wait_until_open("127.0.0.1", port, limit_s=20)
    assert time.monotonic() - began_s >= LATE_S
    opener.join(20)
    stores[0].set("key", "value")
    assert stores[0].get("key") == b"value", "a connection that closes at once does the store no harm"


def test_the_wait_ends_at_its_limit_and_says_that_nothing_listens():
    began_s = time.monotonic()
    assert not store_opening.wait_until_open("127.0.0.1", free_port(), limit_s=0.2)
    assert not store_opening.wait_until_open("127.0.0.1", 0)
    assert time.monotonic() - began_s < 5


def test_rank_0_does_not_wait_and_others_no_longer_than_their_timeout():
    waited = []
    module = types.ModuleType(store_opening._MODULE)
    module._create_c10d_store = lambda hostname, port, rank, *rest: (hostname, port, rank, *rest)
    real, real_wait = sys.modules[store_opening._MODULE], store_opening.wait_until_open
    sys.modules[store_opening._MODULE] = module
    store_opening.wait_until_open = lambda *place, limit_s: waited.append((*place, limit_s))
    try:
        store_opening.install()
        store_opening.install()
        module._create_c10d_store("host", 7, 0, 2, timedelta(seconds=5))
        made = module._create_c10d_store("host", 7, 1, 2, timedelta(seconds=5))
        module._create_c10d_store("host", 7, 1, 2, timedelta(seconds=5000))
    finally:
        sys.modules[store_opening._MODULE], store_opening.wait_until_open = real, real_wait
    assert made == ("host", 7, 1, 2, timedelta(seconds=5))
    assert waited == [("host", 7, 5.0), ("host", 7, store_opening.LIMIT_S)]


def test_a_torch_without_the_function_stays_as_it_is():
    module, real = types.ModuleType(store_opening._MODULE), sys.modules[store_opening._MODULE]
    sys.modules[store_opening._MODULE] = module
    try:
        store_opening.install()
    finally:
        sys.modules[store_opening._MODULE] = real
    assert not hasattr(module, store_opening._FUNCTION)
