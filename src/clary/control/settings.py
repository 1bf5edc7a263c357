"""Settings of the service: each declared once, read from `settings.toml` and `CLARY_*` variables.

Where: `clary up` and every command load them; no module below the server reads settings from the environment. The
environment overrides the file, the file overrides the defaults. A test compares `docs/settings.md` with `FIELDS`.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from clary.base.errors import ContractError, Fault
from clary.control.egress.entries import parse_entry
from clary.control.egress.public_names import AWS_URL, SAMPLE_BUCKETS, check_pattern
from clary.control.file_systems import check_entry
from clary.control.permissions.grants import FULL, OWN
from clary.control.slurm_options import SLURM_OPTIONS, check_slurm_options
from clary.control.type_overrides import OVERRIDES, check_override

SETTINGS_FILE = "settings.toml"
MAX_PORT = 65535
OWN_REGION, ANY_REGION = "own", "any"
_NEAR = 0.85  # difflib similarity at which a name counts as misspelt
WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def _setting(
    default: Any,
    help_text: str,
    *,
    least: float | None = None,
    most: float | None = None,
    pattern: str = "",
    is_secret: bool = False,
) -> Any:
    """Declare a setting: `least` and `most` bound numbers, text must match `pattern` as a whole."""
    metadata = {"help": help_text, "least": least, "most": most, "pattern": pattern, "is_secret": is_secret}
    return field(default=default, repr=not is_secret, metadata=metadata)


def _table(help_text: str, value_type: type) -> Any:
    return field(default_factory=dict, metadata={"help": help_text, "value_type": value_type})


def _texts(help_text: str, check: Callable[[str], Any], *, default: tuple[str, ...] = ()) -> Any:
    """Declare a list of texts; `check` raises ValueError for an invalid one."""
    return field(default=default, metadata={"help": help_text, "check": check})


def _port(default: int, help_text: str) -> Any:
    return _setting(default, help_text, least=0, most=MAX_PORT)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings; durations in seconds, sizes in bytes."""

    home: str = _setting("~/.clary", "state folder: database, objects, logs, keys, caches; only by the variable")
    host: str = _setting("127.0.0.1", "address on which the service listens", pattern=r"\S+")
    port: int = _port(4570, "port of the service; 0 takes a free one")
    host_names: str = _setting(
        "",
        "further names under which clients reach the service, separated by commas; `*.` in front includes all names "
        "below; requests under names other than these, localhost, `host`, this machine's and AWS's are refused",
        pattern=r"[A-Za-z0-9.,*_ -]*",
    )
    engine: str = _setting(
        "local",
        "local, slurm or boxes: source of hosts: this machine, a Slurm cluster whose login node this is, or the "
        "machines that `clary hosts add` knows",
        pattern="local|slurm|boxes",
    )
    advertise_url: str = _setting(
        "",
        "https://HOST:PORT under which nodes reach the TLS port of the service, which then listens on HOST too; empty: "
        "this machine's own address and tls_port; of no effect with engine local",
        pattern=r"(https://[^\s/]+)?",
    )
    node_scratch: str = _setting(
        "",
        "folder on every node of a Slurm cluster for the files of running hosts; empty: the first of SLURM_TMPDIR, "
        "TMPDIR and /tmp that is set; of no effect with other engines",
        pattern="(/.*)?",
    )
    node_python: str = _setting(
        "python3",
        "interpreter of nodes of a Slurm cluster that runs the agent, 3.10 or newer; of no effect with other engines",
        pattern=r"\S+",
    )
    tls_port: int = _port(4571, "second port, TLS under a private CA, for clients that insist on https; 0 is off")
    region: str = _setting(
        "us-west-2", "region that clients name; framework estimators need a real one", pattern="[a-z0-9-]+"
    )
    s3_regions: str = _setting(
        OWN_REGION,
        "own or any: regions that signatures of S3 requests may name; own: only `region`, others are refused as by "
        "AWS, with the right one in the answer",
        pattern=f"{OWN_REGION}|{ANY_REGION}",
    )
    account_id: str = _setting("000000000000", "account in every ARN, twelve digits", pattern="[0-9]{12}")
    role_name: str = _setting(
        "ClaryExecutionRole", "execution role that clients may pass", pattern=r"[A-Za-z0-9+=,.@_-]{1,64}"
    )
    default_bucket: str = _setting(
        "clary", "bucket that the SDKs use by default", pattern=r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
    )
    database_url: str = _setting("", "SQLAlchemy URL; empty is SQLite in the state folder", is_secret=True)
    backup_interval_s: float = _setting(
        900.0,
        "time between backups of the SQLite database, into backups/ of the state folder; 0 makes none",
        least=0,
    )
    num_backups: int = _setting(3, "number of database backups that are kept", least=1, most=1000)
    internet: bool = _setting(
        True,
        "let programs reach the internet through the service's proxy: port 443 of public addresses; with every engine, "
        "let the service read public_buckets",
    )
    job_api_access: str = _setting(
        OWN,
        "own or full: access of the key of a job's programs; own: the places in S3 that the job's request names, its "
        "own outputs, logs and runs, and no other job; full: the access of the owner's key",
        pattern=f"{OWN}|{FULL}",
    )
    machine_is_trusted: bool = _setting(
        False,
        "accept requests for encryption that the service does not do (KmsKeyId, VolumeKmsKeyId, "
        "EnableInterContainerTrafficEncryption), with a warning, because this machine and its disk are trusted, or the "
        "disk itself is encrypted; with engines slurm and boxes also the nodes, their disks and the network between "
        "them; false refuses such requests",
    )
    reachable_networks: tuple[str, ...] = _texts(
        "services of your own network that programs may reach, such as a package registry, MLflow or a database: "
        '"10.1.0.0/16" (every TCP port), "192.168.7.20:5432", "registry.lan:8080"; of this machine only an address '
        'with a port, "127.0.0.1:8088", that is not one of Clary\'s own; of no effect with EnableNetworkIsolation',
        parse_entry,
    )
    public_buckets: tuple[str, ...] = _texts(
        "public buckets of AWS that are read through the service, by anyone with a key, if no bucket of the name "
        "exists here: names with `*` for any characters and {region} for a region of AWS; nothing is stored; of no "
        "effect without setting internet",
        check_pattern,
        default=SAMPLE_BUCKETS,
    )
    public_buckets_url: str = _setting(
        AWS_URL,
        "https://s3.amazonaws.com, or a mirror of public_buckets, whose objects everybody may read as URL/BUCKET/KEY",
        pattern=r"https?://[^\s?#]+",
    )
    s3_endpoint_url: str = _setting(
        "", "object store to use; empty starts the embedded SeaweedFS", pattern=r"(https?://\S+)?"
    )
    s3_access_key_id: str = _setting("", "key of that object store")
    s3_secret_access_key: str = _setting("", "secret of that object store", is_secret=True)
    clock_skew_s: float = _setting(
        300.0, "largest difference between a signature's time and the service's clock", least=0
    )
    max_body_bytes: int = _setting(
        8 * 1024 * 1024, "largest body of an API request; S3 objects are not limited", least=1
    )
    body_budget_bytes: int = _setting(
        64 * 1024 * 1024,
        "bytes of API requests' bodies that are held at once, besides the first 64 KiB of each; one client gets at "
        "most half; further requests are answered with 503 and may be repeated",
        least=1,
    )
    max_connections: int = _setting(
        2048,
        "connections that are open at once; half are reserved for this machine's own address, and another address "
        "gets at most a quarter; lowered to fit the limit of open files",
        least=4,
    )
    isolation: str = _setting(
        "auto",
        "auto, namespaces or processes: how hosts are isolated; on other machines each node decides for itself, and "
        "`namespaces` refuses nodes without them",
        pattern="auto|namespaces|processes",
    )
    machine_view: str = _setting(
        "system",
        (
            "system or whole: folders of the machine that hosts show; system: its system folders, "
            "software below /opt, the interpreter and visible_folders; whole: all folders"
        ),
        pattern="system|whole",
    )
    visible_folders: str = _setting(
        "",
        (
            "folders of this machine that programs see beside system folders, separated by colons; changes stay "
            "private; not below /tmp, /var/tmp, /run, /dev, /proc and /sys, of which each host has its own"
        ),
        pattern="(/[^:]*(:/[^:]*)*)?",
    )
    max_hosts: int = _setting(0, "hosts that may run at once on this machine; 0 is twice the CPUs, at least 4", least=0)
    max_runtime_s: int = _setting(
        28 * 86_400, "largest MaxRuntimeInSeconds of a job; SageMaker's own limit is 28 days", least=1
    )
    warm_pool_max_hosts: int = _setting(
        0, "hosts of one job that may be kept after its end (KeepAlivePeriodInSeconds); 0 allows all of them", least=0
    )
    standby_hosts: bool = _setting(
        True, "keep an interpreter with torch imported ready on hosts that wait for a job, to become its ranks"
    )
    memory_per_host_bytes: int = _setting(
        0,
        (
            "largest amount of memory that a host may use; 0 is the memory of its instance type, as far "
            "as this machine has it"
        ),
        least=0,
    )
    memory_overcommit: float = _setting(
        1.0,
        "largest sum of the memory limits of running hosts, as a multiple of this machine's memory less a reserve for "
        "the system; a job waits while its hosts do not fit",
        least=1,
        most=1000,
    )
    clamp_processes: bool = _setting(True, "lower an instance type's processes per host to this machine's CPUs or GPUs")
    default_python: str = _setting("", "interpreter for images that no rule names; empty looks for one with torch")
    stop_grace_s: float = _setting(120.0, "from SIGTERM to SIGKILL", least=0)
    host_timeout_s: float = _setting(
        3.0,
        "silence after which a host of a running job is lost: three heartbeats, and at least 15 s with an engine of "
        "other machines; a third of it, at least 3 s, if another host's program has failed by a broken connection; "
        "time in which the service itself was blocked, or a report was being stored, does not count",
        least=1,
    )
    launch_timeout_s: float = _setting(120.0, "time for a launched host's agent to report", least=1)
    max_restarts: int = _setting(
        3,
        "how often a job with a CheckpointConfig and without a RetryStrategy is tried again after a fault of the "
        "infrastructure, such as a lost host, also while results are uploaded",
        least=0,
        most=100,
    )
    restart_programs: bool = _setting(
        False, "try again also after failures of the program that a retry may cure, such as a rank killed from outside"
    )
    spot_schedule_file: str = _setting(
        "", ("file with the number of hosts of spot capacity from each given second on; empty: as many as fit")
    )
    spot_time_scale: float = _setting(
        1.0,
        "seconds of that file that pass in one second: 60 plays an hour in a minute",
        least=0.001,
        most=1_000_000,
    )
    prices_file: str = _setting("", "file of prices that override those that come with Clary")
    hang_timeout_s: float = _setting(
        300.0,
        "time without output, reads, writes, network traffic and computing after which an alarm is raised for a "
        "program; six times as long if it only computes; 0 is off",
        least=0,
    )
    rule_webhook_url: str = _setting(
        "",
        "address that gets findings of rules as JSON by POST; empty: none",
        pattern=r"(https?://\S+)?",
        is_secret=True,
    )
    restart_hung: bool = _setting(False, "treat a hanging program's host as lost, so that the program is tried again")
    metrics_interval_s: float = _setting(
        0.5,
        "how often hosts measure themselves: processors, memory, disk, network, GPUs, by rank; less than 0.1 is 0.1; a "
        "job's ProfilerConfig may say otherwise; 0 measures nothing",
        least=0,
        most=3600,
    )
    health_checks: bool = _setting(
        True, "check hosts and the links between them while a job is prepared, and hosts while it runs"
    )
    health_action: str = _setting(
        "warn",
        "warn or replace: reaction to a sick host or link before the program starts; replace ends the attempt as a "
        "fault of the infrastructure, so that it is tried again",
        pattern="warn|replace",
    )
    upload_timeout_s: float = _setting(
        3600.0,
        "time for results to reach the object store; agents repeat an upload that the store does not answer until "
        "then, and time without a service does not count",
        least=1,
    )
    checkpoint_interval_s: float = _setting(
        5.0, "time between checks of a job's checkpoint folder; each check stores the changes", least=0.2
    )
    channel_cache_bytes: int = _setting(
        20 * 1024 * 1024 * 1024,
        "size of the cache that this machine keeps of objects of channels and code, so that other jobs need not fetch "
        "them; the least recently used are removed first; 0 keeps none",
        least=0,
    )
    log_ansi: str = _setting(
        "keep",
        "keep or strip: treatment of escape sequences for terminals, such as colours, in logs",
        pattern="keep|strip",
    )
    log_max_lines_per_s: int = _setting(
        250_000,
        "lines a second that one host may log in the long run, ten seconds' worth at once; further lines are "
        "dropped, and the log says so; 0 is no bound",
        least=0,
    )
    log_max_bytes_per_s: int = _setting(
        64 * 1024 * 1024, "as log_max_lines_per_s, but in bytes of text; 0 is no bound", least=0
    )
    log_spool_max_bytes: int = _setting(
        2 * 1024 * 1024 * 1024,
        "bytes of log lines that one host keeps on disk while the service does not accept them; further lines are "
        "lost, and the log says so; 0 is no bound",
        least=0,
    )
    log_retention_days: int = _setting(
        0, "age at which log lines are removed, unless PutRetentionPolicy sets another; 0 keeps them", least=0
    )
    series_rows_kept_s: float = _setting(
        86_400.0,
        "time for which hosts' measurements are kept in full; then least, greatest, mean and number of each 10 s are "
        "kept; 0 is for ever",
        least=0,
    )
    series_rollups_kept_s: float = _setting(
        30 * 86_400.0,
        "time for which the values of 10 s are kept; then those of 5 minutes, as long as the job; 0 is for ever",
        least=0,
    )
    metrics_page: str = _setting(
        "token",
        "token, open or off: clients that may read /metrics: those with the token that `clary metrics --token` prints, "
        "every client that reaches the port (programs of jobs do), or no client",
        pattern="token|open|off",
    )
    otlp_endpoint: str = _setting(
        "",
        "address of an OpenTelemetry collector (OTLP/HTTP, without /v1/traces) that gets a trace of every job that has "
        "ended; empty: none",
        pattern=r"(https?://\S+)?",
    )
    otlp_headers: str = _setting(
        "", "headers for that collector: name=value,name=value", pattern=r"[^\r\n]*", is_secret=True
    )
    images: Mapping[str, str] = _table("image pattern (repo:tag, * matches) = environment name", str)
    environments: Mapping[str, str] = _table("environment name = path of its Python interpreter", str)
    file_systems: Mapping[str, Mapping[str, Any]] = _table(
        "FileSystemId = a table: path, a folder of this machine that jobs may name; access, ro (the default) or rw",
        dict,
    )
    slurm: Mapping[str, Mapping[str, Any]] = _table(
        f"instance type, or * for all = options for Slurm: {', '.join(SLURM_OPTIONS)}; without them a type is "
        "mapped to the smallest kind of node that has its GPUs, CPUs and memory",
        dict,
    )
    instance_types: Mapping[str, Mapping[str, Any]] = _table(f"a table per type: {', '.join(OVERRIDES)}", dict)

    @property
    def home_folder(self) -> Path:
        """The state folder, expanded."""
        return Path(self.home).expanduser().absolute()

    @property
    def resolved_database(self) -> str | Path:
        """The database: its URL if that is set, otherwise the file in the state folder.

        The file is no URL, because `%` and `?` in the name of a folder have another meaning there.
        """
        return self.database_url or self.home_folder / "clary.db"


