"""Journal of used signatures on disk, so that a restarted service still refuses these signatures.

Where: `replays` records each signature here before its request is carried out; the service opens the journal at its
start.

[Note: what survives] A record is handed to the kernel and not forced to the disk, which would cost every change some
milliseconds. It survives a crash of the service, but not a crash of the machine. The journal therefore contains the id
of the machine's boot during which it was written. A journal of another boot, or a missing one in a state folder that is
not new, may lack records: then every change that was signed before this start is refused as used. The error makes AWS
clients sign the request again. After a restart of the service alone, every unused signature is still accepted. After a
crash of the machine, a client whose clock is behind must retry until its clock passes the service's start, or until all
earlier signatures have expired: `replays` measures this time by the monotonic clock, since a machine may start with a
clock that is hours ahead.

Two files: `current` is written to; when it is old enough it is renamed to `previous`, whose records have all expired by
the next renaming.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

KEPT_BYTES = 16  # of a signature's 32 bytes: enough to make a collision by chance impossible
MARGIN_S = 60.0
_RECORD = struct.Struct(f">Q{KEPT_BYTES}s")  # second of signing, first bytes of the signature
_HEADER = b"clary-signatures 1 "
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger(__name__)


class ReplayJournal:
    """Reads the signatures that an earlier service recorded, and records the signatures that this service accepts.

    Args:
        folder: made if absent.
        skew_s: a signature is valid for this number of seconds before and after its signing time.
        now: time of the start.
        is_first: whether the state folder is new, so that no signature can have been used.
        boot_id: id of this machine's present boot; empty if unknown.
    """

    def __init__(self, folder: Path, *, skew_s: float, now: datetime, is_first: bool, boot_id: str) -> None:
        self._folder = folder
        self._keep_s = 2 * skew_s + MARGIN_S
        self._boot_id = boot_id
        self._descriptor: int | None = None
        self._began = now
        self.seen: Sequence[tuple[int, bytes]] = ()
        self.trusted_from: datetime | None = None
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        previous, _ = self._read("previous")
        current, is_whole = self._read("current")
        oldest_s = now.timestamp() - self._keep_s
        self.seen = [record for record in (*previous, *current) if record[0] >= oldest_s]
        if not is_whole and not is_first:
            self.trusted_from = now
            _log.info(
                "signatures used before the machine's last start may be unknown: changes signed before are refused"
            )
        try:
            self._begin(self.seen)
            (folder / "previous").unlink(missing_ok=True)
        except OSError as error:
            self._give_up(error)

    def note(self, second: int, kept: bytes, *, now: datetime) -> None:
        """Record a signature; after a failed write, the next start refuses all changes signed before that start.

        A failed write is logged and ends the journal; it never raises OSError.

        Args:
            second: signing time in seconds since 1970.
            kept: first KEPT_BYTES of the signature.
            now: time of the service; decides when `current` becomes `previous`.
        """
        if self._descriptor is None:
            return
        try:
            if (now - self._began).total_seconds() >= self._keep_s:
                self.close()
                (self._folder / "current").replace(self._folder / "previous")
                self._began = now
                self._begin(())
            record = _RECORD.pack(second, kept)
            if os.write(self._descriptor, record) != len(record):
                raise OSError("only a part of the record was written to the disk")
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Close the file; its records stay."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _begin(self, records: Sequence[tuple[int, bytes]]) -> None:
        draft = self._folder / "current.new"
        content = _HEADER + self._boot_id.encode() + b"\n" + b"".join(_RECORD.pack(*record) for record in records)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(draft, flags, 0o600)
        if os.write(self._descriptor, content) != len(content):
            raise OSError("only a part of the journal was written to the disk")
        draft.replace(self._folder / "current")

    def _give_up(self, error: OSError) -> None:
        _log.warning(
            "cannot write %s: %s; after the next start, changes signed before it are refused", self._folder, error
        )
        self.close()
        try:
            (self._folder / "current").unlink(missing_ok=True)
        except OSError as again:
            _log.warning("cannot remove %s/current: %s", self._folder, again)

    def _read(self, name: str) -> tuple[list[tuple[int, bytes]], bool]:
        """Return a file's records, and whether this boot wrote the file; an incomplete last record is left out."""
        try:
            content = (self._folder / name).read_bytes()
        except FileNotFoundError:
            return [], False
        except OSError as error:
            _log.warning("cannot read %s/%s: %s", self._folder, name, error)
            return [], False
        header, newline, body = content.partition(b"\n")
        if not newline or not header.startswith(_HEADER):
            return [], False
        whole = body[: len(body) - len(body) % _RECORD.size]
        is_ours = bool(self._boot_id) and header.removeprefix(_HEADER) == self._boot_id.encode()
        return [(second, kept) for second, kept in _RECORD.iter_unpack(whole)], is_ours


def read_boot_id() -> str:
    """Return the id of this machine's present boot, or an empty string if the id cannot be read."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
