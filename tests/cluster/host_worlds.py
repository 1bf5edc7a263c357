"""The fixture `world` for tests of hosts: one world per mode, skipped with a reason if the machine lacks the mode."""

import os

import pytest
from host_world import HostWorld
from isolation_probe import why_no_namespaces

ISOLATED = (pytest.param("root", marks=pytest.mark.root), "user")
EVERY_MODE = (*ISOLATED, "plain")


def world_of(modes, make=HostWorld):
    """Return a fixture, which a module assigns to the name `world`.

    Args:
        modes: `ISOLATED` or `EVERY_MODE`.
        make: called with a mode, returns the world.
    """

    @pytest.fixture(params=modes)
    def world(request):
        if request.param == "root" and os.geteuid() != 0:
            pytest.skip("needs root")
        if request.param != "plain" and (reason := why_no_namespaces()):
            pytest.skip(reason)
        made = make(request.param)
        yield made
        made.close()

    return world
