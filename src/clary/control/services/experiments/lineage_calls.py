"""Artifacts, and the trial components that produced or used them.

Source: CreateArtifact, AddAssociation and related operations. An artifact's ARN ends in a digest of its source, so that
one file with one ETag is one artifact.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clary.base.errors import WireError
from clary.control.services.call import Call
from clary.control.services.experiments import naming
from clary.control.services.experiments.job_components import SOURCE_TYPE
from clary.control.store.tracking.associations import EdgeOrder, EdgeQuery
from clary.control.store.tracking.experiment_rows import Association, Kind, Tracked, TrackedExists

MAX_PROPERTIES = 30
DIGEST_LENGTH = 32
COMPONENT_TYPE = "SageMakerTrialComponent"
OF_SUMMARY = ("ArtifactName", "ArtifactArn", "ArtifactType", "Source", "CreationTime", "LastModifiedTime")
_ORDERS = {
    "SourceArn": EdgeOrder.SOURCE_ARN,
    "DestinationArn": EdgeOrder.DESTINATION_ARN,
    "SourceType": EdgeOrder.SOURCE_TYPE,
    "DestinationType": EdgeOrder.DESTINATION_TYPE,
    "CreationTime": EdgeOrder.CREATION_TIME,
}


async def create_artifact(call: Call) -> Mapping[str, Any]:
    """Store a new artifact. Raises: WireError(ValidationException)."""
    params = call.params
    source = params["Source"]
    members = ("ArtifactName", "ArtifactType", "Properties", "MetadataProperties", "Source")
    document = {name: params[name] for name in members if name in params}
    artifact = naming.new_record(call, Kind.ARTIFACT, _digest(source), document, source=source["SourceUri"])
    try:
        await call.services.store.experiments.create(artifact, naming.new_tags(call))
    except TrackedExists as error:
        raise WireError(
            "ValidationException",
            f"Artifact ({artifact.arn}) already exists. To create another one, change SourceUri or SourceTypes.",
        ) from error
    return {"ArtifactArn": artifact.arn}


async def describe_artifact(call: Call) -> Mapping[str, Any]:
    """Return all members of an artifact."""
    return _describe(await _artifact(call, call.params["ArtifactArn"]))


async def update_artifact(call: Call) -> Mapping[str, Any]:
    """Change an artifact's name and properties."""
    params = call.params
    artifact = await _artifact(call, params["ArtifactArn"])
    now = call.services.clock.now()

    def change(thing: Tracked) -> Tracked:
        properties = {**thing.document.get("Properties", {}), **params.get("Properties", {})}
        for key in params.get("PropertiesToRemove") or ():
            properties.pop(key, None)
        if len(properties) > MAX_PROPERTIES:
            raise WireError(
                "ValidationException",
                f"Artifact {thing.arn} would have {len(properties)} properties; at most {MAX_PROPERTIES} fit.",
            )
        name = {"ArtifactName": params["ArtifactName"]} if "ArtifactName" in params else {}
        document = {**thing.document, **name, "Properties": properties}
        return replace(thing, document=document, modified_at=max(now, thing.modified_at))

    with naming.api_errors():
        await call.services.store.experiments.change(Kind.ARTIFACT, artifact.name, change)
    return {"ArtifactArn": artifact.arn}


async def delete_artifact(call: Call) -> Mapping[str, Any]:
    """Delete an artifact with its associations; its object in S3 stays. Raises: WireError(ValidationException)."""
    arn, source = call.params.get("ArtifactArn"), call.params.get("Source")
    if (arn is None) == (source is None):
        raise WireError("ValidationException", "Give either ArtifactArn or Source.")
    name = _digest(source) if source is not None else (await _artifact(call, str(arn))).name
    with naming.api_errors():
        gone = await call.services.store.experiments.remove(Kind.ARTIFACT, name)
    return {"ArtifactArn": gone.arn}


async def list_artifacts(call: Call) -> Mapping[str, Any]:
    """List artifacts: all, or the artifacts of a URI or a type."""
    wanted_type = call.params.get("ArtifactType")
    query = naming.listing(call, Kind.ARTIFACT, source=call.params.get("SourceUri"), label=wanted_type)
    found, token = await naming.page_of(call, query)
    return {"ArtifactSummaries": [naming.only(_describe(thing), OF_SUMMARY) for thing in found], **token}


