"""A real service on the head of real boxes, for as long as a block lasts."""

import contextlib
import os
import sys
import tempfile
from pathlib import Path

from boto3_clients import Clients
from box_head_service import remove_bed
from running_service import RunningService, client_environment

from clary.testing.box_bed import HEAD, HEAD_ADDRESS, PORT, BoxBed
from clary.testing.joined_network import network_of
from needs import require

SYSTEM_PYTHON = "/usr/bin/python3"  # every user of a box may execute it
SETTINGS = f"""
engine = "boxes"
advertise_url = "https://{HEAD_ADDRESS}:{PORT}"
stop_grace_s = 8.0
images = {{ "team/bring-your-own:1" = "system" }}
environments = {{ system = "{SYSTEM_PYTHON}" }}
"""


class BoxJobs(RunningService):
    """A service on the head of a bed of boxes, and its clients."""

    def clary(self, *arguments, check=True, timeout=90):
        """Run a command of `clary` on the head."""
        variables = {**self.variables, "CLARY_HOME": str(self.home), "PATH": os.environ["PATH"]}
        command = [sys.executable, "-m", "clary.cli.main", *arguments]
        return self.bed.run(HEAD, *command, check=check, timeout_s=timeout, **variables)


@contextlib.contextmanager
def box_service(owners, *, settings=SETTINGS, num_boxes=2, variables=None):
    """Run a service without boxes on a bed's head; this thread joins the head's network until the block ends.

    Args:
        owners: record of leftovers of tests.
        settings: settings of the service, as TOML.
        num_boxes: number of boxes of the bed.
        variables: function that maps the service's home to further variables of the service; None: no further ones.
    """
    require("sshd")
    folder = Path(tempfile.mkdtemp(prefix=f"clary-boxes-{os.getpid()}-", dir="/var/tmp"))
    folder.chmod(0o755)
    owners.excuse(folder.name, "machines live as long as the bed, also those that a test starts again")
    bed = BoxBed(folder, num_boxes=num_boxes)
    try:
        bed.start()
        bed.home.mkdir()
        (bed.home / "settings.toml").write_text(settings)
        made = variables(bed.home) if variables is not None else {}
        service = BoxJobs(bed.home, {}, {}, {**made, "CLARY_PORT": "0", "CLARY_TLS_PORT": str(PORT)})
        service.bed = bed
        with network_of(bed.first_process(HEAD)):
            service.clary("up")
            service.environment = client_environment(service)
            service.tls_environment = client_environment(service, "--tls")
            service.aws = Clients(service)
            yield service
            service.clary("down")
    finally:
        bed.stop()
        remove_bed(folder)
        owners.withdraw(folder.name)
