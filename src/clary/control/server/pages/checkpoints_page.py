"""Pages of a job's checkpoints: the sets, and the verification of every file in them.

(no query)                    the sets, and each host's last report of its mirroring
?verify=1[&host=H][&set=N]    starts to read all files, and answers with a run's number and the results so far
?verify=1&run=RUN             later results of the same run; `is_done` marks the last answer
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from clary.base.errors import ContractError, ObjectStoreError, WireError
from clary.base.plain import to_plain
from clary.control.jobs.training_job import TrainingJob
from clary.control.objects.checkpoint_manifests import CheckpointPlace, ManifestObject, host_order
from clary.control.objects.checkpoint_sets import find_in_time, list_sets
from clary.control.objects.checkpoint_verification import SetTarget, verify_sets
from clary.control.objects.store_client import StoreClient
from clary.control.server.verification_runs import VerificationRuns

_SET_NUMBER = re.compile(r"[0-9]{1,8}")  # at most as many digits as in a manifest's key


class CheckpointPages:
    """Makes the page `checkpoints` of any job, and verifies files in the background."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._runs = VerificationRuns()

    async def close(self) -> None:
        """End the background tasks."""
        await self._runs.close()

    async def page(self, job: TrainingJob, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the page. Raises: WireError with the status to send."""
        uri = (job.request.get("CheckpointConfig") or {}).get("S3Uri")
        if not uri:
            raise WireError(
                "NotFound",
                f"{job.name} has no CheckpointConfig: its checkpoints are not mirrored to S3; set "
                "checkpoint_s3_uri (SDK) or CheckpointConfig.S3Uri",
                http_status=404,
            )
        try:
            place = CheckpointPlace.of(uri)
            if query.get("verify", "") not in ("", "0"):
                return {"uri": uri, **await self._verified(job, place, query)}
            listing = await list_sets(self._client, place)
        except ContractError as error:
            raise WireError("ValidationException", error.message) from error
        except ObjectStoreError as error:
            raise WireError("ServiceUnavailable", error.message, http_status=503) from error
        return {
            "uri": uri,
            "job_arn": job.arn,
            "is_over": job.is_terminal,
            "sets": [to_plain(entry) for entry in listing.sets],
            "num_left_out": listing.num_left_out,
            "hosts": checkpoint_facts(job),
        }

    async def _verified(self, job: TrainingJob, place: CheckpointPlace, query: Mapping[str, str]) -> dict[str, Any]:
        if "run" in query:
            run = self._runs.find(job.name, query["run"])
        else:
            found = await find_in_time(self._client, place)
            targets = choose(found, job=job.name, host=query.get("host"), number=query.get("set"))
            run = self._runs.start(job.name, partial(verify_sets, self._client, place, targets))
        is_done = await self._runs.wait(run)
        report = run.report
        return {
            "run": run.number,
            "is_done": is_done,
            "is_whole": is_done and report.is_whole,
            "is_as_stored": is_done and report.is_as_stored,
            **to_plain(report),
        }


def choose(
    found: Mapping[str, Sequence[ManifestObject]], *, job: str, host: str | None, number: str | None
) -> tuple[SetTarget, ...]:
    """Return the sets to read: each host's newest set, or the sets with one number; only of `host` if given. Pure.

    Args:
        found: host -> its sets, the newest first.
        job: name of the job, for error messages.
        host: only this host's sets; None for all hosts.
        number: number of the sets, as in the query; None for the newest set of each host.
    Raises: WireError NotFound naming the hosts or sets that exist; ValidationException for a malformed number.
    """
    if number is not None and not _SET_NUMBER.fullmatch(number):
        raise WireError("ValidationException", f"set must be the number of a set, got {number[:20]!r}")
    hosts = sorted(found, key=host_order)
    if host is not None:
        if host not in found:
            there = f"there are sets of {', '.join(hosts)}" if hosts else "no host has one"
            raise WireError(
                "NotFound", f"{job} has no set of checkpoints of host {host[:80]!a}; {there}", http_status=404
            )
        hosts = [host]
    if not hosts:
        raise WireError("NotFound", f"no set of checkpoints of {job} has been committed yet", http_status=404)
    if number is None:
        return tuple(SetTarget(host=name, number=found[name][0].number, follows=True) for name in hosts)
    wanted = int(number)
    chosen = tuple(
        SetTarget(host=name, number=wanted, follows=False)
        for name in hosts
        if any(manifest.number == wanted for manifest in found[name])
    )
    if not chosen:
        there = "; ".join(
            f"{name} has {', '.join(str(item.number) for item in found[name][:10])}" for name in hosts[:10]
        )
        raise WireError("NotFound", f"there is no set {wanted} of {job}: {there}", http_status=404)
    return chosen


def checkpoint_facts(job: TrainingJob) -> dict[str, Any]:
    """Return host -> the last report of its mirroring, as plain data; hosts without a report are omitted.

    Reports of past attempts are used for hosts that do not exist now, since a job that waits for a retry has no hosts.
    An attempt that ended before a host's first report does not hide the host's earlier report.
    """
    found: dict[str, Any] = {}
    for attempt in job.past_attempts:
        told = {name: getattr(facts, "checkpoints", None) for name, facts in attempt.hosts.items()}
        found |= {name: report for name, report in told.items() if report is not None}
    found |= {name: record.facts.checkpoints for name, record in job.hosts.items()}
    return {name: to_plain(found[name]) for name in sorted(found, key=host_order) if found[name] is not None}
