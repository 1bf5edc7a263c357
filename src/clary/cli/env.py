"""`clary env`: print the environment variables that a client needs; use it as: eval "$(clary env)"."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from clary.base.errors import ClaryError, ContractError, Fault
from clary.base.kernel_files import read_at_most
from clary.cli.connection import Connection, connect
from clary.cli.contexts import CA_VARIABLE, URL_VARIABLE, read_contexts
from clary.contract.launch_plan import Credentials
from clary.control.clients.caller_variables import (
    NO_PROXY_VARIABLES,
    UNSET_VARIABLES,
    exceptions_within_aws,
    foreign_variables,
    proxy_exceptions,
    uses_proxy,
)
from clary.control.clients.client_files import (
    BUNDLE_VARIABLE,
    CA_FILE,
    SAGEMAKER_CONFIG,
    TLS_VARIABLES,
    client_variables,
    sagemaker_config,
    tls_variables,
)
from clary.control.clients.client_profiles import checked_name, is_profile_name, profile_variables, write_profiles
from clary.control.clients.shell_lines import CSH, SHELLS, language_of, report_lines, set_lines, unset_lines
from clary.control.settings import Settings, load_settings
from clary.control.state_folder import StateFolder

PROFILE_VARIABLES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
_MAX_NAME_BYTES = 64  # of a program, as the kernel shows it


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("env", help='print variables for clients: eval "$(clary env)"')
    parser.add_argument("--tls", action="store_true", help="also answer as https://sts.<region>.amazonaws.com")
    parser.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="NAME",
        help="make this AWS profile lead to the service too, like default; may be repeated",
    )
    parser.add_argument("--unset", action="store_true", help="print commands that unset the variables")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--shell",
        choices=SHELLS,
        help="language of the commands: sh (bash, zsh), fish or csh (tcsh); without it that of the calling shell",
    )
    form.add_argument(
        "--json", action="store_true", help="print the variables as a JSON object; with --unset their names as a list"
    )
    parser.set_defaults(run=run)


def calling_shell() -> str:
    """Return the language of the shell that has started this process; `sh` if another program has."""
    try:
        name = read_at_most(f"/proc/{os.getppid()}/comm", _MAX_NAME_BYTES)
    except OSError:  # the caller has ended, or /proc hides the processes of others
        return language_of("")
    return language_of(name.decode(errors="replace").strip())


def run(options: argparse.Namespace) -> int:
    """Print shell lines. Raises: ClaryError (fault USER)."""
    settings = load_settings()
    folder = StateFolder(settings.home_folder)
    added = _added_before(settings, folder)
    if options.unset:  # this part needs no service
        return _print_unset(settings, folder, TLS_VARIABLES if options.tls else added, options)
    for name in options.profile:
        checked_name(name)
    connection = connect()
    if connection.context:
        return _run_elsewhere(connection, added, options)
    if options.tls and not connection.record.tls_url:
        raise ClaryError("the service has no TLS port: set tls_port and start it again", fault=Fault.USER)
    credentials = connection.secrets.credentials
    url, proxy_url = connection.record.url, connection.record.proxy_url
    variables = {
        **client_variables(settings, url=url, credentials=credentials, client_folder=folder.client),
        **_profiles(connection, folder, options),
        **(
            tls_variables(folder.tls, url=url, proxy_url=proxy_url, environ=os.environ)
            if options.tls
            else proxy_exceptions(os.environ, url=url, without=added)
        ),
    }
    return _print(variables, added, options)


def _added_before(settings: Settings, folder: StateFolder) -> Sequence[str]:
    """Return the variables that the caller's shell has from `clary env`, but only for some services.

    A proxy and a certificate bundle from another source are kept.
    """
    bundle = os.environ.get(BUNDLE_VARIABLE)
    if not bundle:
        return ()
    if bundle == str(folder.tls / CA_FILE):
        return TLS_VARIABLES
    known = [os.environ.get(CA_VARIABLE, "")]
    try:
        known += [service.ca_file for service in read_contexts(settings).services.values()]
    except ContractError as error:
        print(
            f"clary: {error.message}; {BUNDLE_VARIABLE} stays unless {CA_VARIABLE} has the same value", file=sys.stderr
        )
    return (BUNDLE_VARIABLE,) if bundle in known else ()


def _run_elsewhere(connection: Connection, added: Sequence[str], options: argparse.Namespace) -> int:
    """Print the variables for a service elsewhere, and write the files that they name.

    Args:
        connection: the service.
        added: what `_added_before` has found.
        options: of the command.
    """
    if options.tls:
        raise ClaryError(
            f"--tls belongs to a service on this machine, and {connection.context} names one elsewhere",
            fault=Fault.USER,
        )
    folder = connection.folder.client
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SAGEMAKER_CONFIG).write_text(sagemaker_config(connection.settings), encoding="utf-8")
    credentials = connection.secrets.credentials
    url = connection.record.url
    variables = {
        **client_variables(connection.settings, url=url, credentials=credentials, client_folder=folder),
        **_profiles(connection, connection.folder, options),
        **proxy_exceptions(os.environ, url=url, without=added),
    }
    if connection.ca_file:
        variables[BUNDLE_VARIABLE] = connection.ca_file
    return _print(variables, added, options)


def _profiles(connection: Connection, folder: StateFolder, options: argparse.Namespace) -> Mapping[str, str]:
    """Write the profiles, and return their variables; no variables, but a message, if a file cannot be written."""
    # Keys that come from the environment alone are not written to a disk.
    credentials = None if connection.context == URL_VARIABLE else connection.secrets.credentials
    try:
        write_profiles(
            folder.client,
            connection.settings,
            url=connection.record.url,
            credentials=credentials,
            names=(*options.profile, *filter(is_profile_name, _profiles_of_shell().values())),
        )
    except OSError as error:
        print(
            f"clary: {folder.client} cannot be written ({error.strerror}): clients will not find AWS profiles that "
            "lead to this service; name no profile, or free the disk and repeat clary env",
            file=sys.stderr,
        )
        return {}
    if credentials is None:
        for name in options.profile:
            print(
                f"clary: the profile {name} has no keys: those of {URL_VARIABLE} are in the environment alone, and are "
                "not written to a file; choose it by AWS_PROFILE, or use clary context add",
                file=sys.stderr,
            )
    return profile_variables(folder.client)


def _profiles_of_shell() -> Mapping[str, str]:
    """Return the variables of the caller's shell that choose a profile."""
    return {name: os.environ[name] for name in PROFILE_VARIABLES if os.environ.get(name)}


