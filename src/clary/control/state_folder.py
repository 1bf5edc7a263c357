"""The state folder: all files of one service, and its keys.

Where: the server and every command use it; the modules that fill a folder name the files in it. Keys are files that
only their owner can read.

    settings.toml   clary.db   database.json   service.log
    run/service.json     address and process of the running service; beside it a copy, in case the file is damaged
    run/engine           source of jobs' hosts: local, slurm or boxes
    run/started.json     settings with which the service started; secrets as digests
    run/seaweed.json     ports and process of the embedded object store; beside it its log
    secrets/root.json    key pair of the service's owner; admin token; master key of job keys
    client/              generated SageMaker configuration; AWS profiles with the owner's keys
    objects/  logs/  jobs/<job>/<attempt>/  profiles/<job>/<number>/  rehearsals/<job>/<number>/
    cache/  tls/  environments/<name>/  backups/  set-aside/  slurm/  boxes/
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from base64 import b32encode
from dataclasses import asdict, dataclass, field
from pathlib import Path

from clary.base.errors import ContractError, Fault
from clary.base.passing_errors import is_passing
from clary.base.plain import from_plain
from clary.base.processes import ProcessId
from clary.base.whole_files import replace_durably
from clary.contract.launch_plan import Credentials
from clary.control import full_disks
from clary.control.permissions.temporary_keys import TemporaryKeys

JOB_KEY_PREFIX = "CLARYJOB"
LOCAL_ENGINE = "local"
# Options of `clary up` that replace the folder's database or keys with new ones.
NEW_DATABASE = "--new-database"
NEW_KEYS = "--new-keys"
_MADE_WITH_KEYS = ("clary.db", "database.json")  # files that a service makes after its keys
_WAY_OUT = (
    "put a copy of that file back, or begin with new keys, which ends the jobs that run and closes every session, "
    "with: clary up --new-keys"
)


@dataclass(frozen=True, kw_only=True)
class ServiceRecord:
    """The running service, as `run/service.json` describes it."""

    pid: int
    process_started: str  # start time of the process in clock ticks since boot; reveals a reused pid
    url: str
    tls_url: str
    proxy_url: str
    region: str
    version: str
    memory_limits: str = ""  # description of the mechanism that enforces the hosts' memory limits

    @property
    def process(self) -> ProcessId:
        """The service process that the record names, running or not."""
        return ProcessId(self.pid, self.process_started)


@dataclass(frozen=True, kw_only=True)
class RootSecrets:
    """Keys of one state folder."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    admin_token: str = field(repr=False)
    master_key: str = field(repr=False)

    @property
    def credentials(self) -> Credentials:
        """The owner's key pair."""
        return Credentials(access_key_id=self.access_key_id, secret_access_key=self.secret_access_key)

    @property
    def store_credentials(self) -> Credentials:
        """The embedded object store's own key pair; clients never see it."""
        return Credentials(access_key_id="CLARYSTORE", secret_access_key=self._derive("store").hex())

    def job_credentials(self, attempt_id: str) -> Credentials:
        """Derive the key pair of one attempt; the same attempt always gets the same pair."""
        digest = self._derive(f"id:{attempt_id}")
        access_key_id = JOB_KEY_PREFIX + b32encode(digest)[:16].decode()
        return Credentials(access_key_id=access_key_id, secret_access_key=self.job_secret(access_key_id))

    def job_secret(self, access_key_id: str) -> str:
        """Derive the secret that belongs to a job's access key id."""
        return self._derive(f"secret:{access_key_id}").hex()

    def agent_token(self, attempt_id: str) -> str:
        """Derive the bearer token of one attempt's agents."""
        return self._derive(f"agent:{attempt_id}").hex()

    def pool_token(self, pool: str) -> str:
        """Derive the bearer token of one pool's agents."""
        return self._derive(f"pool:{pool}").hex()

    @property
    def temporary_keys(self) -> TemporaryKeys:
        """Keys that expire, and their tokens."""
        return TemporaryKeys(self._derive("temporary"))

    @property
    def metrics_token(self) -> str:
        """The bearer token that permits only /metrics."""
        return self._derive("metrics").hex()

    @property
    def session_key(self) -> bytes:
        """The key that signs the console's cookies."""
        return self._derive("session")

    def _derive(self, text: str) -> bytes:
        return hmac.new(self.master_key.encode(), text.encode(), hashlib.sha256).digest()


