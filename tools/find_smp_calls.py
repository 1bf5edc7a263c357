"""Say which names of SMP and SMDDP the scripts of a folder use, and which of them are missing here or called otherwise.

Run it with a Python that has torch, and for names of TensorFlow with one that has that:

    PYTHONPATH=src:src/clary/compat .venvs/train/bin/python tools/find_smp_calls.py FOLDER [--json]
    PYTHONPATH=src:src/clary/compat .venvs/tensorflow/bin/python tools/find_smp_calls.py FOLDER [--json]

Scripts and notebooks are read, never run; of a notebook its code, and the Python files that cells write. Names are
those that come from `smdistributed` and `torch.sagemaker`: of modules that are imported, of what is imported from them,
and of what is reached through them by dots; and those of variables that hold what DistributedModel,
DistributedOptimizer or smp.init's `state` gave. Where smdistributed is imported, a parameter `optimizer` is taken for a
DistributedOptimizer, and `model` of a function under `smp.step` for a DistributedModel. Keys that `init` is given as a
dict are `init[KEY]`.
A call is held against the signature of what is called here. The exit status is 1 if anything is missing or called
otherwise; names of a framework that this Python does not have are told apart, and not looked at.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import re
import sys
import typing
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

ROOTS = ("smdistributed", "torch.sagemaker")
# What instances of these have is looked for on them: scripts keep what they return in a variable of one file.
CLASSES = ("DistributedModel", "DistributedOptimizer", "GradScaler", "StepOutput", "MoEConfig", "DelayedParamIniter")
_FORWARDS = {"DistributedOptimizer": ("torch.optim", "Optimizer")}  # asks what it wraps for names that it has not

_CONFIGURATIONS = {
    "smdistributed.modelparallel.torch.init": ("clary.train.parallel.configuration", "Configuration"),
    "torch.sagemaker.init": ("clary.train.parallel.fsdp.configuration", "FsdpConfiguration"),
}
_FRAMEWORKS = ("torch", "tensorflow")
_NOT_LOOKED_AT = "not looked at"


class NotLookedAt(LookupError):
    """A name of a framework that this Python does not have."""


@dataclass(frozen=True)
class Use:
    """One place where a script uses a name.

    Args:
        name: with dots, from its root; `Class.attribute` where an instance of a class is used.
        keywords: of a call.
        num_positional: of a call; None where it is no call, or has a star among its arguments.
    """

    name: str
    line: int
    is_call: bool = False
    keywords: tuple[str, ...] = ()
    num_positional: int | None = None


@dataclass
class Finding:
    """A name that is missing here or takes other arguments, with the places of its uses."""

    name: str
    reason: str
    places: list[str] = field(default_factory=list)


def main() -> int:
    """Read the scripts of the folder that the command line names, and print counts and findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true", help="print counts and findings as JSON")
    options = parser.parse_args()
    counts, findings, unread = look_at(options.folder)
    if options.json:
        told = {"uses": counts, "findings": [vars(one) for one in findings], "unread": unread}
        print(json.dumps(told, indent=2))
    else:
        for name, number in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            print(f"{number:5}  {name}")
        for one in findings:
            print(f"{one.reason}: {one.name} ({len(one.places)} places, such as {one.places[0]})")
        for path in unread:
            print(f"not read, or a cell of it is not, as it is no Python 3: {path}")
        others = sum(one.reason.startswith(_NOT_LOOKED_AT) for one in findings)
        more = f", {others} not looked at" if others else ""
        wrong = len(findings) - others
        print(f"{sum(counts.values())} uses of {len(counts)} names; {wrong} are missing or called otherwise{more}")
    return 1 if any(not one.reason.startswith(_NOT_LOOKED_AT) for one in findings) else 0


def look_at(folder: Path) -> tuple[dict[str, int], list[Finding], list[str]]:
    """Return the number of files that use each name, the findings, and the files that could not be read."""
    counts: Counter[str] = Counter()
    found: dict[tuple[str, str], Finding] = {}
    unread = []
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".ipynb") and path.is_file()):
        programs = programs_in(path.read_text(encoding="utf-8", errors="replace"), is_notebook=path.suffix == ".ipynb")
        read = [uses_in(one) for one in programs or ()]
        if programs is None or None in read:
            unread.append(str(path.relative_to(folder)))
        found_here = [use for uses in read if uses is not None for use in uses]
        counts.update({use.name for use in found_here})
        for use in found_here:
            reason = what_is_wrong(use)
            if reason is not None:
                finding = found.setdefault((use.name, reason), Finding(use.name, reason))
                finding.places.append(f"{path.relative_to(folder)}:{use.line}")
    return dict(counts), sorted(found.values(), key=lambda one: (one.reason, one.name)), unread


