"""One sentence of advice on each of the most common failures. Pure.

Where: `clary describe --why` and the console show it below the cause. A hint is given only if the failure's text alone
proves the cause.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from clary.control.jobs.verdicts import Verdict

# Packages whose name differs from the name of their module.
_PACKAGES = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
CATEGORIES = {
    Verdict.USER: "your program",
    Verdict.DATA: "the data that your program reads",
    Verdict.MEMORY: "memory",
    Verdict.DISK: "disk space",
    Verdict.NETWORK: "the network",
    Verdict.HOST: "a host, not your program",
    Verdict.LAUNCHER: "how your program is started",
    Verdict.INTERNAL: "a defect of Clary",
}


def category(verdict: str) -> str:
    """Return the category of a verdict; `unknown` for jobs of older releases, which recorded no verdicts."""
    return CATEGORIES[Verdict(verdict)] if verdict else "unknown"


def hint(words: str, *, channels: Sequence[str] = ()) -> str:
    """Return advice on a failure, or an empty text if the cause is not certain.

    Args:
        words: the failure's text and the program's previous lines, separated by newlines.
        channels: names of the job's input channels.
    """
    for pattern, advise in _HINTS:
        found = pattern.search(words)
        if found is not None:
            return advise(found, channels)
    return ""


def _missing_module(found: re.Match[str], channels: Sequence[str]) -> str:
    del channels
    module = found[1]
    top = module.partition(".")[0]
    return (
        f"Python found no module {module}: add {_PACKAGES.get(top, top)} to requirements.txt beside the entry script; "
        "if it is a file of yours, put it into the same folder (source_dir)."
    )


def _missing_pip(found: re.Match[str], channels: Sequence[str]) -> str:
    """Return advice on pip itself, which installs requirements and so cannot be one."""
    del channels
    python = found[1] or "INTERPRETER"
    return (
        "The environment that the program runs in has no pip: run `clary environments add` again if that made it, else "
        f"uv pip install --python {python} pip."
    )


def _missing_channel(found: re.Match[str], channels: Sequence[str]) -> str:
    wanted = next(part for part in found.groups() if part)
    name = wanted.lower() if "SM_CHANNEL_" in found[0] else wanted
    if any(name == channel.lower() or name == channel for channel in channels):
        return f"Channel {name} is there, but not what the program looks for in it: see what its S3 prefix holds."
    has = f"it has {', '.join(channels)}" if channels else "it has none"
    return f"The job has no input channel {name} ({has}): pass it to fit(), or as a channel of InputDataConfig."


def _unknown_arguments(found: re.Match[str], channels: Sequence[str]) -> str:
    del channels
    names = ", ".join(re.findall(r"--?([\w-]+)", found[1])) or found[1]
    return (
        f"The script's argument parser does not know {names}: hyperparameters are passed as --name value. Add them to "
        "the parser, or take them out of the job's hyperparameters."
    )


def _gpu_memory(found: re.Match[str], channels: Sequence[str]) -> str:
    del found, channels
    return "The GPU's memory was too small: try smaller batches, gradient accumulation, or activation checkpointing."


def _host_memory(found: re.Match[str], channels: Sequence[str]) -> str:
    del found, channels
    return (
        "The host's memory was too small: read the data in parts, use fewer worker processes, or ask for an instance "
        "type with more; the job's charts show what was used."
    )


def _full_disk(found: re.Match[str], channels: Sequence[str]) -> str:
    del found, channels
    return "The disk was full: `df` on the machine shows what is left; keep fewer checkpoints, or clean caches up."


def _no_command(found: re.Match[str], channels: Sequence[str]) -> str:
    del channels
    return f"There is no command {found[1] or found[2]} where the program runs: install it on the machine."


_HINTS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], Sequence[str]], str]], ...] = (
    (re.compile(r"(?:(/\S+): )?No module named '?pip\b(?!\.)"), _missing_pip),
    (re.compile(r"No module named '?([\w.]+)"), _missing_module),
    (re.compile(r"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError"), _gpu_memory),
    (re.compile(r"\bOutOfMemory\b|MemoryError|[Cc]annot allocate memory|bad_alloc"), _host_memory),
    (re.compile(r"No space left on device|Errno 28\b"), _full_disk),
    (re.compile(r"KeyError: '?SM_CHANNEL_(\w+)'?|SM_CHANNEL_(\w+)'? is not set"), _missing_channel),
    (
        re.compile(r"(?:No such file or directory|FileNotFoundError)[^\n]*/opt/ml/input/data/([\w.-]+)"),
        _missing_channel,
    ),
    (re.compile(r"error: unrecognized arguments: ([^\n]+)"), _unknown_arguments),
    (re.compile(r"(\S+): command not found|exec: (\S+): not found"), _no_command),
)
