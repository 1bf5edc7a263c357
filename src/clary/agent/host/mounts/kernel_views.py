"""A host's own /proc, /sys and /dev.

Where: `host_root` mounts them into the new root while the old root is still reachable. Inside a container that hides
parts of its own /proc the kernel refuses a new /proc to a user namespace; then the existing /proc is shown, and the
returned sentences report this.
Source: mount_namespaces(7) on locked mounts; OCI runtime specification, "Default devices", and moby's masked paths.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from clary.agent.host import kernel
from clary.agent.host.program_users import ProgramUsers

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = (
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
    ("core", "/proc/kcore"),
)
_GPU_DEVICES = (("/dev", "nvidia"), ("/dev/nvidia-caps", ""), ("/dev/dri", ""), ("/dev", "kfd"))  # folder, prefix
_MASKED = (
    "acpi",
    "asound",
    "interrupts",  # the machine's counts, which reveal keystrokes on other terminals
    "kcore",
    "keys",
    "latency_stats",
    "sched_debug",
    "scsi",
    "sysrq-trigger",
    "timer_list",
    "timer_stats",
)
_READ_ONLY = ("bus", "fs", "irq", "sys")
_OPEN_TO_ALL = ("pressure",)  # a write there makes the kernel monitor the whole machine
_TERMINAL_GROUP = 5  # group "tty" on every distribution; devpts gives it the terminals


def mount_proc(new_root: str, *, in_user_namespace: bool) -> list[str]:
    """Mount the process list of this PID namespace; return sentences about parts that are not the host's own."""
    target = f"{new_root}/proc"
    try:
        kernel.mount("proc", target, kind="proc", flags=kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    except PermissionError as error:
        kernel.mount("/proc", target, flags=kernel.MS_BIND | kernel.MS_REC)
        return [f"/proc shows the machine's processes, because a new one was refused: {error.strerror}."]
    # In a user namespace root cannot access most of these files anyway.
    for name in () if in_user_namespace else _MASKED:
        cover(f"{target}/{name}")
    for name in _OPEN_TO_ALL if in_user_namespace else (*_READ_ONLY, *_OPEN_TO_ALL):
        path = f"{target}/{name}"
        if os.path.exists(path):
            kernel.mount(path, path, flags=kernel.MS_BIND | kernel.MS_REC)
            kernel.make_read_only(path)
    return []


def cover(path: str) -> None:
    """Hide an existing file or folder under an empty one."""
    if os.path.isdir(path):
        kernel.mount("tmpfs", path, kind="tmpfs", flags=kernel.MS_RDONLY, options="size=4k,mode=555")
    elif os.path.exists(path):
        kernel.mount("/dev/null", path, flags=kernel.MS_BIND)


def mount_sys(new_root: str, *, cgroup_views: Mapping[str, str]) -> None:
    """Mount /sys of the joined network namespace, read-only, with the host's own cgroups in it.

    Args:
        new_root: root that is being built.
        cgroup_views: path below /sys/fs/cgroup ("" for version 2) -> folder of the host's cgroup on the machine.
    """
    target = f"{new_root}/sys"
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    try:
        kernel.mount("sysfs", target, kind="sysfs", flags=flags)
    except PermissionError:  # a user namespace that does not own the network namespace
        kernel.mount("/sys", target, flags=kernel.MS_BIND | kernel.MS_REC)
        kernel.make_read_only(target)
        return
    tree = f"{target}/fs/cgroup"
    if cgroup_views and os.path.isdir(tree):
        if "" not in cgroup_views:
            kernel.mount("tmpfs", tree, kind="tmpfs", flags=flags, options="size=64k,mode=755")
        for name, folder in cgroup_views.items():
            place = f"{tree}/{name}".rstrip("/")
            os.makedirs(place, exist_ok=True)
            kernel.mount(folder, place, flags=kernel.MS_BIND)
            kernel.make_read_only(place)  # before kernel 5.12 read-only does not propagate to submounts
    kernel.make_read_only(target)


def mount_dev(
    new_root: str,
    *,
    with_gpus: bool,
    shared_memory_bytes: int | None,
    in_user_namespace: bool,
    users: ProgramUsers | None = None,
) -> None:
    """Mount a /dev with the devices that every program expects, own terminals and own shared memory.

    Args:
        new_root: root that is being built.
        with_gpus: whether the machine's GPU devices appear; the launcher assigns them to processes.
        shared_memory_bytes: size limit of /dev/shm; None leaves the kernel's default, half of the memory.
        in_user_namespace: whether this process has its rights only in a user namespace, which may map only one user.
        users: of the programs, if they differ from this process's user.
    """
    target = f"{new_root}/dev"
    owned = "" if users is None else f",uid={users.first_id},gid={users.first_id}"
    kernel.mount("tmpfs", target, kind="tmpfs", flags=kernel.MS_NOSUID, options=f"size=64k,mode=755{owned}")
    devices = [f"/dev/{name}" for name in _DEVICES]
    if with_gpus:
        devices += _gpu_devices()
    for device in devices:
        place = new_root + device
        os.makedirs(os.path.dirname(place), exist_ok=True)
        status = os.stat(device)
        if users is not None and not status.st_mode & stat.S_IWOTH:
            # Programs are not in the machine's groups with access to devices, such as render.
            os.mknod(place, stat.S_IFCHR | stat.S_IMODE(status.st_mode), status.st_rdev)
            users.own(place)
            continue
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        kernel.mount(device, place, flags=kernel.MS_BIND)
    for name, link in _DEVICE_LINKS:
        os.symlink(link, f"{target}/{name}")
    for name in ("pts", "shm", "mqueue"):
        os.mkdir(f"{target}/{name}")
    flags = kernel.MS_NOSUID | kernel.MS_NOEXEC
    group = (
        "" if in_user_namespace else f",gid={_TERMINAL_GROUP if users is None else users.on_machine(_TERMINAL_GROUP)}"
    )
    kernel.mount(
        "devpts", f"{target}/pts", kind="devpts", flags=flags, options=f"newinstance,ptmxmode=0666,mode=0620{group}"
    )
    size = "" if shared_memory_bytes is None else f",size={shared_memory_bytes}"
    kernel.mount(
        "tmpfs", f"{target}/shm", kind="tmpfs", flags=flags | kernel.MS_NODEV, options=f"mode=1777{size}{owned}"
    )
    try:
        kernel.mount("mqueue", f"{target}/mqueue", kind="mqueue", flags=flags | kernel.MS_NODEV)
    except OSError:  # kernels without POSIX message queues
        os.rmdir(f"{target}/mqueue")


def _gpu_devices() -> list[str]:
    found = []
    for folder, prefix in _GPU_DEVICES:
        names = os.listdir(folder) if os.path.isdir(folder) else []
        paths = [f"{folder}/{name}" for name in sorted(names) if name.startswith(prefix)]
        found += [path for path in paths if stat.S_ISCHR(os.stat(path).st_mode)]
    return found
