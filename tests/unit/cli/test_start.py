"""The first step of the command: on systems other than Linux it prints a message instead of a traceback."""

import subprocess
import sys

import pytest

from clary.cli.start import why_not_here


@pytest.mark.parametrize(("platform", "name"), [("darwin", "macOS"), ("win32", "Windows"), ("freebsd14", "freebsd14")])
def test_other_systems_than_linux_are_refused_by_name(platform, name):
    assert why_not_here(platform).startswith(f"Clary needs Linux, and this is {name}: ")


def test_linux_is_not_refused():
    assert why_not_here("linux") == ""


def test_the_message_is_printed_before_linux_modules_are_imported():
    code = (
        "import sys; sys.platform = 'darwin'; sys.modules['fcntl'] = None; sys.modules['resource'] = None\n"
        "from clary.cli.start import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("clary: Clary needs Linux, and this is macOS: ")
