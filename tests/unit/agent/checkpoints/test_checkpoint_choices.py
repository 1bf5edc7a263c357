"""Choice of files to store from a folder over time: groups at rest, unfinished saves, and files that never rest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.agent.checkpoints.choosing import Choice, choose, to_hold
from clary.agent.checkpoints.evidence.observations import Decision
from clary.agent.checkpoints.grouping import NOTHING, TOP, GroupContent, contents_of
from clary.agent.checkpoints.scanning import FileFacts, Snapshot
from clary.agent.checkpoints.sights import Pace, Sight, compare, follow
from clary.contract.checkpoint_evidence import Evidence

CLOSED = Decision(is_whole=True, evidence=Evidence.CLOSED)
LOG = Decision(is_whole=True, evidence=Evidence.LOG)
UNKNOWN = Decision(is_whole=False, evidence=Evidence.RESTED, reason="nothing says who wrote it")
HELD = Decision(is_whole=False, reason="process 1 (x) has it open for writing", is_blocking=True)
PACE = Pace(settle_s=1.0, interval_s=5.0)
MIDDLE = 200_000_000  # bytes; too large for a file that counts as a log


def facts(tag: int, *, size_bytes: int = 1) -> FileFacts:
    return FileFacts(size_bytes=size_bytes, modified_ns=tag, changed_ns=tag, inode=1, mode=0o644)


class Watched:
    """A folder that is looked at twice in each round; `x__a=3` is the file `x/a` in state 3."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.sights: dict[str, Sight] = {}
        self.taken: dict[str, GroupContent] = {}
        self.sizes: dict[str, int] = {}
        self.decisions: dict[str, Decision] = {}

    def look(self, replaced: frozenset[str] = frozenset(), **files: int) -> Choice:
        by_path = {name.replace("__", "/"): tag for name, tag in files.items()}
        found = {path: facts(tag, size_bytes=self.sizes.get(path, 1)) for path, tag in by_path.items()}
        self.sights = follow(
            self.sights,
            contents_of(Snapshot(files=found)),
            taken=self.taken,
            replaced=replaced,
            decisions=self.decisions,
            now_s=self.now_s,
            pace=PACE,
        )
        return choose(self.sights, replaced={path: facts(0) for path in replaced}, now_s=self.now_s, pace=PACE)

    def pair(self, before: dict[str, int], after: dict[str, int], *, replaced: frozenset[str] = frozenset()) -> Choice:
        """Look twice, as in one round; return the choice of the second look."""
        self.now_s += PACE.interval_s - PACE.settle_s
        self.look(**before)
        self.now_s += PACE.settle_s
        return self.look(replaced, **after)

    def take(self, *, left_out: frozenset[str] = frozenset(), **files: int) -> None:
        """Let the newest set hold files in the given states, and no other file of their groups."""
        by_path = {name.replace("__", "/"): tag for name, tag in files.items()}
        found = {path: facts(tag, size_bytes=self.sizes.get(path, 1)) for path, tag in by_path.items()}
        contents = contents_of(Snapshot(files=found))
        self.taken = {**self.taken, **{name: replace(one, left_out=left_out) for name, one in contents.items()}}
        self.sights = compare(self.sights, self.taken, now_s=self.now_s)


@pytest.fixture
def folder() -> Watched:
    return Watched()


def test_a_group_is_taken_when_it_has_rested(folder: Watched) -> None:
    assert folder.look(step__a=1).waiting == {"step": "'step/a' changed"}
    folder.now_s += 0.9
    assert folder.look(step__a=1, step__b=1).waiting == {"step": "'step/a', 'step/b' changed"}
    folder.now_s += 1.0
    assert folder.look(step__a=1, step__b=1).whole == {"step"}


def test_a_group_that_is_as_it_was_taken_is_left_alone(folder: Watched) -> None:
    folder.take(step__a=1)
    folder.look(step__a=1)
    folder.now_s += 9.0
    assert folder.look(step__a=1).is_empty
    folder.look()
    assert folder.sights["step"].content == NOTHING
    folder.now_s += 2.0
    assert folder.look().whole == {"step"}, "it was deleted"
    folder.taken = {}
    folder.look()
    assert folder.look().is_empty
    assert folder.sights == {}, "what is gone everywhere is forgotten"


