"""Encryption of buckets: only AWS's default, and a decision in bounded time."""

import time

import pytest

from clary.base.errors import WireError
from clary.control.objects.encryption import check_bucket_configuration


def configuration(algorithm):
    return f"<Rule><s:SSEAlgorithm>{algorithm}</s:SSEAlgorithm></Rule>".encode()


@pytest.mark.parametrize("algorithm", ["AES256", " AES256\n"])
def test_the_default_encryption_is_accepted(algorithm):
    check_bucket_configuration(configuration(algorithm))


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (configuration("aws:kms"), "NotImplemented"),
        (configuration(""), "NotImplemented"),
        (configuration("AES 256"), "NotImplemented"),
        (configuration("AES256") * 2, "MalformedXML"),
        (b"<Rule/>", "MalformedXML"),
    ],
)
def test_another_configuration_is_refused(content, code):
    with pytest.raises(WireError) as caught:
        check_bucket_configuration(content)
    assert caught.value.code == code


def test_many_blanks_are_decided_about_in_linear_time():
    content = b"<SSEAlgorithm>" + b" " * 20_000
    began_s = time.process_time()
    with pytest.raises(WireError, match="one SSEAlgorithm is expected"):
        check_bucket_configuration(content)
    assert time.process_time() - began_s < 1
