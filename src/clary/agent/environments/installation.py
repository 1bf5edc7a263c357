"""Installation by uv in a host of the job, the only place where packages are installed and their build scripts run.

Where: `requirements` makes the copy of the environment and merges the installed files into it. The installation's host
is made like the program's host: same network, memory limit, files and user. Its own `/opt/ml` has only the files on
which the installation may depend. The host has ended before `requirements` reads the installed files.

    /opt/clary/install/uv        the installer, read-only
    /opt/clary/install/uv.toml   the owner's settings of uv, read-only
    /opt/clary/install/cache     packages that were fetched before

[Note: who writes into the cache]
Fetched packages are kept in the cache for later jobs. A build script that could write into the cache would choose those
jobs' packages. So uv runs twice if packages come from an index. The first run may write into the cache but builds no
package; it gets only requirements by name and version, and no file of the job. Its installation is discarded. The
second run may build; it writes into an overlay over the cache, which is removed afterwards. Without overlays there is
no first run, and the second run starts with an empty cache. The first run fails if a package has to be built; its
failure is ignored, and the second run reports real errors.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from clary.agent.environments.package_index import (
    KEYRING_SETTINGS,
    is_installers,
    is_secret,
    is_without_index,
    local_folders,
    uv_index_variables,
    with_credentials,
)
from clary.agent.environments.requirement_files import RequirementFiles
from clary.agent.host.host_command import CommandResult, WatchMemory, run_in_host
from clary.agent.host.sandbox import Bind, ProcessSpec, Sandbox
from clary.base.errors import AgentError
from clary.contract.launch_plan import Isolation
from clary.contract.ml_tree import OPT_ML, MlTree

INSTALL_FOLDER = "/opt/clary/install"  # path in the installer's view
KEPT = "kept"  # the layer with the installed files
_CACHE = "uv-hosts"  # plain processes do not use it, because their build scripts could write into it
_PLAIN_CACHE = "uv"
_PLAIN_LIST = "requirements.txt"
# Variables of the machine that an installation, and so packages' build scripts, may see.
_PASSED = ("PATH", "LANG", "TZ", "LD_LIBRARY_PATH", "CC", "CXX", "CFLAGS")
_PASSED_PREFIXES = ("LC_", "SSL_", "CARGO_", "CUDA_")  # besides those of installers; no secrets
_PASSED_SUFFIXES = ("_CA_BUNDLE",)
_PASSED_TO_PLAIN = ("HOME", "TMPDIR", "NETRC", *KEYRING_SETTINGS)
_PASSED_TO_PLAIN_PREFIXES = ("XDG_",)
_PASSED_TO_PLAIN_SUFFIXES = ("_proxy", "_PROXY")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class InstallationWorld:
    """The host in which installations of a job run.

    Attributes:
        sandbox: the program's host, with the bind mounts that every program needs; an installation replaces its
            folders.
        watch_memory: enforces the host's memory limit if the kernel does not.
        proxies: environment variables that name the host's proxies; used only if hosts have namespaces.
        is_offline: whether the host has no access to the internet.
    """

    sandbox: Sandbox
    watch_memory: WatchMemory
    proxies: Mapping[str, str]
    is_offline: bool

    @property
    def is_isolated(self) -> bool:
        """Whether hosts have namespaces; else uv is a plain process of the agent's user."""
        return self.sandbox.isolation is Isolation.NAMESPACES


