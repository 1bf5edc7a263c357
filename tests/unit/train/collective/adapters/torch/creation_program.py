"""Inputs for a new group: torch's store, and the limit of operations."""

import os
from datetime import timedelta

import torch.distributed as dist

from clary.train.collective.adapters.torch.creation import timeout_s_of
from clary.train.collective.adapters.torch.store import TorchStore
from clary.train.collective.settings import CollectiveSettings

_VARIABLE = "CLARY_COLLECTIVE_TIMEOUT_S"
_HALF_HOUR = dist.constants.default_pg_timeout


def limit_s(asked, variable=None):
    os.environ.pop(_VARIABLE, None)
    if variable is not None:
        os.environ[_VARIABLE] = variable
    try:
        return timeout_s_of(asked, CollectiveSettings.from_environment(os.environ))
    finally:
        os.environ.pop(_VARIABLE, None)


def test_a_script_that_says_nothing_gets_the_half_hour_of_torch():
    assert limit_s(_HALF_HOUR) == _HALF_HOUR.total_seconds()


def test_the_variable_counts_where_the_script_says_nothing():
    assert limit_s(_HALF_HOUR, "12") == 12


def test_what_the_script_says_counts_more_than_the_variable():
    assert limit_s(timedelta(seconds=7), "12") == 7


def test_the_store_gives_back_bytes():
    store = TorchStore(dist.HashStore())
    store.set("key", b"\x00\xffvalue")
    assert store.get("key", 0) == b"\x00\xffvalue"
    assert store.get("key", 1.0) == b"\x00\xffvalue"


def test_a_key_that_is_not_set_is_a_timeout():
    store = TorchStore(dist.HashStore())
    for limit in (0, 0.05):
        try:
            store.get("nothing", limit)
        except TimeoutError:
            continue
        raise AssertionError("no TimeoutError")


def test_a_deleted_key_is_gone_and_deleting_it_again_is_no_error():
    store = TorchStore(dist.HashStore())
    store.set("key", b"value")
    store.delete("key")
    store.delete("key")
    try:
        store.get("key", 0)
    except TimeoutError:
        return
    raise AssertionError("the key is still there")
