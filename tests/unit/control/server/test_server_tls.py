"""Certificates and the endpoints file."""

from __future__ import annotations

import json
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import botocore.session
import pytest
from botocore.regions import EndpointResolver
from cryptography import x509

from clary.control.server import tls

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


def test_certificates_are_kept_as_long_as_they_fit(tmp_path: Path) -> None:
    files = make(tmp_path)
    before = files.certificate.read_bytes(), files.authority.read_bytes()
    assert make(tmp_path, now=NOW + timedelta(days=100)) == files
    assert (files.certificate.read_bytes(), files.authority.read_bytes()) == before


@pytest.mark.parametrize("changes", [{"region": "eu-west-1"}, {"now": NOW + timedelta(days=800)}])
def test_other_names_or_a_late_day_renew_the_certificate_but_not_its_authority(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    files = make(tmp_path)
    before = files.certificate.read_bytes(), files.authority.read_bytes()
    make(tmp_path, **changes)
    assert files.certificate.read_bytes() != before[0]
    assert files.authority.read_bytes() == before[1]


@pytest.mark.parametrize("damaged", ["ca.pem", "ca.key", "server.pem", "server.key"])
def test_damaged_file_is_made_again_and_the_chain_verifies(tmp_path: Path, damaged: str) -> None:
    make(tmp_path)
    (tmp_path / damaged).write_text("not a pem file")
    files = make(tmp_path)
    authority = x509.load_pem_x509_certificate(files.authority.read_bytes())
    x509.load_pem_x509_certificate(files.certificate.read_bytes()).verify_directly_issued_by(authority)
    tls.server_context(files)


def test_context_refuses_old_protocols(tmp_path: Path) -> None:
    context = tls.server_context(make(tmp_path))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("region", ["us-west-2", "cn-north-1", "eu-new-9", "on-prem"])
def test_botocore_finds_sts_of_the_region_at_the_tls_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, region: str
) -> None:
    path = tls.endpoints_file(tmp_path, region=region, tls_port=4571)
    monkeypatch.setenv("AWS_DATA_PATH", str(path.parent))
    document = botocore.session.Session().get_component("data_loader").load_data("endpoints")
    resolver = EndpointResolver(document)  # as the SageMaker SDKs ask it
    assert resolver.construct_endpoint("sts", region)["hostname"] == "localhost:4571"


def test_endpoints_of_other_services_and_regions_stay(tmp_path: Path) -> None:
    document = json.loads(tls.endpoints_file(tmp_path, region="us-west-2", tls_port=1).read_text())
    original = botocore.session.Session().get_component("data_loader").load_data("endpoints")
    changed = document["partitions"][0]["services"]["sts"]["endpoints"].pop("us-west-2")
    original["partitions"][0]["services"]["sts"]["endpoints"].pop("us-west-2")
    assert changed["hostname"] == "localhost:1"
    assert document == original
