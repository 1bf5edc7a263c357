"""Record the terminal of a first job on two boxes, from nothing to Completed, for the README.

Run: `python tools/record_boxes.py` as root, with openssh-server, `.venvs/train` and `.venvs/sdk2` there. It makes a
head and two boxes with a real sshd each (`clary.testing.box_bed`), runs SCENE in a terminal on the head, and writes two
files into docs/pictures: `boxes.cast`, for `asciinema play`, and `boxes.svg`, an animation of it at its own speed.
"""

from __future__ import annotations

import html
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from clary.testing.box_bed import HEAD, HEAD_ADDRESS, PATH, PORT, BoxBed

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs/pictures"
SCENE = (
    "clary up --engine boxes",
    "clary hosts add root@box1 root@box2",
    'eval "$(clary env)"',
    "python submit.py",
    "clary hosts",
)
SETTINGS = f"""
advertise_url = "https://{HEAD_ADDRESS}:{PORT}"
default_python = "{ROOT}/.venvs/train/bin/python"
"""
SHELL = rf"""
cd {ROOT}/examples/mnist
run() {{ printf '$ %s\n' "$1"; eval "$1"; }}
sleep 0.5
"""
COLUMNS, ROWS = 118, 30
LIMIT_S = 600.0
CHARACTER_PX, LINE_PX, MARGIN_PX = 7.2, 17, 12
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True)
class Said:
    """Text that a terminal got."""

    at_s: float  # since the start
    text: str


def lines_of(said: list[Said]) -> list[Said]:
    """Return the lines of a terminal, cut at its width, with the time at which each was complete."""
    lines: list[Said] = []
    text = ""
    for one in said:
        *whole, text = (text + one.text.replace("\r\n", "\n")).split("\n")
        for line in whole:
            plain = _CONTROL.sub("", line.rpartition("\r")[2])
            parts = [plain[start : start + COLUMNS] for start in range(0, len(plain), COLUMNS)] or [""]
            lines += [Said(one.at_s, part) for part in parts]
    return lines


def cast_of(said: list[Said], *, recorded_at: int) -> str:
    """Return a recording in asciicast's format, version 2.

    Args:
        said: by the terminal.
        recorded_at: seconds since 1970.
    """
    head = {
        "version": 2,
        "width": COLUMNS,
        "height": ROWS,
        "timestamp": recorded_at,
        "title": "a first job on two boxes",
    }
    rows = [head, *([round(one.at_s, 3), "o", one.text] for one in said)]
    return "".join(json.dumps(row) + "\n" for row in rows)


def svg_of(lines: list[Said]) -> str:
    """Return an animation that shows each line at its time and scrolls; the end stays."""
    width, height = round(COLUMNS * CHARACTER_PX + 2 * MARGIN_PX), ROWS * LINE_PX + 2 * MARGIN_PX
    texts, scrolls = [], []
    for number, line in enumerate(lines):
        begin = f'begin="{line.at_s:.2f}s" fill="freeze"'
        weight = ' class="typed"' if line.text.startswith("$ ") else ""
        texts.append(
            f'<text x="0" y="{(number + 1) * LINE_PX}" visibility="hidden"{weight}>{html.escape(line.text)}'
            f'<set attributeName="visibility" to="visible" {begin}/></text>'
        )
        if number >= ROWS:
            up_px = (number + 1 - ROWS) * LINE_PX
            scrolls.append(
                f'<animateTransform attributeName="transform" type="translate" from="0 -{up_px}" to="0 -{up_px}" '
                f'dur="0.1s" {begin}/>'
            )
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
            "<style>text { font: 12px monospace; fill: #d8dee9; white-space: pre } .typed { fill: #8fd18f }</style>",
            f'<rect width="{width}" height="{height}" rx="6" fill="#1b1f27"/>',
            f'<svg x="{MARGIN_PX}" y="{MARGIN_PX}" width="{width - 2 * MARGIN_PX}" height="{ROWS * LINE_PX + 4}"><g>',
            *scrolls,
            *texts,
            "</g></svg>",
            "</svg>",
            "",
        )
    )


def record(command: list[str], variables: dict[str, str]) -> list[Said]:
    """Run a command with an environment in a terminal of its own; return its words. Raises: SystemExit if it fails."""
    ours, theirs = pty.openpty()
    os.set_inheritable(theirs, True)
    began_s, said = time.monotonic(), []
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=variables)
    os.close(theirs)
    while time.monotonic() - began_s < LIMIT_S:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the last process that had the terminal has ended
            break
        text = data.decode(errors="replace")
        said.append(Said(time.monotonic() - began_s, text))
        sys.stdout.write(text)
        sys.stdout.flush()
    os.close(ours)
    if process.wait(LIMIT_S) != 0:
        raise SystemExit(f"the scene failed with {process.returncode}")
    return said


def main() -> None:
    """Record the scene and write both files."""
    folder = Path(tempfile.mkdtemp(prefix="clary-record-", dir="/var/tmp"))  # boxes have a /tmp of their own
    folder.chmod(0o755)
    bed = BoxBed(folder)
    try:
        bed.start()
        bed.home.mkdir()
        (bed.home / "settings.toml").write_text(SETTINGS)
        script = SHELL + "".join(f"run '{command}' || exit 1\nsleep 0.5\n" for command in SCENE)
        variables = {
            "PATH": f"{ROOT}/.venvs/sdk2/bin:{ROOT}/.venv/bin:{PATH}",
            "HOME": str(bed.folder / "home/root"),
            "LC_ALL": "C.UTF-8",
            "TERM": "dumb",
            "COLUMNS": str(COLUMNS),
            "CLARY_HOME": str(bed.home),
            "CLARY_TLS_PORT": str(PORT),
            "PYTHONWARNINGS": "ignore",
            "SAGEMAKER_SUPPRESS_V2_WARNING": "1",
        }
        try:
            said = record(bed.argv_on(HEAD, "bash", "-c", script), variables)
        finally:
            bed.clary("down", check=False)
    finally:
        bed.stop()
        shutil.rmtree(folder, ignore_errors=True)
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "boxes.cast").write_text(cast_of(said, recorded_at=int(time.time())))
    (PICTURES / "boxes.svg").write_text(svg_of(lines_of(said)))
    print(f"{said[-1].at_s:.1f} s, {len(lines_of(said))} lines")


if __name__ == "__main__":
    main()
