"""Paths, on this machine and for the program, of the folders that are mirrored while a program runs.

A LocalPath below `/opt/ml` is a folder of the host's tree. For any other LocalPath a folder beside the tree is
bind-mounted at that path; for plain processes, which see the machine's own files, the path is used unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clary.agent.artifacts.folder_mirror import FolderMirror
from clary.agent.host.leftovers import remove_tree
from clary.agent.host.sandbox import Bind
from clary.base.beneath import Folder
from clary.base.errors import AgentError, Fault
from clary.contract.job_rules import MirrorPlan
from clary.contract.launch_plan import Endpoint, Isolation, LaunchPlan
from clary.contract.ml_tree import OPT_ML, MlTree
from clary.contract.object_store import ObjectStore
from clary.contract.settings.named_places import local_folder, real_folder_problem

_BOUND_FOLDER = "mirrored"  # beside the host's tree
_STORE_ATTEMPTS = 4  # the retries take 2 to 4 seconds; the next round tries again
_STORE_TIMEOUT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class MirroredPlace:
    """One folder."""

    plan: MirrorPlan
    home: Path  # a folder that the program cannot replace
    below: tuple[str, ...]
    bind: Bind | None
    endpoint: Endpoint
    is_shared: bool = False  # whether other hosts mirror their folders to the same prefix

    @property
    def path(self) -> Path:
        """Path of the folder on this machine."""
        return self.home.joinpath(*self.below)

    def make(self) -> None:
        """Make the folder, and empty it if it lies beside the tree; only safe while no program runs.

        Raises: AgentError (fault USER) if the folder would hide the program's system files or upload them; OSError.
        """
        problem = real_folder_problem(f"LocalPath of {self.plan.what}", self.plan.local_path, is_mirrored=True)
        if problem is not None:
            raise AgentError(problem, fault=Fault.USER)
        if self.bind is not None:
            remove_tree(str(self.path))  # files of the job that used this host before
        with Folder.at(self.home, create=True) as home:
            home.folder("/".join(self.below), create=True).close()

    def open(self) -> FolderMirror:
        """Return the folder's mirror, not started."""
        return FolderMirror(
            self.home,
            self.below,
            s3_uri=self.plan.s3_uri,
            open_store=self._open_store,
            stores_bare_end=self.is_shared and self.plan.marks_end,
        )

    def _open_store(self) -> ObjectStore:
        return ObjectStore(self.endpoint, attempts=_STORE_ATTEMPTS, timeout_s=_STORE_TIMEOUT_S)


def mirrored_places(plan: LaunchPlan, tree: MlTree, host_folder: Path) -> tuple[MirroredPlace, ...]:
    """Return a place for each mirror of a plan.

    Args:
        plan: of the attempt.
        tree: `/opt/ml` of this host in the agent's view; contains the folders below `/opt/ml`.
        host_folder: of this host; contains the folders that are bind-mounted at other paths.
    """
    places = []
    for number, mirror in enumerate(plan.mirrors):
        path, bind = Path(local_folder(mirror.local_path)), None
        if path.is_relative_to(OPT_ML) and path != OPT_ML:
            home, below = tree.root, path.relative_to(OPT_ML).parts
        elif plan.isolation is Isolation.NAMESPACES:
            home, below = host_folder, (_BOUND_FOLDER, str(number))
            bind = Bind(source=str(home.joinpath(*below)), target=str(path))
        else:
            home, below = Path(path), ()
        is_shared = len(plan.hosts) > 1
        places.append(
            MirroredPlace(
                plan=mirror, home=home, below=below, bind=bind, endpoint=plan.object_store, is_shared=is_shared
            )
        )
    return tuple(places)
