"""Fixtures for modules that need boxes; a module loads them by `pytest_plugins = ["box_world"]`.

The tests of a module share one bed. Each test has its own service, and leaves the boxes as it found them.
"""

import contextlib
import itertools
import os
import tempfile
from pathlib import Path

import pytest
from box_head_service import BoxService, remove_bed, until

from clary.testing.box_bed import END_LIMIT_S, BoxBed
from needs import require

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def bed(leftover_owners):
    """A head and two boxes, shared by a module's tests."""
    require("sshd")
    folder = Path(tempfile.mkdtemp(prefix=f"clary-boxes-{os.getpid()}-", dir="/var/tmp"))
    folder.chmod(0o755)
    leftover_owners.excuse(folder.name, "machines live as long as the bed, also those that a test starts again")
    made = BoxBed(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        remove_bed(folder)
        leftover_owners.withdraw(folder.name)


@pytest.fixture
def service(bed):
    """A new service on the head; after the test, the boxes that the test has added are removed."""
    bed.home = bed.folder / f"service-{next(_NUMBERS)}"
    made = BoxService(bed)
    try:
        made.start()
        yield made
        names = list(bed.rows())
        if names:
            bed.clary("hosts", "remove", *names)
        with contextlib.suppress(AssertionError):  # a box counts as removed before its daemon has removed its files
            until(lambda: not any(map(bed.processes, bed.boxes)), "the daemons leave", limit_s=END_LIMIT_S)
        left = {box: bed.clear(box) for box in bed.boxes}
        assert not any(left.values()), f"after the removal of all boxes this is left: {left}"
    finally:
        made.stop()
        for box in bed.boxes:
            bed.clear(box)
