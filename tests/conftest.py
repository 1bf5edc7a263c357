"""What all tests share."""

from hypothesis import settings

# After every test nothing of it is left on the machine; what tests need is there, or said; sweeps run a
# sample where a seed is given.
pytest_plugins = ["leftovers_check", "needs", "sweeps"]

# An example's time says how busy the machine is, not whether the code is right; pytest's own timeout ends a hang.
settings.register_profile("clary", deadline=None)
settings.load_profile("clary")
