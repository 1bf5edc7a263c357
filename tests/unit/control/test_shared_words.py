"""Messages on the access that settings open to hosts; defaults give no message."""

from clary.control.egress.entries import parse_entry
from clary.control.settings import Settings
from clary.control.shared_words import shared_by_settings


def test_defaults_give_no_message():
    assert shared_by_settings(Settings(), ()) == []


def test_full_access_and_reachable_networks_are_listed_with_their_settings():
    entries = [parse_entry("10.1.0.0/16"), parse_entry("registry.lan:8080")]
    access, network = shared_by_settings(Settings(job_api_access="full"), entries)
    assert "every bucket and job of this service" in access
    assert "job_api_access" in access
    assert "10.1.0.0/16, registry.lan:8080" in network
    assert "reachable_networks" in network


def test_a_job_with_network_isolation_gets_no_message_on_networks():
    assert shared_by_settings(Settings(), [parse_entry("10.1.0.0/16")], has_network=False) == []
