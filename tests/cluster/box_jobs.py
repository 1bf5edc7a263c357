"""A real service whose hosts come from real boxes; modules say `pytest_plugins = ["box_jobs"]`.

The service runs on the bed's head, and this process joins the head's network for as long as the module runs.
"""

import pytest
from box_heads import box_service


@pytest.fixture(scope="module")
def boxes(leftover_owners):
    """A service without boxes, for a module."""
    with box_service(leftover_owners) as made:
        yield made
