"""SDK v2: HyperparameterTuner over the generic Estimator with the image of XGBoost and no entry point.

python v2_xgboost_tuner.py FOLDER: FOLDER has train.csv and validation.csv.
"""

import os
import sys
import time

import sagemaker
from common_client import CPU_TYPE, ROLE, report
from sagemaker import image_uris
from sagemaker.estimator import Estimator
from sagemaker.inputs import TrainingInput
from sagemaker.tuner import ContinuousParameter, HyperparameterTuner, IntegerParameter

session = sagemaker.Session()
estimator = Estimator(
    image_uri=image_uris.retrieve("xgboost", session.boto_region_name, "1.7-1"),
    role=ROLE,
    instance_count=1,
    instance_type=CPU_TYPE,
    sagemaker_session=session,
    hyperparameters={"objective": "binary:logistic", "num_round": "10"},
)
tuner = HyperparameterTuner(
    estimator,
    objective_metric_name="validation:auc",
    hyperparameter_ranges={"eta": ContinuousParameter(0.1, 0.9), "max_depth": IntegerParameter(1, 4)},
    max_jobs=2,
    max_parallel_jobs=1,
    random_seed=5,
)
channels = {}
for name in ("train", "validation"):
    uri = session.upload_data(os.path.join(sys.argv[1], f"{name}.csv"), key_prefix=f"xgboost/tuning/{name}")
    channels[name] = TrainingInput(uri, content_type="text/csv")
tuner.fit(channels, job_name=f"xgboost-{time.time_ns() % 10**9}")
frame = tuner.analytics().dataframe()
report(
    statuses=sorted(frame["TrainingJobStatus"]),
    values=[float(value) for value in frame["FinalObjectiveValue"]],
    best=tuner.best_training_job(),
)
