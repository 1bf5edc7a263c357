"""Requests that botocore's model allows: built member by member, or drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from hypothesis import strategies as st

from clary.control.wire.models import Operation, Protocol, service
from clary.control.wire.patterns import compile_pattern
from clary.control.wire.validation import LENIENT_ENUMS

# Sample values of string members, in order of preference; a member uses the values that fit its pattern and length.
_ARN = "arn:aws:{}:us-west-2:000000000000:{}"
TEXTS = (
    "s3://bucket/prefix",
    "word",
    "/folder/below",
    "fs-0123456789abcdef0",
    "arn:aws:iam::000000000000:role/R",
    _ARN.format("sagemaker", "training-plan/plan"),
    _ARN.format("sagemaker", "hub-content/hub/Model/name/1.0.0"),
    _ARN.format("sagemaker", "hub-content/hub/DataSet/name/1.0.0"),
    "arn:aws:sagemaker:us-west-2:aws:hub-content/SageMakerPublicHub/Model/name/1.0.0",
    _ARN.format("sagemaker", "mlflow-tracking-server/server"),
    _ARN.format("sagemaker", "mlflow-app/app-0123456789AB"),
    _ARN.format("sagemaker", "model-package-group/group"),
    _ARN.format("sagemaker", "model-package/group/1"),
    _ARN.format("lambda", "function:name"),
    "ml.m5.large",
    "1",
    "4K",
)


def create_operation() -> Operation:
    return service("sagemaker").operation("CreateTrainingJob", Protocol.JSON_1_1)


def full_value(shape: Any) -> Any:
    """Return a value with every member set; a string is the first enum value, or the first fitting one of `TEXTS`."""
    if shape.type_name == "structure":
        return {name: full_value(member) for name, member in shape.members.items()}
    if shape.type_name == "list":
        return [full_value(shape.member)] * max(1, shape.metadata.get("min", 1))
    if shape.type_name == "map":
        return {_texts(shape.key)[0]: full_value(shape.value)}
    if shape.type_name == "boolean":
        return True
    if shape.type_name in ("integer", "long"):
        return max(1, shape.metadata.get("min", 1))
    return _texts(shape)[0]


def paths(shape: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the shape of every member of the structures inside a shape."""
    if shape.type_name == "list":
        yield from paths(shape.member, (*prefix, "[]"))
    elif shape.type_name == "map":
        yield from paths(shape.value, (*prefix, "{}"))
    elif shape.type_name == "structure":
        for name, member in shape.members.items():
            yield (*prefix, name), member
            yield from paths(member, (*prefix, name))


def values(shape: Any) -> st.SearchStrategy[Any]:
    """Draw values that the model allows, with any subset of optional members and short lists."""
    if shape.type_name == "structure":
        required = {name: values(shape.members[name]) for name in shape.required_members}
        optional = {name: values(member) for name, member in shape.members.items() if name not in required}
        return st.fixed_dictionaries(required, optional=optional)
    if shape.type_name == "list":
        least = shape.metadata.get("min", 0)
        return st.lists(values(shape.member), min_size=least, max_size=least + 2)
    if shape.type_name == "map":
        return st.dictionaries(st.sampled_from(_texts(shape.key)), values(shape.value), max_size=2)
    if shape.type_name == "boolean":
        return st.booleans()
    if shape.type_name in ("integer", "long"):
        least = shape.metadata.get("min", 0)
        return st.integers(least, min(least + 3, shape.metadata.get("max", least + 3)))
    return st.sampled_from(_texts(shape))


def json_values() -> st.SearchStrategy[Any]:
    """Draw any small JSON document."""
    scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=3)
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=4,
    )


def _texts(shape: Any) -> list[str]:
    return _fitting_texts(shape.name)


@cache
def _fitting_texts(shape_name: str) -> list[str]:
    shape = service("sagemaker").model.shape_for(shape_name)
    traits = shape.metadata
    if "enum" in traits and shape.name not in LENIENT_ENUMS:
        return list(traits["enum"])
    compiled = compile_pattern(traits["pattern"]) if "pattern" in traits else None
    fitting = [
        text
        for text in TEXTS
        if traits.get("min", 0) <= len(text) <= traits.get("max", len(text))
        and (compiled is None or compiled.fullmatch(text))
    ]
    assert fitting, f"no text of TEXTS fits {shape_name}: {traits}"
    return fitting