FIELDS = tuple(fields(Settings))


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"CLARY_{name.upper()}"


def type_of(name: str) -> type:
    """Return the type of a setting's value: str, int, float, bool, tuple for a list of texts, dict for a table."""
    default = getattr(Settings, name, None)
    return dict if default is None else type(default)


def load_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read settings from the environment and from `settings.toml` in the state folder.

    Raises: ContractError naming the file or variable, the setting, the expected and the given value.
    """
    home = Path(environ.get(variable_of("home")) or Settings.home).expanduser().absolute()
    values = _read_file(home / SETTINGS_FILE)
    for setting in FIELDS:
        variable = variable_of(setting.name)
        if variable in environ and type_of(setting.name) is not dict:
            values[setting.name] = _checked(setting.name, environ[variable], source=variable, read=_from_text)
    values["home"] = str(home)
    settings = Settings(**values)
    if settings.port and settings.port == settings.tls_port:
        raise ContractError(f"settings port and tls_port are both {settings.port}: set two ports", fault=Fault.USER)
    return settings


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a warning for each unknown CLARY_ variable whose name resembles a setting's variable."""
    known = {variable_of(setting.name) for setting in FIELDS}
    return [
        f"{name} is no setting and has no effect{_meant(name, known)}"
        for name in sorted(environ)
        if name.startswith("CLARY_") and name not in known and _meant(name, known)
    ]


