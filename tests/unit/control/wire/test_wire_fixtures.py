"""The 84 requests that real clients sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wire_builders import json_request

from clary.base.errors import WireError
from clary.control.wire.parsing import parse
from clary.control.wire.routing import route
from clary.control.wire.validation import validate

ASSETS = next(parent for parent in Path(__file__).resolve().parents if parent.name == "tests") / "assets" / "requests"
FIXTURES = sorted(ASSETS.glob("*.json"))

# The SDK sends a job name that the model forbids; SageMaker refuses it, too.
FORBIDDEN = {"pt-extras.CreateTrainingJob.json": ("trainingJobName", "[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")}


def test_all_recorded_requests_are_present():
    assert len(FIXTURES) == 84


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_recorded_request_parses_and_validates(path):
    body = json.loads(path.read_text())
    request = json_request(path.name.split(".")[-2], body)
    operation = route(request)
    params = parse(request, operation)
    assert params == body
    if path.name not in FORBIDDEN:
        validate(operation, params)
        return
    member, pattern = FORBIDDEN[path.name]
    with pytest.raises(WireError) as caught:
        validate(operation, params)
    assert caught.value.code == "ValidationException"
    assert f"at '{member}' failed to satisfy constraint" in caught.value.message
    assert caught.value.message.endswith(pattern)
