"""A fixture with a real service whose hosts run on real boxes; a module loads it by `pytest_plugins = ["box_jobs"]`.

The service runs on the bed's head, and this process joins the head's network for as long as the module runs. A module
may define `SERVICE_VARIABLES`, a function that maps the service's home to its variables.
"""

import pytest
from box_heads import box_service


@pytest.fixture(scope="module")
def boxes(request, leftover_owners):
    """A service to which no box has been added, shared by a module's tests."""
    with box_service(leftover_owners, variables=getattr(request.module, "SERVICE_VARIABLES", None)) as made:
        yield made
