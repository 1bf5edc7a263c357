"""The folder where programs of a job find `clary.train` and the foreign names of `clary.compat`.

Where: the supervisor builds it together with `/opt/ml`; launchers put it last on PYTHONPATH. No package is installed.

    /opt/ml/.clary/python/
        clary/train, clary/contract, clary/base  links to this installation; a namespace package, see below
        smdistributed, smdebug, horovod  links to `clary.compat`
        sagemaker_training              link; the description of the job, as AWS's containers have it
        sagemaker_containers            link; the same under its older name
        sagemaker_xgboost_container     link; what scripts of XGBoost's image call
        smddpcommon                     link; a module of AWS's SMDDP
        clary_toolkit                   link; the modules of sagemaker_training and sagemaker_containers
        clary_autoload.py               link; called when torch is imported
        clary_cuda_on_cpu               link; called when torch is imported, acts only on request
        clary_rehearsal.py              likewise
        clary-VERSION.dist-info         entry points `torch.backends` for the three

[Note: the user's packages win] PYTHONPATH precedes site-packages, so even the last folder on PYTHONPATH would win over
the user's packages. `clary` and `smdistributed` are therefore namespace packages here: Python prefers a regular package
of that name anywhere on the path. If AWS's `smdistributed` is a namespace package too, the code of our
`smdistributed.dataparallel` loads AWS's module instead; our `smdebug`, `horovod`, `sagemaker_training`,
`sagemaker_containers`, `sagemaker_xgboost_container` and `smddpcommon`, which are regular packages, do the same.
Source: PEP 420; torch 2.5 "Autoloading Out-of-Tree Extension".
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import clary
from clary.agent.environments.config_files import run_folder
from clary.base.beneath import Folder
from clary.contract.ml_tree import MlTree

PACKAGE_FOLDER = Path(clary.__file__).parent  # of this installation; hosts see it at the same path
_WINGS = ("train", "contract", "base")  # packages that programs may import
_COMPAT = (
    "smdistributed",
    "smdebug",
    "horovod",
    "sagemaker_training",
    "sagemaker_containers",
    "sagemaker_xgboost_container",
    "smddpcommon",
    "clary_toolkit",
    "clary_autoload.py",
    "clary_cuda_on_cpu",
    "clary_rehearsal.py",
)
_METADATA = f"""\
Metadata-Version: 2.1
Name: clary
Version: {clary.__version__}
Summary: {(clary.__doc__ or "").strip()}
"""
_ENTRY_POINTS = """\
[torch.backends]
clary_smddp = clary_autoload:register
clary_cuda_on_cpu = clary_cuda_on_cpu:register
clary_rehearsal = clary_rehearsal:register
"""
_METADATA_FOLDER = f"clary-{clary.__version__}.dist-info"
_LAST_FILE = "entry_points.txt"


def library_folder(tree: MlTree) -> Path:
    """Return the folder to put last on PYTHONPATH."""
    return run_folder(tree) / "python"


def write_train_library(tree: MlTree, *, package_folder: Path = PACKAGE_FOLDER) -> None:
    """Build the folder; do nothing if it is complete.

    Args:
        package_folder: of the installed `clary`, as the program sees it.

    State after failure: written files stay; the next call writes the other files.
    Raises: OSError, for example for a full disk.
    """
    if is_complete(tree):
        return
    links = {f"clary/{wing}": package_folder / wing for wing in _WINGS}
    links |= {name: package_folder / "compat" / name for name in _COMPAT}
    place = library_folder(tree).relative_to(tree.root)
    with Folder.at(tree.root, create=True) as root, root.folder(str(place), create=True) as folder:
        folder.folder("clary", create=True).close()
        for name, source in links.items():
            with contextlib.suppress(FileExistsError):
                folder.make_link(name, str(source))
        with folder.folder(_METADATA_FOLDER, create=True) as metadata:
            metadata.write("METADATA", _METADATA.encode())
            metadata.write(_LAST_FILE, _ENTRY_POINTS.encode("ascii"))


def is_complete(tree: MlTree) -> bool:
    """Whether `write_train_library` has finished in this tree."""
    place = (library_folder(tree) / _METADATA_FOLDER / _LAST_FILE).relative_to(tree.root)
    try:
        with Folder.at(tree.root) as root:
            return root.read(str(place), max_bytes=len(_ENTRY_POINTS) + 1) == _ENTRY_POINTS.encode("ascii")
    except OSError:
        return False
