"""The `clary` command's first step: checks whether it can run on this machine at all.

Where: the entry point of the installed command. It checks before any other import: other systems lack some modules of
the standard library, and a traceback does not help the user.
"""

from __future__ import annotations

import sys

EXIT_USAGE = 2


def why_not_here(platform: str) -> str:
    """Return why Clary cannot run on a system; empty if it can."""
    if platform.startswith("linux"):
        return ""
    name = {"darwin": "macOS", "win32": "Windows"}.get(platform, platform)
    return (
        f"Clary needs Linux, and this is {name}: hosts of jobs are made of Linux namespaces, and their programs run "
        "without an emulator. Install it on a Linux machine or in a virtual machine, and name its address as "
        "AWS_ENDPOINT_URL here."
    )


def main() -> int:
    """Run the command, or print why it cannot run."""
    reason = why_not_here(sys.platform)
    if reason:
        print(f"clary: {reason}", file=sys.stderr)
        return EXIT_USAGE
    # imported late: saves 80 ms, and the import would fail on such a machine
    from clary.cli.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