async def add_association(call: Call) -> Mapping[str, Any]:
    """Store an edge of lineage from a source to its destination, such as Produced or DerivedFrom.

    Raises: WireError(ValidationException) if source and destination are the same or the association exists,
    WireError(ResourceNotFound).
    """
    params = call.params
    source, destination = await _end(call, params["SourceArn"]), await _end(call, params["DestinationArn"])
    if source.arn == destination.arn:
        raise WireError("ValidationException", f"SourceArn and DestinationArn are the same: {source.arn}.")
    edge = Association(
        source_arn=source.arn,
        destination_arn=destination.arn,
        association_type=params.get("AssociationType") or "",
        source_type=_type_of(source),
        destination_type=_type_of(destination),
        source_name=_name_of(source),
        destination_name=_name_of(destination),
        created_at=call.services.clock.now(),
    )
    if not await call.services.store.experiments.lineage.add(edge):
        raise WireError(
            "ValidationException", f"Association between {source.arn} and {destination.arn} already exists."
        )
    return {"SourceArn": source.arn, "DestinationArn": destination.arn}


async def delete_association(call: Call) -> Mapping[str, Any]:
    """Delete an association. Raises: WireError(ResourceNotFound)."""
    source, destination = call.params["SourceArn"], call.params["DestinationArn"]
    if not await call.services.store.experiments.lineage.remove(source, destination):
        raise WireError("ResourceNotFound", f"Association between {source} and {destination} does not exist.")
    return {"SourceArn": source, "DestinationArn": destination}


async def list_associations(call: Call) -> Mapping[str, Any]:
    """List associations, filtered by source, destination, types and times."""
    params = call.params
    query = EdgeQuery(
        source_arn=params.get("SourceArn"),
        destination_arn=params.get("DestinationArn"),
        source_type=params.get("SourceType"),
        destination_type=params.get("DestinationType"),
        association_type=params.get("AssociationType"),
        created_after=params.get("CreatedAfter"),
        created_before=params.get("CreatedBefore"),
        order=_ORDERS[params.get("SortBy", "CreationTime")],
        descending=params.get("SortOrder", "Descending") == "Descending",
    )
    limit = params.get("MaxResults") or naming.DEFAULT_PAGE
    with naming.api_errors():
        found, token = await call.services.store.experiments.lineage.page(
            query, max_results=limit, next_token=params.get("NextToken")
        )
    return naming.without_none({"AssociationSummaries": [_summary(edge) for edge in found], "NextToken": token})


async def _artifact(call: Call, arn: str) -> Tracked:
    found = await call.services.store.experiments.get_by_arn(arn)
    if found is None or found.kind is not Kind.ARTIFACT:
        raise naming.not_found(Kind.ARTIFACT, arn)
    return found


async def _end(call: Call, arn: str) -> Tracked:
    found = await call.services.store.experiments.get_by_arn(arn)
    if found is None:
        raise WireError("ResourceNotFound", f"Lineage entity '{arn}' does not exist.")
    return found


def _describe(thing: Tracked) -> dict[str, Any]:
    return {
        "ArtifactArn": thing.arn,
        **naming.document_of(thing, "DescribeArtifactResponse"),
        **naming.times(thing),
    }


def _summary(edge: Association) -> dict[str, Any]:
    members = {
        "SourceArn": edge.source_arn,
        "DestinationArn": edge.destination_arn,
        "SourceType": edge.source_type,
        "DestinationType": edge.destination_type,
        "SourceName": edge.source_name or None,
        "DestinationName": edge.destination_name or None,
        "AssociationType": edge.association_type or None,
        "CreationTime": edge.created_at,
    }
    return naming.without_none(members)


def _type_of(thing: Tracked) -> str:
    match thing.kind:
        case Kind.ARTIFACT:
            return str(thing.document["ArtifactType"])
        case Kind.COMPONENT:
            return SOURCE_TYPE if thing.source else COMPONENT_TYPE
        case _:
            return f"SageMaker{naming.WORDS[thing.kind]}"


def _name_of(thing: Tracked) -> str:
    return str(thing.document.get("ArtifactName", "")) if thing.kind is Kind.ARTIFACT else thing.name


def _digest(source: Mapping[str, Any]) -> str:
    """Return the name of a source's artifact, a digest."""
    types = sorted((item["SourceIdType"], item["Value"]) for item in source.get("SourceTypes") or ())
    return hashlib.sha256(json.dumps([source["SourceUri"], types]).encode()).hexdigest()[:DIGEST_LENGTH]
