"""Names of signals for messages."""

import pytest

from clary.base.signal_names import signal_name


@pytest.mark.parametrize(
    ("signum", "name"),
    [(9, "signal 9 (SIGKILL)"), (11, "signal 11 (SIGSEGV)"), (77, "signal 77"), (0, "signal 0"), (None, "signal None")],
)
def test_a_signal_is_described_by_number_and_name(signum, name):
    assert signal_name(signum) == name
