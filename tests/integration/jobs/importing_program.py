"""Program that imports every module of Clary that jobs can import, and reports failures; run by `test_older_pythons`.

Frameworks that this interpreter lacks are replaced by fake modules, which have every requested attribute as a class.
The argument is the folder on a job's PYTHONPATH. The last line of output is JSON.
"""

import importlib
import importlib.machinery
import importlib.util
import json
import os
import pkgutil
import sys
import traceback
import types

FRAMEWORKS = (
    "torch",
    "numpy",
    "tensorflow",
    "transformers",
    "boto3",
    "botocore",
    "deepspeed",
    "mxnet",
    "keras",
    "xgboost",
    "scipy",
)
REFUSES = ("smdebug.mxnet", "smdebug.tensorflow", "smdebug.xgboost")


class FakeClass(type):
    """A class that has every attribute, each a class as well."""

    def __getattr__(cls, name):
        if name in ("__array__", "__get__", "__getitem__", "__setitem__"):  # attributes of a tensor or a property
            return FakeThing()
        if name.startswith("__"):
            raise AttributeError(name)
        made = FakeClass(name, (FakeThing,), {})
        setattr(cls, name, made)
        return made

    def __getitem__(cls, _):
        return cls

    def __iter__(cls):
        return iter(())

    def __int__(cls):
        return id(cls)


class FakeThing(metaclass=FakeClass):
    """An instance of such a class, which also works as a decorator."""

    def __init__(self, *_, **__):
        pass

    def __call__(self, *arguments, **_):
        return arguments[0] if arguments and callable(arguments[0]) else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return FakeThing()

    def __iter__(self):
        return iter(())

    def __neg__(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


class FakeModule(types.ModuleType):
    """A module of a framework."""

    __version__ = "2.9.0"
    __file__ = __file__
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__") and name != "__internal__":  # an attribute of TensorFlow
            raise AttributeError(name)
        made = FakeClass(name, (FakeThing,), {})
        setattr(self, name, made)
        return made


class FakeFrameworks:
    """Finds fake modules for missing frameworks, except `torch.sagemaker`, which belongs to Clary."""

    def __init__(self, roots):
        self._roots = roots

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self._roots or name.startswith("torch.sagemaker"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    @staticmethod
    def create_module(spec):
        return FakeModule(spec.name)

    @staticmethod
    def exec_module(module):
        pass


def modules_of(folder):
    """Return the names of all modules in the folder on PYTHONPATH."""
    found = []
    ours = ("clary/base", "clary/contract", "clary/train")
    for name in (*ours, "smdebug", "smdistributed", "horovod", "clary_cuda_on_cpu"):
        place = os.path.realpath(os.path.join(folder, name))
        prefix = name.replace("/", ".")
        found.append(prefix)
        for parent, folders, files in os.walk(place):
            folders[:] = sorted(one for one in folders if one != "__pycache__")
            inner = os.path.relpath(parent, place)
            package = prefix if inner == "." else f"{prefix}.{inner.replace(os.sep, '.')}"
            found += [package, *(f"{package}.{file[:-3]}" for file in sorted(files) if file.endswith(".py"))]
    names = [name[: -len(".__init__")] if name.endswith(".__init__") else name for name in found]
    return [*dict.fromkeys(names), "clary_autoload", "clary_rehearsal"]


def main():
    missing = [name for name in FRAMEWORKS if importlib.util.find_spec(name) is None]
    sys.meta_path.insert(0, FakeFrameworks(missing))
    names = modules_of(sys.argv[1])
    autoload = importlib.import_module("clary_autoload")
    sys.meta_path.append(autoload.SagemakerFinder)
    importlib.import_module("torch.sagemaker")
    names += [one.name for one in pkgutil.walk_packages(sys.modules["torch.sagemaker"].__path__, "torch.sagemaker.")]
    failures = {}
    for name in names:
        if name in REFUSES:
            continue
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001 - told to the test, which fails with it
            failures[name] = traceback.format_exc()
    print(json.dumps({"imported": sorted(set(names) - set(failures)), "failures": failures}))


main()
