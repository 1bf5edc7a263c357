"""Write `src/clary/control/scheduling/instance_types.json` from the family table below.

Run: `python tools/make_instance_types.py`; with `--check` it changes nothing and fails if the file is out of date, or
if a type of botocore's TrainingInstanceType is missing.
Source: AWS EC2 instance type pages. Network figures are the advertised ones ("up to 10 Gigabit" is 10000 Mbit/s).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "src/clary/control/scheduling/instance_types.json"

# Sizes of general families: vCPUs. AWS counts four vCPUs an xlarge, with few exceptions that rows below spell out.
SMALL_SIZES = {"medium": 2, "large": 2, "xlarge": 4}
XLARGE_CPUS = 4


@dataclass(frozen=True)
class Family:
    """A family whose memory grows with its vCPUs: network in Gbit/s by size."""

    name: str
    gib_per_cpu: float
    network_gbit_s: dict[str, float]
    memory_gib: dict[str, float]  # sizes that leave the rule


def _network(text: str) -> dict[str, float]:
    """Parse `large,xlarge:10 12xlarge:12` into Gbit/s by size."""
    sizes = {}
    for item in text.split():
        names, _, gbit = item.partition(":")
        for name in names.split(","):
            sizes[name] = float(gbit)
    return sizes


# Network ladders that several families share.
_NETWORK_5 = "large,xlarge,2xlarge,4xlarge:10"
_NETWORK_6I = "xlarge,2xlarge,4xlarge,8xlarge:12.5 12xlarge:18.75 16xlarge:25 24xlarge:37.5 32xlarge:50"
_NETWORK_7I = "large,xlarge,2xlarge,4xlarge,8xlarge:12.5 12xlarge:18.75 16xlarge:25 24xlarge:37.5 48xlarge:50"
_NETWORK_8I = (
    "xlarge:12.5 2xlarge,4xlarge,8xlarge:15 12xlarge:22.5 16xlarge:30 24xlarge:40 32xlarge:50 48xlarge:75 96xlarge:100"
)
_NETWORK_7I_FLEX = "xlarge,2xlarge,4xlarge,8xlarge:12.5 12xlarge:18.75 16xlarge:25"
_NETWORK_8I_FLEX = "xlarge:12.5 2xlarge,4xlarge,8xlarge:15 12xlarge:22.5 16xlarge:30"
_LARGE = " large:12.5"

GENERAL = (
    Family("m4", 4, _network("xlarge:0.75 2xlarge:1 4xlarge:2 10xlarge:10 16xlarge:25"), {}),
    Family("c4", 1.875, _network("xlarge:0.75 2xlarge:1 4xlarge:2 8xlarge:10"), {"8xlarge": 60}),
    Family("t3", 4, _network("medium,large,xlarge,2xlarge:5"), {"medium": 4}),
    Family("m5", 4, _network(_NETWORK_5 + " 12xlarge:12 24xlarge:25"), {}),
    Family("c5", 2, _network("xlarge,2xlarge,4xlarge:10 9xlarge:12 18xlarge:25"), {}),
    Family(
        "c5n",
        2.625,
        _network("xlarge,2xlarge,4xlarge:25 9xlarge:50 18xlarge:100"),
        {"9xlarge": 96, "18xlarge": 192},
    ),
    Family("r5", 8, _network(_NETWORK_5 + " 8xlarge:10 12xlarge:12 16xlarge:20 24xlarge:25"), {}),
    Family("r5d", 8, _network(_NETWORK_5 + " 8xlarge:10 12xlarge:12 16xlarge:20 24xlarge:25"), {}),
    Family("m6i", 4, _network(_NETWORK_6I + _LARGE), {}),
    Family("c6i", 2, _network(_NETWORK_6I), {}),
    Family("r6i", 8, _network(_NETWORK_6I + _LARGE), {}),
    Family("m7i", 4, _network(_NETWORK_7I), {}),
    Family("c7i", 2, _network(_NETWORK_7I), {}),
    Family("r7i", 8, _network(_NETWORK_7I), {}),
    Family("m8i", 4, _network(_NETWORK_8I + _LARGE), {}),
    Family("c8i", 2, _network(_NETWORK_8I), {}),
    Family("r8i", 8, _network(_NETWORK_8I + _LARGE), {}),
    Family("m7i-flex", 4, _network(_NETWORK_7I_FLEX + _LARGE), {}),
    Family("c7i-flex", 2, _network(_NETWORK_7I_FLEX), {}),
    Family("m8i-flex", 4, _network(_NETWORK_8I_FLEX + _LARGE), {}),
    Family("c8i-flex", 2, _network(_NETWORK_8I_FLEX), {}),
    Family("r8i-flex", 8, _network(_NETWORK_8I_FLEX + _LARGE), {}),
)

# type: vCPUs, memory GiB, GPUs, NeuronCores (as neuron-ls counts them), network Gbit/s
ACCELERATED = {
    "p2.xlarge": (4, 61, 1, 0, 1.25),
    "p2.8xlarge": (32, 488, 8, 0, 10),
    "p2.16xlarge": (64, 732, 16, 0, 25),
    "p3.2xlarge": (8, 61, 1, 0, 10),
    "p3.8xlarge": (32, 244, 4, 0, 10),
    "p3.16xlarge": (64, 488, 8, 0, 25),
    "p3dn.24xlarge": (96, 768, 8, 0, 100),
    "p4d.24xlarge": (96, 1152, 8, 0, 400),
    "p4de.24xlarge": (96, 1152, 8, 0, 400),
    "p5.4xlarge": (16, 256, 1, 0, 100),
    "p5.48xlarge": (192, 2048, 8, 0, 3200),
    "p5e.48xlarge": (192, 2048, 8, 0, 3200),
    "p5en.48xlarge": (192, 2048, 8, 0, 3200),
    "p6-b200.48xlarge": (192, 2048, 8, 0, 3200),
    "p6-b300.48xlarge": (192, 4096, 8, 0, 6400),
    "p6e-gb200.36xlarge": (144, 960, 4, 0, 1600),
    "g4dn.xlarge": (4, 16, 1, 0, 25),
    "g4dn.2xlarge": (8, 32, 1, 0, 25),
    "g4dn.4xlarge": (16, 64, 1, 0, 25),
    "g4dn.8xlarge": (32, 128, 1, 0, 50),
    "g4dn.12xlarge": (48, 192, 4, 0, 50),
    "g4dn.16xlarge": (64, 256, 1, 0, 50),
    "g5.xlarge": (4, 16, 1, 0, 10),
    "g5.2xlarge": (8, 32, 1, 0, 10),
    "g5.4xlarge": (16, 64, 1, 0, 25),
    "g5.8xlarge": (32, 128, 1, 0, 25),
    "g5.12xlarge": (48, 192, 4, 0, 40),
    "g5.16xlarge": (64, 256, 1, 0, 25),
    "g5.24xlarge": (96, 384, 4, 0, 50),
    "g5.48xlarge": (192, 768, 8, 0, 100),
    "g6.xlarge": (4, 16, 1, 0, 10),
    "g6.2xlarge": (8, 32, 1, 0, 10),
    "g6.4xlarge": (16, 64, 1, 0, 25),
    "g6.8xlarge": (32, 128, 1, 0, 25),
    "g6.12xlarge": (48, 192, 4, 0, 40),
    "g6.16xlarge": (64, 256, 1, 0, 25),
    "g6.24xlarge": (96, 384, 4, 0, 50),
    "g6.48xlarge": (192, 768, 8, 0, 100),
    "g6e.xlarge": (4, 32, 1, 0, 20),
    "g6e.2xlarge": (8, 64, 1, 0, 20),
    "g6e.4xlarge": (16, 128, 1, 0, 20),
    "g6e.8xlarge": (32, 256, 1, 0, 25),
    "g6e.12xlarge": (48, 384, 4, 0, 100),
    "g6e.16xlarge": (64, 512, 1, 0, 35),
    "g6e.24xlarge": (96, 768, 4, 0, 200),
    "g6e.48xlarge": (192, 1536, 8, 0, 400),
    "g7e.2xlarge": (8, 64, 1, 0, 50),
    "g7e.4xlarge": (16, 128, 1, 0, 50),
    "g7e.8xlarge": (32, 256, 1, 0, 100),
    "g7e.12xlarge": (48, 512, 2, 0, 400),
    "g7e.24xlarge": (96, 1024, 4, 0, 800),
    "g7e.48xlarge": (192, 2048, 8, 0, 1600),
    "trn1.2xlarge": (8, 32, 0, 2, 12.5),
    "trn1.32xlarge": (128, 512, 0, 32, 800),
    "trn1n.32xlarge": (128, 512, 0, 32, 1600),
    "trn2.48xlarge": (192, 2048, 0, 64, 3200),  # two physical cores make one logical core, the default
}

# No public figures when this table was written: taken from the g7e sizes, with g6's memory per vCPU.
ESTIMATED = {
    "g7.2xlarge": (8, 32, 1, 0, 25),
    "g7.4xlarge": (16, 64, 1, 0, 25),
    "g7.8xlarge": (32, 128, 1, 0, 50),
    "g7.12xlarge": (48, 192, 2, 0, 100),
    "g7.24xlarge": (96, 384, 4, 0, 200),
    "g7.48xlarge": (192, 768, 8, 0, 400),
}


def rows() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every type with its shape, by name."""
    found: dict[str, dict[str, Any]] = {}
    for family in GENERAL:
        for size, gbit in family.network_gbit_s.items():
            cpus = SMALL_SIZES.get(size) or XLARGE_CPUS * int(size.removesuffix("xlarge"))
            if (family.name, size) == ("c4", "8xlarge"):
                cpus = 36  # the one size of its family that is not four vCPUs an xlarge
            memory = family.memory_gib.get(size, cpus * family.gib_per_cpu)
            found[f"ml.{family.name}.{size}"] = _row((cpus, memory, 0, 0, gbit))
    for table, is_estimated in ((ACCELERATED, False), (ESTIMATED, True)):
        for name, shape in table.items():
            found[f"ml.{name}"] = _row(shape) | ({"is_estimated": True} if is_estimated else {})
    yield from sorted(found.items())


def _row(shape: tuple[float, float, float, float, float]) -> dict[str, Any]:
    cpus, memory_gib, gpus, accelerators, gbit = shape
    return {
        "cpus": int(cpus),
        "memory_gib": memory_gib if memory_gib % 1 else int(memory_gib),
        "gpus": int(gpus),
        "accelerators": int(accelerators),
        "network_mbit_s": round(gbit * 1000),
    }


def render() -> str:
    """Return the file's text: one type a line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def missing_types() -> list[str]:
    """Return the types of the API's model that the table lacks."""
    from botocore.session import get_session

    shape = get_session().get_service_model("sagemaker").shape_for("TrainingInstanceType")
    return sorted(set(shape.enum) - {name for name, _ in rows()})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if the file is out of date")
    arguments = parser.parse_args()
    if missing := missing_types():
        print(f"types of the API that the family table lacks: {', '.join(missing)}", file=sys.stderr)
        return 1
    if arguments.check:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != render():
            print(f"{TARGET} is out of date: run python tools/make_instance_types.py", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(render(), encoding="utf-8")
    print(f"{TARGET}: {sum(1 for _ in rows())} types")
    return 0


if __name__ == "__main__":
    sys.exit(main())
