"""Choice of the libraries to patch in a job, by its distribution.

Where: called at the end of `import torch`, in ranks and in jobs whose distribution uses SageMaker's libraries.
"""

from __future__ import annotations

import json
import os

from clary.train.trainers import accelerate_cpu, composer_nodes, deepspeed_nvme, importing

_FRAMEWORK = "SM_FRAMEWORK_PARAMS"  # job variable that transformers reads too
_DATA_PARALLEL = "sagemaker_distributed_dataparallel_enabled"
_MPI = "sagemaker_mpi_enabled"
_MODEL_PARALLEL = "SM_HP_MP_PARAMETERS"  # variable with keys of SMP v1


def install() -> None:
    """Register patches of the modules that this job may import; import patches of transformers only if needed."""
    mends: dict[str, importing.Mend] = {}
    if "LOCAL_RANK" in os.environ:
        mends["accelerate.state"] = accelerate_cpu.mend_state
        mends["composer.utils.dist"] = composer_nodes.name_node
        mends["deepspeed.ops.op_builder.builder"] = deepspeed_nvme.mend_builder
    told = framework_parameters()
    if _is_on(told, _DATA_PARALLEL):
        from clary.train.trainers import devices, transformers_data  # saves 3 ms in ranks with another distribution

        devices.take_modules_of_cpus()
        mends["transformers.training_args"] = transformers_data.mend_training_arguments
        mends["transformers.trainer_pt_utils"] = transformers_data.mend_gathering
    elif _is_on(told, _MPI) and os.environ.get(_MODEL_PARALLEL, "{}") != "{}":
        from clary.train.trainers import transformers_model  # saves 60 ms in ranks with another distribution

        mends["transformers.training_args"] = transformers_model.mend_training_arguments
        mends["transformers.trainer"] = transformers_model.mend_trainer
    if mends:
        importing.mend_when_imported(mends)


def _is_on(parameters: dict[str, object], name: str) -> bool:
    return parameters.get(name) in (True, "true")


def framework_parameters() -> dict[str, object]:
    """Return the job's framework and distribution parameters; empty without any."""
    try:
        found = json.loads(os.environ.get(_FRAMEWORK, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
