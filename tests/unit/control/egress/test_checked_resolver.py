"""The service's own connections to the internet: names that lead elsewhere are not connected to."""

import socket
import time

import pytest

from clary.control.egress import checked_resolver, resolver
from clary.control.egress.checked_resolver import CheckedResolver
from clary.control.egress.policy import EgressPolicy

NAME = "sagemaker-sample-files.s3.amazonaws.com"


async def resolve(monkeypatch, addresses, policy=None):
    monkeypatch.setattr(resolver, "addresses_of", lambda name, port: list(addresses))
    checked = CheckedResolver(policy or EgressPolicy(has_internet=True), client="test")
    try:
        return await checked.resolve(NAME, 443)
    finally:
        await checked.close()


async def test_addresses_of_the_internet_are_returned_in_order(monkeypatch):
    found = await resolve(monkeypatch, ["52.216.1.1", "2600:1fa0:8000::1"])
    assert [(entry["host"], entry["family"], entry["port"]) for entry in found] == [
        ("52.216.1.1", socket.AF_INET, 443),
        ("2600:1fa0:8000::1", socket.AF_INET6, 443),
    ]


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.7", "169.254.169.254", "::1", "fd00::1"])
async def test_a_name_that_leads_into_the_owners_network_is_refused(monkeypatch, address):
    with pytest.raises(OSError, match="not offered"):
        await resolve(monkeypatch, ["52.216.1.1", address])


async def test_a_resolver_that_does_not_answer_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(checked_resolver, "TIMEOUT_S", 0.05)
    monkeypatch.setattr(resolver, "addresses_of", lambda name, port: time.sleep(0.5))
    checked = CheckedResolver(EgressPolicy(has_internet=True), client="test")
    began_s = time.monotonic()
    with pytest.raises(OSError, match="no answer about the name"):
        await checked.resolve(NAME, 443)
    assert time.monotonic() - began_s < 0.4
    await checked.close()


async def test_a_name_without_an_address_is_an_error_of_the_network(monkeypatch):
    def fail(name, port):
        raise UnicodeError("label too long")

    monkeypatch.setattr(resolver, "addresses_of", fail)
    checked = CheckedResolver(EgressPolicy(has_internet=True), client="test")
    with pytest.raises(OSError, match="is not a name"):
        await checked.resolve("x", 443)
    await checked.close()
