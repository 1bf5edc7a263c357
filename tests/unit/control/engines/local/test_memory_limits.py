"""The component that enforces memory limits (kernel or agent), and its description."""

import os
import sys

import pytest

from clary.agent.host.limits.memory_support import keeper_of
from clary.contract.limits.memory_keepers import MemoryKeeper
from clary.control.engines.local import memory_limits
from clary.control.engines.local.agent_processes import process_environment


@pytest.mark.parametrize(
    ("is_limited", "version", "is_root", "could_move", "keeper"),
    [
        (True, 1, True, False, MemoryKeeper.CGROUP_1),
        (True, 2, True, False, MemoryKeeper.CGROUP_2),
        (True, 2, False, False, MemoryKeeper.DELEGATED),
        (False, 2, False, True, MemoryKeeper.DELEGATED),
        (False, 2, False, False, MemoryKeeper.WATCH),
        (False, None, False, False, MemoryKeeper.WATCH),
    ],
)
def test_keeper_follows_from_what_the_machine_granted(is_limited, version, is_root, could_move, keeper):
    found = keeper_of(is_limited=is_limited, version=version, is_root=is_root, could_move=could_move)
    assert found is keeper


def test_every_keeper_has_a_description_and_the_watch_names_reason_and_remedy():
    words = {keeper: memory_limits.in_words(keeper, "Permission denied") for keeper in MemoryKeeper}
    assert len(set(words.values())) == len(MemoryKeeper)
    assert "by watching" in words[MemoryKeeper.WATCH]
    assert "(Permission denied)" in words[MemoryKeeper.WATCH]
    assert "systemd-run --user --scope" in words[MemoryKeeper.WATCH]
    assert all("by the kernel" in text for keeper, text in words.items() if keeper is not MemoryKeeper.WATCH)


def test_the_machine_is_probed_by_a_program_of_the_agent():
    words = memory_limits.memory_limits(process_environment(os.environ, "probe"), looks_only=True)
    assert words.startswith(("kept by the kernel", "kept by watching"))


def test_a_probe_that_fails_is_reported(monkeypatch):
    monkeypatch.setattr(memory_limits, "PROBE_COMMAND", (sys.executable, "-c", "raise SystemExit('no such module')"))
    assert "exit code 1: no such module" in memory_limits.memory_limits(os.environ)
