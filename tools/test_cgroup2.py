"""Boot Debian's kernel by emulation, with cgroups of version 2 alone, and run the cgroup tests there.

Run: `make test-cgroup2`, or `python tools/test_cgroup2.py -k WORDS` for some of the tests. Takes minutes and is no part
of any other run. The machine has the tests' own Python, /usr/bin/python3, and what of this tree needs nothing else:
contract, agent and the tests. The result is printed and written to docs/numbers/cgroup2.md. Needs qemu, busybox and a
package of Debian's kernel, which apt downloads.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "cgroup2"
RESULT = ROOT / "docs" / "numbers" / "cgroup2.md"
KERNEL_PACKAGE = "linux-image-cloud-amd64"
PYTHON = Path("/usr/bin/python3")
MEMORY_MIB = 1536
BOOT_AND_TESTS_LIMIT_S = 1500
TESTS = (
    "tests/cgroup2/test_cgroup2_hosts.py",
    "tests/cluster/host_world.py",
    "tests/cluster/test_host_limits.py",
    "tests/cluster/test_host_memory_watch.py",
)
PACKAGES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments")  # of the tests' environment
PROGRAMS = ("python3", "sh", "unshare", "setpriv", "ip", "setsid", "head")
LEFT_OUT = ("test", "idlelib", "lib2to3", "ensurepip", "tkinter", "distutils", "pydoc_data")
INIT = """#!/bin/busybox sh
export PATH=/bin
/bin/busybox mount -t devtmpfs d /dev
/bin/busybox insmod /overlay.ko
/bin/busybox mount -t tmpfs -o size=80% r /new
/bin/busybox cp -a /root/. /new/
exec /bin/busybox switch_root /new /bin/busybox sh /run-tests
"""
RUN_TESTS = """
export PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=/root LANG=C.UTF-8 PYTHONPATH=/srv/clary/src:/srv/site
for place in "proc proc /proc" "sysfs sys /sys" "devtmpfs dev /dev" "tmpfs shm /dev/shm" "tmpfs tmp /tmp" \\
    "tmpfs tmp /var/tmp" "devpts pts /dev/pts"; do
    set -- $place; busybox mkdir -p $3; busybox mount -t $1 $2 $3
done
busybox chmod 1777 /tmp /var/tmp /dev/shm
busybox mount -t cgroup2 -o nsdelegate cgroup /sys/fs/cgroup
busybox ip link set lo up 2>/dev/null
echo "KERNEL $(busybox uname -r), controllers $(busybox cat /sys/fs/cgroup/cgroup.controllers)"
cd /srv/clary/tests
python3 -m pytest -c /dev/null --rootdir /srv/clary/tests -p no:cacheprovider -rsP -vv --color no -W ignore \\
    ARGUMENTS . 2>&1
