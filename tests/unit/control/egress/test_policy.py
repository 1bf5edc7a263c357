"""Targets to which programs may be connected: a table of addresses, spellings, ports and entries."""

import ipaddress

import pytest

from clary.control.egress.addresses import plain
from clary.control.egress.entries import parse_entry
from clary.control.egress.policy import EgressPolicy

OWN = {ipaddress.ip_address(text) for text in ("192.168.7.1", "8.8.4.4", "2001:4860::1", "10.1.0.1")}
PUBLIC = "93.184.216.34"

NOT_INTERNET = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "0.1.2.3",
    "10.9.0.1",
    "172.17.0.2",
    "192.168.77.5",
    "169.254.169.254",
    "169.254.170.2",
    "168.63.129.16",
    "100.64.0.1",
    "100.100.100.200",
    "192.0.0.192",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:a00:1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::808:808",
    "2002:7f00:1::1",
    "2002:a9fe:a9fe::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1",
    "2606:2800::5efe:7f00:1",
    "2606:2800::200:5efe:a00:1",
    "fc00::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "fe80::1%eth0",
    "fe80::1234",
    "fec0::1",
    "ff02::1",
    "4000::1",
    "8.8.4.4",  # public, and an address of this machine
    "2001:4860::1",
    "64:ff9b::808:404",
    "::ffff:8.8.4.4",
]


def is_own(address):
    return address in OWN


def judge(name, port, resolved=None, *, entries=(), has_internet=True, **options):
    policy = EgressPolicy(
        has_internet=has_internet, reachable=tuple(map(parse_entry, entries)), own_ports=frozenset({4570, 4571, 10240})
    )
    return policy.judge(name, port, resolved or [name], is_own=is_own, **options)


@pytest.mark.parametrize("address", NOT_INTERNET)
@pytest.mark.parametrize("port", [80, 443])
def test_addresses_outside_the_internet_are_refused_under_any_name(address, port):
    assert not judge("innocent.example", port, [address]).is_allowed
    assert not judge("innocent.example", port, [PUBLIC, address]).is_allowed, "one address refuses the name"
    assert not judge("innocent.example", port, [address, PUBLIC]).is_allowed


@pytest.mark.parametrize("address", [PUBLIC, "2606:2800:220:1::1", "64:ff9b::5db8:d822", "::ffff:93.184.216.34"])
def test_the_internet_is_allowed_at_port_443_alone(address):
    assert judge("example.com", 443, [address]).addresses == (address,)
    for port in (1, 22, 25, 80, 8443, 65535):
        assert not judge("example.com", port, [address]).is_allowed
    assert not judge("example.com", 443, [address], has_internet=False).is_allowed
    assert not judge("example.com", 443, [address], is_plain_http=True).is_allowed


@pytest.mark.parametrize(
    "name",
    ["2130706433", "0x7f000001", "017700000001", "127.1", "0", "0x7f.1", "127.0.0.0x1", "1.2.3.4.5", "a..b", ""],
)
def test_odd_spellings_of_addresses_are_no_names(name):
    decision = EgressPolicy(has_internet=True, reachable=(parse_entry("127.0.0.1:80"),)).may_ask(name, 443)
    assert not decision.is_allowed
    assert "neither a name nor an address" in decision.reason


@pytest.mark.parametrize(
    ("entry", "name", "port", "address"),
    [
        ("10.1.0.0/16", "10.1.2.3", 8080, "10.1.2.3"),
        ("10.1.0.0/16", "mlflow.lan", 5000, "10.1.2.3"),
        ("10.1.0.0/16", "::ffff:10.1.2.3", 5000, "::ffff:10.1.2.3"),
        ("10.1.0.0/16:5432", "10.1.2.3", 5432, "10.1.2.3"),
        ("192.168.7.20:5432", "192.168.7.20", 5432, "192.168.7.20"),
        ("192.168.7.20", "192.168.7.20", 1, "192.168.7.20"),
        ("registry.lan:8080", "registry.lan", 8080, "172.16.0.9"),
        ("registry.lan:8080", "registry.lan", 8080, "192.168.7.1"),
        ("Registry.LAN.:8080", "registry.lan", 8080, "172.16.0.9"),
        ("127.0.0.1:8088", "127.0.0.1", 8088, "127.0.0.1"),
        ("localhost:8088", "localhost", 8088, "127.0.0.1"),
        ("[::1]:8088", "::1", 8088, "::1"),
        ("192.168.7.1:5000", "192.168.7.1", 5000, "192.168.7.1"),
        ("[fd00::20]:5432", "fd00::20", 5432, "fd00::20"),
        ("fd00::/32", "fd00::20", 5432, "fd00::20"),
        ("0.0.0.0/0:8443", "example.com", 8443, PUBLIC),
        ("100.64.0.0/10", "100.64.1.1", 80, "100.64.1.1"),
    ],
)
def test_entries_allow_the_targets_that_they_name(entry, name, port, address):
    assert judge(name, port, [address], entries=[entry]).is_allowed
    assert judge(name, port, [address], entries=[entry], is_plain_http=True).is_allowed
    assert not judge(name, port, [address]).is_allowed


