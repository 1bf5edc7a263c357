"""Tags of training jobs, tuning jobs, experiments, trials, trial components and artifacts.

Source: AddTags, ListTags, DeleteTags; limits of the Tag shape (50 per resource, no `aws:` prefix).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clary.base.errors import WireError
from clary.control.services.call import Call
from clary.control.store.tracking.experiment_rows import Kind

MAX_TAGS = 50
PAGE_SIZE = 50
MAX_TOKEN_DIGITS = 9


def check_tags(tags: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return tags as a mapping; raises WireError for repeated or reserved keys."""
    found: dict[str, str] = {}
    for tag in tags:
        key = tag["Key"]
        if key in found:
            raise WireError("ValidationException", f"Duplicate tag key {key!r}: give each key once.")
        if key.lower().startswith("aws:"):
            raise WireError("ValidationException", f"Tag key {key!r}: keys that start with aws: are reserved.")
        found[key] = tag["Value"]
    return found


async def add_tags(call: Call) -> Mapping[str, Any]:
    """Add or replace tags. Raises: WireError(ValidationException), WireError(ResourceLimitExceeded)."""
    arn = await _existing(call)
    new = check_tags(call.params["Tags"])
    wanted = {**await call.services.store.get_tags(arn), **new}
    if len(wanted) > MAX_TAGS:
        raise WireError("ResourceLimitExceeded", f"{arn} would have {len(wanted)} tags; at most {MAX_TAGS} fit.")
    await call.services.store.set_tags(arn, new)
    return {"Tags": _as_list(wanted)}


async def list_tags(call: Call) -> Mapping[str, Any]:
    """List tags in the order of their keys, page by page. Raises: WireError(ValidationException)."""
    tags = _as_list(await call.services.store.get_tags(await _existing(call)))
    limit = call.params.get("MaxResults") or PAGE_SIZE
    token = call.params.get("NextToken") or "0"
    if not (token.isascii() and token.isdecimal() and len(token) <= MAX_TOKEN_DIGITS):
        raise WireError("ValidationException", "Invalid NextToken: pass the token of the previous answer unchanged.")
    start = int(token)
    page = {"Tags": tags[start : start + limit]}
    return {**page, "NextToken": str(start + limit)} if start + limit < len(tags) else page


async def delete_tags(call: Call) -> Mapping[str, Any]:
    """Remove tags; missing keys are ignored."""
    await call.services.store.remove_tags(await _existing(call), call.params["TagKeys"])
    return {}


async def _existing(call: Call) -> str:
    arn: str = call.params["ResourceArn"]
    kind, _, name = arn.split(":", 5)[-1].partition("/")
    if arn.startswith("arn:") and kind in set(Kind) and name:
        if await call.services.store.experiments.get_by_arn(arn) is None:
            raise WireError("ValidationException", f"Could not find resource {arn}.")
        return arn
    if arn.startswith("arn:") and kind == "hyper-parameter-tuning-job" and name:
        tuning = await call.services.store.tuning.get(name)
        if tuning is None or tuning.arn != arn:
            raise WireError("ValidationException", f"Could not find resource {arn}.")
        return arn
    if not arn.startswith("arn:") or kind != "training-job" or not name:
        raise WireError(
            "ValidationException",
            f"{arn!r} is not the ARN of a training job, a tuning job or a record of experiments.",
        )
    job = await call.services.find_job(name)
    if job is None or job.arn != arn:
        raise WireError("ValidationException", f"Could not find resource {arn}.")
    return arn


def _as_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": tags[key]} for key in sorted(tags)]