echo "EXIT CODE $?"
busybox poweroff -f
"""


def main(arguments: Sequence[str]) -> int:
    """Build the machine, boot it, and judge; returns the exit code.

    Args:
        arguments: more for pytest, to run some of the tests; the result is only printed then.
    """
    if os.geteuid() != 0 or not PYTHON.exists():
        print(
            "make test-cgroup2: needs root, to own the files of a machine, and Debian's /usr/bin/python3",
            file=sys.stderr,
        )
        return 2
    packages = ("qemu-system-x86", "busybox-static", "cpio", "iproute2", "util-linux")
    subprocess.run(["sh", str(ROOT / "tools/install_system_packages.sh"), *packages], check=True)
    shutil.rmtree(BUILD / "root", ignore_errors=True)
    kernel, overlay = _kernel()
    _fill(BUILD / "root" / "root", arguments)
    image = _pack(BUILD / "root", overlay)
    began_s = time.monotonic()
    text = _boot(kernel, image)
    took_s = time.monotonic() - began_s
    exit_code = re.search(r"^EXIT CODE (\d+)", text, re.MULTILINE)
    summary = next(
        (line for line in reversed(text.splitlines()) if re.search(r"\d+ (passed|failed)", line)), "no summary"
    )
    if not arguments:
        _write_result(text, summary.strip("= \r"), took_s)
    if exit_code is None:
        print("make test-cgroup2: the machine ended without a result", file=sys.stderr)
        return 1
    return int(exit_code[1])


def _kernel() -> tuple[Path, Path]:
    """Return the kernel and its overlay module, downloaded once."""
    folder = BUILD / "kernel"
    if not list(folder.glob("boot/vmlinuz-*")):
        folder.mkdir(parents=True, exist_ok=True)
        depends = subprocess.run(["apt-cache", "depends", KERNEL_PACKAGE], capture_output=True, text=True, check=True)
        package = re.search(r"Depends: (linux-image-\S+)", depends.stdout)
        if package is None:
            raise SystemExit(
                f"apt-cache depends {KERNEL_PACKAGE}: expected a linux-image package, got {depends.stdout!r}"
            )
        subprocess.run(["apt-get", "download", "-qq", package[1]], cwd=folder, check=True)
        (archive,) = folder.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", str(archive), str(folder)], check=True)
    (overlay,) = folder.glob("lib/modules/*/kernel/fs/overlayfs/overlay.ko")
    return next(folder.glob("boot/vmlinuz-*")), overlay


def _fill(root: Path, arguments: Sequence[str]) -> None:
    """Make the root file system: this machine's Python and a few programs, this tree, pytest."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for name in ("proc", "sys", "dev", "tmp", "var/tmp", "etc", "root", "run", "opt", "srv/site", "srv/clary/tests"):
        (root / name).mkdir(parents=True)
    shutil.copy2("/bin/busybox", root / "bin/busybox")
    for name in subprocess.run(["/bin/busybox", "--list"], capture_output=True, text=True, check=True).stdout.split():
        if name != "busybox" and name not in PROGRAMS:
            (root / "bin" / name).symlink_to("busybox")
    library = Path(_library())
    ignored = shutil.ignore_patterns(*LEFT_OUT)
    shutil.copytree(library, root / library.relative_to("/"), ignore=ignored, symlinks=True)
    _copy_with_libraries(root, [*(_program(name) for name in PROGRAMS), *library.glob("lib-dynload/*.so")])
    site = Path(pytest.__file__).parents[1]
    for name in PACKAGES:
        for path in (site / name, *site.glob(f"{name}-*.dist-info")):
            shutil.copytree(path, root / "srv/site" / path.name)
    shutil.copy2(site / "py.py", root / "srv/site")
    source = root / "srv/clary/src/clary"
    for name in ("base", "contract", "agent"):
        shutil.copytree(ROOT / "src/clary" / name, source / name)
    shutil.copy2(ROOT / "src/clary/__init__.py", source)
    for name in TESTS:
        shutil.copy2(ROOT / name, root / "srv/clary/tests")
    (root / "etc/passwd").write_text(
        "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"
    )
    (root / "etc/group").write_text("root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (root / "run-tests").write_text(RUN_TESTS.replace("ARGUMENTS", shlex.join(arguments)))
    subprocess.run([str(PYTHON), "-m", "compileall", "-q", str(root / "srv")], check=False)


def _library() -> str:
    """Return the folder of the standard library of the machine's Python."""
    command = [str(PYTHON), "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _program(name: str) -> Path:
    found = str(PYTHON) if name == "python3" else shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")
    if found is None:
        raise SystemExit(f"make test-cgroup2: no program {name}")
    return Path(found)


def _copy_with_libraries(root: Path, files: list[Path]) -> None:
    """Copy programs and the libraries that they are linked with to the same places below `root`."""
    needed = set(files)
    for path in files:
        linked = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False).stdout
        needed |= {Path(name) for name in re.findall(r"(/\S+) \(0x", linked)}
    needed |= {path.with_name("libgcc_s.so.1") for path in needed if path.name == "libc.so.6"}  # for pthread_exit
    for path in needed:
        target = root / path.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy2(path, target)  # what a link names is copied in its place


def _pack(folder: Path, overlay: Path) -> Path:
    """Pack the first file system of the kernel, with the root in it."""
    for name in ("bin", "dev", "new"):
        (folder / name).mkdir(exist_ok=True)
    shutil.copy2("/bin/busybox", folder / "bin/busybox")
    shutil.copy2(overlay, folder / "overlay.ko")
    (folder / "init").write_text(INIT)
    (folder / "init").chmod(0o755)
    image = BUILD / "initramfs.cpio"
    with image.open("wb") as file:
        names = subprocess.run(["find", "."], cwd=folder, capture_output=True, check=True).stdout
        subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=folder, input=names, stdout=file, check=True)
    return image


def _boot(kernel: Path, image: Path) -> str:
    """Boot the machine, print its console as it comes, and return it."""
    command = [
        *("qemu-system-x86_64", "-machine", "pc,accel=tcg", "-cpu", "max", "-smp", "2", "-m", str(MEMORY_MIB)),
        *("-nographic", "-no-reboot", "-nic", "none", "-kernel", str(kernel), "-initrd", str(image)),
        *("-append", "console=ttyS0 quiet loglevel=1 panic=1 cgroup_no_v1=all random.trust_cpu=on mitigations=off"),
    ]
    lines = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
    ) as machine:
        assert machine.stdout is not None
        deadline_s = time.monotonic() + BOOT_AND_TESTS_LIMIT_S
        for line in machine.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip("\r\n"))
            if time.monotonic() > deadline_s:
                print(f"make test-cgroup2: not over after {BOOT_AND_TESTS_LIMIT_S} s", file=sys.stderr)
                machine.kill()
    return "\n".join(lines)


def _write_result(text: str, summary: str, took_s: float) -> None:
    kernel = re.search(r"KERNEL (.*)$", text, re.MULTILINE)
    tests = re.findall(r"^(\S+\.py::\S+(?:\[.*\])?) (PASSED|FAILED|ERROR|SKIPPED)", text, re.MULTILINE)
    measured = re.findall(r"^MEASURED (.*)$", text, re.MULTILINE)
    RESULT.write_text(
        "# Cgroups of version 2\n\n"
        "`make test-cgroup2`, written by `tools/test_cgroup2.py`: Debian's kernel by emulation, two processors, "
        f"{MEMORY_MIB} MiB.\n\n"
        f"- Kernel {kernel[1].strip() if kernel else 'not known'}\n- {summary}\n- {took_s:.0f} s with the boot\n"
        + "".join(f"- Weight: {line.strip()}\n" for line in measured)
        + "\n| test | result |\n|---|---|\n"
        + "".join(f"| {name} | {result.lower()} |\n" for name, result in tests)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
