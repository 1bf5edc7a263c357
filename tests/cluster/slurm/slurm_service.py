"""A fixture with a real service whose hosts a real Slurm provides.

A module loads the fixture by `pytest_plugins = ["slurm_service"]`. The service runs on the cluster's head, and this
process joins the head's network for as long as the module runs. A module may define `CLUSTER_BED`, arguments of the
bed, and `SERVICE_VARIABLES`, a function that maps the service's home to its variables.
"""

import pytest
from slurm_heads import slurm_service


@pytest.fixture(scope="module")
def cluster(request, leftover_owners):
    """A cluster with a service on its head, shared by a module's tests."""
    options = getattr(request.module, "CLUSTER_BED", {})
    variables = getattr(request.module, "SERVICE_VARIABLES", None)
    with slurm_service(leftover_owners, bed_options=options, variables=variables) as made:
        yield made
