"""A real service whose hosts come from real boxes; modules say `pytest_plugins = ["box_jobs"]`.

The service runs on the bed's head, and this process joins the head's network for as long as the module runs. A module
may have `SERVICE_VARIABLES`, a function of the service's home.
"""

import pytest
from box_heads import box_service


@pytest.fixture(scope="module")
def boxes(request, leftover_owners):
    """A service without boxes, for a module."""
    with box_service(leftover_owners, variables=getattr(request.module, "SERVICE_VARIABLES", None)) as made:
        yield made
