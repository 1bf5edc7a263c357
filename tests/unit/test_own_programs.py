"""Programs of Clary's own import nothing from the folder in which their command was called: it may be anybody's."""

import argparse
import ast
import subprocess
from pathlib import Path

import pytest

import clary
from clary.cli import up
from clary.control.engines.local import anchors, memory_limits
from clary.control.reconcile.desks import rehearsal_desk

SOURCES = Path(clary.__file__).parent
OPTIONS = argparse.Namespace(new_database=False, new_keys=False)
# Programs whose folder is chosen by their parent, and is a folder of the service's own.
PLACED = {
    "agent/boot.py",  # nodes may have Python 3.10, which lacks -P
    "agent/health/network_doctor.py",  # as the agent, whose folder it inherits
    "control/engines/local/agent_processes.py",  # the folder of the agent's log
}


@pytest.mark.parametrize(
    "command",
    [up._command(OPTIONS), anchors.ANCHOR_COMMAND, memory_limits.PROBE_COMMAND, rehearsal_desk.COMMAND],
    ids=lambda command: command[-1],
)
def test_a_module_in_the_callers_folder_is_not_imported(command, tmp_path):
    trap = "raise SystemExit('the trap was imported')\n"
    for name in ("json", "argparse", "socket"):
        (tmp_path / f"{name}.py").write_text(trap)
    done = subprocess.run(
        [*command, "--no-such-option"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(SOURCES.parent), "CLARY_PORT": "none"},  # which ends a start
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "the trap was imported" not in done.stderr + done.stdout


def modules_run(path):
    """Yield line and words of each literal command of a file that runs a module with the service's interpreter."""
    for node in ast.walk(ast.parse(path.read_text())):
        parts = getattr(node, "elts", None) or getattr(node, "args", None)
        if not isinstance(parts, list) or not any(ast.unparse(part) == "sys.executable" for part in parts):
            continue
        words = [part.value for part in parts if isinstance(part, ast.Constant)]
        if "-m" in words and "install" not in words:  # that one is a text for people
            yield node.lineno, words[: words.index("-m")]


def test_each_program_of_service_commands_and_agent_ignores_the_folder_in_which_it_starts():
    found = {}
    for wing in ("base", "contract", "agent", "control", "cli"):
        for path in (SOURCES / wing).rglob("*.py"):
            name = str(path.relative_to(SOURCES))
            if "shims" not in name:  # these are torchrun, deepspeed and the like, in the program's own folder
                found |= {f"{name}:{line}": words for line, words in modules_run(path)}
    assert len(found) >= 9, found
    unsafe = [place for place, words in found.items() if not {"-P", "-I"} & set(words)]
    assert {place.rpartition(":")[0] for place in unsafe} == PLACED, unsafe
