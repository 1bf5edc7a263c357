"""Submits one script as a job by SageMaker's SDK v2; run by the SDK's own interpreter.

python submit.py REQUEST.json: prints the job's log, and a line `JOB {...}` with its name, status and reason. A SIGTERM
stops the job.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

ROLE = "arn:aws:iam::000000000000:role/ClaryExecutionRole"


def main() -> None:
    """Upload the data, start the job and follow it."""
    import sagemaker  # type: ignore[import-not-found]
    from sagemaker.mxnet import MXNet  # type: ignore[import-not-found]
    from sagemaker.pytorch import PyTorch  # type: ignore[import-not-found]
    from sagemaker.s3 import S3Uploader  # type: ignore[import-not-found]
    from sagemaker.tensorflow import TensorFlow  # type: ignore[import-not-found]

    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    session = sagemaker.Session()
    place = f"s3://{session.default_bucket()}/public-scripts/{request['name']}"
    S3Uploader.upload(request["data"], place, sagemaker_session=session)
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "pytorch": (PyTorch, {"framework_version": "2.2.0", "py_version": "py310"}),
        # The SDK passes a place of its own as model_dir, which few scripts know.
        "tensorflow": (TensorFlow, {"framework_version": "2.11.0", "py_version": "py39", "model_dir": False}),
        "mxnet": (MXNet, {"framework_version": "1.9.0", "py_version": "py38"}),
    }
    kind, versions = kinds[request["framework"]]
    estimator = kind(
        entry_point=request["entry"],
        source_dir=request["source"],
        role=ROLE,
        image_uri=request["image"],
        **versions,
        instance_count=request["hosts"],
        instance_type=request["instance_type"],
        distribution=request["distribution"],
        hyperparameters=request["hyperparameters"],
        environment=request["environment"],
        base_job_name=request["name"],
        checkpoint_s3_uri=f"{place}-checkpoints",
        max_run=request["deadline_s"],
        sagemaker_session=session,
    )
    estimator.fit(dict.fromkeys(request["channels"], place), wait=False)
    name = estimator.latest_training_job.name

    def stop(number: int, frame: Any) -> None:
        session.stop_training_job(name)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    try:
        session.logs_for_job(name, wait=True, log_type="All")
    except sagemaker.exceptions.UnexpectedStatusException as error:
        print(f"the SDK says: {type(error).__name__}")
    told = session.describe_training_job(name)
    facts = {"name": name, "status": told["TrainingJobStatus"], "reason": told.get("FailureReason", "")}
    print("JOB " + json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
