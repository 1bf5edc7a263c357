"""Hosts that die, stores that fail and lose bytes, at any moment: a restore gives each group one of its past states."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from fake_checkpoint_store import FakeCheckpointStore, HostDied
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mirrored_folder import HOSTS, MirroredFolder, content_of

from clary.base.errors import ObjectStoreError

NUM_KILLS = 200
GROUPS = ("", "step-1", "step-2", "deep")


def group_states(content: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return the content by group; top-level files are in group ""."""
    states: dict[str, dict[str, str]] = {name: {} for name in GROUPS}
    for path, text in content.items():
        states.setdefault(path.split("/")[0] if "/" in path else "", {})[path] = text
    return states


class Trainer:
    """Writes checkpoints of several files, and records every complete state of each group."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.had: dict[str, list[dict[str, str]]] = {name: [{}] for name in GROUPS}
        self.number = 0

    def work(self, host: MirroredFolder) -> None:
        """Change all files of one group."""
        self.number += 1
        name = self.dice.choice(GROUPS)
        top = host.path / name
        what = self.dice.random()
        if what < 0.15 and name:
            shutil.rmtree(top, ignore_errors=True)
        elif what < 0.3:
            for place in [place for place in top.glob("*") if place.is_file()][:1]:
                place.rename(place.with_name(f"renamed-{self.number}"))
        else:
            for index in range(self.dice.randint(1, 3)):
                path = f"{name}/part-{index}" if name != "deep" else f"deep/{index}/part"
                host.write(path.lstrip("/"), f"{name} {index} of {self.number}" + "x" * self.dice.randint(0, 30))
        self.remember(host)

    def remember(self, host: MirroredFolder) -> None:
        for name, state in group_states(host.content()).items():
            if self.had[name][-1] != state:
                self.had[name].append(state)

    def check(self, restored: dict[str, str], *, at_least: dict[str, int]) -> None:
        """Assert that every group is in one of its past states, and not older than its committed state."""
        for name, state in group_states(restored).items():
            assert state in self.had[name], f"group {name!r} was never {state}"
            newest = max(index for index, had in enumerate(self.had[name]) if had == state)
            assert newest >= at_least.get(name, 0), f"group {name!r} went back behind what was committed"


@pytest.mark.parametrize("seed", range(4))
def test_no_restore_is_torn_whenever_the_host_dies(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    store = FakeCheckpointStore()
    trainer = Trainer(dice)
    host = MirroredFolder(tmp_path, store)
    committed: dict[str, int] = {}
    num_died = 0
    for life in range(NUM_KILLS // 4):
        calls_left = dice.randint(0, 25)

        def die(operation: str, key: str) -> None:
            nonlocal calls_left
            calls_left -= 1
            if calls_left < 0:
                raise HostDied

        if dice.random() < 0.5:
            store.on_call = die
        else:
            store.after_call = die
        try:
            for _ in range(12):
                for _ in range(dice.randint(1, 3)):
                    trainer.work(host)
                host.round()
                committed = {name: len(had) - 1 for name, had in trainer.had.items()}
        except HostDied:
            num_died += 1
        store.on_call = store.after_call = lambda operation, key: None
        shutil.rmtree(host.path)
        host = MirroredFolder(tmp_path, store)
        assert host.restored.warnings == ()
        trainer.check(host.content(), at_least=committed)
        for name, state in group_states(host.content()).items():
            trainer.had[name] = [state]
        committed = {}
        if life % 10 == 0:
            host.round()  # a life without changes stores nothing new
            trainer.check(content_of(MirroredFolder(tmp_path, store).path), at_least={})
    assert num_died > NUM_KILLS // 8


def test_no_restore_is_torn_when_the_store_fails_and_loses_bytes(tmp_path: Path) -> None:
    dice = random.Random(77)
    store = FakeCheckpointStore()
    trainer = Trainer(dice)
    host = MirroredFolder(tmp_path, store)
    num_failed = 0
    for _ in range(NUM_KILLS):
        trainer.work(host)

        def fail(operation: str, key: str) -> None:
            if dice.random() < 0.1:
                raise ObjectStoreError("the store is not there", retryable=True)

        store.on_call = fail
        store.shorten = lambda key: dice.random() < 0.1 and "/files/" in key
        try:
            host.round()
        except ObjectStoreError:
            num_failed += 1
        store.on_call = lambda operation, key: None
        store.shorten = lambda key: False
        restored = MirroredFolder(tmp_path, store)
        trainer.check(restored.content(), at_least={})
        shutil.rmtree(restored.path)
    assert num_failed > NUM_KILLS // 8
    host.round()
    assert MirroredFolder(tmp_path, store).content() == host.content()


def test_two_hosts_that_die_get_their_own_states_back(tmp_path: Path) -> None:
    dice = random.Random(5)
    store = FakeCheckpointStore()
    hosts = [MirroredFolder(tmp_path, store, host=name, hosts=HOSTS) for name in HOSTS]
    for life in range(30):
        for number, host in enumerate(hosts):
            for path in (f"{life % 4}/rank-{number}", f"own-{number}/a", f"own-{number}/b", "shared"):
                host.write(path, f"{life} of {number}")
        calls_left = dice.randint(0, 40)

        def die(operation: str, key: str) -> None:
            nonlocal calls_left
            calls_left -= 1
            if calls_left < 0:
                raise HostDied

        store.on_call = die
        try:
            for host in hosts:
                host.round()
        except HostDied:
            pass
        store.on_call = lambda operation, key: None
        hosts = [MirroredFolder(tmp_path, store, host=name, hosts=HOSTS) for name in HOSTS]
        for number, host in enumerate(hosts):
            content = host.content()
            for pair in ((f"own-{number}/a", f"own-{number}/b"), (f"own-{1 - number}/a", f"own-{1 - number}/b")):
                assert content.get(pair[0]) == content.get(pair[1])
            if f"own-{number}/a" in content:
                assert content["shared"].endswith(f"of {number}")


STEP = st.tuples(
    st.sampled_from(["write", "rename", "delete", "delete group", "round", "unsettled round"]),
    st.sampled_from(["a", "b", "x/a", "x/b", "x/y/c", "z/a"]),
    st.integers(0, 3),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, max_size=25))
def test_the_newest_set_restores_to_a_state_that_each_group_had(tmp_path: Path, steps: list) -> None:
    store = FakeCheckpointStore()
    host = MirroredFolder(tmp_path, store)
    had: dict[str, list[dict[str, str]]] = {}

    def remember() -> None:
        states = group_states(host.content())
        for name in {*states, *had}:
            had.setdefault(name, [{}]).append(states.get(name, {}))

    remember()
    for act, path, size in steps:
        place = host.path / path
        if act == "write":
            host.write(path, path * size)
        elif act == "rename" and place.is_file():
            place.rename(place.with_name(f"{place.name}{size}"))
        elif act == "delete":
            place.unlink(missing_ok=True)
        elif act == "delete group" and "/" in path:
            shutil.rmtree(host.path / path.split("/")[0], ignore_errors=True)
        remember()
        if "round" in act:
            host.round(settle_s=2.0 if act == "unsettled round" else 0.0)
    restored = MirroredFolder(tmp_path, store)
    for name, state in group_states(restored.content()).items():
        assert state in had.get(name, [{}])
    host.round()
    assert MirroredFolder(tmp_path, store).content() == host.content()
