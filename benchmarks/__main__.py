"""`python -m benchmarks` lists; `python -m benchmarks NAME [--quick] [--record]` runs one; `--all` runs all."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

from benchmarks import bench_api, bench_signals, bench_start
from benchmarks.lines import Line, write

BENCHMARKS: dict[str, tuple[str, Callable[[bool], Iterator[Line]]]] = {
    "api": ("accepted jobs a second and latency of describe, against moto's server", bench_api.run),
    "signals": ("first to last SIGTERM handler of a job that is stopped", bench_signals.run),
    "start": ("submit to first line of user code, in parts, against torchrun", bench_start.run),
}


def main() -> int:
    """Run what was named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("name", nargs="?", choices=sorted(BENCHMARKS))
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--quick", action="store_true", help="few samples: proves that it runs")
    parser.add_argument("--record", action="store_true", help="append to benchmarks/results/NAME.jsonl")
    options = parser.parse_args()
    if not options.name and not options.all:
        for name, (about, _) in BENCHMARKS.items():
            print(f"{name:<8} {about}", file=sys.stderr)
        return 0
    failed = False
    for name in sorted(BENCHMARKS) if options.all else [options.name]:
        for line in BENCHMARKS[name][1](options.quick):
            write(name, line, record=options.record)
            failed = failed or not line.verified
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
