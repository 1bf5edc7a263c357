"""Environment variables of ranks that mpirun starts under `clary run`."""

from clary.train.horovod.places import place_from
from clary.train.rank_variables import with_ranks_of_mpirun

OF_MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
UNDER_RUN = {**OF_MPIRUN, "CLARY_RUN_MASTER_PORT": "4711"}


def test_a_rank_of_mpirun_under_clary_run_gets_the_address_of_rank_0():
    told = with_ranks_of_mpirun(UNDER_RUN)
    assert [told[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")] == ["1", "2", "1", "2"]
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("127.0.0.1", "4711")
    place = place_from(told)
    assert (place.rank, place.size, place.address) == (1, 2, "127.0.0.1")


def test_an_address_that_is_set_is_kept():
    told = with_ranks_of_mpirun({**UNDER_RUN, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "80"})
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("10.0.0.1", "80")


def test_ranks_of_another_launcher_or_none_get_no_variables():
    for environ in (OF_MPIRUN, {"CLARY_RUN_MASTER_PORT": "4711"}, {**UNDER_RUN, "RANK": "0", "WORLD_SIZE": "1"}):
        assert with_ranks_of_mpirun(environ) is environ