def _notes(variables: Mapping[str, str], options: argparse.Namespace) -> Sequence[str]:
    """Return a comment on each variable of the caller's that changes, and print a message on each bad profile."""
    notes = []
    for variable, name in _profiles_of_shell().items():
        if not is_profile_name(name):
            print(f"clary: {variable} is unset: {name[:150]!a} is no name for a profile here", file=sys.stderr)
        elif "AWS_CONFIG_FILE" in variables:
            notes.append(f"{variable} was {name} and is unset: the profile {name} leads to this service too")
    for variable, target in foreign_variables(os.environ).items():
        notes.append(f"{variable} is unset: it would lead clients to {target}")
    lost = ", ".join(ascii(item[:150]) for item in exceptions_within_aws(os.environ)) if options.tls else ""
    if lost:
        notes.append(f"NO_PROXY loses {lost}: with --tls, AWS's names lead to this service through its proxy")
    return notes


def _print_unset(settings: Settings, folder: StateFolder, added: Sequence[str], options: argparse.Namespace) -> int:
    """Print how to remove the variables of every `clary env`.

    Args:
        settings: settings of the service.
        folder: its state folder.
        added: further variables that the caller's shell has from `clary env`.
        options: of the command.
    """
    nobody = Credentials(access_key_id="", secret_access_key="")
    # Another proxy of the caller's still needs its exceptions.
    kept = NO_PROXY_VARIABLES if uses_proxy(os.environ, without=added) else ()
    names = (
        *client_variables(settings, url="", credentials=nobody, client_folder=folder.client),
        *profile_variables(folder.client),
        *(name for name in added if name not in kept),
    )
    lines = [json.dumps(names, indent=2)] if options.json else unset_lines(options.shell or calling_shell(), names)
    print("\n".join(lines))
    return 0


def _print(variables: Mapping[str, str], added: Sequence[str], options: argparse.Namespace) -> int:
    """Print the variables.

    Args:
        variables: what to set.
        added: what `_added_before` has found.
        options: of the command.
    """
    unset = (*UNSET_VARIABLES, *foreign_variables(os.environ), *(name for name in added if name not in variables))
    if options.json:
        print(json.dumps(dict(variables), indent=2))
        # The profiles of the caller's are in the files that the variables name.
        left = [name for name in unset if name in os.environ and name not in PROFILE_VARIABLES]
        if left:
            print(
                f"clary: {', '.join(left)} of this environment would lead clients elsewhere; remove what is set where "
                "these variables are used",
                file=sys.stderr,
            )
        return 0
    shell = options.shell or calling_shell()
    lines = [*unset_lines(shell, unset), *report_lines(shell, unset), *set_lines(shell, variables)]
    notes = _notes(variables, options)
    print("\n".join([*lines, *(f"# {note}" for note in notes if shell != CSH)]))
    for note in notes if shell == CSH else ():
        print(f"clary: {note}", file=sys.stderr)
    return 0
