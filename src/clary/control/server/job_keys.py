"""Keys that sign requests, and their grants: the owner's key, and the keys of attempts whose hosts still exist.

Where: `doors` passes it to the S3 front and to `aws_handler`, which apply the rules of `permissions`. The key of an
attempt ends with the attempt: the next attempt has another key, a pool that waits for its next job has no key.
"""

from __future__ import annotations

from clary.base.errors import WireError
from clary.control.jobs.job_grants import grants_of
from clary.control.jobs.training_job import TrainingJob
from clary.control.permissions.grants import FULL, Grants
from clary.control.permissions.temporary_keys import PREFIX
from clary.control.reconcile.hub import JobHub
from clary.control.settings import Settings
from clary.control.state_folder import JOB_KEY_PREFIX, RootSecrets

FORBIDDEN = 403
MAX_REMEMBERED = 256


class JobKeys:
    """Finds secrets and grants of every valid key.

    Args:
        secrets: root secrets of the service.
        hub: knows which jobs have hosts.
        settings: `job_api_access` and `default_bucket`.
    """

    def __init__(self, secrets: RootSecrets, hub: JobHub, settings: Settings) -> None:
        self._secrets = secrets
        self._hub = hub
        self._settings = settings
        self._grants: dict[str, tuple[TrainingJob, Grants]] = {}

    def find_secret(self, access_key_id: str) -> str | None:
        """Return the secret of a key; None for an unknown key, or the key of an ended attempt."""
        if access_key_id == self._secrets.access_key_id:
            return self._secrets.secret_access_key
        return None if self._job_of(access_key_id) is None else self._secrets.job_secret(access_key_id)

    def find_grants(self, access_key_id: str) -> Grants | None:
        """Return the grants of a key, or None for a key that permits everything.

        Raises: WireError(AccessDenied) for a key whose attempt has ended since the signature was verified.
        """
        # A temporary key has been verified with its token, and has the owner's rights.
        if access_key_id == self._secrets.access_key_id or access_key_id.startswith(PREFIX):
            return None
        job = self._job_of(access_key_id)
        if job is None:
            raise WireError("AccessDenied", "The attempt that this key belongs to has ended.", http_status=FORBIDDEN)
        if self._settings.job_api_access == FULL:
            return None
        known = self._grants.get(access_key_id)
        if known is not None and known[0].request is job.request:
            return known[1]
        grants = grants_of(job, default_bucket=self._settings.default_bucket)
        while len(self._grants) >= MAX_REMEMBERED:
            del self._grants[next(iter(self._grants))]
        self._grants[access_key_id] = (job, grants)
        return grants

    def _job_of(self, access_key_id: str) -> TrainingJob | None:
        return self._hub.job_of_key(access_key_id) if access_key_id.startswith(JOB_KEY_PREFIX) else None
