"""Plugins and settings of all tests."""

import os

import pytest
from hypothesis import settings

# Plugins: no test leaves anything on the machine; missing requirements of tests are named; long values have short
# names; of sweeps and long tests a sample runs where a seed is given.
pytest_plugins = ["leftovers_check", "needs", "short_names", "sweeps"]

# Contracts are classes of tests that several modules inherit; their assertions tell as much as those of tests.
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

# An example's time says how busy the machine is, not whether the code is right; pytest's own timeout ends a hang.
settings.register_profile("clary", deadline=None)
settings.load_profile("clary")

# Tests that make repositories of their own must not write into the one that a caller's variables name.
for name in [name for name in os.environ if name.startswith("GIT_")]:
    del os.environ[name]
