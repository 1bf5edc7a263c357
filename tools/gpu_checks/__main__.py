"""Check Clary on a machine with a GPU: `sh tools/check_gpu.sh [OUT]`.

Writes `OUT/checks.jsonl`, one line a check as it ends, and `OUT/summary.md`. Ends with 0 if no check failed. A check
that cannot run here is "absent" with the reason; those that time was too short for are "not reached". A failure does
not end the others.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tools.gpu_checks.catalogue import LEAST_S, all_checks, share_of
from tools.gpu_checks.running import FAILED, NOT_REACHED, Result, environment_of_checks, run_check

_LIMIT_S = 530.0  # of all; whoever calls may allow nine minutes


def main() -> int:
    """Run all checks; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="check_gpu.sh", description=__doc__)
    parser.add_argument("out", nargs="?", default="build/check_gpu", help="folder of the results")
    parser.add_argument("--cuda-on-cpu", action="store_true", help="rehearse on the CPU; see docs/cuda-on-cpu.md")
    parser.add_argument("--only", default="", help="run the checks whose name has this word")
    parser.add_argument("--limit-s", type=float, default=_LIMIT_S, help="of all checks together")
    asked = parser.parse_args()
    out = Path(asked.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    environment = environment_of_checks(sys.executable, is_rehearsal=asked.cuda_on_cpu)
    environment["CLARY_CHECK_GPU_OUT"] = str(out)
    end_s = time.monotonic() + asked.limit_s
    results: list[Result] = []
    with (out / "checks.jsonl").open("w", encoding="utf-8") as lines:
        wanted = [one for one in all_checks() if asked.only in one.name]
        for number, check in enumerate(wanted, start=1):
            most_s = share_of(check, wanted[number:], left_s=end_s - time.monotonic())
            if most_s < LEAST_S:
                result = Result(
                    check.name, NOT_REACHED, f"of the {asked.limit_s:g} s of all checks none was left for it"
                )
            else:
                result = run_check(check, sys.executable, environment, most_s=most_s)
            results.append(result)
            lines.write(result.as_line() + "\n")
            lines.flush()
            print(result.as_line(), flush=True)
    summary = summarize(results, is_rehearsal=asked.cuda_on_cpu)
    (out / "summary.md").write_text(summary, encoding="utf-8")
    print(summary)
    return int(any(one.status == FAILED for one in results))


def summarize(results: Sequence[Result], *, is_rehearsal: bool) -> str:
    """Return the results as a page: counts, a table, and all words of failures."""
    counts = Counter(one.status for one in results)
    head = "# Checks of a machine with a GPU\n\n"
    if is_rehearsal:
        head += "Rehearsed on the CPU: no GPU has computed any of this.\n\n"
    head += ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) + "\n\n"
    rows = ["| check | status | s | words and numbers |", "|---|---|---|---|"]
    for one in results:
        numbers = ", ".join(f"{name} {value}" for name, value in one.numbers.items())
        last = one.words.strip().splitlines()[-1:] or [""]
        said = "; ".join(part for part in (last[0].replace("|", "/")[:200], numbers) if part)
        rows.append(f"| {one.name} | {one.status} | {one.seconds:g} | {said} |")
    failures = [f"\n## {one.name}\n\n```\n{one.words}\n```" for one in results if one.status == FAILED]
    return head + "\n".join(rows + failures) + "\n"


if __name__ == "__main__":
    sys.exit(main())
