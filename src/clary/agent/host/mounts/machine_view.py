"""The machine's files in a host: the shown folders, which the host may change privately.

Where: `host_root` calls it first. With real root, a host that shows the whole machine gets an overlay of `/`. Otherwise
the root is a small tmpfs, or with real root a folder of the host's own; parents of shown folders are recreated in it,
and every shown folder becomes an overlay of its own. Inside a user namespace the
kernel refuses an overlay of a folder with mounts below it, because those mounts are locked ("failed to clone
lowerpath"); such folders are recreated too. If no overlay is possible (the host's folder lies on an overlay or on NFS,
or the kernel is older than 5.11), folders are bind-mounted read-only, and `shared_folders` names them. On such file
systems owners cannot be mapped either: the program is the machine's root, and others run what lies in these folders.
Source: kernel Documentation/filesystems/overlayfs.rst, "userxattr".
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterable, Sequence

from clary.agent.host import kernel
from clary.agent.host.leftovers import remove_tree
from clary.agent.host.mounts import kernel_views
from clary.agent.host.mounts.bind_places import make_owned
from clary.agent.host.mounts.closed_files import UNCACHED, find_closed
from clary.agent.host.mounts.open_copy import OpenCopy, open_copy, own_copy
from clary.agent.host.mounts.shown_folders import EMPTY_FOLDERS, WRITABLE_FOLDERS, ShownFolder, is_shown
from clary.agent.host.mounts.upper_layer import UpperLayer
from clary.agent.host.program_users import ProgramUsers
from clary.base.beneath import Folder

PRIVATE_FOLDERS = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp")  # noqa: S108 - made anew for every host

LAYERS_FOLDER = "layers"  # folder of layers in a host's scratch folder
COPY_FOLDER = "copy"  # the host's own copy of a system folder, in a layer
UPPER_FOLDER = "upper"  # folder of the changes in a layer

_OPTION_SEPARATORS = frozenset(',:\\"')


class MachineView:
    """Mounts the machine's files below `new_root`.

    Args:
        new_root: existing folder that becomes the host's root.
        layers_folder: existing folder for the program's changes; not on an overlay, preferably on a local disk.
        in_user_namespace: whether mounts are made with the rights of a user namespace only.
        users: of the programs, if they differ from this process's user.
    """

    def __init__(
        self, new_root: str, *, layers_folder: str, in_user_namespace: bool, users: ProgramUsers | None = None
    ) -> None:
        self._new_root = new_root
        self._layers_folder = layers_folder
        self._in_user_namespace = in_user_namespace
        self._users = users
        self._num_layers = 0
        self._num_places = 0  # folders of layers for single mounts
        self._shown: tuple[ShownFolder, ...] = ()
        self._copies: list[OpenCopy] = []  # system folders of which a copy is shown
        self._rebuilt: frozenset[str] = frozenset()  # folders that must be recreated instead of mounted
        self._extended: frozenset[str] = frozenset()  # folders in which mount points must be made
        self.shared_folders: list[str] = []  # folders of the machine that are shown themselves, read-only
        self.missing_folders: list[str] = []  # mounts of the machine that could not be shown, with reasons
        self.strange_folders: list[str] = []  # folders whose owners could not be mapped
        self.live_folders: list[str] = []  # system folders that had to be shown without a copy, with reasons
        self.refusal = ""  # reason why the kernel refused the last overlay
        self.why_strange = ""  # reason why the kernel refused the last mapping of owners

    def lay_out(self, shown: Sequence[ShownFolder], submounts: Sequence[str], *, targets: Iterable[str]) -> None:
        """Mount the shown folders; `PRIVATE_FOLDERS` are left empty.

        Args:
            shown: folders of the machine, parents first.
            submounts: mount points of the machine, parents first.
            targets: canonical paths of later mount points; their parents are set up so that missing mount points can be
                created without changes to the machine.
        """
        self._shown = tuple(shown)
        outer = [folder.path for folder in shown if not is_shown(folder.path, [one for one in shown if one != folder])]
        seen = [path for path in submounts if is_shown(path, shown) and path not in outer]
        later = [*(folder.path for folder in shown if folder.path not in outer), *seen]
        is_whole = outer == ["/"]
        if not (is_whole and not self._in_user_namespace and self.overlay("/", self._new_root)):
            self._make_root()
            self._extended = frozenset(
                _nearest_existing(path)
                for path in (*targets, *PRIVATE_FOLDERS, *EMPTY_FOLDERS)
                if not os.path.lexists(path) and is_shown(path, shown)
            )
            cuts = {*self._extended, *(path for path in outer if path != "/")}
            if self._in_user_namespace or is_whole:  # in these cases no mount on an overlay, or over `/`, is possible
                cuts.update(seen)
                later = []
            self._rebuilt = frozenset(folder for cut in cuts for folder in _parents(cut))
            self._rebuild("/")
            self._make_empty_folders()
        for path in sorted(set(later), key=lambda path: path.split("/")):
            try:
                self._place_whole(path)
            except OSError as error:  # a mount that only its owner may enter, or that another mount covers
                self.missing_folders.append(f"{path} ({error.strerror})")

    def overlay(
        self, lower: str, target: str, *, is_mapped: bool = False, is_system: bool = False, kept_as: str = ""
    ) -> bool:
        """Mount a private, writable overlay of `lower` at `target`; on failure set `refusal` and return False.

        Args:
            lower: folder of the machine.
            target: mount point.
            is_mapped: whether owners are mapped to the programs' users, if programs have their own.
            is_system: whether to hide files that not all users may read.
            kept_as: name of the layer if it is kept after the host's end.
        """
        layer = f"{self._layers_folder}/{kept_as or self._num_layers}"
        self._num_layers += 1
        os.makedirs(f"{layer}/{UPPER_FOLDER}")
        has_copy = is_system and lower in UNCACHED and not self._in_user_namespace
        if has_copy and self._overlay_copy(lower, target, layer, is_mapped=is_mapped, is_kept=bool(kept_as)):
            return True
        why_no_copy = self.refusal
        if not self._in_user_namespace:
            try:
                self._fill(lower, f"{layer}/{UPPER_FOLDER}", closed=self._find_closed(lower) if is_system else ())
            except OSError as error:  # the layer's file system does not support whiteouts
                self.refusal = str(error)
                return False
        if not self._lay(lower, target, layer, is_mapped=is_mapped, is_kept=bool(kept_as), shown=lower):
            return False
        if has_copy:
            self.live_folders.append(f"{lower} ({why_no_copy})")
        return True

    def _overlay_copy(self, folder: str, target: str, layer: str, *, is_mapped: bool, is_kept: bool) -> bool:
        """Overlay a copy of a system folder that changes while hosts run; on failure as `overlay`.

        A shared copy may lie on a file system that cannot be an overlay's lower layer, or that cannot map owners; if
        the layer lies on another file system, a copy there may do.
        """
        try:
            copy = open_copy(folder, skipped=self._skipped(), own_place=f"{layer}/{COPY_FOLDER}")
            self._copies.append(copy)  # in use until this process, the host's first, has ended
            self._fill(folder, f"{layer}/{UPPER_FOLDER}", closed=copy.closed)
            if copy.is_shared and _device_of(copy.path) != _device_of(layer):
                if self._lay_as_wanted(copy.path, target, layer, is_mapped=is_mapped, is_kept=is_kept):
                    return True
                copy = own_copy(folder, skipped=self._skipped(), own_place=f"{layer}/{COPY_FOLDER}")
                self._fill(folder, f"{layer}/{UPPER_FOLDER}", closed=copy.closed)
        except OSError as error:
            self.refusal = str(error)
            return False
        return self._lay(copy.path, target, layer, is_mapped=is_mapped, is_kept=is_kept, shown=folder)

    def _lay(self, lower: str, target: str, layer: str, *, is_mapped: bool, is_kept: bool, shown: str) -> bool:
        """Mount an overlay, if need be without mapped owners: these folders are then named in `strange_folders`."""
        if self._lay_as_wanted(lower, target, layer, is_mapped=is_mapped, is_kept=is_kept):
            return True
        if not is_mapped or self._users is None:
            return False
        # The file system, or the kernel's overlay (before 5.19), cannot map owners.
        self.why_strange = self.why_strange or self.refusal
        if not self._mount(target, lower=lower, layer=layer, is_kept=is_kept):
            return False
        self.strange_folders.append(shown)
        return True

    def _lay_as_wanted(self, lower: str, target: str, layer: str, *, is_mapped: bool, is_kept: bool) -> bool:
        if is_mapped and self._users is not None:
            lower = self._map(lower, layer)
        return bool(lower) and self._mount(target, lower=lower, layer=layer, is_kept=is_kept)

    def _mount(self, target: str, *, lower: str, layer: str, is_kept: bool) -> bool:
        descriptors: list[int] = []
        upper = f"{layer}/{UPPER_FOLDER}"
        try:
            # The kernel does not take the work folder of a refused mount again, if it has the mark of `volatile`.
            work = self._make_place(layer, "work")
            options = ",".join(
                f"{name}={_as_option(path, descriptors)}"
                for name, path in (("lowerdir", lower), ("upperdir", upper), ("workdir", work))
            )
            if self._in_user_namespace:
                options += ",userxattr"
            elif is_kept:
                # A kept layer must contain complete files and folders, whatever this kernel's defaults are.
                options += ",redirect_dir=nofollow,metacopy=off"
            _mount_overlay(target, options)
        except OSError as error:
            self.refusal = str(error)
            return False
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _fill(self, lower: str, upper: str, *, closed: Iterable[str]) -> None:
        if os.listdir(upper):  # of a copy that could not be mounted
            remove_tree(upper)
            os.mkdir(upper)
        # The merged folder takes mode and owner from the upper folder.
        content = UpperLayer(lower, upper, users=self._users)
        content.copy_folder("")
        content.leave_out(closed)
        if self._users is not None and lower == "/usr/local":
            for folder in (path for pattern in WRITABLE_FOLDERS for path in glob.glob(pattern)):
                content.open_folders(folder)

    def bind(self, source: str, target: str) -> str:
        """Bind-mount a file or folder of the machine; return a sentence if owners could not be mapped."""
        if self._users is not None:
            try:
                kernel.bind_mapped(source, target, users=self._users.namespace)
            except OSError as error:
                said = f"its file system does not map owners ({error.strerror})"
            else:
                return ""
        kernel.mount(source, target, flags=kernel.MS_BIND | kernel.MS_REC)
        return "" if self._users is None else f"the program has there what everybody may, because {said}"

    def why_read_only(self, place: str) -> str:
        """Return the sentence for files of the machine that the host shows themselves, because of `refusal`."""
        return (
            f"Files: the program can change nothing {place}, because no private layer could be laid over the machine's "
            f"own files ({self.refusal}); installing packages there fails. Private layers need a state folder on a "
            "local disk, with ext4 or xfs for example, and folders of file systems over which overlayfs can be laid."
        )

    def strangeness(self) -> list[str]:
        """Return sentences about folders with owners that are not mapped, and folders shown without a copy."""
        sentences = []
        if self.strange_folders:
            sentences.append(
                f"Files: in {', '.join(self.strange_folders)} the program can change nothing that is there and nothing "
                f"in folders that are there, because their owners could not be mapped ({self.why_strange})."
            )
        if self.live_folders:
            sentences.append(
                "Files: the program may be able to read files that only some users may read and that appear while it "
                f"runs in folders of which no copy could be shown: {', '.join(self.live_folders)}."
            )
        return sentences

    def make_folder(self, path: str, *, mode: int = 0o755) -> None:
        """Make a folder of the host's own and its missing parents; keep existing folders."""
        if os.path.isdir(path):
            return
        above, name = os.path.split(path)
        self.make_folder(above)
        # The parents may be accessible to root only, so this process opens them. On a mount with mapped owners only the
        # programs' users can create the folder.
        with Folder(os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
            make_owned(folder, name, is_folder=True, users=self._users)
        os.chmod(path, mode)

    def _make_root(self) -> None:
        if self._in_user_namespace:
            kernel.mount("tmpfs", self._new_root, kind="tmpfs", flags=kernel.MS_NODEV, options="mode=755")
            return
        # On disk, because files on a tmpfs would count against the programs' memory.
        if self._users is not None:
            self._users.own(self._new_root)
        os.chmod(self._new_root, 0o755)  # noqa: S103 - every user of the host passes it
        kernel.mount(self._new_root, self._new_root, flags=kernel.MS_BIND)

    def _make_empty_folders(self) -> None:
        for path in EMPTY_FOLDERS:
            if not os.path.lexists(self._new_root + path):
                self.make_folder(self._new_root + path, mode=0o700 if path == "/root" else 0o755)

    def _map(self, lower: str, layer: str) -> str:
        """Mount `lower` with mapped owners and return its path; on failure set `refusal` and return "".

        The mount vanishes with the old root or the late roots; a separate unmount takes longer.
        """
        assert self._users is not None
        place = self._make_place(layer, "lower")
        try:
            kernel.bind_mapped(lower, place, users=self._users.namespace)
        except OSError as error:
            self.refusal = str(error)
            return ""
        return place

    def _make_place(self, layer: str, name: str) -> str:
        """Make a new folder of a layer; return its path. Raises: OSError."""
        place = f"{layer}/{name}{self._num_places}"
        self._num_places += 1
        os.mkdir(place)
        return place

    def _place(self, path: str) -> None:
        """Recreate or mount one entry of a recreated folder."""
        target = self._new_root + path
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            real = os.path.realpath(path)
            if is_shown(path, self._shown) or is_shown(real, self._shown) or real in PRIVATE_FOLDERS:
                os.symlink(os.readlink(path), target)
        elif stat.S_ISDIR(status.st_mode):
            if not is_shown(path, self._shown) and path not in self._rebuilt and path not in PRIVATE_FOLDERS:
                return
            os.mkdir(target)
            os.chmod(target, stat.S_IMODE(status.st_mode))
            if self._users is not None:
                os.chown(target, self._users.on_machine(status.st_uid), self._users.on_machine(status.st_gid))
            if path in PRIVATE_FOLDERS:
                return
            if path in self._rebuilt:
                self._rebuild(path)
            else:
                self._place_whole(path)
        elif stat.S_ISREG(status.st_mode) and is_shown(path, self._shown):
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, stat.S_IMODE(status.st_mode)))
            self._place_whole(path)

    def _rebuild(self, folder: str) -> None:
        try:
            names = os.listdir(folder)
        except PermissionError:
            if is_shown(folder, self._shown):
                self._bind_shared(folder)
            return
        for name in sorted(names):
            path = f"{folder.rstrip('/')}/{name}"
            try:
                self._place(path)
            except FileNotFoundError:
                if os.path.lexists(path):
                    raise
                # A process of the machine removed the entry meanwhile: a host started a moment later lacks it too.

    def _place_whole(self, path: str) -> None:
        target = self._new_root + path
        if not os.path.isdir(path):
            kernel.mount(path, target, flags=kernel.MS_BIND)
            kernel.make_read_only(target)
        elif self.overlay(path, target, is_mapped=self._is_system(path), is_system=self._is_system(path)):
            return
        elif path in self._extended:
            self._rebuild(path)
        else:
            self._bind_shared(path)

    def _is_system(self, path: str) -> bool:
        """Whether a path is a system folder; mounts inside a system folder do not count."""
        return any(folder.path == path and folder.is_system for folder in self._shown)

    def _bind_shared(self, path: str) -> None:
        target = self._new_root + path
        kernel.mount(path, target, flags=kernel.MS_BIND | kernel.MS_REC)
        try:
            kernel.make_read_only(target)
        except OSError:
            kernel.unmount(target, flags=kernel.MNT_DETACH)
            raise
        self.shared_folders.append(path)
        if not self._in_user_namespace and self._is_system(path):
            for closed in self._find_closed(path):
                kernel_views.cover(self._new_root + closed)

    def _find_closed(self, folder: str) -> list[str]:
        return find_closed(folder, skipped=self._skipped())

    def _skipped(self) -> list[str]:
        return [one.path for one in self._shown if not one.is_system]


def _mount_overlay(target: str, options: str) -> None:
    try:
        # The layer is temporary, so its data need not be synced: without this option the end of every host would wait
        # for a sync of the whole disk.
        kernel.mount("overlay", target, kind="overlay", options=f"{options},volatile")
    except OSError:  # also on kernels before 5.10
        kernel.mount("overlay", target, kind="overlay", options=options)


def _as_option(path: str, descriptors: list[int]) -> str:
    """Return `path` in a form that is safe in overlay options; add opened folders to `descriptors`."""
    if not _OPTION_SEPARATORS.intersection(path):
        return path
    descriptors.append(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    return f"/proc/self/fd/{descriptors[-1]}"


def _device_of(path: str) -> int:
    return os.stat(path).st_dev


def _nearest_existing(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _parents(path: str) -> list[str]:
    """Return all parents of `path`."""
    found = []
    while path != "/":
        path = os.path.dirname(path)
        found.append(path)
    return found
