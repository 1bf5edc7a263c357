"""Draw docs/numbers/pictures/growth.svg from the recorded lines of `python -m benchmarks growth`.

Run: `.venvs/charts/bin/python tools/draw_growth.py`, after `make .venvs/charts.stamp` and a run with `--record`. The
newest line of each case counts. Three curves in each picture: ours, the peer, the formula.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results/growth.jsonl"
PICTURE = ROOT / "docs/numbers/pictures/growth.svg"
PANELS = (  # what the case has to match, its number first; title; axis
    (r"ranks=(\d+),bytes=64$", "all_reduce of 64 B, one host", "ranks"),
    (r"ranks=(\d+),bytes=4194304$", "all_reduce of 4 MiB, one host", "ranks"),
    (r"hosts=(\d+),bytes=64,", "all_reduce of 64 B, 1 Gbit/s", "hosts"),
    (r"hosts=(\d+),bytes=4194304,", "all_reduce of 4 MiB, 1 Gbit/s", "hosts"),
    (r"parameters=(\d+),gradients$", "gradients among two ranks", "parameters"),
    (r"parameters=(\d+),save$", "stall of a save", "parameters"),
)


def main() -> None:
    """Draw all panels in one picture."""
    lines = {line["case"]: line for line in map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())}
    mpl.rcParams["svg.hashsalt"] = "growth"  # the same bytes for the same lines
    figure, places = plt.subplots(3, 2, figsize=(9, 9), layout="constrained")
    for place, (pattern, title, axis) in zip(places.flat, PANELS, strict=True):
        found = sorted((int(m[1]), line) for case, line in lines.items() if (m := re.match(pattern, case)))
        numbers = [number for number, _ in found]
        place.plot(numbers, [line["ours"] for _, line in found], "o-", label="ours")
        for name in sorted({name for _, line in found for name in line["peers"]}):
            place.plot(numbers, [line["peers"][name] for _, line in found], "s--", label=name.partition(" (")[0])
        place.plot(numbers, [line["bound"] for _, line in found], "k:", label="formula")
        place.set(title=title, xlabel=axis, ylabel="s", xscale="log", yscale="log")
        place.set_xticks(
            numbers, [f"{number / 1e6:g} M" if axis == "parameters" else str(number) for number in numbers]
        )
        place.minorticks_off()
        place.legend()
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