def test_one_group_does_not_wait_for_another(folder: Watched) -> None:
    folder.look(old__a=1, log=1)
    folder.now_s += 2.0
    choice = folder.look(old__a=1, log=2)
    assert (choice.whole, set(choice.waiting)) == ({"old"}, {TOP})


def test_a_log_that_never_rests_does_not_delay_other_files_beyond_two_intervals(folder: Watched) -> None:
    tags = iter(range(10, 100))
    folder.take(model=0, log=0)
    waited = [folder.pair({"model": 1, "log": next(tags)}, {"model": 1, "log": next(tags)}) for _ in range(3)]
    assert [choice.whole for choice in waited] == [set(), set(), {TOP}]
    assert waited[-1].noise == {TOP: {"log"}}
    assert all(set(choice.waiting) == {TOP} for choice in waited[:2])


def test_a_save_into_a_group_with_a_log_is_waited_for_until_its_last_shard_is_there(folder: Watched) -> None:
    tags = iter(range(10, 1000))
    for _ in range(11):
        folder.pair({"x__log": next(tags)}, {"x__log": next(tags)})
    assert folder.sights["x"].noise(folder.now_s, PACE) == {"x/log"}
    shards: dict[str, int] = {}
    for number in range(6):  # half a minute, in which a new shard is written at every pair of looks
        name = f"x__shard_{number}"
        folder.sizes[name.replace("__", "/")] = MIDDLE
        before = {**shards, name: next(tags), "x__log": next(tags)}
        shards[name] = next(tags)
        choice = folder.pair(before, {**shards, "x__log": next(tags)})
        assert choice.is_empty
        assert choice.waiting == {"x": f"'x/shard_{number}' changed"}
    choice = folder.pair({**shards, "x__log": next(tags)}, {**shards, "x__log": next(tags)})
    assert (choice.whole, choice.noise) == ({"x"}, {"x": {"x/log"}})


def test_a_small_new_file_is_noise_once_another_file_was_saved_twice_meanwhile(folder: Watched) -> None:
    tags = iter(range(10, 1000))
    folder.pair({"x__config": 1, "x__shard": 1}, {"x__config": 1, "x__shard": 1, "x__log": next(tags)})
    for _ in range(3):
        looks = [{"x__config": 1, "x__shard": 1, "x__log": next(tags)} for _ in range(2)]
        choice = folder.pair(*looks)
        assert choice.waiting == {"x": "'x/log' changed"}, "the others have come to rest, but once each"
    for state in (2, 3):
        assert choice.noise == {}
        looks = [{"x__config": 1, "x__shard": state, "x__log": next(tags)} for _ in range(2)]
        choice = folder.pair(*looks)
    assert (choice.whole, choice.noise) == ({"x"}, {"x": {"x/log"}})


def test_a_name_that_is_new_since_its_group_was_taken_is_no_noise_though_others_are(folder: Watched) -> None:
    tags = iter(range(10, 1000))
    for _ in range(11):
        folder.pair({"x__model": 1, "x__log": next(tags)}, {"x__model": 1, "x__log": next(tags)})
    folder.taken = {"x": folder.sights["x"].content.without({"x/log"})}
    folder.sights = compare(folder.sights, folder.taken, whole={"x"}, now_s=folder.now_s)
    folder.pair({"x__model": 2, "x__log": 5}, {"x__model": 2, "x__log": 5})
    for number in range(6):
        looks = [{"x__model": 2, "x__log": next(tags), "x__shard": next(tags)} for _ in range(2)]
        choice = folder.pair(*looks)
        assert choice.noise == ({"x": {"x/log"}} if number > 1 else {}), "the log was there"
        assert set(choice.waiting) == {"x"}


def test_one_large_shard_that_is_written_for_long_is_no_noise(folder: Watched) -> None:
    tags = iter(range(10, 1000))
    folder.sizes["x/large"] = MIDDLE
    for _ in range(9):
        choice = folder.pair({"x__small": 1, "x__large": next(tags)}, {"x__small": 1, "x__large": next(tags)})
        assert choice.is_empty
        assert choice.noise == {}
        assert choice.waiting == {"x": "'x/large' changed"}
    for _ in range(3):
        choice = folder.pair({"x__small": 1, "x__large": next(tags)}, {"x__small": 1, "x__large": next(tags)})
    assert (choice.whole, choice.noise) == ({"x"}, {"x": {"x/large"}}), "in the end nothing waits for it either"


