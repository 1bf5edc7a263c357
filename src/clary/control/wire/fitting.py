"""Removes the members of a document that a structure of the model lacks.

Where: a job's stored request is repeated in answers whose structures differ from the request's: DescribeTrainingJob
lacks some of the request's members, Search lacks more, and a release with another model may have written the request.
`json_serializing` refuses such members as bugs of the service; `fit` removes them first, and returns their names.
Source: Smithy, "AWS JSON 1.1 protocol"; closures are compiled once for each shape, as in `json_serializing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from clary.control.wire.json_serializing import json_writer
from clary.control.wire.models import service
from clary.control.wire.scalars import MisfitError

_NOTHING = object()  # stands for a value that its shape cannot represent
# Takes a value and its path; returns the part that the shape can represent, or _NOTHING, and adds the paths of the
# removed members to the list.
_Fitter = Callable[[Any, str, list[str]], Any]


@dataclass(frozen=True)
class Fitted:
    """The part of a document that a structure can represent, and the dotted paths of the removed members."""

    document: dict[str, Any]
    left_out: tuple[str, ...]


def fit(shape_name: str, document: Mapping[str, Any]) -> Fitted:
    """Remove the members of a document that a structure of SageMaker's model lacks.

    A structure in a list is removed if it lacks a required member, so that readers can rely on required members.

    Args:
        shape_name: name of the structure in botocore's data, such as DescribeTrainingJobResponse.
        document: spelled as in the model. Required members of this structure itself may be missing.
    """
    left_out: list[str] = []
    found = _top(shape_name)(document, "", left_out)
    return Fitted({} if found is _NOTHING else found, tuple(left_out))


@cache
def _top(shape_name: str) -> _Fitter:
    return _Compiler().fitter(service("sagemaker").model.shape_for(shape_name))


class _Compiler:
    """Compiles one shape with its members; records the shapes in progress to avoid endless recursion."""

    def __init__(self) -> None:
        self._done: dict[str, _Fitter | None] = {}

    def fitter(self, shape: Any) -> _Fitter:
        name = shape.name
        if name in self._done:
            found = self._done[name]
            return found if found is not None else lambda *given: self._done[name](*given)  # type: ignore[misc]
        self._done[name] = None
        found = self._done[name] = self._compile(shape)
        return found

    def _compile(self, shape: Any) -> _Fitter:
        if shape.type_name == "structure" and not shape.is_document_type:
            return _structure({name: self.fitter(member) for name, member in shape.members.items()})
        if shape.type_name == "list":
            is_of_structures = shape.member.type_name == "structure"
            required = tuple(shape.member.required_members) if is_of_structures else ()
            return _list(self.fitter(shape.member), required)
        if shape.type_name == "map":
            return _map(self.fitter(shape.value))
        return _scalar(json_writer(shape))


def _structure(members: Mapping[str, _Fitter]) -> _Fitter:
    def fit_structure(value: Any, path: str, left_out: list[str]) -> Any:
        if not isinstance(value, Mapping):
            left_out.append(path)
            return _NOTHING
        result = {}
        for name, item in value.items():
            inner = f"{path}.{name}" if path else str(name)
            fitter = members.get(name)
            if fitter is None:
                left_out.append(inner)
            elif item is not None and (found := fitter(item, inner, left_out)) is not _NOTHING:
                result[name] = found
        return result

    return fit_structure


def _list(fit_item: _Fitter, required: tuple[str, ...]) -> _Fitter:
    def fit_list(value: Any, path: str, left_out: list[str]) -> Any:
        if not isinstance(value, list | tuple):
            left_out.append(path)
            return _NOTHING
        result = []
        for index, item in enumerate(value):
            inner = f"{path}[{index}]"
            found = fit_item(item, inner, left_out)
            if found is not _NOTHING and any(name not in found for name in required):
                left_out.append(inner)
            elif found is not _NOTHING:
                result.append(found)
        return result

    return fit_list


def _map(fit_value: _Fitter) -> _Fitter:
    def fit_map(value: Any, path: str, left_out: list[str]) -> Any:
        if not isinstance(value, Mapping):
            left_out.append(path)
            return _NOTHING
        result = {}
        for key, item in value.items():
            found = fit_value(item, f"{path}.{key}", left_out)
            if found is not _NOTHING:
                result[key] = found
        return result

    return fit_map


def _scalar(write: Callable[[Any], Any]) -> _Fitter:
    def fit_scalar(value: Any, path: str, left_out: list[str]) -> Any:
        try:
            write(value)
        except MisfitError:
            left_out.append(path)
            return _NOTHING
        return value

    return fit_scalar
