"""The table of floors in ARCHITECTURE.md, generated from contracts of layers."""

import subprocess
import sys
from pathlib import Path

from tools.write_floors import MOST_WITHOUT_FLOORS, table, without_floors

TOOL = Path(__file__).parents[3] / "tools/write_floors.py"
CONTRACTS = """
[importlinter]
root_package = house

[importlinter:contract:whole]
name = Written in full
type = layers
layers =
    house.attic
    house.rooms.kitchen | house.rooms.hall
    house.cellar

[importlinter:contract:other]
name = No floors
type = forbidden
source_modules =
    house.attic
forbidden_modules =
    torch

[importlinter:contract:rooms]
name = Below a container
type = layers
containers = house.rooms
exhaustive = true
layers =
    hall
    kitchen : pantry
"""


def test_floors_are_listed_from_below_by_names_relative_to_the_package() -> None:
    assert table(CONTRACTS).splitlines()[2:] == [
        "| `house` | `cellar` < `rooms.kitchen`, `rooms.hall` < `attic` |",
        "| `house.rooms` | `kitchen`, `pantry` < `hall` |",
    ]


def test_a_large_package_needs_an_exhaustive_contract(tmp_path: Path) -> None:
    for room, count in (("large", MOST_WITHOUT_FLOORS + 1), ("loose", MOST_WITHOUT_FLOORS + 1), ("small", 15)):
        (tmp_path / "clary" / room).mkdir(parents=True)
        for name in ("__init__", *(f"module_{number}" for number in range(count))):
            (tmp_path / "clary" / room / f"{name}.py").touch()
    loose = "[importlinter:contract:loose]\ntype = layers\ncontainers = clary.loose\nlayers =\n    module_1\n"
    exhaustive = loose.replace("loose", "large") + "exhaustive = true\n"

    assert [line.partition(":")[0] for line in without_floors(loose, tmp_path)] == ["clary.large", "clary.loose"]
    assert [line.partition(":")[0] for line in without_floors(loose + exhaustive, tmp_path)] == ["clary.loose"]


def test_an_outdated_page_is_reported_and_written_again(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    tool = tmp_path / "tools" / TOOL.name
    tool.write_bytes(TOOL.read_bytes())
    (tmp_path / ".importlinter").write_text(CONTRACTS)
    page = tmp_path / "ARCHITECTURE.md"

    def run(*options: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, str(tool), *options], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    page.write_text("# A page without marks\n")
    assert run()[0] == 1
    page.write_text("before\n<!-- floors: written by tools/write_floors.py -->\nold\n<!-- end of floors -->\nbehind\n")
    code, said = run("--check")
    assert code == 1
    assert "run python tools/write_floors.py" in said
    assert run() == (0, "")
    assert run("--check") == (0, "")
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("-->\nbehind\n")
    assert "old" not in text
