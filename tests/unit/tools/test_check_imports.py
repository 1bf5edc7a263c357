"""Imports inside functions are found, with the reason in the comment beside or above them."""

import importlib.util
import sys
from pathlib import Path

TOOL = Path(__file__).parents[3] / "tools/check_imports.py"


def reasons(folder: Path, body: str) -> list[str | None]:
    spec = importlib.util.spec_from_file_location("check_imports", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    sys.modules["check_imports"] = tool  # dataclasses look their module up in sys.modules
    try:
        spec.loader.exec_module(tool)
        file = folder / "one.py"
        file.write_text(f"import os\nfrom clary import base\n\n\ndef act():\n{body}")
        return [late.reason for late in tool.late_imports(file)]
    finally:
        del sys.modules["check_imports"]


def test_an_import_inside_a_function_without_a_comment_has_no_reason(tmp_path: Path) -> None:
    assert reasons(tmp_path, "    from clary.base import plain\n    return plain\n") == [None]


def test_the_reason_is_beside_or_above_a_group_of_imports(tmp_path: Path) -> None:
    body = (
        "    from clary.base import plain  # saves 3 ms of nothing\n    if plain:\n"
        "        # saves 12 ms\n        from clary import contract\n        import clary.agent\n"
    )
    assert reasons(tmp_path, body) == ["# saves 3 ms", "# saves 12 ms", "# saves 12 ms"]


def test_third_party_imports_and_imports_at_the_top_do_not_count(tmp_path: Path) -> None:
    assert reasons(tmp_path, "    import json\n    return json\n") == []
