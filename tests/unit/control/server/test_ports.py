"""The ports that the service binds: those of the settings, those of the last run, or free ones."""

import socket

import pytest

from clary.base.errors import EngineError, Fault
from clary.control.server.edge.handed_sockets import HandedSockets
from clary.control.server.ports import Ports, choose_ports, require_free
from clary.control.settings import Settings
from clary.control.state_folder import ServiceRecord


def left(api, proxy=None):
    return ServiceRecord(
        pid=1,
        process_started="1",
        url=f"http://127.0.0.1:{api}",
        tls_url="",
        proxy_url=f"http://127.0.0.1:{proxy}" if proxy else "",
        region="us-west-2",
        version="0",
    )


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def taken_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_free_ports_are_distinct(free_port):
    ports = choose_ports(Settings(port=0, tls_port=free_port), None)
    assert ports.tls == free_port
    assert len({ports.api, ports.tls, ports.proxy}) == 3


def test_without_tls_there_is_no_proxy():
    ports = choose_ports(Settings(port=0, tls_port=0), None)
    assert (ports.tls, ports.proxy) == (None, None)


def test_the_ports_of_a_killed_service_are_used_again(free_port):
    earlier = choose_ports(Settings(port=0, tls_port=free_port), None)
    record = left(earlier.api, earlier.proxy)
    assert choose_ports(Settings(port=0, tls_port=free_port), record) == earlier


def test_an_earlier_port_that_another_process_uses_now_is_not_chosen(taken_port):
    assert choose_ports(Settings(port=0, tls_port=0), left(taken_port)).api != taken_port


def test_a_set_port_wins_over_the_earlier_one(free_port):
    assert choose_ports(Settings(port=free_port, tls_port=0), left(1)).api == free_port


@pytest.mark.parametrize("name", ["port", "tls_port"])
def test_a_set_port_that_is_in_use_is_refused_with_advice(taken_port, name):
    with pytest.raises(
        EngineError, match=rf"cannot listen on 127\.0\.0\.1:{taken_port}: .*in use; .*tls_port"
    ) as error:
        choose_ports(Settings(**{"port": 0, "tls_port": 0, name: taken_port}), None)
    assert error.value.fault is Fault.USER


def test_an_address_that_is_not_of_this_machine_is_refused():
    with pytest.raises(EngineError, match="cannot listen on 192"):
        choose_ports(Settings(host="192.0.2.1", port=0, tls_port=0), None)


def test_addresses_of_version_6_are_bracketed_in_urls():
    urls = Ports(api=1, tls=2, proxy=3).urls(Settings(host="::1"))
    assert (urls.api, urls.tls, urls.proxy) == ("http://[::1]:1", "https://localhost:2", "http://[::1]:3")
    assert Ports(api=1, tls=None, proxy=None).urls(Settings()).tls == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
@pytest.mark.parametrize("is_set", [True, False])
def test_ports_of_handed_sockets_are_kept_also_at_another_address(host, is_set):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        handed = HandedSockets([listening])
        settings = Settings(host=host, port=port if is_set else 0, tls_port=0)
        assert choose_ports(settings, left(port), handed=handed).api == port
        assert handed.has(host, port) == (host != "0.0.0.0")


def test_an_address_of_another_machine_is_told_while_the_former_service_runs(taken_port):
    require_free(Settings(port=taken_port, tls_port=0), left(taken_port))
    with pytest.raises(EngineError, match="cannot listen on 192"):
        require_free(Settings(host="192.0.2.1", port=taken_port, tls_port=0), left(taken_port))
