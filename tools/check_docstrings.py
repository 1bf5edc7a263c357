"""Fail when a public docstring in `src` leaves out its parameters, shapes or errors.

A public function with three or more parameters says each in `Args:`, or has so few words on them that its first lines
name them all. A parameter that is a tensor has a shape: `[B, S, D]`, or a suffix such as `query_BHSD` that the head of
its file explains. A function with a `raise` of its own has `Raises:`.

Run: `python tools/check_docstrings.py PATH...` lists what is missing; without a path in `src`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

MANY = 3
"""Parameters from which on `Args:` is wanted, `self` and `cls` aside."""
SHAPE = re.compile(r"\[[^\]]*\]|\bscalar\b|\bflat\b|\bshape")
SAYS_ERRORS = re.compile(r"[Rr]aises|[Rr]efuse|[A-Z]\w*Error|\braise\b")
SUFFIX = re.compile(r"_[A-Z]+$")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def main(arguments: list[str]) -> int:
    """Print the findings of the paths, or of `src`; return 1 if there are any."""
    files = sorted(path for given in arguments or ["src"] for path in _files_of(Path(given)))
    findings = [finding for path in files for finding in _findings(path)]
    for kind, words in findings:
        print(f"{words}: {kind}")
    return 1 if findings else 0


def _files_of(path: Path) -> list[Path]:
    """Return the Python files at or below a path."""
    return [path] if path.is_file() else list(path.rglob("*.py"))


def _findings(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the kind and the place of everything that a file's public docstrings leave out."""
    for function in _public_functions(ast.parse(path.read_text(encoding="utf-8"))):
        text = ast.get_docstring(function) or ""
        place = f"{path}:{function.lineno}: {function.name}"
        names = _parameters(function)
        if len(names) >= MANY and "Args:" not in text and not all(_names(text, name) for name in names):
            yield "args", place
        tensors = [name for name, kind in names.items() if kind.endswith("Tensor") and not SUFFIX.search(name)]
        if tensors and not SHAPE.search(text):
            yield "shapes", place
        if _raises(function) and not SAYS_ERRORS.search(text):
            yield "raises", place


def _names(text: str, name: str) -> bool:
    """Whether a docstring has the words of a parameter's name, in any order."""
    words = [word for word in name.lower().split("_") if word not in ("num", "is", "has", "s", "bytes")]
    return all(word in text.lower() for word in words)


def _public_functions(tree: ast.Module) -> Iterator[Function]:
    """Yield the functions and methods whose names, and their classes' names, begin with no underscore."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from (one for one in node.body if isinstance(one, Function) and _is_public(one))
        elif isinstance(node, Function) and _is_public(node):
            yield node


def _is_public(function: Function) -> bool:
    return not function.name.startswith("_") and ast.get_docstring(function) is not None


def _parameters(function: Function) -> dict[str, str]:
    """Return the names of a function's parameters with their annotations, without `self` and `cls`."""
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return {
        one.arg: "" if one.annotation is None else ast.unparse(one.annotation).removesuffix(" | None")
        for one in given
        if one.arg not in ("self", "cls") and not one.arg.startswith("_")
    }


def _raises(function: Function) -> bool:
    """Whether a function has a `raise` with an error of its own, outside of functions within it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Raise) and node.exc is not None:
            return True
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
