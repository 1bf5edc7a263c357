"""Answers that list nothing, made from a service's model.

Where: `services.dispatch` gives them for listings of kinds that are not offered. None of these can be made here, so it
is true that there are none, and a script that looks before it cleans up goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clary.control.wire.models import service

_LISTING = "List"


def empty_listing(service_name: str, operation_name: str, *, always_there: Sequence[str] = ()) -> dict[str, Any] | None:
    """Return the answer of a listing that finds nothing.

    Args:
        service_name: as botocore's data folders are called.
        operation_name: of that service.
        always_there: members of requests that name a thing which exists whatever it is called.
    Returns: None for what is no listing, and for one that asks about a thing by its name: that thing is not there.
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
