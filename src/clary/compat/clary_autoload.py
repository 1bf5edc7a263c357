"""Registers Clary with torch at the end of `import torch`, through the entry point in the library folder of jobs.

Scripts may then call `init_process_group("smddp")` without further imports. They may also `import torch.sagemaker`, as
in AWS's images, and `import torch._six`, as in images with torch 1. The module also starts the parts that a job
requests: records of training steps (`train.steps`), profiles, patches of other libraries' trainers, the hook of a
DebugHookConfig, and compilation of models. A failure in this module would fail `import torch` for jobs that never use
Clary's parts, so any error leaves torch unchanged; scripts that import `smdistributed.dataparallel.torch.torch_smddp`
themselves get the error. The module runs in the user's environment, also in Python versions that Clary's train side
does not support.
"""

import contextlib
import importlib.util
import logging
import os
import sys
from importlib.machinery import ModuleSpec

_FOLDER = os.path.dirname(os.path.realpath(__file__))
_OWN_NAMES = os.path.join(_FOLDER, "smdistributed", "dataparallel")
_PLACES_IN_TORCH = {
    "torch.sagemaker": os.path.join(_FOLDER, "torch_sagemaker", "__init__.py"),
    "torch._six": os.path.join(_FOLDER, "torch_six.py"),
}
_PROFILING = os.path.join("train", "profiling", "recorder.py")
_STEPS = os.path.join("train", "steps", "torch_hooks.py")
_ADAPTER = os.path.join("train", "collective", "adapters", "torch", "registration.py")
_DEBUGGER = os.path.join("train", "debugger", "automatic.py")
_COMPILATION = os.path.join("train", "compilation", "outermost.py")
_TRAINERS = os.path.join("train", "trainers", "installing.py")
# parameters of jobs; with one of these parameters, trainers are also patched in processes that are not ranks
_FRAMEWORK = "SM_FRAMEWORK_PARAMS"
_FOR_TRAINERS = ("sagemaker_distributed_dataparallel_enabled", "sagemaker_mpi_enabled")
_HOOK_CONFIGURATION = "SMDEBUG_CONFIG_FILE_PATH"  # set by the agent if a job has a DebugHookConfig
# set by the agent: the recordings that a job requests
_WISHES = ("CLARY_STEPS_FOLDER", "CLARY_PROFILES_FOLDER", _HOOK_CONFIGURATION)
_FOR_MODELS = ("CLARY_COMPILE", "CLARY_AMP")  # set by the agent, too: whether models are compiled or run under autocast
_TOLD = "CLARY_TOLD_TOO_OLD"
_FIRST_VERSION = (3, 10)  # first Python version that clary.train supports
_MASTER_PORT = "CLARY_RUN_MASTER_PORT"  # set by `clary run`; in jobs the launcher sets the variables of ranks
_OF_MPIRUN = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
    "SMDATAPARALLEL_LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
}


