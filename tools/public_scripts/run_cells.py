"""Runs the cells of a notebook, as they are, up to the one that starts a tuning job; run by the SDK's interpreter.

python run_cells.py NOTEBOOK BUCKETS.json: BUCKETS says which folder's files belong under `bucket/prefix` of S3, where
the notebook fetches them; {region} stands for the session's.
Cells that are a shell's or a kernel's (`!`, `%`) are left out. Prints a line `TUNING {...}` with how the job has ended.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

_START = "tuner.fit("
_KERNELS = ("!", "%")


def main() -> None:
    """Bring the data, run the cells, and look at the tuning job."""
    import boto3

    notebook = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    buckets = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    s3 = boto3.client("s3")
    for place, folder in buckets.items():
        bucket, _, prefix = place.replace("{region}", s3.meta.region_name).partition("/")
        with contextlib.suppress(s3.exceptions.BucketAlreadyOwnedByYou):
            s3.create_bucket(Bucket=bucket)
        for file in sorted(one for one in Path(folder).rglob("*") if one.is_file()):
            s3.upload_file(str(file), bucket, f"{prefix}/{file.relative_to(folder)}")
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        code = "".join(cell["source"])
        if cell["cell_type"] != "code" or code.lstrip().startswith(_KERNELS):
            continue
        exec(compile(code, sys.argv[1], "exec"), names)
        if _START in code:
            break
    tuner = names["tuner"]
    tuner.wait()
    told = tuner.describe()
    rows = tuner.analytics().dataframe()
    best = told.get("BestTrainingJob", {}).get("FinalHyperParameterTuningJobObjectiveMetric", {}).get("Value")
    counters = told["TrainingJobStatusCounters"]
    facts = {"status": told["HyperParameterTuningJobStatus"], "trials": counters, "rows": len(rows), "best": best}
    print("TUNING " + json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
