"""Functions shared by the handlers of experiments: they make records, errors, pages and answers.

Source: the errors of each operation in SageMaker's model; `sagemaker.experiments` searches messages for `already
exists`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from clary.base.errors import WireError
from clary.control.permissions.tracking_rules import MADE_BY
from clary.control.services.call import Call
from clary.control.services.tags import MAX_TAGS, check_tags
from clary.control.store.errors import BadToken
from clary.control.store.tracking.experiment_rows import Kind, Tracked, TrackedExists, TrackedInUse, TrackedNotFound
from clary.control.store.tracking.experiments import TrackedQuery
from clary.control.wire.fitting import fit

DEFAULT_PAGE = 10
WORDS = {
    Kind.EXPERIMENT: "Experiment",
    Kind.TRIAL: "Trial",
    Kind.COMPONENT: "Trial component",
    Kind.ARTIFACT: "Artifact",
}


@contextmanager
def api_errors() -> Iterator[None]:
    """Turn the errors of the store into the API's.

    Raises: WireError(ResourceNotFound), WireError(ValidationException).
    """
    try:
        yield
    except TrackedNotFound as error:
        raise not_found(error.kind, error.tracked_name) from error
    except TrackedExists as error:
        raise WireError("ValidationException", error.message) from error
    except TrackedInUse as error:
        raise WireError("ValidationException", error.message) from error
    except BadToken as error:
        raise WireError("ValidationException", f"Invalid NextToken: {error.message}") from error


def not_found(kind: Kind, name: str) -> WireError:
    """Return the error for a record that does not exist."""
    return WireError("ResourceNotFound", f"{WORDS[kind]} '{name}' does not exist.", http_status=400)


def new_record(call: Call, kind: Kind, name: str, document: Mapping[str, Any], **owners: str) -> Tracked:
    """Return a new record.

    Args:
        call: provides the time, the region and the account.
        kind: kind of the record.
        name: name as the client spells it; the ARN contains it in lower case.
        document: members that Describe returns.
        owners: `parent` is the name of the experiment of a trial, `source` the ARN or URI that the record represents.
    """
    now = call.services.clock.now()
    arn = call.arn(f"{kind.value}/{name.lower()}")
    return Tracked(kind=kind, name=name, arn=arn, created_at=now, modified_at=now, document=document, **owners)


def new_tags(call: Call) -> dict[str, str]:
    """Return the tags of a Create request; raises WireError for too many or forbidden tags."""
    tags = check_tags(call.params.get("Tags") or ())
    if len(tags) > MAX_TAGS:
        raise WireError("ResourceLimitExceeded", f"a resource can have {MAX_TAGS} tags at most, got {len(tags)}.")
    if call.grants is not None:
        tags[MADE_BY] = call.grants.job_id  # a job's right to use this record is recognised by this tag
    return tags


async def find(call: Call, kind: Kind, name: str) -> Tracked:
    """Return a record; raises WireError(ResourceNotFound).

    Args:
        call: provides the store.
        kind: kind of the record.
        name: name of the record, in upper or lower case.
    """
    found = await call.services.store.experiments.get(kind, name)
    if found is None:
        raise not_found(kind, name)
    return found


def listing(call: Call, kind: Kind, **filters: str | None) -> TrackedQuery:
    """Return the query of a List request; the newest records come first unless the request names another order."""
    params = call.params
    return TrackedQuery(
        kind=kind,
        created_after=params.get("CreatedAfter"),
        created_before=params.get("CreatedBefore"),
        by_name=params.get("SortBy", "CreationTime") == "Name",
        descending=params.get("SortOrder", "Descending") == "Descending",
        **filters,
    )


async def page_of(call: Call, query: TrackedQuery) -> tuple[list[Tracked], dict[str, str]]:
    """Return one page of records, and a mapping with NextToken if another page follows."""
    limit = call.params.get("MaxResults") or DEFAULT_PAGE
    with api_errors():
        found, token = await call.services.store.experiments.page(
            query, max_results=limit, next_token=call.params.get("NextToken")
        )
    return found, {} if token is None else {"NextToken": token}


def times(thing: Tracked) -> dict[str, Any]:
    """Return CreationTime and LastModifiedTime."""
    return {"CreationTime": thing.created_at, "LastModifiedTime": thing.modified_at}


def document_of(thing: Tracked, shape_name: str) -> dict[str, Any]:
    """Return the members of a stored document that the answer's shape also has.

    Another release or a bad disk may have left other members in the document.
    """
    return fit(shape_name, thing.document).document


def only(members: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the members whose names are in `names`."""
    return {name: value for name, value in members.items() if name in names}


def without_none(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that have a value."""
    return {name: value for name, value in members.items() if value is not None}
