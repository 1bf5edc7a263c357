"""Choice of the save to restore and of its sources: pure, but its module needs torch."""

from clary.train.checkpoint.places import Place
from clary.train.checkpoint.restoring import Offer, choose

PLACES = [Place(host="a", leader=0), Place(host="a", leader=0), Place(host="b", leader=2), Place(host="b", leader=2)]


def offer(save, step, part, *, folder="step", has_metadata=True):
    return Offer(save=save, step=step, part=part, num_parts=2, folder=folder, has_metadata=has_metadata)


def test_nothing_offered_is_nothing_chosen():
    assert choose([[], [], [], []], PLACES) is None


def test_parts_of_one_save_make_a_step_and_parts_of_two_do_not():
    assert choose([[offer("x", 5, 0)], [], [offer("y", 5, 1)], []], PLACES) is None
    found = choose([[offer("x", 5, 0)], [], [offer("x", 5, 1)], []], PLACES)
    assert (found.save, found.step) == ("x", 5)
    assert found.folders == {0: "step", 2: "step"}
    assert found.holders == {0: [0, 1], 1: [2, 3]}
    assert found.teller == {0: 0, 1: 2}


def test_the_highest_step_that_is_whole_is_taken():
    old, new = [offer("old", 9, 0), offer("old", 9, 1)], [offer("new", 10, 0)]
    assert choose([[*old, *new], [], [], []], PLACES).step == 9
    assert choose([[*old, *new], [], [offer("new", 10, 1)], []], PLACES).step == 10
    assert choose([[offer("z", 1, 0, has_metadata=False), offer("z", 1, 1, has_metadata=False)]], PLACES) is None


def test_memory_goes_before_a_disk():
    memory = offer("x", 5, 1, folder=None)
    found = choose([[offer("x", 5, 0), offer("x", 5, 1)], [memory], [], [memory]], PLACES)
    assert found.holders == {0: [0, 1], 1: [1, 3]}
    assert found.teller == {0: 0, 1: 1}
    assert found.leaders == {0: [0], 1: [0]}