@dataclass(frozen=True)
class StateFolder:
    """Paths and keys below one state folder."""

    root: Path

    @property
    def service_record_path(self) -> Path:
        """run/service.json."""
        return self.root / "run" / "service.json"

    @property
    def service_record_copy_path(self) -> Path:
        """The copy of run/service.json; it preserves the ports on which running jobs expect the next service."""
        return self.root / "run" / "service.copy.json"

    @property
    def revoked_sessions(self) -> Path:
        """Sessions of the console that were ended before their time."""
        return self.root / "secrets" / "revoked-sessions.json"

    @property
    def used_signatures(self) -> Path:
        """Signatures of recent requests that change something, kept to refuse replays."""
        return self.root / "run" / "used-signatures"

    @property
    def has_secrets(self) -> bool:
        """Whether the keys' file exists; the first start of a service makes it."""
        return (self.root / "secrets" / "root.json").exists()

    @property
    def service_log(self) -> Path:
        """Log file of the service's output."""
        return self.root / "service.log"

    @property
    def objects(self) -> Path:
        """Data of the embedded object store."""
        return self.root / "objects"

    @property
    def logs(self) -> Path:
        """Log streams of jobs."""
        return self.root / "logs"

    @property
    def jobs(self) -> Path:
        """Work folders of attempts."""
        return self.root / "jobs"

    @property
    def cache(self) -> Path:
        """Environments and objects of channels, kept between jobs."""
        return self.root / "cache"

    @property
    def client(self) -> Path:
        """Files for clients' configuration."""
        return self.root / "client"

    @property
    def tls(self) -> Path:
        """Private CA and server certificate."""
        return self.root / "tls"

    def read_engine(self) -> str:
        """Return the engine of the last service; `local` if the folder records no engine.

        Raises: ContractError if the machine refuses to read the record at the moment.
        """
        try:
            return self.engine_path.read_text(encoding="ascii").strip() or LOCAL_ENGINE
        except (OSError, ValueError) as error:
            if is_passing(error):
                raise ContractError(f"{self.engine_path}: cannot be read now: {error}; try again") from error
            return LOCAL_ENGINE

    def write_engine(self, name: str) -> None:
        """Record the engine of the starting service. Raises: OSError."""
        replace_durably(self.engine_path, name.encode("ascii"))

    @property
    def engine_path(self) -> Path:
        """File with the name of the engine of the last service."""
        return self.root / "run" / "engine"

    def create(self) -> None:
        """Create the folders; other users cannot enter the state folder.

        Raises: ContractError naming the folder that could not be made.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self.root.chmod(0o700)
            for folder in (self.objects, self.logs, self.jobs, self.cache, self.client, self.root / "run"):
                folder.mkdir(exist_ok=True)
            (self.root / "secrets").mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ContractError(
                f"state folder {self.root}: {error.filename} cannot be made: {error.strerror}; "
                + (full_disks.way_out(error) or "name a folder of your own with CLARY_HOME"),
                fault=Fault.USER,
            ) from error

    def read_service_record(self) -> ServiceRecord | None:
        """Return the record that the last service wrote about itself, or None.

        Raises: ContractError if the record or its copy exists, but neither can be read.
        """
        damage: ContractError | None = None
        for path in (self.service_record_path, self.service_record_copy_path):
            try:
                record = read_record_file(path)
            except ContractError as error:
                damage = damage or error
                continue
            if record is not None:
                return record
        if damage is not None:
            raise damage
        return None

    def write_service_record(self, record: ServiceRecord) -> None:
        """Replace run/service.json and its copy, each atomically."""
        for path in (self.service_record_path, self.service_record_copy_path):
            replace_durably(path, json.dumps(asdict(record)).encode(), mode=0o644)

    def write_secrets(self, kept: RootSecrets) -> None:
        """Write the keys: at the first start, or from a service's memory after their file was lost or damaged."""
        replace_durably(self.secrets_path, json.dumps(asdict(kept)).encode())

    @property
    def secrets_path(self) -> Path:
        """secrets/root.json."""
        return self.root / "secrets" / "root.json"

    def read_secrets(self) -> RootSecrets:
        """Read the keys; never makes any.

        Raises: ContractError if the file is missing, cannot be read or does not hold keys.
        """
        path = self.secrets_path
        try:
            return RootSecrets(**json.loads(path.read_text()))
        except FileNotFoundError as error:
            raise ContractError(
                f"the keys {path} are missing; a running service writes them again within seconds", fault=Fault.USER
            ) from error
        except (OSError, ValueError, TypeError) as error:
            raise ContractError(
                f"{path} does not hold the keys of this state folder: {error}; {_WAY_OUT}", fault=Fault.USER
            ) from error

    def load_secrets(self, *, begins_anew: bool = False) -> RootSecrets:
        """Read the keys of a starting service; make them at the first start.

        Args:
            begins_anew: whether the user asked for new keys; an existing file is moved aside.

        Raises: ContractError if the file does not hold keys, or is missing though the folder had keys.
        """
        path = self.secrets_path
        if begins_anew and path.exists():
            path.replace(path.with_name(f"{path.name}.{secrets.token_hex(4)}.aside"))
        if path.exists():
            return self.read_secrets()
        lived = [name for name in _MADE_WITH_KEYS if (self.root / name).exists()]
        if lived and not begins_anew:
            raise ContractError(
                f"the keys {path} are missing, but {self.root} had keys before: it holds {', '.join(lived)}. "
                f"Clients, and agents of running jobs, know only the former keys: {_WAY_OUT}",
                fault=Fault.USER,
            )
        made = RootSecrets(
            access_key_id="CLARYROOT" + secrets.token_hex(6).upper(),
            secret_access_key=secrets.token_urlsafe(30),
            admin_token=secrets.token_urlsafe(30),
            master_key=secrets.token_hex(32),
        )
        self.write_secrets(made)
        return made


def read_record_file(path: Path) -> ServiceRecord | None:
    """Return the service record in a file; None if there is no file.

    Raises: ContractError if the file exists and cannot be read.
    """
    try:
        return from_plain(ServiceRecord, json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ContractError) as error:
        raise ContractError(
            f"{path} does not name a service: {error}; "
            "end the service that wrote it, if it runs, and remove the file and its copy beside it",
            fault=Fault.USER,
        ) from error