@dataclass(frozen=True, kw_only=True)
class Installation:
    """One installation.

    Attributes:
        environment_folder: copy of the image's environment; unchanged if hosts have overlays.
        place: folder on the machine for temporary files of the installation.
        cache_folder: folder on the machine, kept between jobs.
        source: the job's source folder.
        is_package: whether the source folder itself is installed.
        prefix: root of the image's environment, which may have a pip.conf.
        has_layers: whether this kernel supports the overlays.
        check: raises if the installation must be aborted.
    """

    world: InstallationWorld
    environment_folder: Path
    place: Path
    cache_folder: Path
    source: Path
    asked: RequirementFiles | None
    is_package: bool
    prefix: str
    machine: Mapping[str, str]
    has_layers: bool
    check: Callable[[], None]

    @property
    def kept(self) -> Path:
        """Folder of the installed packages after `run`; missing if plain processes installed in place."""
        return self.place / "host" / KEPT

    def run(self) -> CommandResult:
        """Install; return the result of uv's last run.

        Raises: AgentError if uv is missing or a host could not be made, and the errors of `check`.
        """
        uv = find_uv(self.machine)
        if not self.world.is_isolated:
            return self._run_plain(uv)
        variables = self._variables()
        if self._warms_cache(variables):
            self._warm_cache(uv, variables)
        return self._install(uv, variables)

    def _run_plain(self, uv: str) -> CommandResult:
        variables = {
            **self._variables(),
            "UV_CACHE_DIR": str(self.cache_folder / _PLAIN_CACHE),
            # Links replace existing files, so files shared with the original are never written into.
            "UV_LINK_MODE": "hardlink",
        }
        ml = self._folder("host", "ml")
        process = self._process(uv, variables, source=str(self.source))
        return self._run(process, "host", ml, ())

    def _warm_cache(self, uv: str, variables: Mapping[str, str]) -> None:
        assert self.asked is not None
        ml = self._folder("warm", "ml")
        code = MlTree(ml).code
        code.mkdir(parents=True)
        (code / _PLAIN_LIST).write_text("\n".join(self.asked.plain) + "\n", encoding="utf-8")
        asked = replace(self.asked, name=_PLAIN_LIST)
        process = replace(self, asked=asked, is_package=False)._process(
            uv, {**variables, "UV_LINK_MODE": "symlink"}, source=str(MlTree(OPT_ML).code), options=("--no-build",)
        )
        cache = Bind(source=str(self.cache_folder / _CACHE), target=f"{INSTALL_FOLDER}/cache")
        folder = Bind(source=str(self.environment_folder), target=str(self.environment_folder), overlay=True)
        result = self._run(process, "warm", ml, (cache, replace(folder, kept_as="unused")))
        if result.exit_code != 0:
            logger.info("nothing was put into the cache: %s", "\n".join(result.output.splitlines()[-3:]))

    def _install(self, uv: str, variables: Mapping[str, str]) -> CommandResult:
        ml = self._folder("host", "ml")
        code = MlTree(ml).code
        code.mkdir(parents=True)
        binds = []
        if self.is_package or (self.asked is not None and self.asked.needs_source):
            # Builds write into their source folder, and the agent uses the job's own folder at this time.
            place = Bind(source=str(self.source), target=str(MlTree(OPT_ML).code), overlay=True, copied_otherwise=True)
            binds.append(place)
        elif self.asked is not None:
            for name, content in self.asked.files.items():
                (code / name).parent.mkdir(parents=True, exist_ok=True)
                (code / name).write_bytes(content)
        target = str(self.environment_folder)
        if self.has_layers:
            binds.append(Bind(source=target, target=target, overlay=True, kept_as=KEPT))
            cache = Bind(source=str(self.cache_folder / _CACHE), target=f"{INSTALL_FOLDER}/cache", overlay=True)
            binds.append(replace(cache, kept_as="cache"))
        else:
            shutil.copytree(self.environment_folder, self.kept, symlinks=True)
            binds.append(Bind(source=str(self.kept), target=target))
            binds.append(Bind(source=str(self._folder("host", "cache")), target=f"{INSTALL_FOLDER}/cache"))
        options = ("--offline",) if self.world.is_offline else ()
        process = self._process(uv, variables, source=str(MlTree(OPT_ML).code), options=options)
        return self._run(process, "host", ml, tuple(binds))

    def _warms_cache(self, variables: Mapping[str, str]) -> bool:
        """Whether any package may be fetched into the cache."""
        if self.asked is None or not self.asked.plain or self.asked.has_options or not self.has_layers:
            return False
        return not self.world.is_offline and not self._is_without_index()

    def _is_without_index(self) -> bool:
        return is_without_index(self.machine, self.prefix)

    def _variables(self) -> dict[str, str]:
        """Return uv's environment."""
        is_isolated = self.world.is_isolated
        variables = {
            **{name: value for name, value in self.machine.items() if _is_passed(name, is_isolated=is_isolated)},
            **uv_index_variables(self.machine, self.prefix),
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_SYSTEM_CERTS": "1",  # like pip: this machine's certificates, including those of its company
        }
        if is_isolated:
            variables = with_credentials(variables, self.machine) | {
                **self.world.proxies,
                "HOME": "/tmp",  # noqa: S108 - the host's own
                "UV_CACHE_DIR": f"{INSTALL_FOLDER}/cache",
                "UV_LINK_MODE": "copy",  # the cache is on another mount
            }
        # Only the owner's uv settings apply; settings in a source folder would change the packages of other jobs.
        config = self._config_file()
        variables.pop("UV_CONFIG_FILE", None)
        if config is None:
            return variables | {"UV_NO_CONFIG": "1"}
        return variables | {"UV_CONFIG_FILE": f"{INSTALL_FOLDER}/uv.toml" if is_isolated else str(config)}

    def _config_file(self) -> Path | None:
        home = Path(self.machine.get("HOME", "/"))
        folders = (Path(self.machine.get("XDG_CONFIG_HOME") or home / ".config"), Path("/etc"))
        named = self.machine.get("UV_CONFIG_FILE")
        places = ([Path(named)] if named else []) + [folder / "uv" / "uv.toml" for folder in folders]
        return next((place for place in places if place.is_file()), None)

    def _process(
        self, uv: str, variables: Mapping[str, str], *, source: str, options: tuple[str, ...] = ()
    ) -> ProcessSpec:
        program = f"{INSTALL_FOLDER}/uv" if self.world.is_isolated else uv
        python = str(self.environment_folder / "bin" / "python")
        argv = [program, "pip", "install", "--python", python, "--color", "never", "--no-progress", *options]
        if self._is_without_index():
            argv.append("--no-index")
        if self.asked is not None:
            argv += ["-r", f"{source}/{self.asked.name}"]
        if self.is_package:
            argv.append(source)
        return ProcessSpec(argv=tuple(argv), environment=variables, working_folder=source, rank=None, local_rank=0)

    def _run(self, process: ProcessSpec, name: str, ml: Path, binds: tuple[Bind, ...]) -> CommandResult:
        sandbox = replace(self.world.sandbox, host_folder=str(self.place / name), ml_folder=str(ml))
        if self.world.is_isolated:
            (self.cache_folder / _CACHE).mkdir(parents=True, exist_ok=True)
            sandbox = replace(sandbox, binds=(*sandbox.binds, *self._owners_binds(process.environment), *binds))
        return run_in_host(process, sandbox, check=self.check, watch_memory=self.world.watch_memory)

    def _owners_binds(self, variables: Mapping[str, str]) -> tuple[Bind, ...]:
        """Return the owner's files that an installer needs: uv, its settings, certificates, local packages."""
        uv = os.path.realpath(find_uv(self.machine))
        binds = [Bind(source=uv, target=f"{INSTALL_FOLDER}/uv", read_only=True)]
        config = self._config_file()
        if config is not None:
            binds.append(Bind(source=str(config), target=f"{INSTALL_FOLDER}/uv.toml", read_only=True))
        certificates = [Path(variables[name]) for name in _CERTIFICATES if name in variables]
        for path in (*local_folders(variables), *certificates):
            # A parent of a hidden folder would expose it.
            is_open = any(Path(hidden).is_relative_to(path.resolve()) for hidden in self.world.sandbox.hidden_folders)
            if path.is_absolute() and path != Path("/") and path.exists() and not is_open:
                binds.append(Bind(source=str(path), target=str(path), read_only=True))
        return tuple(dict.fromkeys(binds))

    def _folder(self, *names: str) -> Path:
        """Make a folder of this installation that the host's user can enter."""
        folder = self.place.joinpath(*names)
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            owner = os.stat(self.world.sandbox.host_folder)
            for path in (folder, folder.parent):
                os.chown(path, owner.st_uid, owner.st_gid)
        return folder


def _is_passed(name: str, *, is_isolated: bool) -> bool:
    if name in _PASSED or is_installers(name) or name.endswith(_PASSED_SUFFIXES):
        return True
    if name.startswith(_PASSED_PREFIXES):
        return not is_secret(name)
    is_plain = name in _PASSED_TO_PLAIN or name.startswith(_PASSED_TO_PLAIN_PREFIXES)
    return not is_isolated and (is_plain or name.endswith(_PASSED_TO_PLAIN_SUFFIXES))


def find_uv(machine: Mapping[str, str]) -> str:
    """Return the path of uv: beside this interpreter, or in PATH. Raises: AgentError."""
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if beside.is_file() else shutil.which("uv", path=machine.get("PATH"))
    if found is None:
        raise AgentError(
            "Requirements are installed with uv, which is neither beside the agent's interpreter nor in PATH. "
            "Install it: pip install uv"
        )
    return found