def _meant(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=_NEAR)
    return f"; did you mean {near[0]}?" if near else ""


def _read_file(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ContractError(f"{path}: cannot be read: {error.strerror}", fault=Fault.USER) from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise ContractError(f"{path}: not valid TOML: {error}", fault=Fault.USER) from error
    known = {setting.name for setting in FIELDS}
    for name in document:
        if name not in known:
            raise ContractError(
                f"{path}: unknown setting {name!r}; known are {', '.join(sorted(known))}{_meant(name, known)}",
                fault=Fault.USER,
            )
    if "home" in document:
        variable = variable_of("home")
        raise ContractError(f"{path}: home can only be set by the variable {variable}; remove it", fault=Fault.USER)
    values = {name: _checked(name, value, source=str(path), read=_from_document) for name, value in document.items()}
    for instance_type, override in values.get("instance_types", {}).items():
        check_override(instance_type, override, source=str(path))
    for instance_type, options in values.get("slurm", {}).items():
        check_slurm_options(instance_type, options, source=str(path))
    for file_system_id, entry in values.get("file_systems", {}).items():
        check_entry(file_system_id, entry, source=str(path))
    return values


def _checked(name: str, value: Any, *, source: str, read: Callable[[type, Any], Any]) -> Any:
    """Convert a value to the setting's type and check its bounds; raises ContractError."""
    wanted = type_of(name)
    metadata = next(setting.metadata for setting in FIELDS if setting.name == name)
    try:
        converted = read(wanted, value)
        if wanted is dict:
            _require_values(converted, metadata["value_type"])
        elif wanted is tuple:
            for text in converted:
                metadata["check"](text)
        elif wanted is str:
            if metadata["pattern"] and not re.fullmatch(metadata["pattern"], converted):
                raise ValueError(f"expected text that matches the pattern {metadata['pattern']}")
        elif wanted is not bool:
            _require_within(converted, least=metadata["least"], most=metadata["most"])
    except ValueError as error:
        shown = "(hidden)" if metadata.get("is_secret") else repr(value)
        kind = "a list of texts" if wanted is tuple else wanted.__name__
        raise ContractError(
            f"{source}: setting {name} expects {kind}, got {shown} ({error})", fault=Fault.USER
        ) from error
    return converted


def _from_text(wanted: type, text: str) -> Any:
    if wanted is bool:
        if text.strip().lower() not in WORDS:
            raise ValueError("expected true or false")
        return WORDS[text.strip().lower()]
    if wanted is str:
        return text
    if wanted is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        return wanted(text)
    except ValueError:
        raise ValueError("expected a number" if wanted is float else "expected a whole number") from None


def _from_document(wanted: type, value: Any) -> Any:
    if wanted is float and type(value) is int:
        return float(value)
    if wanted is tuple and isinstance(value, list):
        if not all(isinstance(text, str) for text in value):
            raise ValueError("expected a text for each item")
        return tuple(value)
    if type(value) is not wanted:  # not isinstance, which accepts a bool as an int
        name = "table" if isinstance(value, dict) else type(value).__name__
        raise ValueError(f"this is {name}")
    return value


def _require_values(table: Mapping[str, Any], value_type: type) -> None:
    for key, value in table.items():
        if not isinstance(value, value_type):
            raise ValueError(f"expected {'a table' if value_type is dict else 'text'} for {key!r}")


def _require_within(number: float, *, least: float | None, most: float | None) -> None:
    if not math.isfinite(number):
        raise ValueError("expected a finite number")
    if least is not None and number < least:
        raise ValueError(f"expected at least {least:g}")
    if most is not None and number > most:
        raise ValueError(f"expected at most {most:g}")