def programs_in(text: str, *, is_notebook: bool) -> list[str] | None:
    """Return the programs of a file: of a notebook its cells as one, and each Python file that a cell writes.

    Lines of all are numbered as in the cells one after another. A cell that is not Python is a program of its own.

    Returns: None if it is no notebook.
    """
    if not is_notebook:
        return [text]
    try:
        cells = [cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError):
        return None
    own: list[str] = []
    written = []
    for source in cells:
        lines = (source if isinstance(source, str) else "".join(source)).splitlines()
        before = [""] * len(own)
        is_magic = bool(lines) and lines[0].startswith("%%")
        if is_magic and lines[0].startswith("%%writefile") and lines[0].rstrip().endswith(".py"):
            written.append("\n".join([*before, "", *lines[1:]]))
        if not is_magic:
            lines = [re.sub(r"^(\s*)[%!].*", r"\1pass", line) for line in lines]
            if uses_in("\n".join(lines)) is None:  # such as a cell that is text: told, and the others are read
                written.append("\n".join([*before, *lines]))
                is_magic = True
        own += [""] * len(lines) if is_magic else lines
    return ["\n".join(own), *written]


def uses_in(text: str) -> list[Use] | None:
    """Return the uses in a script; None if it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of strings with odd escapes
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    names = _imported(tree)
    reader = _Reader(names, _instances(tree, names))
    reader.visit(tree)
    return [*_imports(tree), *reader.uses]


def what_is_wrong(use: Use) -> str | None:
    """Return why a use would fail here; None if it would not."""
    try:
        target = resolve(use.name)
    except NotLookedAt as error:
        return f"{_NOT_LOOKED_AT} ({error})"
    except LookupError as error:
        return f"missing ({error})"
    if target is None or not use.is_call or use.num_positional is None:
        return None
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return None
    arguments: list[Any] = [None] * use.num_positional
    if _is_method(use.name):
        arguments.insert(0, None)  # self
    try:
        signature.bind_partial(*arguments, **dict.fromkeys(use.keywords))
    except TypeError as error:
        return f"called otherwise ({error})"
    return None


def resolve(name: str) -> Any:
    """Return the object that a dotted name means in this installation.

    Raises: LookupError saying which part is missing; NotLookedAt.
    """
    words = name.split(".")
    if words[0] in CLASSES:
        return _of_instance(*words)
    if name.endswith("]"):
        return _key(*name[:-1].split("["))
    lengths = [number for number in range(len(words), 0, -1) if _module(".".join(words[:number]))]
    if not lengths:
        raise LookupError(f"no module {name}")
    error = None
    for length in lengths:  # a package may have something else by the name of a module of it
        try:
            return _reach(words, length)
        except LookupError as one:
            error = error or one
    raise error or LookupError(name)


def _reach(words: list[str], length: int) -> Any:
    """Return the object that the words after the first `length` reach by dots from the module that those name."""
    found: Any = _module(".".join(words[:length]))
    for place, word in enumerate(words[length:], length):
        found = _member(found, word, ".".join(words[:place]))
        if found is None:
            return None
    return found


def _key(init: str, key: str) -> None:
    """Look for a key of a configuration; keys that begin with an underscore are always accepted."""
    module, kind = _CONFIGURATIONS[init]
    configuration = getattr(_imported_module(module), kind)
    if not key.startswith("_") and not hasattr(configuration, key):
        raise LookupError(f"{init} takes no key {key}")


def _member(owner: Any, word: str, name: str) -> Any:
    """Return an attribute; where it has no value before a program is initialised, the class that it will be of.

    Returns: None for a value that nothing is known of.
    Raises: LookupError if there is none.
    """
    try:
        return getattr(owner, word)
    except AttributeError:
        if word in getattr(owner, "__dataclass_fields__", {}):
            return None
        raise LookupError(f"{name} has no {word}") from None
    except RuntimeError:
        getter = inspect.getattr_static(type(owner), word)
        kind = typing.get_type_hints(getter.fget).get("return")
        return kind if isinstance(kind, type) else None


def _of_instance(class_name: str, *attributes: str) -> Any:
    found: Any = _classes()[class_name]
    if not attributes:
        return found
    word = attributes[0]  # what it gives is anybody's
    if hasattr(found, word):
        return getattr(found, word)
    is_forwarded = class_name in _FORWARDS and hasattr(_class_of_torch(*_FORWARDS[class_name]), word)
    module = inspect.getmodule(found)
    is_set = module is not None and f"self.{word}" in inspect.getsource(module)  # by its constructor
    if not is_forwarded and not is_set:
        raise LookupError(f"{class_name} has no {word}")
    return None


def _classes() -> dict[str, Any]:
    smp = _imported_module("smdistributed.modelparallel.torch")
    moe = _imported_module("torch.sagemaker.moe.moe_config")
    delayed = _imported_module("torch.sagemaker.delayed_param")
    return {
        "DistributedModel": smp.DistributedModel,
        "DistributedOptimizer": smp.DistributedOptimizer,
        "GradScaler": smp.amp.GradScaler,
        "StepOutput": smp.StepOutput,
        "MoEConfig": moe.MoEConfig,
        "DelayedParamIniter": delayed.DelayedParamIniter,
    }


def _class_of_torch(module: str, name: str) -> Any:
    return getattr(_imported_module(module), name)


def _is_method(name: str) -> bool:
    words = name.split(".")
    return words[0] in CLASSES and inspect.isfunction(resolve(name))


def _module(name: str) -> ModuleType | None:
    try:
        return _imported_module(name)
    except ImportError:
        return None


def _imported_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name in _FRAMEWORKS:
            raise NotLookedAt(f"this Python has no {error.name}") from None
        raise


def _is_ours(name: str) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in ROOTS)


def _imported(tree: ast.AST) -> dict[str, str]:
    """Return the names that a script imports from our roots, each with its full dotted name."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                if _is_ours(one.name):
                    found[one.asname or one.name.partition(".")[0]] = one.name if one.asname else "="
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for one in node.names:
                if _is_ours(f"{node.module}.{one.name}"):
                    found[one.asname or one.name] = f"{node.module}.{one.name}"
    return {name: name if target == "=" else target for name, target in found.items()}


