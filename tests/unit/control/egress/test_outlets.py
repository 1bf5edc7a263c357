"""Addresses that hosts reach without a proxy, and package indexes that count as entries of the owner."""

import ipaddress
import time

from clary.control.egress import outlets
from clary.control.egress.entries import parse_entry
from clary.control.egress.outlets import Outlet, outlets_of
from clary.control.egress.package_indexes import index_entries
from clary.control.egress.policy import EgressPolicy

TAKEN = ipaddress.IPv4Network("10.77.0.0/16")
NAMES = {
    "registry.lan": ["fd00::9", "10.1.0.9"],
    "db.lan": ["10.1.0.9"],
    "here.lan": ["192.168.7.1"],
    "six.lan": ["fd00::9"],
    "metadata.lan": ["169.254.169.254"],
    "web.example": ["93.184.216.34"],
    "localhost": ["127.0.0.1"],
}


def found(*entries, **options):
    def resolve(name, port):
        if name not in NAMES:
            raise OSError(f"{name} is not known")
        return NAMES[name]

    policy = EgressPolicy(has_internet=True, reachable=tuple(map(parse_entry, entries)), own_ports=frozenset({4570}))
    return outlets_of(
        policy,
        taken=TAKEN,
        resolve=options.get("resolve", resolve),
        is_own=lambda address: str(address) == "192.168.7.1",
    )


def test_entries_with_a_port_are_reached_at_their_own_addresses():
    got = found("192.168.7.20:5432", "127.0.0.1:3141", "localhost:5000", "registry.lan:8080", "here.lan:9000")
    assert got.missing == ()
    assert set(got.places) == {
        Outlet("192.168.7.20", 5432),
        Outlet("127.0.0.1", 3141),
        Outlet("127.0.0.1", 5000),
        Outlet("10.1.0.9", 8080, "registry.lan"),
        Outlet("192.168.7.1", 9000, "here.lan"),
    }


def test_networks_ipv6_and_public_web_servers_are_left_to_the_proxy():
    got = found("10.1.0.0/16", "10.1.0.0/16:80", "192.168.7.20", "[fd00::20]:5432", "six.lan:80", "web.example:443")
    assert got == outlets.Outlets()


def test_entries_that_cannot_be_offered_are_reported_with_the_reason():
    got = found("127.0.0.1:4570", "nowhere.lan:80", "metadata.lan:80", "10.77.0.3:5432")
    assert got.places == ()
    assert len(got.missing) == 4
    for text, word in zip(got.missing, ("not offered", "was not found", "not offered", "10.77.0.0/16"), strict=True):
        assert word in text


def test_a_slow_name_lookup_does_not_delay_a_job(monkeypatch):
    monkeypatch.setattr(outlets, "RESOLVE_TIMEOUT_S", 0.05)

    def resolve(name, port):
        time.sleep(0.5 if name == "slow.lan" else 0)
        return NAMES[name]

    got = found("slow.lan:80", "db.lan:5432", resolve=resolve)
    assert got.places == (Outlet("10.1.0.9", 5432, "db.lan"),)
    assert "slow.lan:80" in got.missing[0]


def test_indexes_that_the_owner_set_up_are_entries(tmp_path):
    config = tmp_path / ".config"
    (config / "pip").mkdir(parents=True)
    (config / "pip/pip.conf").write_text("[global]\nextra-index-url = http://10.1.0.5/simple https://pypi.lan/simple\n")
    (config / "uv").mkdir()
    (config / "uv/uv.toml").write_text('[[index]]\nurl = "http://uv.lan:8080/simple"\n')
    environ = {
        "HOME": str(tmp_path),
        "PIP_INDEX_URL": "http://user:secret@127.0.0.1:3141/simple",
        "UV_INDEX": "team=https://uv2.lan/simple http://169.254.169.254/simple",
        "UV_FIND_LINKS": "/wheels,https://links.lan:9000/x",
    }
    entries = {str(entry) for entry in index_entries(environ)}
    assert {
        "127.0.0.1:3141",
        "10.1.0.5:80",
        "pypi.lan:443",
        "uv.lan:8080",
        "uv2.lan:443",
        "links.lan:9000",
    } <= entries
    assert not any("169.254" in entry or "wheels" in entry for entry in entries)
