"""A rank's place (rank and size), from the variables of every launcher."""

from __future__ import annotations

import pytest

from clary.train.horovod.places import Layout, Place, layout_of, place_from

MASTER = {"MASTER_ADDR": "algo-1", "MASTER_PORT": "7777"}


def test_a_process_without_a_launcher_is_a_single_rank():
    assert place_from({}) == Place(0, 1)


@pytest.mark.parametrize(
    "names",
    [
        ("HOROVOD_RANK", "HOROVOD_SIZE"),
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
    ],
)
def test_each_launcher_is_recognised(names):
    rank, size = names
    assert place_from({rank: "2", size: "4", **MASTER}) == Place(2, 4, "algo-1", 7779)


def test_an_explicit_horovod_address_wins():
    environ = {"RANK": "0", "WORLD_SIZE": "2", **MASTER, "CLARY_HOROVOD_ADDR": "here", "CLARY_HOROVOD_PORT": "5"}
    assert place_from(environ) == Place(0, 2, "here", 5)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "rank 0 of 2 does not know where rank 0 is"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "MASTER_PORT is not set"),
        ({"RANK": "2", "WORLD_SIZE": "2", **MASTER}, "RANK is 2; expected less than WORLD_SIZE, 2"),
        ({"RANK": "one", "WORLD_SIZE": "2", **MASTER}, "RANK is 'one'; expected a whole number"),
    ],
)
def test_an_impossible_place_is_refused_by_name(environ, words):
    with pytest.raises(ValueError, match=words):
        place_from(environ)


def test_ranks_of_hosts_in_any_order():
    hosts = ["a", "b", "a", "a", "b"]
    assert layout_of(hosts, 3) == Layout(2, 3, 0, 1, False)
    assert layout_of(hosts, 4) == Layout(1, 2, 1, 2, False)
    assert layout_of(["a", "a", "b", "b"], 2) == Layout(0, 2, 1, 2, True)