def _imports(tree: ast.AST) -> Iterator[Use]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Use(one.name, node.lineno) for one in node.names if _is_ours(one.name))
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for one in node.names:
                name = node.module if one.name == "*" else f"{node.module}.{one.name}"
                if _is_ours(name):
                    yield Use(name, node.lineno)


def _instances(tree: ast.AST, names: dict[str, str]) -> dict[str, str]:
    """Return variables that hold an instance of one of `CLASSES`, and nothing of another kind in the same file."""
    kinds: dict[str, set[str]] = defaultdict(set)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = _dotted(node.targets[0])
        if target is None:
            continue
        made = _full(node.value.func, names) if isinstance(node.value, ast.Call) else None
        last = "" if made is None else made.rpartition(".")[2]
        kinds[target].add(last if last in CLASSES else "")
    return {target: found.pop() for target, found in kinds.items() if len(found) == 1 and "" not in found}


def _dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (inner := _dotted(node.value)) is not None:
        return f"{inner}.{node.attr}"
    return None


def _full(node: ast.AST, names: dict[str, str], instances: dict[str, str] | None = None) -> str | None:
    """Return the full dotted name that an expression means; None if it is not below our roots."""
    dotted = _dotted(node)
    if dotted is None:
        return None
    for target, kind in (instances or {}).items():
        if dotted.startswith(f"{target}."):
            return f"{kind}.{dotted.removeprefix(f'{target}.')}"
    first, _, rest = dotted.partition(".")
    if first not in names:
        return None
    full = f"{names[first]}.{rest}" if rest else names[first]
    return full if _is_ours(full) else None


class _Reader(ast.NodeVisitor):
    """Gathers uses, the longest name at each place."""

    def __init__(self, names: dict[str, str], instances: dict[str, str]) -> None:
        self.uses: list[Use] = []
        self._names, self._instances = names, instances

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Take a function, in which some parameters are known by their names."""
        outer = self._instances
        parameters = {one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
        own = {}
        if "optimizer" in parameters and any(name.startswith(ROOTS[0]) for name in self._names.values()):
            own["optimizer"] = "DistributedOptimizer"
        above = (one.func if isinstance(one, ast.Call) else one for one in node.decorator_list)
        if "model" in parameters and any((_full(one, self._names) or "").endswith(".step") for one in above):
            own["model"] = "DistributedModel"
        self._instances = {**{name: kind for name, kind in outer.items() if name not in parameters}, **own}
        self.generic_visit(node)
        self._instances = outer

    def visit_Call(self, node: ast.Call) -> None:
        """Take a call, with its arguments."""
        name = _full(node.func, self._names, self._instances)
        if name in _CONFIGURATIONS:
            given = [*node.args[:1], *(one.value for one in node.keywords if one.arg == "config")]
            for key in (key for one in given if isinstance(one, ast.Dict) for key in one.keys):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    self.uses.append(Use(f"{name}[{key.value}]", key.lineno))
        if name is None:
            self.generic_visit(node)
            return
        has_star = any(isinstance(one, ast.Starred) for one in node.args) or any(not one.arg for one in node.keywords)
        keywords = tuple(one.arg for one in node.keywords if one.arg)
        self.uses.append(Use(name, node.lineno, True, keywords, None if has_star else len(node.args)))
        for one in (*node.args, *node.keywords):
            self.visit(one)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Take a name with dots."""
        name = _full(node, self._names, self._instances)
        if name is None:
            self.generic_visit(node)
        else:
            self.uses.append(Use(name, node.lineno))

    def visit_Name(self, node: ast.Name) -> None:
        """Take a name."""
        name = _full(node, self._names)
        if name is not None and isinstance(node.ctx, ast.Load):
            self.uses.append(Use(name, node.lineno))


if __name__ == "__main__":
    importlib.import_module("clary_autoload").register()  # makes torch.sagemaker known
    sys.exit(main())