@pytest.mark.parametrize("said", [UNKNOWN, HELD], ids=["nobody knows", "held"])
@pytest.mark.parametrize("size_bytes", [1, MIDDLE])
def test_a_group_is_never_taken_without_a_new_shard_that_may_be_unfinished(
    folder: Watched, said: Decision, size_bytes: int
) -> None:
    folder.sizes["ck/shard1"] = size_bytes
    folder.decisions = {"ck/shard0": CLOSED, "ck/shard1": said}
    for number in range(200):
        state = {"ck__shard0": 1, "ck__shard1": number // 2}  # the shard grows in every second round
        choice = folder.pair(state, state)
        assert (choice.is_empty, choice.noise, choice.single) == (True, {}, {})
    assert choice.unfinished == {"ck": {"ck/shard1": said}}
    folder.decisions["ck/shard1"] = CLOSED
    choice = folder.pair(state, state)
    assert (choice.whole, choice.left_out) == ({"ck"}, {})


def test_files_of_a_group_are_never_taken_singly_beside_a_new_unfinished_file(folder: Watched) -> None:
    tags = iter(range(10, 1000))
    folder.decisions = {"model": CLOSED, "shard": UNKNOWN}
    for number in range(40):
        looks = [{"model": 1, "shard": number, f"t{next(tags)}": 1} for _ in range(2)]
        choice = folder.pair(*looks)
        assert (choice.is_empty, choice.single) == (True, {})
    folder.decisions["shard"] = CLOSED
    looks = [{"model": 1, "shard": number, f"t{next(tags)}": 1} for _ in range(2)]
    choice = folder.pair(*looks)
    assert (choice.single, choice.left_out) == ({TOP: {"model", "shard"}}, {TOP: {"."}}), "more may be coming"


@pytest.mark.parametrize(("name", "named"), [("counter", {TOP: {"counter"}}), ("train.log", {})])
def test_files_that_a_taken_group_leaves_out_are_named_unless_they_are_logs(
    folder: Watched, name: str, named: dict
) -> None:
    tags = iter(range(10, 100))
    folder.decisions = {name: LOG if name.endswith(".log") else CLOSED}
    folder.take(**{"model": 0, name: 0})
    for _ in range(3):
        choice = folder.pair({"model": 1, name: next(tags)}, {"model": 1, name: next(tags)})
    assert (choice.whole, choice.noise, choice.left_out) == ({TOP}, {TOP: {name}}, named)


def test_an_incompletely_taken_group_is_taken_again_once_it_is_complete(folder: Watched) -> None:
    folder.take(left_out=frozenset({"x/"}), x__a=1, x__b=1)
    folder.look(x__a=1, x__b=1)
    folder.now_s += 2.0
    choice = folder.look(x__a=1, x__b=1)
    assert (choice.whole, choice.left_out) == ({"x"}, {})
    folder.take(x__a=1, x__b=1)
    assert folder.look(x__a=1, x__b=1).is_empty


def saves_beside_a_shard(folder: Watched, name: str, states: list[FileFacts]) -> Choice:
    """Let a small file next to a held shard rest in each of the given states in turn."""
    tags = iter(range(10, 100))
    shard = facts(next(tags))
    for state in states:
        for _ in range(2):
            folder.now_s += 3.0
            folder.sights = follow(
                folder.sights,
                contents_of(Snapshot(files={"ck/shard": shard, f"ck/{name}": state})),
                taken={},
                decisions=folder.decisions,
                now_s=folder.now_s,
                pace=PACE,
            )
    return choose(folder.sights, now_s=folder.now_s, pace=PACE)


def test_two_saves_beside_a_file_that_is_held_make_a_set_that_names_it(folder: Watched) -> None:
    folder.decisions = {"ck/shard": HELD, "ck/model": CLOSED}
    choice = saves_beside_a_shard(folder, "model", [facts(tag) for tag in range(8)])
    assert (choice.whole, choice.left_out) == ({"ck"}, {"ck": {"ck/shard"}})


def test_a_log_that_rests_beside_a_file_that_is_held_is_no_save(folder: Watched) -> None:
    folder.decisions = {"ck/shard": HELD, "ck/train.log": LOG}
    choice = saves_beside_a_shard(folder, "train.log", [facts(tag) for tag in range(40)])
    assert (choice.is_empty, set(choice.unfinished)) == (True, {"ck"})


def test_other_permissions_are_no_save(folder: Watched) -> None:
    folder.decisions = {"ck/shard": HELD, "ck/model": CLOSED}
    states = [replace(facts(1), changed_ns=tag, mode=tag % 2) for tag in range(40)]
    choice = saves_beside_a_shard(folder, "model", states)
    assert (choice.is_empty, set(choice.unfinished)) == (True, {"ck"})


def test_a_file_judged_whole_by_its_rest_alone_is_no_save(folder: Watched) -> None:
    folder.decisions = {"ck/shard": HELD, "ck/model": Decision(is_whole=True, evidence=Evidence.RESTED)}
    choice = saves_beside_a_shard(folder, "model", [facts(tag) for tag in range(40)])
    assert (choice.is_empty, set(choice.unfinished)) == (True, {"ck"})


def test_new_names_at_every_look_end_in_files_one_by_one(folder: Watched) -> None:
    tags = iter(range(10, 1000))
    for number in range(11):
        choice = folder.pair({"model": 1, f"t{next(tags)}": 1}, {"model": 1, f"t{next(tags)}": 1})
        assert bool(choice.single) == (number == 10)
    assert choice.single == {TOP: {"model"}}
    assert choice.waiting == {}


def test_a_file_that_is_replaced_repeatedly_is_taken_in_a_former_version(folder: Watched) -> None:
    tags = iter(range(10, 1000))
    folder.sizes["last"] = MIDDLE
    folder.take(last=1, config=1)
    folder.look(last=1, config=1)
    path = frozenset({"last"})
    first = folder.pair({"last": next(tags), "config": 1}, {"last": next(tags), "config": 1}, replaced=path)
    assert first.is_empty, "once may be a part of a save"
    for _ in range(3):
        choice = folder.pair({"last": next(tags), "config": 1}, {"last": next(tags), "config": 1}, replaced=path)
        assert (choice.replaced, choice.noise) == ({"last": facts(0)}, {TOP: {"last"}})
    rested = folder.pair({"last": 777, "config": 1}, {"last": 777, "config": 1})
    assert (rested.whole, rested.noise) == ({TOP}, {})
    again = folder.pair({"last": 778, "config": 1}, {"last": 779, "config": 1}, replaced=path)
    assert again.replaced == {"last": facts(0)}, "nothing else has ever changed with it"


def test_a_replaced_file_is_put_together_with_nothing_that_may_belong_to_a_later_one(folder: Watched) -> None:
    tags = iter(range(10, 1000))
    folder.sizes["last"] = MIDDLE
    folder.take(last=1, other=1)
    folder.look(last=1, other=1)
    path = frozenset({"last"})
    for _ in range(2):
        choice = folder.pair({"last": next(tags), "other": 1}, {"last": next(tags), "other": 1}, replaced=path)
    assert choice.replaced == {"last": facts(0)}
    changed = folder.pair({"last": next(tags), "other": 2}, {"last": next(tags), "other": 2}, replaced=path)
    assert (changed.is_empty, changed.waiting) == (True, {TOP: "'last' changed"})
    choice = folder.pair({"last": next(tags), "other": 2}, {"last": next(tags), "other": 2}, replaced=path)
    assert (choice.whole, choice.noise, choice.replaced) == ({TOP}, {TOP: {"last"}}, {"last": facts(0)})


def test_small_files_that_are_replaced_together_are_taken_once_nothing_else_waits(folder: Watched) -> None:
    tags = iter(range(10, 1000))
    folder.take(a=1, b=1, other=1)
    folder.look(a=1, b=1, other=1)
    paths = frozenset({"a", "b"})

    def churn(other: int) -> Choice:
        looks = [{"a": next(tags), "b": next(tags), "other": other} for _ in range(2)]
        return folder.pair(*looks, replaced=paths)

    for _ in range(2):
        assert churn(1).is_empty
    with_other = churn(2)
    assert (with_other.whole, with_other.noise, with_other.replaced) == ({TOP}, {TOP: paths}, {})
    folder.take(a=1, b=1, other=2)
    assert churn(2).replaced == dict.fromkeys(paths, facts(0))


def test_files_that_may_be_replaced_are_kept_open_and_first_changes_are_not(folder: Watched) -> None:
    folder.take(a=1, x__b=1, x__c=1)
    folder.look(a=1, x__b=1, x__c=1)
    for tag in (2, 3, 4):
        folder.now_s += PACE.interval_s
        folder.look(a=tag, x__b=1, x__c=1)
    folder.now_s += PACE.interval_s
    folder.look(a=4, x__b=2, x__c=2)
    assert to_hold(folder.sights, now_s=folder.now_s, pace=PACE) == [], "a is at rest, the others change first"
    folder.now_s += 0.1
    folder.look(a=5, x__b=3, x__c=2)
    assert to_hold(folder.sights, now_s=folder.now_s, pace=PACE) == ["a", "x/b", "x/c"]


def test_files_that_are_replaced_together_wait_for_each_other_as_long_as_a_save_may_last(folder: Watched) -> None:
    tags = iter(range(10, 1000))
    names = ("x__a", "x__b")
    paths = frozenset({"x/a", "x/b"})
    folder.sizes = dict.fromkeys(paths, MIDDLE)
    folder.take(**dict.fromkeys(names, 1))
    for _ in range(10):
        looks = [{name: next(tags) for name in names} for _ in range(2)]
        choice = folder.pair(*looks, replaced=paths)
        assert (choice.is_empty, set(choice.waiting)) == (True, {"x"})
    choice = folder.pair(*({name: next(tags) for name in names} for _ in range(2)), replaced=paths)
    assert choice.replaced == dict.fromkeys(paths, facts(0))


def test_dirty_time_counts_from_the_first_state_that_was_not_taken(folder: Watched) -> None:
    folder.take(a=1, b=1)
    began_s = folder.now_s
    folder.look(a=2, b=1)
    folder.now_s += 4.0
    folder.look(a=3, b=2)
    assert folder.sights[TOP].dirty_since_s == began_s
    folder.take(a=2, b=1)
    assert folder.sights[TOP].dirty_since_s == began_s + 4.0
    folder.take(a=3, b=1)
    assert folder.sights[TOP].files["a"].dirty_since_s is None
    assert folder.sights[TOP].dirty_since_s == began_s + 4.0


PATHS = st.sampled_from(["x/a", "x/b", "x/c", "top"])
LOOK = st.tuples(st.dictionaries(PATHS, st.integers(1, 3)), st.sampled_from([0.3, 1.0, 4.0, 30.0]), st.booleans())


@given(st.lists(LOOK, min_size=1, max_size=30))
def test_only_files_seen_twice_in_the_same_state_are_taken(looks: list) -> None:
    folder = Watched()
    seen: list[tuple[float, dict[str, int]]] = []
    for files, pause_s, is_taken in looks:
        choice = folder.look(**{path.replace("/", "__"): tag for path, tag in files.items()})
        seen.append((folder.now_s, files))
        since = folder.now_s - PACE.settle_s
        recent = [state for at_s, state in seen if at_s > since] + [state for at_s, state in seen if at_s <= since][-1:]
        rested = {path for path in files if len(recent) > 1 and all(state.get(path) == files[path] for state in recent)}
        assert all(paths <= rested for paths in choice.single.values())
        for name in choice.whole:
            content = folder.sights[name].content
            assert content.files.keys() - choice.noise.get(name, frozenset()) <= rested
        assert not choice.whole & choice.waiting.keys()
        for name in choice.noise:
            assert not choice.noise[name] & rested
        if is_taken:
            folder.taken = {**folder.taken, **{name: folder.sights[name].content for name in choice.whole}}
            folder.sights = compare(folder.sights, folder.taken, now_s=folder.now_s)
        dirty = {name for name, sight in folder.sights.items() if sight.dirty_since_s is not None}
        contents = {name: sight.content for name, sight in folder.sights.items()}
        assert dirty == {
            name
            for name in {*contents, *folder.taken}
            if contents.get(name, NOTHING) != folder.taken.get(name, NOTHING)
        }
        folder.now_s += pause_s
