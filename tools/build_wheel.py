"""Build the wheel that users install: for any Linux with a glibc as old as its name says, the same bytes each time.

    make wheel                                  # in an environment of its own, with all that this needs
    .venvs/wheel/bin/python tools/build_wheel.py [--once]

The tracked files of this tree are copied elsewhere and built there, so that nothing of the tree's own builds goes
along; auditwheel names the oldest glibc that will do. Then all of it is done again in another folder, and both wheels
must be equal. Prints name, size, SHA-256 and time. Times in the wheel are those of the last commit.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "dist"
BUILD_TIMEOUT_S = 900
NATIVE = ("clary/train/_native/libclary_collectives.so", "clary/train/_native/_door.abi3.so")
MIB = 1024 * 1024


def main() -> int:
    """Build, compare, print; 0 if there is a wheel that may be released."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--once", action="store_true", help="do not build a second time to compare")
    arguments = parser.parse_args()
    os.umask(0o022)  # modes of files are part of the wheel
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        wheel = build(Path(first))
        seconds = time.monotonic() - began_s
        missing = set(NATIVE) - set(zipfile.ZipFile(wheel).namelist())
        if missing:
            sys.exit(f"{wheel.name} lacks {', '.join(sorted(missing))}: is there a C++ compiler, and Python.h?")
        if not arguments.once and (other := digest(build(Path(second)))) != digest(wheel):
            sys.exit(f"{wheel.name} is not the same twice: SHA-256 {digest(wheel)}, then {other}")
        TARGET.mkdir(exist_ok=True)
        shutil.copy(wheel, TARGET / wheel.name)
    built = TARGET / wheel.name
    print(f"{built.relative_to(ROOT)}  {built.stat().st_size / MIB:.2f} MiB  built in {seconds:.0f} s")
    print(f"sha256 {digest(built)}{'' if arguments.once else ', the same in two folders'}")
    return 0


def build(folder: Path) -> Path:
    """Return a wheel that auditwheel has named, built below `folder`."""
    source = folder / "source"
    copy_tree(source)
    environment = {
        **os.environ,
        "SOURCE_DATE_EPOCH": run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip(),
        "CXXFLAGS": f"-ffile-prefix-map={source}=.",  # paths stand in debug information
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*command, "--wheel-dir", str(folder / "raw"), str(source), cwd=folder, environment=environment)
    (raw,) = (folder / "raw").glob("*.whl")
    if raw.name.endswith("-any.whl"):
        return raw  # built without the core; `main` says what is missing
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "--wheel-dir", str(folder / "named")]
    run(*command, str(raw), cwd=folder, environment=environment)
    (wheel,) = (folder / "named").glob("*.whl")
    return wheel


def copy_tree(target: Path) -> None:
    """Copy the tracked files of this tree, with modes that do not depend on the umask of the checkout."""
    for name in run("git", "ls-files", "-z", cwd=ROOT).split("\0"):
        path = ROOT / name
        if not name or path.is_symlink() or not path.is_file():
            continue
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        copy.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def run(*command: str, cwd: Path, environment: dict[str, str] | None = None) -> str:
    """Run a command to its end and return its standard output; ends this program if it fails."""
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command[:4])} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
