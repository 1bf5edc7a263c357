"""Checks of a `ControlPlane`'s answers against the models with which clients parse them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clary.control.wire.models import Protocol
from clary.control.wire.models import service as model_of
from clary.control.wire.serializing import serialize
from clary.testing.control_plane import ControlPlane

_PROTOCOLS = {"sagemaker": Protocol.JSON_1_1, "sagemaker-metrics": Protocol.REST_JSON}


def answers_in_shape(plane: ControlPlane) -> None:
    """Make calls of SageMaker and its metrics serialize answers: a call fails if the model lacks an answer's member."""
    call = plane.call

    async def checked(service: str, operation: str, **params: Any) -> Mapping[str, Any]:
        answer = await call(service, operation, **params)
        protocol = _PROTOCOLS.get(service)
        if protocol is not None:
            serialize(model_of(service).operation(operation, protocol), answer, request_id="R")
        return answer

    plane.call = checked  # type: ignore[method-assign]
