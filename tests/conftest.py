"""Plugins and settings of all tests."""

import faulthandler
import os
import sys

import pytest
from hypothesis import settings

# The plugins check that no test leaves processes or files on the machine, name missing requirements, shorten long
# values in test ids, list the slowest files, and run a sample of sweeps and long tests if a seed is given.
pytest_plugins = ["leftovers_check", "needs", "short_names", "slow_files", "sweeps"]

# Contracts are classes of tests that several modules inherit; their assertions are rewritten as in test modules.
pytest.register_assert_rewrite(
    "crash_nursery",
    "curve_contract",
    "damage_contract",
    "documents_contract",
    "experiments_contract",
    "series_contract",
    "store_contract",
    "training_contract",
    "tuning_contract",
)

# No deadline per example: its time depends on the load of the machine. pytest's own timeout ends a hang.
settings.register_profile("clary", deadline=None)
settings.load_profile("clary")

# Tests that create git repositories must not write into a repository that variables of the caller name.
for name in [name for name in os.environ if name.startswith("GIT_")]:
    del os.environ[name]

END_LIMIT_S = 120  # from the last test's end to the end of the process


def pytest_unconfigure():
    """Print all stacks and exit with 1 if the process has not ended at the limit: a thread that a test left runs."""
    if sys.__stderr__ is not None:
        faulthandler.dump_traceback_later(END_LIMIT_S, exit=True, file=sys.__stderr__)
