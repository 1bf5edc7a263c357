"""TLS for clients that insist on it: a private authority and the service's certificate.

Where: the service creates them before its listener starts; `clary env --tls` points AWS_CA_BUNDLE at the authority and
HTTPS_PROXY at `connect_proxy`. Both SageMaker SDKs ask STS at https://sts.<region>.amazonaws.com, whatever
AWS_ENDPOINT_URL says: the certificate covers that name in every region.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from clary.base.errors import ContractError, Fault
from clary.base.whole_files import replace_durably

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 825  # some clients refuse longer validity
RENEW_BEFORE_DAYS = 30
BACKDATE = timedelta(days=1)  # backdated for clients whose clock is behind
SERVICE_HOSTS = ("sts", "s3", "api.sagemaker", "metrics.sagemaker", "logs", "monitoring", "iam")

_Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """Paths of certificates and keys; only their owner can read the keys."""

    authority: Path  # certificate that clients trust: AWS_CA_BUNDLE
    authority_key: Path
    certificate: Path
    key: Path


def service_names(region: str) -> frozenset[str]:
    """Return the AWS names on the certificate: STS in every region, others in `region` and without a region."""
    regional = {f"{service}.{region}.amazonaws.com" for service in SERVICE_HOSTS}
    everywhere = {f"{service}.amazonaws.com" for service in SERVICE_HOSTS}
    # Old clients do not know the endpoint variable and put the bucket into the host name.
    buckets = {f"*.s3.{region}.amazonaws.com", "*.s3.amazonaws.com"}
    return frozenset(regional | everywhere | buckets | {f"sts.{name}.amazonaws.com" for name in _regions()})


def ensure_certificates(folder: Path, *, region: str, host: str, now: datetime, nodes_host: str = "") -> TlsFiles:
    """Return the service's certificate and its authority; create them if absent, damaged, expiring or for other names.

    The authority is kept until it expires, so that clients that trust it can still connect. A clock that is behind, as
    after the start of a machine without a battery, is no reason to replace it.

    Args:
        folder: `<home>/tls`; created if absent.
        region: names like sts.<region>.amazonaws.com are covered.
        host: address that the service listens on, covered too.
        now: aware time of day.
        nodes_host: name or address by which other machines reach the service, covered too; empty without nodes.
    Raises: ContractError if the authority is damaged and other machines may trust it: they would be cut off for good.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    files = TlsFiles(
        authority=folder / "ca.pem",
        authority_key=folder / "ca.key",
        certificate=folder / "server.pem",
        key=folder / "server.key",
    )
    names = _names(region, [host, nodes_host] if nodes_host else [host])
    authority = _load(files.authority, files.authority_key, now)
    if authority is None:
        if nodes_host and _is_damaged(files):
            raise ContractError(
                f"{files.authority} and {files.authority_key} are no certificate and its key any more, but machines "
                "that joined trust only them. Restore both files; or remove both, and let each machine join again with "
                "`clary hosts add`",
                fault=Fault.USER,
            )
        authority = _make_authority(now)
        _save(files.authority, files.authority_key, authority)
    server = _load(files.certificate, files.key, now)
    if server is None or not _fits(server[0], names=names, authority=authority[0]):
        _save(files.certificate, files.key, _make_certificate(authority, names=names, now=now))
    return files


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the context of the listener's TLS port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.certificate, files.key)
    return context


def _names(region: str, own: Sequence[str]) -> list[x509.GeneralName]:
    addresses = ["127.0.0.1", "::1"]
    hosts = ["localhost"]
    for host in own:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            hosts.append(host)
        else:
            if not address.is_unspecified:
                addresses.append(str(address))
    hosts += sorted(service_names(region))
    return [
        *(x509.DNSName(name) for name in dict.fromkeys(hosts)),
        *(x509.IPAddress(ipaddress.ip_address(name)) for name in dict.fromkeys(addresses)),
    ]


def _make_authority(now: datetime) -> tuple[x509.Certificate, _Key]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(f"Clary private authority {x509.random_serial_number() % 10**6:06d}")
    certificate = (
        _builder(subject, subject, key, now=now, days=AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def _make_certificate(
    authority: tuple[x509.Certificate, _Key], *, names: list[x509.GeneralName], now: datetime
) -> tuple[x509.Certificate, _Key]:
    authority_certificate, authority_key = authority
    key = ec.generate_private_key(ec.SECP256R1())
    issuer_id = authority_certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    certificate = (
        _builder(_name("Clary"), authority_certificate.subject, key, now=now, days=CERTIFICATE_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_id),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    return certificate, key


def _builder(subject: x509.Name, issuer: x509.Name, key: _Key, *, now: datetime, days: int) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _is_damaged(files: TlsFiles) -> bool:
    """Whether a file of the authority exists, but not a whole pair; an authority that expires soon is whole."""
    if not files.authority.exists():
        return False  # the key is written first: without a certificate, no machine has ever got one
    return _load(files.authority, files.authority_key, datetime.min.replace(tzinfo=UTC)) is None


def _load(certificate_path: Path, key_path: Path, now: datetime) -> tuple[x509.Certificate, _Key] | None:
    """Return a certificate and its key, or None if they do not match, cannot be read, or expire soon.

    A certificate whose time has not begun is returned: it is the clock that is wrong.
    """
    try:
        certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
    except (OSError, ValueError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        return None
    ends = certificate.not_valid_after_utc - timedelta(days=RENEW_BEFORE_DAYS)
    return (certificate, key) if now < ends else None


def _fits(certificate: x509.Certificate, *, names: list[x509.GeneralName], authority: x509.Certificate) -> bool:
    covered = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if set(covered) != set(names):
        return False
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _save(certificate_path: Path, key_path: Path, pair: tuple[x509.Certificate, _Key]) -> None:
    certificate, key = pair
    key_text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    # The key is written first: after a crash in between, the pair does not match and is created again.
    for path, content, mode in (
        (key_path, key_text, 0o600),
        (certificate_path, certificate.public_bytes(serialization.Encoding.PEM), 0o644),
    ):
        replace_durably(path, content, mode=mode)


def _regions() -> list[str]:
    """Return the regions that botocore knows, or an empty list without its data."""
    # Found without an import: only `wire` imports botocore, and only its data file is needed here.
    spec = importlib.util.find_spec("botocore")
    if spec is None or spec.origin is None:
        return []
    try:
        text = (Path(spec.origin).parent / "data" / "endpoints.json").read_text(encoding="utf-8")
    except OSError:
        return []
    return [name for partition in json.loads(text)["partitions"] for name in partition["regions"]]
