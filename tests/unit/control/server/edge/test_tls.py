"""Certificates of the TLS port."""

from __future__ import annotations

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from clary.base.errors import ContractError, Fault
from clary.control.server.edge import tls

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def make(folder: Path, **changes: object) -> tls.TlsFiles:
    arguments = {"region": "us-west-2", "host": "127.0.0.1", "now": NOW, **changes}
    return tls.ensure_certificates(folder, **arguments)  # type: ignore[arg-type]


def names(path: Path) -> set[str]:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    return {
        str(name.value) for name in certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    }


def test_certificate_covers_local_names_and_those_of_the_region(tmp_path: Path) -> None:
    covered = names(make(tmp_path, host="10.0.0.5").certificate)
    assert {"localhost", "127.0.0.1", "::1", "10.0.0.5"} <= covered
    assert {"sts.us-west-2.amazonaws.com", "s3.us-west-2.amazonaws.com", "sts.amazonaws.com"} <= covered


def test_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    files = make(tmp_path / "tls")
    for path in (files.key, files.authority_key):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700


def test_certificates_are_reused_while_names_and_dates_fit(tmp_path: Path) -> None:
    files = make(tmp_path)
    before = files.certificate.read_bytes(), files.authority.read_bytes()
    assert make(tmp_path, now=NOW + timedelta(days=100)) == files
    assert (files.certificate.read_bytes(), files.authority.read_bytes()) == before


@pytest.mark.parametrize("changes", [{"region": "eu-west-1"}, {"now": NOW + timedelta(days=800)}])
def test_other_names_or_a_near_expiry_renew_the_certificate_but_not_its_authority(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    files = make(tmp_path)
    before = files.certificate.read_bytes(), files.authority.read_bytes()
    make(tmp_path, **changes)
    assert files.certificate.read_bytes() != before[0]
    assert files.authority.read_bytes() == before[1]


@pytest.mark.parametrize("damaged", ["ca.pem", "ca.key", "server.pem", "server.key"])
def test_a_damaged_file_is_created_again_and_the_chain_verifies(tmp_path: Path, damaged: str) -> None:
    make(tmp_path)
    (tmp_path / damaged).write_text("not a pem file")
    files = make(tmp_path)
    authority = x509.load_pem_x509_certificate(files.authority.read_bytes())
    x509.load_pem_x509_certificate(files.certificate.read_bytes()).verify_directly_issued_by(authority)
    tls.server_context(files)


@pytest.mark.parametrize("damaged", ["ca.pem", "ca.key"])
def test_an_authority_that_other_machines_trust_is_not_replaced(tmp_path: Path, damaged: str) -> None:
    files = make(tmp_path, nodes_host="10.0.0.5")
    before = (tmp_path / damaged).read_bytes()
    (tmp_path / damaged).write_bytes(b"")
    with pytest.raises(ContractError, match=f"{files.authority} and .* each machine join again") as error:
        make(tmp_path, nodes_host="10.0.0.5")
    assert error.value.fault is Fault.USER
    assert (tmp_path / damaged).read_bytes() == b""
    (tmp_path / damaged).write_bytes(before)
    make(tmp_path, nodes_host="10.0.0.5")
    for path in (files.authority, files.authority_key):
        path.unlink()
    make(tmp_path, nodes_host="10.0.0.5")
    tls.server_context(files)


@pytest.mark.parametrize("nodes_host", ["", "10.0.0.5"])
def test_a_clock_that_is_behind_changes_no_certificate(tmp_path: Path, nodes_host: str) -> None:
    files = make(tmp_path, nodes_host=nodes_host)
    before = files.certificate.read_bytes(), files.authority.read_bytes(), files.authority_key.read_bytes()
    make(tmp_path, nodes_host=nodes_host, now=datetime(1970, 1, 2, tzinfo=UTC))
    assert (files.certificate.read_bytes(), files.authority.read_bytes(), files.authority_key.read_bytes()) == before


def test_context_refuses_old_protocols(tmp_path: Path) -> None:
    context = tls.server_context(make(tmp_path))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_sts_of_every_region_is_covered(tmp_path: Path) -> None:
    assert {"sts.us-west-2.amazonaws.com", "sts.eu-central-1.amazonaws.com", "sts.amazonaws.com"} <= names(
        make(tmp_path).certificate
    )
