"""Objects below a prefix: plain objects, hosts' sets, content of sets. Pure except for `list_prefix`.

A prefix without a slash at its end also matches longer names, as in SageMaker: `ckpt/ASHA-1` also matches
`ckpt/ASHA-10/model.pt`, which is restored as `0/model.pt`. This package calls such objects neighbours; the log names
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from clary.agent.checkpoints.places import Prefix, path_problem
from clary.base.errors import AgentError, Fault
from clary.contract.checkpoint_sets import OWN_FOLDER, read_manifest_key
from clary.contract.object_store import ObjectInfo, ObjectStore


@dataclass(frozen=True, kw_only=True)
class PlainObject:
    """An object at a path that users read, and the path that it is restored to."""

    path: str
    key: str  # the whole key
    size_bytes: int
    is_neighbour: bool = False  # whether it lies beside the folder, matched because the prefix has no slash at its end


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The objects below a prefix."""

    plain: tuple[PlainObject, ...] = ()
    folders: tuple[str, ...] = ()  # paths of keys that end in a slash
    own: dict[str, ObjectInfo] = field(default_factory=dict)  # relative key -> object, in the folder of sets

    @property
    def standing(self) -> dict[str, int]:
        """Path -> size of the plain objects in the folder, where hosts write; without neighbours."""
        return {item.path: item.size_bytes for item in self.plain if not item.is_neighbour}

    @property
    def manifests(self) -> dict[str, list[int]]:
        """Host -> numbers of its manifests, newest first."""
        found: dict[str, list[int]] = {}
        for key in self.own:
            place = read_manifest_key(key)
            if place is not None:
                found.setdefault(place[0], []).append(place[1])
        return {host: sorted(numbers, reverse=True) for host, numbers in found.items()}


def list_prefix(prefix: Prefix, store: ObjectStore) -> Listing:
    """List a prefix. Raises: ObjectStoreError; AgentError as `sort_objects`."""
    return sort_objects(prefix, store.list_objects(prefix.bucket, prefix.uri.key))


def sort_objects(prefix: Prefix, objects: Iterable[ObjectInfo]) -> Listing:
    """Sort the objects below the user's literal prefix into plain objects, folders and objects of sets.

    Raises: AgentError (fault USER) naming a key that cannot be a file below the folder.
    """
    raw = prefix.uri.key
    plain: dict[str, PlainObject] = {}
    folders = []
    own = {}
    for info in objects:
        is_neighbour = not info.key.startswith(prefix.base)
        relative = info.key[len(raw) :] if is_neighbour else info.key[len(prefix.base) :]
        if not relative and is_neighbour:
            relative = info.key.rpartition("/")[2]
        if relative.startswith(f"{OWN_FOLDER}/") and not is_neighbour:
            own[relative] = info
            continue
        path = "/".join(part for part in relative.split("/") if part)
        if not path or OWN_FOLDER in path.split("/"):
            continue  # the folder's own key, or sets of another prefix
        problem = path_problem(path)
        if problem is not None:
            raise AgentError(
                f"Checkpoints: S3 key {info.key!a} cannot become a file: {problem}. Rename or remove the object.",
                fault=Fault.USER,
                details={"key": ascii(info.key)},
            )
        if info.key.endswith("/"):
            folders.append(path)
        elif path not in plain or plain[path].is_neighbour:
            plain[path] = PlainObject(path=path, key=info.key, size_bytes=info.size_bytes, is_neighbour=is_neighbour)
    return Listing(plain=tuple(plain.values()), folders=tuple(folders), own=own)
