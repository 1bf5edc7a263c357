"""Fetch the protocol test vectors of the installed botocore into `.cache/botocore-protocols/`.

The wheel of botocore leaves its tests out; the source archive of the same version has them. pip fetches it from
whatever index it is configured for.

    .venv/bin/python tools/fetch_protocol_vectors.py [--archive botocore-1.44.5.tar.gz]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / ".cache" / "botocore-protocols"
FOLDER = ("tests", "unit", "protocols")  # inside the archive, below its top folder
DOWNLOAD_TIMEOUT_S = 600


def main() -> int:
    """Fetch and unpack; 0 if the vectors of the installed version are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archive", type=Path, help="an sdist that is here already, instead of downloading it")
    arguments = parser.parse_args()
    wanted = version("botocore")
    marker = TARGET / "VERSION"
    if marker.is_file() and marker.read_text().strip() == wanted:
        sys.stdout.write(f"{TARGET} holds the vectors of botocore {wanted} already\n")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        archive = arguments.archive or download(wanted, Path(folder))
        unpacked = Path(folder) / "protocols"
        count = unpack(archive, unpacked)
        if count == 0:
            sys.stderr.write(f"{archive} has no {'/'.join(FOLDER)}: expected the source archive of botocore {wanted}\n")
            return 1
        (unpacked / "VERSION").write_text(wanted + "\n")
        shutil.rmtree(TARGET, ignore_errors=True)
        TARGET.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(unpacked, TARGET)
    sys.stdout.write(f"{TARGET}: {count} files of botocore {wanted}\n")
    return 0


def download(wanted: str, folder: Path) -> Path:
    """Return the source archive of a version of botocore, fetched by pip into `folder`."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", "botocore", "--dest", str(folder), f"botocore=={wanted}"]
    subprocess.run(command, check=True, timeout=DOWNLOAD_TIMEOUT_S)
    return next(folder.glob("botocore-*.tar.gz"))


def unpack(archive: Path, target: Path) -> int:
    """Write the vector files of an archive below `target`; returns how many."""
    count = 0
    with tarfile.open(archive) as bundle:
        for member in bundle:
            parts = PurePosixPath(member.name).parts
            if not member.isfile() or parts[1:4] != FOLDER or not member.name.endswith(".json") or ".." in parts:
                continue
            source = bundle.extractfile(member)
            assert source is not None  # a file has content
            path = target.joinpath(*parts[4:])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(source.read())
            count += 1
    return count


if __name__ == "__main__":
    sys.exit(main())
