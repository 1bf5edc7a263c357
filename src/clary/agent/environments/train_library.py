"""The folder by which a job's programs find Clary's train side and the names that users' scripts import.

Where: the supervisor builds it with `/opt/ml`; launchers put it last on PYTHONPATH. No package is installed.

    /opt/ml/.clary/python/
        clary/train, clary/contract, clary/base  links to this installation; a namespace package, see below
        smdistributed, smdebug, horovod  links to `clary.compat`
        clary_autoload.py               link; torch calls it at its import
        clary_cuda_on_cpu               link; torch calls it too, and it acts only on request
        clary_rehearsal.py              the same
        clary-VERSION.dist-info         entry points `torch.backends`, which name all three

[Note: how the user's own wins]
PYTHONPATH stands before site-packages, so coming last on it is not enough. `clary` and `smdistributed` are therefore
namespace packages here: Python takes a regular package of that name wherever on the path it finds one. Where AWS's
`smdistributed` is a namespace too, our `smdistributed.dataparallel` gives way in its own code, and so do our `smdebug`
and our `horovod`, which are regular packages and no namespaces.
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
_COMPAT = ("smdistributed", "smdebug", "horovod", "clary_autoload.py", "clary_cuda_on_cpu", "clary_rehearsal.py")
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


def library_folder(tree: MlTree) -> Path:
    """Return the folder that belongs last on PYTHONPATH."""
    return run_folder(tree) / "python"


def write_train_library(tree: MlTree, *, package_folder: Path = PACKAGE_FOLDER) -> None:
    """Build the folder; may be repeated.

    Args:
        package_folder: of the installed `clary`, as the program sees it.

    State after failure: written files stay; the next call writes the rest.
    Raises: OSError, for example for a full disk.
    """
    links = {f"clary/{wing}": package_folder / wing for wing in _WINGS}
    links |= {name: package_folder / "compat" / name for name in _COMPAT}
    place = library_folder(tree).relative_to(tree.root)
    with Folder.at(tree.root, create=True) as root, root.folder(str(place), create=True) as folder:
        folder.folder("clary", create=True).close()
        for name, source in links.items():
            with contextlib.suppress(FileExistsError):
                folder.make_link(name, str(source))
        with folder.folder(f"clary-{clary.__version__}.dist-info", create=True) as metadata:
            metadata.write("METADATA", _METADATA.encode())
            metadata.write("entry_points.txt", _ENTRY_POINTS.encode("ascii"))
