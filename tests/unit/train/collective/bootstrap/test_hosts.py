"""Ranks that share a host, the name of the host, and the address at which it is reached."""

import socket

import pytest

from clary.train._native.errors import BootstrapError
from clary.train.collective.bootstrap import hosts
from clary.train.collective.bootstrap.hosts import host_identity, host_name, own_address
from clary.train.collective.settings import CollectiveSettings

ADDRESSES = {"lo": "127.0.0.1", "docker0": "172.17.0.1", "eth0": "10.0.0.5", "eth1": "10.1.0.5", "bare": None}


@pytest.fixture
def five_interfaces(monkeypatch):
    """A host with the interfaces of `ADDRESSES`, whose name points to loopback, as Debian's installer leaves it."""
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(ADDRESSES)))
    monkeypatch.setattr(hosts, "interface_address", ADDRESSES.get)
    routes = {"algo-1": "10.1.0.5", "localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1"}
    monkeypatch.setattr(hosts, "_routed_address", lambda target: routes.get(target, "127.0.1.1"))


def test_ranks_of_this_process_share_a_host_unless_told_apart():
    assert host_identity(CollectiveSettings(), 0) == host_identity(CollectiveSettings(), 1)
    assert host_identity(CollectiveSettings(host="a"), 0) != host_identity(CollectiveSettings(host="b"), 0)


def test_without_shared_memory_every_rank_is_a_host(monkeypatch):
    monkeypatch.setattr(hosts, "HAS_SHARED_MEMORY", False)
    assert host_identity(CollectiveSettings(), 0) != host_identity(CollectiveSettings(), 1)


def test_messages_call_a_host_as_sagemaker_does():
    assert host_name(CollectiveSettings(sagemaker_host="algo-2")) == "algo-2"
    assert host_name(CollectiveSettings(sagemaker_host="algo-2", host="left")) == "left"
    assert host_name(CollectiveSettings()) == socket.gethostname()


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        (CollectiveSettings(interface="eth1", gloo_interface="eth0"), "10.1.0.5"),
        (CollectiveSettings(gloo_interface="eth0,eth1", nccl_interface="eth1"), "10.0.0.5"),
        (CollectiveSettings(gloo_interface="eth9", nccl_interface="=eth1"), "10.1.0.5"),
        (CollectiveSettings(nccl_interface="eth"), "10.0.0.5"),
        (CollectiveSettings(nccl_interface="^docker", sagemaker_interface="eth1"), "10.1.0.5"),
        (CollectiveSettings(sagemaker_interface="bare", master_address="algo-1"), "10.1.0.5"),
        (CollectiveSettings(master_address="algo-1"), "10.1.0.5"),
        (CollectiveSettings(master_address="127.0.0.1"), "127.0.0.1"),
        (CollectiveSettings(master_address="localhost"), "127.0.0.1"),
        (CollectiveSettings(master_address="own-name"), "172.17.0.1"),
        (CollectiveSettings(), "172.17.0.1"),
    ],
)
def test_the_address_follows_settings_then_hints_then_the_route(five_interfaces, settings, address):
    assert own_address(settings) == address


@pytest.mark.parametrize("name", ["eth9", "bare"])
def test_an_interface_that_was_asked_for_and_has_no_address_is_an_error_that_lists_the_others(five_interfaces, name):
    with pytest.raises(BootstrapError, match=rf"INTERFACE is '{name}'.*eth0 \(10.0.0.5\).*bare \(no address\)"):
        own_address(CollectiveSettings(interface=name))


def test_the_address_of_loopback_is_read_from_the_kernel():
    assert hosts.interface_address("lo") == "127.0.0.1"
    assert hosts.interface_address("none-such") is None
