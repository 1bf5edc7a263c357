"""Files of one lease: its record, its keeper, its boot, its end.

Where: `lease_table` writes the record before any process is started, `keeper` writes the other files. If the keeper was
killed or could not be started, `lease_table` writes the end. Each file is written at most once, in this order, so that
the progress of the lease is known after any crash:

    record.json   lease, tag, index, the machine's boot id; beside it `proof`, the token for the boot program
    keeper.json   the keeper's process: the lease is not started a second time
    boot.json     the boot program's process, which becomes the agent
    ended.json    no process of the lease is left; the reason
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from clary.agent.node.box_folder import make_private, read_json, write_json
from clary.base.errors import ContractError
from clary.base.passing_errors import is_passing
from clary.base.plain import from_plain, to_plain
from clary.base.processes import ProcessId
from clary.base.whole_files import replace_durably, sync_folder
from clary.contract.box_protocol import LEASE_ID, LeaseOrder

_PROOF_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class LeaseRecord:
    """A lease as ordered by the service."""

    lease: str
    tag: str
    index: int
    boot: str  # SHA-256 of the boot program
    boot_id: str  # machine's boot id at the time of the record
    proof_digest: str


@dataclass(frozen=True, kw_only=True)
class KeptProcess:
    """A process of a lease."""

    pid: int
    started: str  # start in clock ticks since the machine's boot

    @property
    def identity(self) -> ProcessId:
        """The identity of this process, dead or alive."""
        return ProcessId(self.pid, self.started)


@dataclass(frozen=True)
class LeaseFiles:
    """The folder of one lease."""

    folder: Path

    @property
    def proof(self) -> Path:
        """The token that the boot program sends as proof."""
        return self.folder / "proof"

    @property
    def lock(self) -> Path:
        """The keeper's lock file."""
        return self.folder / "lock"

    @property
    def output(self) -> Path:
        """File with the output of keeper, boot and agent."""
        return self.folder / "output.log"

    @property
    def notice(self) -> Path:
        """Marker file: the agent was signalled."""
        return self.folder / "noticed"

    def make(self, order: LeaseOrder, boot_id: str) -> LeaseRecord:
        """Record a new lease with a new proof. Raises: OSError; then the lease counts as not recorded.

        Args:
            order: of the service.
            boot_id: of the machine.
        """
        make_private(self.folder)
        proof = secrets.token_hex(_PROOF_BYTES)
        replace_durably(self.proof, proof.encode())
        record = LeaseRecord(
            lease=order.lease,
            tag=order.tag,
            index=order.index,
            boot=order.boot,
            boot_id=boot_id,
            proof_digest=hashlib.sha256(proof.encode()).hexdigest(),
        )
        write_json(self.folder / "record.json", to_plain(record))
        sync_folder(self.folder.parent)
        return record

    def read_record(self) -> LeaseRecord | None:
        """Return the record; None if it is missing or damaged. Raises: OSError if it cannot be read at the moment."""
        try:
            record = from_plain(LeaseRecord, read_json(self.folder / "record.json"))
        except (OSError, ContractError) as error:
            if is_passing(error):
                raise
            return None
        return record if LEASE_ID.fullmatch(record.lease) else None

    @property
    def has_record(self) -> bool:
        """Whether there is a record, damaged or not. Raises: OSError if this is not known at the moment."""
        try:
            os.lstat(self.folder / "record.json")
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def write_keeper(self, process: KeptProcess) -> None:
        """Record the keeper. Raises: OSError."""
        write_json(self.folder / "keeper.json", to_plain(process))

    def write_boot(self, process: KeptProcess) -> None:
        """Record the boot. Raises: OSError."""
        write_json(self.folder / "boot.json", to_plain(process))

    def write_end(self, why: str) -> None:
        """Record that no process of the lease is left, if not yet recorded. Raises: OSError if it cannot be written."""
        ended = None
        with contextlib.suppress(OSError):  # a reason that cannot be read is replaced
            ended = self.read_end()
        if ended is None:
            write_json(self.folder / "ended.json", {"why": why})
        self.proof.unlink(missing_ok=True)

    def read_keeper(self) -> KeptProcess | None:
        """Return the keeper; None before it is recorded. Raises: OSError if it cannot be read."""
        return self._process("keeper.json")

    def read_boot(self) -> KeptProcess | None:
        """Return the boot; None before it is recorded; raises as `read_keeper`."""
        return self._process("boot.json")

    def read_end(self) -> str | None:
        """Return the reason why no process is left; None while a process may be left; raises as `read_keeper`."""
        try:
            why = read_json(self.folder / "ended.json").get("why")
        except (FileNotFoundError, ContractError, AttributeError):
            return None
        return why if isinstance(why, str) else None

    def remove(self) -> None:
        """Remove the lease's folder."""
        with contextlib.suppress(OSError):
            (self.folder / "record.json").unlink()  # removed first, because a folder without a record is no lease
        shutil.rmtree(self.folder, ignore_errors=True)

    def set_aside(self, place: Path) -> None:
        """Move the lease's folder to `place`, without its proof. Raises: OSError."""
        self.proof.unlink(missing_ok=True)
        make_private(place.parent)
        self.folder.rename(place)

    def _process(self, name: str) -> KeptProcess | None:
        try:
            return from_plain(KeptProcess, read_json(self.folder / name))
        except (FileNotFoundError, ContractError):  # after any other error it may be there: no second one is started
            return None
