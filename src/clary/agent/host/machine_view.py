"""The machine's files as a host sees them: all there, all its own to change.

Where: `host_root` calls it first. Real root lays one overlay over `/` and one over each mount below it. Inside a user
namespace the kernel refuses an overlay of a folder with mounts below, because those are locked to it ("failed to clone
lowerpath"); there the root is a small tmpfs, folders on the way to a mount are built anew, and every folder without
mounts below becomes an overlay of its own. Where no overlay can be had (the host's folder itself lies on an overlay or
on NFS, or the kernel is older than 5.11) folders are bound as they are, and `shared_folders` names them.
Source: kernel Documentation/filesystems/overlayfs.rst, "userxattr".
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence

from clary.agent.host import kernel

PRIVATE_FOLDERS = ("/proc", "/sys", "/dev", "/run", "/tmp")  # noqa: S108 - made anew for every host

LAYERS_FOLDER = "layers"  # of a host's scratch folder
UPPER_FOLDER = "upper"  # of a layer: what was changed

_OPTION_SEPARATORS = frozenset(',:\\"')


class MachineView:
    """Puts the machine's files below `new_root`.

    Args:
        new_root: existing folder that becomes the host's root.
        layers_folder: existing folder for what the program changes; not on an overlay, best on a local disk.
        in_user_namespace: whether mounts are made with the rights of a user namespace.
    """

    def __init__(self, new_root: str, *, layers_folder: str, in_user_namespace: bool) -> None:
        self._new_root = new_root
        self._layers_folder = layers_folder
        self._in_user_namespace = in_user_namespace
        self._num_layers = 0
        self._rebuilt: frozenset[str] = frozenset()  # folders that must not be placed whole
        self._extended: frozenset[str] = frozenset()  # folders in which mount points have to be made
        self.shared_folders: list[str] = []  # what the program can change on the machine itself
        self.missing_folders: list[str] = []  # mounts of the machine that could not be shown, with the reason
        self.refusal = ""  # why the kernel refused the last overlay

    def lay_out(self, submounts: Sequence[str], *, targets: Iterable[str]) -> None:
        """Place everything but `PRIVATE_FOLDERS`, which are left empty.

        Args:
            submounts: mount points of the machine that the host sees, parents first.
            targets: places at which something will be mounted, as canonical paths; their folders are made so that
                missing ones can be created without touching the machine.
        """
        if not self._in_user_namespace and self.overlay("/", self._new_root):
            for path in submounts:
                try:
                    self._place_whole(path)
                except OSError as error:  # a mount that its owner alone may enter, or one that another covers
                    self.missing_folders.append(f"{path} ({error.strerror})")
            return
        kernel.mount("tmpfs", self._new_root, kind="tmpfs", flags=kernel.MS_NODEV, options="mode=755")
        self._extended = frozenset(_nearest_existing(path) for path in targets if not os.path.lexists(path))
        cuts = self._extended.union(submounts)
        self._rebuilt = frozenset(folder for cut in cuts for folder in _parents(cut))
        self._rebuild("/")

    def overlay(self, lower: str, target: str, *, kept_as: str = "") -> bool:
        """Mount a private, writable layer over `lower` at `target`; False, with `refusal` set, if it cannot be had.

        Args:
            kept_as: name of the layer for who takes it over when the host has ended.
        """
        layer = f"{self._layers_folder}/{kept_as or self._num_layers}"
        self._num_layers += 1
        upper, work = f"{layer}/{UPPER_FOLDER}", f"{layer}/work"
        os.makedirs(upper)
        os.mkdir(work)
        # The merged folder takes mode and owner from the upper one.
        status = os.stat(lower)
        os.chmod(upper, stat.S_IMODE(status.st_mode))
        if not self._in_user_namespace:
            os.chown(upper, status.st_uid, status.st_gid)
        descriptors: list[int] = []
        try:
            options = ",".join(
                f"{name}={_as_option(path, descriptors)}"
                for name, path in (("lowerdir", lower), ("upperdir", upper), ("workdir", work))
            )
            if self._in_user_namespace:
                options += ",userxattr"
            elif kept_as:
                # Whoever takes the layer over finds whole files and folders in it, whatever this kernel's defaults are.
                options += ",redirect_dir=nofollow,metacopy=off"
            _mount_overlay(target, options)
        except OSError as error:
            self.refusal = str(error)
            return False
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _place(self, path: str) -> None:
        """Place one entry of a folder that is being built anew."""
        target = self._new_root + path
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(path), target)
        elif stat.S_ISDIR(status.st_mode):
            os.mkdir(target)
            os.chmod(target, stat.S_IMODE(status.st_mode))
            if path in PRIVATE_FOLDERS:
                return
            if path in self._rebuilt:
                self._rebuild(path)
            else:
                self._place_whole(path)
        elif stat.S_ISREG(status.st_mode):
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, stat.S_IMODE(status.st_mode)))
            self._place_whole(path)

    def _rebuild(self, folder: str) -> None:
        try:
            names = os.listdir(folder)
        except PermissionError:
            self._bind_shared(folder)
            return
        for name in sorted(names):
            path = f"{folder.rstrip('/')}/{name}"
            try:
                self._place(path)
            except FileNotFoundError:
                if os.path.lexists(path):
                    raise
                # Somebody on the machine removed it meanwhile: a host that starts a moment later has none either.

    def _place_whole(self, path: str) -> None:
        target = self._new_root + path
        if not os.path.isdir(path):
            kernel.mount(path, target, flags=kernel.MS_BIND)
            kernel.make_read_only(target)
        elif self.overlay(path, target):
            return
        elif path in self._extended:
            self._rebuild(path)
        else:
            self._bind_shared(path)

    def _bind_shared(self, path: str) -> None:
        kernel.mount(path, self._new_root + path, flags=kernel.MS_BIND | kernel.MS_REC)
        self.shared_folders.append(path)


def _mount_overlay(target: str, options: str) -> None:
    try:
        # The layer ends with the program, so nothing of it has to reach the disk: without this the end of every host
        # would wait for the whole disk to be flushed.
        kernel.mount("overlay", target, kind="overlay", options=f"{options},volatile")
    except OSError:  # also what kernels before 5.10 say
        kernel.mount("overlay", target, kind="overlay", options=options)


def _as_option(path: str, descriptors: list[int]) -> str:
    """Return `path` in a form that the overlay's option parser cannot misread; opened folders go to `descriptors`."""
    if not _OPTION_SEPARATORS.intersection(path):
        return path
    descriptors.append(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    return f"/proc/self/fd/{descriptors[-1]}"


def _nearest_existing(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _parents(path: str) -> list[str]:
    """Return every folder above `path`."""
    found = []
    while path != "/":
        path = os.path.dirname(path)
        found.append(path)
    return found
