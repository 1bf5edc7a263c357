"""The block of public access that every bucket has."""

import pytest

from clary.base.errors import WireError
from clary.control.objects.forms.public_access import is_of_public_access, public_access_answer
from clary.control.objects.s3_request import parse_request


def test_only_requests_to_a_bucket_are_for_its_block():
    assert is_of_public_access(parse_request("GET", "/bucket", "publicAccessBlock="))
    assert not is_of_public_access(parse_request("GET", "/bucket/key", "publicAccessBlock="))
    assert not is_of_public_access(parse_request("GET", "/bucket", "policyStatus="))


@pytest.mark.parametrize(("body", "method", "code"), [(b"<x/>", "PUT", "MalformedXML"), (None, "PUT", "MalformedXML")])
def test_a_document_that_is_no_configuration_is_refused(body, method, code):
    with pytest.raises(WireError) as error:
        public_access_answer(method, body)
    assert error.value.code == code


def test_other_methods_are_refused():
    with pytest.raises(WireError) as error:
        public_access_answer("POST", b"")
    assert error.value.http_status == 405
