"""Empty lists as answers, made from a service's model.

Where: `services.dispatch` returns them when clients list records of kinds that Clary does not offer. No such record can
exist, so the empty list is correct, and scripts that list records before they clean up keep working.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clary.control.wire.models import service

_LISTING = "List"


def empty_listing(service_name: str, operation_name: str, *, always_there: Sequence[str] = ()) -> dict[str, Any] | None:
    """Return the answer of a List operation without results.

    Args:
        service_name: name of botocore's data folder.
        operation_name: name of an operation of that service.
        always_there: required request members that are accepted, because every value names an existing resource.
    Returns: None if the operation is no List operation, or requires another member, such as the name of a record that
        cannot exist, or if its answer requires a member that is not a list.
    """
    model = service(service_name).model.operation_model(operation_name)
    if not operation_name.startswith(_LISTING) or model.output_shape is None:
        return None
    if model.input_shape is not None and set(model.input_shape.required_members) - set(always_there):
        return None
    members = model.output_shape.members
    lists: dict[str, Any] = {name: [] for name, shape in members.items() if shape.type_name == "list"}
    for name in model.output_shape.required_members:
        if name not in lists:
            return None
    return lists or None
