"""SDK v2: HyperparameterTuner in the form that the first argument names."""

import sys
import time

import sagemaker
from common_client import CPU_TYPE, ROLE, SOURCE, report
from sagemaker.pytorch import PyTorch
from sagemaker.tuner import (
    CategoricalParameter,
    ContinuousParameter,
    HyperparameterTuner,
    IntegerParameter,
)

form = sys.argv[1]


def name_of(word):
    """Return a unique name; names made by the SDK are the same within a minute."""
    return f"{word}-{time.time_ns() % 10**9}"


session = sagemaker.Session()
METRICS = [{"Name": "validation:loss", "Regex": "validation loss: ([0-9.e-]+)"}]
RANGES = {
    "lr": ContinuousParameter(0.001, 0.1, scaling_type="Logarithmic"),
    "layers": IntegerParameter(1, 5),
    "opt": CategoricalParameter(["adam", "sgd"]),
}


def estimator(**hyperparameters):
    return PyTorch(
        entry_point="tuned.py",
        source_dir=SOURCE,
        role=ROLE,
        framework_version="2.8.0",
        py_version="py312",
        instance_count=1,
        instance_type=CPU_TYPE,
        hyperparameters=hyperparameters,
        sagemaker_session=session,
    )


def tuner(made, ranges=None, **options):
    return HyperparameterTuner(
        made,
        objective_metric_name="validation:loss",
        objective_type="Minimize",
        metric_definitions=METRICS,
        hyperparameter_ranges=ranges or RANGES,
        **{"max_jobs": 6, "max_parallel_jobs": 2, "random_seed": 3, **options},
    )


def rows(made):
    frame = made.analytics().dataframe()
    return frame.sort_values("TrainingJobName").to_dict("records")


if form == "stop":
    made = tuner(estimator(epochs=200, pause=0.2), max_jobs=50)
    made.fit(wait=False, job_name=name_of(form))
    time.sleep(5)
    made.stop_tuning_job()
    made.wait()
elif form == "multiple":
    made = HyperparameterTuner.create(
        estimator_dict={"one": estimator(epochs=1), "two": estimator(epochs=2)},
        objective_metric_name_dict={"one": "validation:loss", "two": "validation:loss"},
        hyperparameter_ranges_dict={"one": {"lr": RANGES["lr"]}, "two": {"layers": RANGES["layers"]}},
        metric_definitions_dict={"one": METRICS, "two": METRICS},
        objective_type="Minimize",
        strategy="Random",
        max_jobs=4,
        max_parallel_jobs=2,
    )
    made.fit(job_name=name_of(form), inputs={"one": None, "two": None}, include_cls_metadata={"one": True, "two": True})
elif form == "grid":
    made = tuner(
        estimator(epochs=1),
        {"opt": RANGES["opt"], "layers": CategoricalParameter([1, 3])},
        strategy="Grid",
        max_jobs=4,
    )
    made.fit(job_name=name_of(form))
elif form == "children":
    parent = tuner(estimator(epochs=1), max_jobs=3)
    parent.fit(job_name=name_of("parent"))
    made = parent.identical_dataset_and_algorithm_tuner()
    made.max_jobs, made.max_parallel_jobs = 2, 2
    made.fit(job_name=name_of(form))
    further = parent.transfer_learning_tuner(additional_parents={made.latest_tuning_job.name})
    further.max_jobs, further.max_parallel_jobs = 2, 1
    further.fit(job_name=name_of("further"))
    made = further
else:
    options = {
        "bayesian": {},
        "random": {"strategy": "Random"},
        "early": {"early_stopping_type": "Auto"},
        "hyperband": {"strategy": "Hyperband", "max_jobs": 8},
        "autotune": {"autotune": True},
    }[form]
    made = tuner(estimator(epochs=3), **options)
    made.fit(job_name=name_of(form))
name = made.latest_tuning_job.name
described = session.sagemaker_client.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName=name)
facts = {"name": name, "status": described["HyperParameterTuningJobStatus"], "rows": rows(made), "described": described}
if form != "stop":
    attached = HyperparameterTuner.attach(name, sagemaker_session=session)
    facts["best"] = attached.best_training_job()
    facts["model"] = made.best_estimator().model_data
report(**facts)
