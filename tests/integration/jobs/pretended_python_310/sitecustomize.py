"""Makes a newer interpreter look like Python 3.10 from the first import of a module of Clary on.

The interpreter reads this file at its start if the folder is on PYTHONPATH. Later imports of a standard module get a
copy without the names added in Python 3.11 or later. The modules themselves, which use some of these names, stay
unchanged. torch has been imported before, for the real version. In a real Python 3.10 this file does nothing.
"""

import importlib
import sys
from types import ModuleType

NEWER_VERSION = (3, 11)
NEWER = {
    "asyncio": ("Barrier", "BrokenBarrierError", "Runner", "TaskGroup", "timeout", "timeout_at"),
    "contextlib": ("chdir",),
    "datetime": ("UTC",),
    "enum": ("EnumCheck", "ReprEnum", "StrEnum", "global_enum", "global_str", "member", "nonmember", "verify"),
    "hashlib": ("file_digest",),
    "http": ("HTTPMethod",),
    "inspect": ("getasyncgenlocals", "getasyncgenstate", "getmembers_static", "markcoroutinefunction"),
    "itertools": ("batched",),
    "locale": ("getencoding",),
    "logging": ("getHandlerByName", "getHandlerNames", "getLevelNamesMapping"),
    "math": ("cbrt", "exp2", "fma", "sumprod"),
    "operator": ("call",),
    "re": ("NOFLAG",),
    "typing": (
        *("LiteralString", "Never", "NotRequired", "Required", "Self", "TypeVarTuple", "Unpack", "assert_never"),
        *("clear_overloads", "dataclass_transform", "get_overloads", "override", "reveal_type"),
    ),
}
NEWER_BUILTINS = ("BaseExceptionGroup", "ExceptionGroup")
NEWER_OF_SYS = ("activate_stack_trampoline", "exception", "monitoring")
NEWER_MODULES = ("tomllib", "wsgiref.types")
# Modules imported before the change, because they are written for the real version.
USERS = (
    *("asyncio", "http.client", "pstats", "ssl", "tempfile", "traceback", "unittest.mock", "urllib.request", "uuid"),
)
USERS_OF_TORCH = ("torch._dynamo",)  # it parses bytecode
OURS = ("clary", "clary_autoload", "clary_cuda_on_cpu", "clary_rehearsal", "smdebug", "smdistributed")


class FirstOfOurs:
    """First finder of `sys.meta_path` until a module of Clary is imported; it finds no module itself."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in OURS and FirstOfOurs in sys.meta_path:
            sys.meta_path.remove(FirstOfOurs)
            become_older()


def become_older():
    for name in (*USERS, *(USERS_OF_TORCH if "torch" in sys.modules else ())):
        importlib.import_module(name)
    builtins = importlib.import_module("builtins")
    for name in NEWER_BUILTINS:
        for module in list(sys.modules.values()):  # loaded modules keep the name, which they may look up later
            if type(module) is ModuleType and module is not builtins:
                vars(module).setdefault(name, getattr(builtins, name))
        delattr(builtins, name)
    for name, names in NEWER.items():
        there = importlib.import_module(name)
        older = ModuleType(name)
        vars(older).update({key: value for key, value in vars(there).items() if key not in names})
        if hasattr(there, "__all__"):
            older.__all__ = [key for key in there.__all__ if key not in names]
        sys.modules[name] = older
    for name in NEWER_OF_SYS:
        vars(sys).pop(name, None)
    for name in NEWER_MODULES:
        sys.modules[name] = None
    sys.version_info = (3, 10, 14, "final", 0)
    sys.version = "3.10.14 (pretended)"


if sys.version_info >= NEWER_VERSION:
    sys.meta_path.insert(0, FirstOfOurs)