@pytest.mark.parametrize(
    ("entry", "name", "port", "address"),
    [
        ("10.1.0.0/16:5432", "10.1.2.3", 5433, "10.1.2.3"),
        ("10.1.0.0/16", "10.2.0.1", 80, "10.2.0.1"),
        ("10.1.0.0/16", "10.1.0.1", 80, "10.1.0.1"),  # in the network, and an address of this machine
        ("10.1.0.0/16:80", "10.1.0.1", 80, "10.1.0.1"),
        ("192.168.7.1", "192.168.7.1", 80, "192.168.7.1"),  # this machine, without a port
        ("192.168.7.1:4570", "192.168.7.1", 4570, "192.168.7.1"),  # the service's own port
        ("127.0.0.1:4571", "127.0.0.1", 4571, "127.0.0.1"),
        ("127.0.0.1:10240", "127.0.0.1", 10240, "127.0.0.1"),
        ("localhost:4570", "localhost", 4570, "127.0.0.1"),
        ("registry.lan:4570", "registry.lan", 4570, "127.0.0.1"),
        ("registry.lan", "registry.lan", 80, "127.0.0.1"),
        ("registry.lan:8080", "registry.lan", 8080, "169.254.169.254"),
        ("registry.lan:8080", "other.lan", 8080, "172.16.0.9"),
        ("100.64.0.0/10", "100.100.100.200", 80, "100.100.100.200"),
        ("0.0.0.0/0", "169.254.169.254", 80, "169.254.169.254"),
        ("0.0.0.0/0", "127.0.0.1", 80, "127.0.0.1"),
        ("::/0", "fd00:ec2::254", 80, "fd00:ec2::254"),
        ("127.0.0.1:8088", "evil.example", 8088, "127.0.0.2"),
    ],
)
def test_entries_allow_no_other_target(entry, name, port, address):
    assert not judge(name, port, [address], entries=[entry]).is_allowed


def test_addresses_of_the_services_own_servers_are_refused():
    place = (ipaddress.ip_address("10.1.0.9"), 5432)
    policy = EgressPolicy(has_internet=True, reachable=(parse_entry("10.1.0.0/16"),), own_places=frozenset({place}))
    assert not policy.judge("10.1.0.9", 5432, ["10.1.0.9"], is_own=is_own).is_allowed
    assert policy.judge("10.1.0.9", 5433, ["10.1.0.9"], is_own=is_own).is_allowed


def test_without_internet_only_names_that_are_listed_are_looked_up():
    entries = (parse_entry("registry.lan:8080"), parse_entry("10.1.0.0/16"))
    policy = EgressPolicy(has_internet=False, reachable=entries)
    assert policy.may_ask("registry.lan", 8080).is_allowed
    assert policy.may_ask("10.1.0.5", 80).is_allowed
    assert not policy.may_ask("c2VjcmV0.tunnel.example", 8080).is_allowed, "DNS is a way out"
    assert "setting internet" in policy.may_ask("tunnel.example", 443).reason


def test_a_refusal_names_target_offer_and_setting_and_no_resolved_address():
    refusals = {judge("db.example", port, [address]).reason for port in (80,) for address in NOT_INTERNET}
    assert len(refusals) == 1
    (reason,) = refusals
    assert "db.example:80" in reason
    assert "port 443" in reason
    assert "reachable_networks" in reason


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "127.0.0.1",
        "127.0.0.0/8",
        "127.0.0.0/8:80",
        "::1",
        "169.254.169.254",
        "169.254.169.254:80",
        "[fe80::1]:80",
        "168.63.129.16:80",
        "[fd00:ec2::254]:80",
        "[::ffff:169.254.169.254]:80",
        "0.0.0.0:80",
        "224.0.0.1:80",
        "10.1.0.1/16",
        "10.1.0.0/33",
        "10.1.0.0/16:0",
        "10.1.0.0/16:65536",
        "10.1.0.0/16:http",
        "http://registry.lan",
        "registry.lan:",
        "registry lan",
        "0x7f000001:80",
        "2130706433",
        "*.lan:80",
        "[10.1.0.1",
        "x" * 300,
    ],
)
def test_invalid_entries_are_refused(entry):
    with pytest.raises(ValueError, match=r"expected|credentials|needs one address"):
        parse_entry(entry)


def test_entries_are_printed_as_they_are_written():
    for text in ("10.1.0.0/16", "10.1.0.0/16:5432", "192.168.7.20:5432", "registry.lan:8080", "[fd00::20]:5432"):
        assert str(parse_entry(text)) == text


def test_embedded_ipv4_addresses_are_extracted():
    assert str(plain("::ffff:127.0.0.1")) == "127.0.0.1"
    assert str(plain("64:ff9b::7f00:1")) == "127.0.0.1"
    assert str(plain("fe80::1%eth0")) == "fe80::1"


@pytest.mark.parametrize(
    ("name", "address", "is_allowed"),
    [
        ("pypi.org", "10.9.0.1", True),
        ("files.pythonhosted.org", "203.0.113.80", True),
        ("pypi.org", "192.168.7.1", False),
        ("pypi.org", "127.0.0.1", False),
        ("pypi.org", "169.254.169.254", False),
        ("pypi.org.example", "10.9.0.1", False),
    ],
)
def test_a_mirror_that_stands_in_for_the_package_index_is_reached(name, address, is_allowed):
    policy = EgressPolicy(has_internet=True)
    decision = policy.judge(name, 443, [address], is_own=OWN.__contains__)
    assert decision.is_allowed is is_allowed
    assert not EgressPolicy(has_internet=False).judge(name, 443, [address], is_own=OWN.__contains__).is_allowed
