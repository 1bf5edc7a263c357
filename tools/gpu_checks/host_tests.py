"""Runs `tests/cluster/test_host_gpu.py` where hosts can be made: needs pytest, nvidia-smi and namespaces."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys

from tools.gpu_checks.catalogue import ROOT
from tools.gpu_checks.running import ABSENT, FAILED, PASSED
from tools.gpu_checks.telling import tell

_LIMIT_S = 95.0


def main() -> None:
    """Run them, and tell how they ended."""
    reason = _why_not()
    if reason:
        tell(ABSENT, reason)
        return
    tests = ROOT / "tests/cluster"
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "-q", "-p", "no:cacheprovider", "-rs"]
    done = subprocess.run(
        [*command, f"--confcutdir={tests}", str(tests / "test_host_gpu.py")],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
        cwd=ROOT,
    )
    tell(PASSED if done.returncode == 0 else FAILED, done.stdout[-2500:] + done.stderr[-500:])


def _why_not() -> str:
    if importlib.util.find_spec("pytest") is None:
        return "this Python has no pytest"
    if shutil.which("nvidia-smi") is None:
        return "needs an NVIDIA GPU: nvidia-smi is not here"
    unshare = shutil.which("unshare")
    if unshare is None:
        return "no unshare to try namespaces with"
    tried = subprocess.run([unshare, "-mnpf", "true"], capture_output=True, text=True, timeout=10, check=False)
    return f"namespaces are not allowed here: {tried.stderr.strip()}" if tried.returncode else ""


if __name__ == "__main__":
    main()
