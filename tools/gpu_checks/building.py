"""Builds the collectives core from its source: with cmake where it is there, else with the compiler alone."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.gpu_checks.catalogue import ROOT
from tools.gpu_checks.running import ABSENT, FAILED, PASSED
from tools.gpu_checks.telling import tell

_LIBRARY = "libclary_collectives.so"
_FLAGS = ("-std=c++20", "-O3", "-g1", "-fPIC", "-fvisibility=hidden", "-Wno-restrict")
_LINK = ("-shared", "-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL", "-pthread")
_OF_FILE = {  # as CMakeLists.txt has them
    "kernels_avx2": ("-mavx2", "-mf16c", "-ffp-contract=off"),
    "kernels_avx512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mf16c", "-ffp-contract=off"),
}


def main() -> None:
    """Build, and put the library where the package looks for it."""
    compiler = os.environ.get("CXX", "c++")
    installed = ROOT / "src/clary/train/_native" / _LIBRARY
    if shutil.which(compiler) is None:
        there = "an older library is used" if installed.exists() else "collectives run on the slow reference"
        tell(ABSENT, f"no C++ compiler {compiler}: {there}")
        return
    folder = Path(os.environ.get("CLARY_CHECK_GPU_OUT", ROOT / "build/check_gpu")) / "native"
    folder.mkdir(parents=True, exist_ok=True)
    ways = {"cmake": _by_cmake, "the compiler alone": _by_compiler}
    if shutil.which("cmake") is None:
        del ways["cmake"]
    said = []
    for way, build in ways.items():
        try:
            built = build(folder, compiler)
        except subprocess.CalledProcessError as error:
            said.append(f"{way} failed: {(error.stdout + error.stderr)[-1500:]}")
            continue
        said.append(f"built with {way}")
        if os.environ.get("CLARY_CUDA_ON_CPU") and installed.exists():
            tell(PASSED, "; ".join([*said, "a rehearsal leaves the library that is there"]))
            return
        # A process that has the old library loaded keeps it; the new one takes its place in one step.
        new = installed.with_name(f".{_LIBRARY}.new")
        shutil.copy(built, new)
        new.replace(installed)
        tell(PASSED, "; ".join(said))
        return
    tell(FAILED, "\n".join(said))


def _by_cmake(folder: Path, _: str) -> Path:
    generator = ("-G", "Ninja") if shutil.which("ninja") else ()
    _run("cmake", "-S", str(ROOT), "-B", str(folder), *generator, f"-DPython_EXECUTABLE={sys.executable}")
    _run("cmake", "--build", str(folder), "--target", "clary_collectives", "-j", str(os.cpu_count() or 1))
    return folder / _LIBRARY


def _by_compiler(folder: Path, compiler: str) -> Path:
    sources = [*(ROOT / "native/src").glob("*/*.cc"), ROOT / "native/src/c_api.cc"]
    includes = (f"-I{ROOT / 'native/include'}", f"-I{ROOT / 'native/src'}")
    is_x86 = platform.machine() in ("x86_64", "AMD64")

    def compile_one(source: Path) -> str:
        target = folder / f"{source.parent.name}-{source.stem}.o"
        own = _OF_FILE.get(source.stem, ()) if is_x86 else ()
        _run(compiler, *_FLAGS, *own, *includes, "-c", str(source), "-o", str(target))
        return str(target)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sources))
    _run(compiler, *objects, *_LINK, "-o", str(folder / _LIBRARY))
    return folder / _LIBRARY


def _run(*command: str) -> None:
    subprocess.run(command, capture_output=True, text=True, check=True)


if __name__ == "__main__":
    main()
