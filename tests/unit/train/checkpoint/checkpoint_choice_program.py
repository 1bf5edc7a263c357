"""The choice of the save to restore and of its sources: pure functions, but their module needs torch."""

from clary.train.checkpoint.folders import save_name
from clary.train.checkpoint.places import Place
from clary.train.checkpoint.restoring import Offer, choose

PLACES = [Place(host="a", leader=0), Place(host="a", leader=0), Place(host="b", leader=2), Place(host="b", leader=2)]


def offer(save, step, part, *, folder="step", has_metadata=True):
    return Offer(save=save, step=step, part=part, num_parts=2, folder=folder, has_metadata=has_metadata)


def test_without_offers_no_save_is_chosen():
    assert choose([[], [], [], []], PLACES) is None


def test_all_parts_of_a_step_come_from_one_save():
    assert choose([[offer("x", 5, 0)], [], [offer("y", 5, 1)], []], PLACES) is None
    found = choose([[offer("x", 5, 0)], [], [offer("x", 5, 1)], []], PLACES)
    assert (found.save, found.step) == ("x", 5)
    assert found.folders == {0: "step", 2: "step"}
    assert found.holders == {0: [0, 1], 1: [2, 3]}
    assert found.teller == {0: 0, 1: 2}


def test_only_a_complete_step_is_chosen():
    old, new = [offer("old", 9, 0), offer("old", 9, 1)], [offer("new", 10, 0)]
    assert choose([[*old, *new], [], [], []], PLACES).step == 9
    assert choose([[*old, *new], [], [offer("new", 10, 1)], []], PLACES).step == 10
    assert choose([[offer("z", 1, 0, has_metadata=False), offer("z", 1, 1, has_metadata=False)]], PLACES) is None


def test_the_save_begun_last_is_chosen_whatever_its_step():
    earlier, later = save_name("ff", 9), save_name("aa", 10)
    high = [offer(earlier, 300, 0), offer(earlier, 300, 1)]
    low = [offer(later, 20, 0), offer(later, 20, 1)]
    assert choose([[*high, *low], [], [], []], PLACES).step == 20
    assert choose([[*high, low[0]], [], [], []], PLACES).step == 300


def test_saves_of_releases_without_order_numbers_rank_by_step_and_before_others():
    old = [offer(save, step, part) for save, step in (("ff-1f", 7), ("aa-1", 8)) for part in (0, 1)]
    assert choose([old], PLACES).step == 8
    new = [offer(save_name("bb", 1), 2, part) for part in (0, 1)]
    assert choose([[*old, *new]], PLACES).step == 2


def test_memory_is_preferred_to_a_disk():
    memory = offer("x", 5, 1, folder=None)
    found = choose([[offer("x", 5, 0), offer("x", 5, 1)], [memory], [], [memory]], PLACES)
    assert found.holders == {0: [0, 1], 1: [1, 3]}
    assert found.teller == {0: 0, 1: 1}
    assert found.leaders == {0: [0], 1: [0]}
