"""Names of parametrized tests: a text of more than 60 characters is cut, and made unique by a digest.

A plugin that tests/conftest.py names. Without it a hostile value of 300,000 characters becomes part of the test's name,
of each report, and of messages between workers.
"""

import hashlib

import pytest

LONGEST = 60


@pytest.hookimpl
def pytest_make_parametrize_id(val: object) -> str | None:
    """Return a short name for a long text or bytes; None leaves it to pytest."""
    if not isinstance(val, str | bytes) or len(val) <= LONGEST:
        return None
    data = val.encode("utf-8", "surrogatepass") if isinstance(val, str) else val
    head = ascii(val[: LONGEST // 2])
    return f"{head}-of-{len(val)}-{hashlib.sha256(data).hexdigest()[:8]}"
