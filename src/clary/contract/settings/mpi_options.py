"""`custom_mpi_options`: the mpirun options that Clary applies, and the options that it refuses with a message.

Where: `distribution.refusals` checks the options when a job is created; the mpi launchers apply the parsed options.
Source: mpirun(1) of Open MPI 4.1; sagemaker-training 5.1.4 splits the string at white space and removes `--NCCL_DEBUG
X` (`mpi._parse_custom_mpi_options`).
"""

from __future__ import annotations

from dataclasses import dataclass

# Options without a value that may be passed to mpirun unchanged.
_FLAGS = frozenset(
    {
        "verbose",
        "v",
        "q",
        "quiet",
        "tag-output",
        "timestamp-output",
        "display-map",
        "display-allocation",
        "display-devel-map",
        "report-bindings",
        "oversubscribe",
        "nooversubscribe",
        "allow-run-as-root",
        "bynode",
        "byslot",
        "leave-session-attached",
    }
)
# Options with one value that may be passed to mpirun unchanged.
_VALUED = frozenset({"bind-to", "map-by", "rank-by", "report-state-on-timeout", "timeout"})
_MCA = frozenset({"mca", "gmca", "omca", "pmca", "prtemca"})
# Options with one value that would override the platform, with the reason for the refusal.
_PLATFORM_PART = {
    "np": "the number of ranks comes from the hosts and processes_per_host",
    "n": "the number of ranks comes from the hosts and processes_per_host",
    "c": "the number of ranks comes from the hosts and processes_per_host",
    "N": "processes per host come from processes_per_host",
    "npernode": "processes per host come from processes_per_host",
    "host": "hosts come from instance_count",
    "H": "hosts come from instance_count",
    "hostfile": "hosts come from instance_count",
    "machinefile": "hosts come from instance_count",
    "wdir": "programs start in /opt/ml/code",
    "wd": "programs start in /opt/ml/code",
    "prefix": "mpirun comes from the job's environment",
}
_REFUSED_MCA = frozenset({"plm_rsh_agent", "plm_ssh_agent", "plm"})


@dataclass(frozen=True, kw_only=True)
class MpiOptions:
    """Parsed `custom_mpi_options`."""

    variables: dict[str, str | None]  # -x NAME (None: the environment's value) and -x NAME=VALUE
    mca: tuple[tuple[str, str, str], ...]  # (option, name, value), option as it was written without dashes
    flags: tuple[str, ...]  # other options; a value follows its option as an item of its own
    problems: tuple[str, ...]  # one sentence for each option that is refused

    @property
    def only_mpirun(self) -> tuple[str, ...]:
        """Options that only a real mpirun can apply."""
        return tuple(f"-{option} {name} {value}" for option, name, value in self.mca) + self.flags


def parse_mpi_options(text: str) -> MpiOptions:
    """Parse `custom_mpi_options`; unknown, malformed and refused options are listed in `problems`. Never raises."""
    words = text.split()
    variables: dict[str, str | None] = {}
    mca: list[tuple[str, str, str]] = []
    flags: list[str] = []
    problems: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        name, has_value, inline = word.lstrip("-").partition("=") if word.startswith("--") else (word[1:], "", "")
        following = words[position + 1 :]
        position += 1
        if not word.startswith("-") or not name:
            problems.append(f"{word!r} is not an option of mpirun")
        elif name in _FLAGS and not has_value:
            flags.append(word)
        elif name in _MCA:
            position += 2
            _read_mca(word, following[:2], mca, problems)
        elif name in ("x", "NCCL_DEBUG", *_VALUED, *_PLATFORM_PART):
            if not has_value:
                position += 1
                inline = following[0] if following else ""
            if not inline:
                problems.append(f"{word} needs a value")
            elif name in _PLATFORM_PART:
                problems.append(f"{word} cannot be set: {_PLATFORM_PART[name]}")
            elif name == "NCCL_DEBUG":
                variables["NCCL_DEBUG"] = inline
            elif name == "x":
                _read_variable(inline, variables, problems)
            else:
                flags += [f"--{name}", inline]
        else:
            problems.append(f"{word} is not an option that Clary understands")
    return MpiOptions(variables=variables, mca=tuple(mca), flags=tuple(flags), problems=tuple(problems))


def _read_mca(word: str, pair: list[str], mca: list[tuple[str, str, str]], problems: list[str]) -> None:
    if len(pair) < 2:
        problems.append(f"{word} needs a name and a value")
    elif pair[0] in _REFUSED_MCA:
        problems.append(f"{word} {pair[0]} cannot be set: Clary reaches the other hosts itself")
    else:
        mca.append((word.lstrip("-"), pair[0], pair[1]))


def _read_variable(text: str, variables: dict[str, str | None], problems: list[str]) -> None:
    name, has_value, value = text.partition("=")
    if not name.isidentifier():
        problems.append(f"-x {text}: {name!r} is not a name of an environment variable")
    else:
        variables[name] = value if has_value else None
