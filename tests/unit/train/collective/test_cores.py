"""Choice of the core: the requested one, else the available one, with a word if that is the slow one."""

import os
import warnings

import pytest

from clary.train._native import core
from clary.train._native.errors import CoreError
from clary.train._native.interface import GroupConnections
from clary.train._native.reference import ReferenceCore
from clary.train.collective import cores
from clary.train.collective.settings import CollectiveSettings


@pytest.fixture
def without_library(monkeypatch):
    monkeypatch.setattr(core, "unavailable_reason", lambda: "/x/libclary_collectives.so was not built")
    cores._warn_of_slowness.cache_clear()


def connections_of_one(segment_fd=-1):
    return GroupConnections("alone", 0, 1, (0,), ("here",), segment_fd, 0, 4096, (-1,), (-1,), 5.0, 0.0, 1e9)


def test_the_compiled_core_is_taken_where_it_is(monkeypatch):
    monkeypatch.setattr(core, "unavailable_reason", lambda: None)
    assert cores.core_kind(CollectiveSettings()) == cores.NATIVE
    assert cores.core_kind(CollectiveSettings(core="reference")) == cores.REFERENCE


def test_without_a_library_the_reference_runs_and_one_warning_says_so(without_library):
    with pytest.warns(RuntimeWarning, match=r"slow: /x/lib.*so was not built\. .*cmake --build"):
        assert cores.core_kind(CollectiveSettings()) == cores.REFERENCE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cores.core_kind(CollectiveSettings()) == cores.REFERENCE


def test_who_asks_for_the_reference_is_not_warned(without_library):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cores.core_kind(CollectiveSettings(core="reference")) == cores.REFERENCE


def test_a_compiled_core_that_was_asked_for_and_is_not_there_is_an_error(without_library):
    with pytest.raises(CoreError, match=r"CLARY_COLLECTIVE_CORE is native, but .* was not built"):
        cores.core_kind(CollectiveSettings(core="native"))


def test_opening_takes_the_kind_from_the_settings_or_the_environment(monkeypatch):
    opened = cores.open_core(connections_of_one(), CollectiveSettings(core="reference"))
    assert isinstance(opened, ReferenceCore)
    opened.close()
    monkeypatch.setenv("CLARY_COLLECTIVE_CORE", "reference")
    opened = cores.open_core(connections_of_one())
    assert isinstance(opened, ReferenceCore)
    opened.close()


def test_descriptors_are_closed_when_no_core_can_be_opened(without_library):
    descriptor = os.memfd_create("segment")
    with pytest.raises(CoreError):
        cores.open_core(connections_of_one(descriptor), CollectiveSettings(core="native"))
    with pytest.raises(OSError):
        os.fstat(descriptor)
