"""Key pair and signing keys of one process, which keep other users of this machine out of the embedded store.

Where: `seaweed.EmbeddedStore` writes the file before each start of `weed`, which reads it from its home folder. The S3
port requires signatures. The store's other servers listen on loopback, where every local user and every program in this
machine's network namespace can connect to them:

    gRPC of all servers         mutual TLS: both ends present the certificate of this file
    HTTP of master and admin    TLS, client certificate required
    HTTP of filer and volume    every request carries a token signed with a key of this file, to read and to write

The data path between the servers stays plain HTTP: its tokens are secret, and only root can read traffic on loopback.
Each start makes new keys, so no key in use expires, and a leaked key ends with its process.
Source: `weed scaffold -config=security`.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

FOLDER = ".seaweedfs"  # below the home folder of weed
FILE = "security.toml"
CERTIFICATE, KEY = "certificate.pem", "key.pem"
VALID_DAYS = 3650  # longer than any process runs; each start makes a new certificate
BACKDATE = timedelta(days=1)  # tolerates a clock that is set back after the start
_TOKEN_BYTES = 32
_TOKEN_TABLES = ("jwt.signing", "jwt.signing.read", "jwt.filer_signing", "jwt.filer_signing.read")
_GRPC_SERVERS = ("master", "volume", "filer", "s3", "admin", "worker", "mq", "msg_broker", "msg_agent", "client")
_TLS_SERVERS = ("master", "admin")


def write_security(weed_home: Path, *, address: str, now: datetime) -> None:
    """Write `security.toml` with a new certificate and new signing keys below `weed_home`; replaces earlier ones.

    Args:
        weed_home: the HOME of the process; created if absent.
        address: IP address that the servers listen on.
        now: current time, with a time zone.
    Raises: OSError; some old files may already have been replaced by then.
    """
    folder = weed_home / FOLDER
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    certificate, key = _make_pair(address, now)
    _write(folder / KEY, key)
    _write(folder / CERTIFICATE, certificate)
    _write(folder / FILE, _settings(folder).encode())


def _settings(folder: Path) -> str:
    pair = f"cert = {_quoted(folder / CERTIFICATE)}\nkey = {_quoted(folder / KEY)}\n"
    authority = f"ca = {_quoted(folder / CERTIFICATE)}\n"  # the certificate is self-signed and the only trusted one
    tables = [f'[{name}]\nkey = "{secrets.token_hex(_TOKEN_BYTES)}"\n' for name in _TOKEN_TABLES]
    tables.append("[filer.expose_directory_metadata]\nenabled = false\n")
    tables.append(f"[grpc]\n{authority}")
    tables += [f"[grpc.{name}]\n{pair}" for name in _GRPC_SERVERS]
    tables += [f"[https.{name}]\n{pair}{authority}" for name in _TLS_SERVERS]
    return "\n".join(tables)


def _quoted(path: Path) -> str:
    """Return a path as a TOML basic string."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _make_pair(address: str, now: datetime) -> tuple[bytes, bytes]:
    """Return a self-signed certificate, for servers and clients, and its key, both as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Clary object store")])
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + timedelta(days=VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address)), x509.DNSName("localhost")]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    key_text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), key_text


def _write(path: Path, content: bytes) -> None:
    """Replace a file with one that only its owner may read."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    draft.replace(path)
