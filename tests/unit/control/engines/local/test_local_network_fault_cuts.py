"""Cuts between two hosts: made in both directions or not at all."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Self

import pytest

from clary.control.engines.local import network_faults


class FakeNetlink:
    """Records the namespaces with a blocked neighbour; `failing` is the namespace whose block fails."""

    here = ""
    failing = ""
    cut: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def set_neighbour(self, name: str, address: str, *, hardware_address: bytes | None) -> None:
        if hardware_address is None:
            if self.here not in self.cut:
                raise OSError(errno.ENOENT, "no entry")
            self.cut.discard(self.here)
        elif self.here == self.failing:
            raise OSError(errno.EPERM, "Operation not permitted")
        else:
            self.cut.add(self.here)


@pytest.fixture
def ready(monkeypatch):
    monkeypatch.setattr(network_faults, "Netlink", FakeNetlink)
    monkeypatch.setattr(FakeNetlink, "cut", set())
    monkeypatch.setattr(network_faults, "_join", lambda path, kind: setattr(FakeNetlink, "here", path[-1]))
    return SimpleNamespace(pid=1, namespaces={"algo-1": 1, "algo-2": 2, "algo-3": 3}, has_user_namespace=False)


def test_a_cut_blocks_both_directions_and_can_be_reopened(ready):
    network_faults._set_way(ready, ("algo-1", "algo-3"), up=False)
    assert FakeNetlink.cut == {"1", "3"}
    network_faults._set_way(ready, ("algo-1", "algo-3"), up=True)
    network_faults._set_way(ready, ("algo-1", "algo-3"), up=True)
    assert FakeNetlink.cut == set()


@pytest.mark.parametrize("failing", ["1", "3"])
def test_a_cut_that_fails_leaves_no_block(ready, monkeypatch, failing):
    monkeypatch.setattr(FakeNetlink, "failing", failing)
    with pytest.raises(OSError, match="Operation not permitted"):
        network_faults._set_way(ready, ("algo-1", "algo-3"), up=False)
    assert FakeNetlink.cut == set()