class SagemakerFinder:
    """Finds `torch.sagemaker` and `torch._six` in a folder of Clary, so that torch's own files stay unchanged.

    It is last in `sys.meta_path`, so a module of torch or of AWS's library is found first. Submodules are found through
    the package's folder.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        """Return the module's spec; None for any other name.

        Args: as `importlib.abc.MetaPathFinder.find_spec`; `path` and `target` have no effect.
        """
        file = _PLACES_IN_TORCH.get(name)
        return None if file is None else importlib.util.spec_from_file_location(name, file)


def register() -> None:
    """Make `torch.sagemaker` importable, register the backend `smddp`, and start the parts that the job requests.

    AWS's own `torch.sagemaker` and `smdistributed.dataparallel`, if installed, stay in use.
    """
    if not any(isinstance(finder, type) and finder.__name__ == SagemakerFinder.__name__ for finder in sys.meta_path):
        sys.meta_path.append(SagemakerFinder)
    _take_ranks_of_mpirun()
    if sys.version_info < _FIRST_VERSION:
        _say_too_old()
        return
    _record_steps()
    _take_profiles()
    _register_smddp()
    _mend_trainers()
    if os.environ.get(_HOOK_CONFIGURATION):
        _install_hook()
    if any(map(os.environ.get, _FOR_MODELS)):
        _watch_models()


def _take_ranks_of_mpirun() -> None:
    """Set the variables of a job's rank if `clary run` runs mpirun, which sets only its own variables."""
    port = os.environ.get(_MASTER_PORT)
    if not port or "RANK" in os.environ or not all(name in os.environ for name in _OF_MPIRUN.values()):
        return
    told = {name: os.environ[source] for name, source in _OF_MPIRUN.items()}
    for name, value in {**told, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        os.environ.setdefault(name, value)


def _say_too_old() -> None:
    """Print once that this program is not recorded; its child processes inherit a variable and do not print it."""
    if os.environ.get(_TOLD) or not any(map(os.environ.get, _WISHES)) or not _has(_STEPS):
        return
    os.environ[_TOLD] = "1"
    with contextlib.suppress(Exception):  # the program may have closed or replaced its output
        print(
            "clary: steps, profiles and tensors of this program are not recorded: that needs Python 3.10 or newer, "
            f"this is {sys.version.split()[0]}",
            file=sys.stderr,
            flush=True,
        )


def _install_hook() -> None:
    """Install the hook that saves tensors as DebugHookConfig requests; its failure must not end the program."""
    if not _has(_DEBUGGER):
        return
    try:
        # imported late: saves 17 ms in jobs without a hook
        from clary.train.debugger.automatic import install_from_config

        install_from_config()
    except Exception as error:  # noqa: BLE001 - boundary: debug hook
        print(f"clary: no tensors will be saved, training goes on: {error!r}", file=sys.stderr, flush=True)


def _watch_models() -> None:
    """Compile models, or run them under autocast, as the job's hyperparameters request."""
    if not _has(_COMPILATION):
        return
    try:
        # imported late: saves 20 ms in jobs without compiler_config and sagemaker_amp
        from clary.train.compilation import outermost

        outermost.install()
    except Exception as error:  # noqa: BLE001 - boundary: a torch with other internals
        print(f"clary: no model is compiled or runs under autocast: {error!r}", file=sys.stderr, flush=True)


def _register_smddp() -> None:
    if not _has_adapter() or _is_replaced():
        return
    try:
        # imported late: saves 752 ms in other programs, mostly torch's import
        from clary.train.collective.adapters.torch import registration
    except ImportError:
        return  # a subfolder of the user's own folder `clary` hides a subpackage of Clary's with the same name
    registration.autoload()


def _mend_trainers() -> None:
    """Patch trainers of other libraries, in ranks and under SageMaker's distributions."""
    told = os.environ.get(_FRAMEWORK, "")
    is_wanted = "LOCAL_RANK" in os.environ or any(name in told for name in _FOR_TRAINERS)
    if not is_wanted or not _has(_TRAINERS) or _is_replaced():
        return
    try:
        # imported late: saves 14 ms in programs other than ranks
        from clary.train.trainers import install

        install()
    except Exception as error:  # noqa: BLE001 - boundary: libraries may have changed
        print(f"clary: trainers of other libraries stay as they are: {error!r}", file=sys.stderr, flush=True)


def _record_steps() -> None:
    """Record the times of training steps for the agent, if it requests them."""
    if not os.environ.get("CLARY_STEPS_FOLDER") or not _has(_STEPS):
        return
    try:
        from clary.train.steps import torch_hooks  # imported late: saves 13 ms in other jobs

        torch_hooks.install()
    except Exception:
        logging.getLogger("clary.steps").debug("the times of steps are not recorded", exc_info=True)


def _take_profiles() -> None:
    """Record windows of torch.profiler when the agent requests them."""
    if not os.environ.get("CLARY_PROFILES_FOLDER") or not _has(_PROFILING):
        return
    try:
        from clary.train import profiling  # imported late: saves 24 ms in other jobs

        profiling.install()
    except Exception:
        logging.getLogger("clary.profiling").debug("no profiles will be taken", exc_info=True)


def _has_adapter() -> bool:
    return _has(_ADAPTER)


def _has(file: str) -> bool:
    """Whether the package `clary` has this file, so that an import would not run a user's script or package `clary`."""
    return any(os.path.isfile(os.path.join(folder, file)) for folder in _folders("clary"))


def _is_replaced() -> bool:
    """Whether another `smdistributed.dataparallel` than Clary's is installed; looks for folders only."""
    places = [os.path.join(folder, "dataparallel") for folder in _folders("smdistributed")]
    return any(os.path.isdir(place) and os.path.realpath(place) != _OWN_NAMES for place in places)


def _folders(package: str) -> "list[str]":
    """Return the folders of a package of this name, without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # another library has put a module without a spec into sys.modules: leave it
        return []
    return [] if spec is None else list(spec.submodule_search_locations or ())
