"""Every member of every supported operation is read by its handler, has a decision, or is listed with a reason."""

import ast
import importlib
import inspect
from functools import cache
from pathlib import Path

import pytest

from clary.control.jobs.members.judging import TABLES, is_decided
from clary.control.services.dispatch import HANDLERS
from clary.control.services.unread_members import UNREAD
from clary.control.tuning import trial_requests, tuning_request, validation
from clary.control.wire.models import service

DECIDED_ON = {("sagemaker", operation) for operation in TABLES}
# Its members are read by control.tuning or passed on to CreateTrainingJob: a separate test covers them.
OF_TUNING = ("sagemaker", "CreateHyperParameterTuningJob")
OPERATIONS = [key for key in HANDLERS if key not in DECIDED_ON and key != OF_TUNING]
STORED_WHOLE = ("MetadataProperties", "Tags")  # stored and returned unchanged


@cache
def words_of(name):
    """Return the string constants in a module, and the constant ends of its formatted strings."""
    texts, ends = set(), set()
    for node in ast.walk(ast.parse(Path(importlib.import_module(name).__file__).read_text())):
        if isinstance(node, ast.JoinedStr):
            last = node.values[-1]
            if isinstance(last, ast.Constant) and len(last.value) > 5:
                ends.add(last.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
    return texts, ends


def readers_of(handler):
    """Return the names of a handler's module and of the service's modules that it uses."""
    names = {handler.__module__}
    for value in vars(importlib.import_module(handler.__module__)).values():
        name = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None) or ""
        if name.startswith("clary.control.") and not name.endswith("unread_members"):
            names.add(name)
    return names


def members_of(shape, prefix="", under_way=()):
    if shape.type_name == "list":
        yield from members_of(shape.member, f"{prefix}[]", under_way)
    elif shape.type_name == "structure" and shape.name not in under_way:
        for name, member in shape.members.items():
            path = f"{prefix}.{name}" if prefix else name
            yield path
            if name not in STORED_WHOLE:
                yield from members_of(member, path, (*under_way, shape.name))


def unread(key):
    """Return the paths of members whose names are in no module that handles the request."""
    shape = service(key[0]).model.operation_model(key[1]).input_shape
    known = [words_of(name) for name in readers_of(HANDLERS[key])]
    texts = set().union(*(texts for texts, _ in known))
    ends = tuple(set().union(*(ends for _, ends in known)))
    paths = [] if shape is None else list(members_of(shape))
    return [path for path in paths if (name := path.rpartition(".")[2]) not in texts and not name.endswith(ends)]


def is_listed(path, listed):
    return any(f"{path}.".startswith((f"{one}.", f"{one}[")) for one in listed)


@pytest.mark.parametrize("key", OPERATIONS, ids=[f"{service_}:{operation}" for service_, operation in OPERATIONS])
def test_every_member_is_read_or_listed_with_a_reason(key):
    listed = UNREAD.get(key, {})
    silent = [path for path in unread(key) if not is_listed(path, listed)]
    assert silent == [], (
        f"{key[1]} of {key[0]} has members that no handler reads: {', '.join(silent)}. Honour or refuse them, or say "
        "in control/services/unread_members.py why nothing is lost"
    )
    assert set(listed) <= set(unread(key)), "these are read by now"


def unread_of_tuning():
    """Return the members of a tuning job that no module reads and on which CreateTrainingJob has no decision.

    A definition's members that CreateTrainingJob has too are passed on; test_trial_requests covers all of them.
    """
    handed_on = {*trial_requests._SAME_MEMBERS, "AlgorithmSpecification", "ResourceConfig", "CheckpointConfig"}
    modules = (HANDLERS[OF_TUNING].__module__, *(one.__name__ for one in (tuning_request, validation, trial_requests)))
    texts = set().union(*(words_of(name)[0] for name in modules))
    for path in members_of(service("sagemaker").model.operation_model(OF_TUNING[1]).input_shape):
        place, _, inner = path.partition(".")
        if place.startswith("TrainingJobDefinition") and inner.partition(".")[0].removesuffix("[]") in handed_on:
            is_known = is_decided("CreateTrainingJob", inner) or inner in INNER_NODES
        else:
            is_known = path.rpartition(".")[2] in texts
        if not is_known:
            yield path


# Members of CreateTrainingJob that have members themselves: the table decides on the inner members.
INNER_NODES = {
    path.rpartition(".")[0].removesuffix("[]")
    for path in members_of(service("sagemaker").model.operation_model("CreateTrainingJob").input_shape)
    if "." in path
}


def test_every_member_of_a_tuning_job_is_read_passed_on_or_listed_with_a_reason():
    assert set(unread_of_tuning()) == set(UNREAD[OF_TUNING])


@pytest.mark.parametrize("path", UNREAD[OF_TUNING])
def test_an_unread_member_of_a_tuning_job_has_only_one_possible_value(path):
    shape = service("sagemaker").model.operation_model(OF_TUNING[1]).input_shape
    for step in path.split("."):
        shape = shape.members[step.removesuffix("[]")]
        shape = shape.member if step.endswith("[]") else shape
    assert len(shape.enum) == 1


def test_listed_members_belong_to_supported_operations():
    assert set(UNREAD) <= {*OPERATIONS, OF_TUNING}
