"""`Environment()` and `TrainingEnv()`: a snapshot of the job, as an object and as a dictionary.

Values come from the files of `/opt/ml/input/config` and the job's variables. On SageMaker a container has its machine
to itself, and AWS's packages count the machine's processors and GPUs. Here several hosts may share a machine, so the
host's share counts, which the job has in SM_NUM_CPUS and SM_NUM_GPUS.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from . import mapping, params, tree
from .refusing import why_not
from .tree import (  # scripts read them from this module
    BASE_PATH_ENV,
    DEFAULT_GROUP,
    HYPERPARAMETERS_FILE,
    INPUT_DATA_CONFIG_FILE,
    RESOURCE_CONFIG_FILE,
    SAGEMAKER_BASE_PATH,
    channel_path,
    read_hyperparameters,
    read_input_data_config,
    read_resource_config,
)

__all__ = [
    "BASE_PATH_ENV",
    "HYPERPARAMETERS_FILE",
    "INPUT_DATA_CONFIG_FILE",
    "RESOURCE_CONFIG_FILE",
    "SAGEMAKER_BASE_PATH",
    "Environment",
    "TrainingEnv",
    "channel_path",
    "num_cpus",
    "num_gpus",
    "num_neurons",
    "read_hyperparameters",
    "read_input_data_config",
    "read_resource_config",
    "validate_smddpmprun",
    "validate_smddprun",
    "write_env_vars",
]

_DEFAULT_INTERFACE = "eth0"
_MODEL_DIR = "model_dir"
_MODEL_DIR_VARIABLE = "SM_HP_MODEL_DIR"
_DISTRIBUTIONS = (  # with one of these, the script runs on every host of its group
    params.MPI_ENABLED,
    params.PARAMETER_SERVER_ENABLED,
    "sagemaker_distributed_dataparallel_enabled",
    "sagemaker_pytorch_ddp_enabled",
    params.PYTORCH_XLA_MULTI_WORKER_ENABLED,
    params.MULTI_WORKER_MIRRORED_STRATEGY_ENABLED,
    "sagemaker_torch_distributed_enabled",
)
# Properties that become variables under their own names.
_VARIABLES = (
    "hosts",
    "network_interface_name",
    "user_entry_point",
    "resource_config",
    "input_data_config",
    "output_data_dir",
    "current_host",
    "module_name",
    "log_level",
    "framework_module",
    "input_dir",
    "input_config_dir",
    "output_dir",
    "num_cpus",
    "num_gpus",
    "model_dir",
    "module_dir",
    "output_intermediate_dir",
)
_VARIABLES_OF_GROUPS = (
    "current_instance_type",
    "current_instance_group",
    "current_instance_group_hosts",
    "instance_groups",
    "instance_groups_dict",
    "distribution_instance_groups",
    "is_hetero",
    "num_neurons",
)


def num_gpus() -> int:
    """Return the number of the host's GPUs: SM_NUM_GPUS, outside of jobs the count of nvidia-smi."""
    told = _count("SM_NUM_GPUS")
    if told is not None:
        return told
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def num_cpus() -> int:
    """Return the number of the host's processors: SM_NUM_CPUS, outside of jobs the machine's."""
    told = _count("SM_NUM_CPUS")
    return multiprocessing.cpu_count() if told is None else told


def num_neurons(instance_type: str = "") -> int:
    """Return 0: Clary runs nothing on AWS's Neuron cores."""
    return _count("SM_NUM_NEURONS") or 0


def validate_smddprun() -> bool:
    """Whether PATH has the launcher of SMDDP's ranks."""
    return shutil.which("smddprun") is not None


def validate_smddpmprun() -> bool:
    """Whether PATH has the launcher of SMDDP's ranks on several hosts."""
    return shutil.which("smddpmprun") is not None


def write_env_vars(env_vars: Mapping[str, str] | None = None) -> None:
    """Set variables of this process, and PYTHONPATH to the folders that it imports from."""
    os.environ.update({**(env_vars or {}), "PYTHONPATH": os.pathsep.join(sys.path)})


def __getattr__(name: str) -> Any:
    if name in tree.PATHS:
        return tree.path_of(name)
    if name == "ServingEnv":
        raise AttributeError(why_not("ServingEnv"))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _property(name: str, meaning: str) -> Any:
    return property(lambda environment: environment._values[name], doc=meaning)


class TrainingEnv(mapping.MappingMixin):
    """The job as `sagemaker_containers.training_env()` describes it.

    Args:
        resource_config: hosts of the job; if empty, they are read.
        input_data_config: channels; if empty, they are read.
        hyperparameters: if empty, they are read.

    It sets CURRENT_HOST, SAGEMAKER_REGION and SAGEMAKER_JOB_NAME of this process, as AWS's packages do.
    Raises: FileNotFoundError if there is no job's description; KeyError if one has no hosts.
    """

    additional_framework_parameters = _property("additional_framework_parameters", "other `sagemaker_` parameters")
    channel_input_dirs = _property("channel_input_dirs", "channel -> folder with its data")
    current_host = _property("current_host", "this host's name")
    framework_module = _property("framework_module", "SAGEMAKER_TRAINING_MODULE, or None")
    hosts = _property("hosts", "names of all hosts, sorted")
    hyperparameters = _property("hyperparameters", "the user's hyperparameters, with values of JSON")
    input_config_dir = _property("input_config_dir", "folder with the description of the job")
    input_data_config = _property("input_data_config", "channel -> its settings")
    input_dir = _property("input_dir", "folder with data and description")
    is_master = _property("is_master", "whether this host is `master_hostname`")
    job_name = _property("job_name", "TRAINING_JOB_NAME, or None")
    log_level = _property("log_level", "number, of the module `logging`")
    master_hostname = _property("master_hostname", "first host that the script runs on")
    model_dir = _property("model_dir", "folder whose content becomes model.tar.gz")
    module_dir = _property("module_dir", "where the user's code comes from")
    module_name = _property("module_name", 'the entry point without `.py`, "None" without one')
    network_interface_name = _property("network_interface_name", "interface between hosts")
    num_cpus = _property("num_cpus", "processors of the host")
    num_gpus = _property("num_gpus", "GPUs of the host")
    output_data_dir = _property("output_data_dir", "folder whose content becomes output.tar.gz")
    output_dir = _property("output_dir", "folder of the file `failure`")
    output_intermediate_dir = _property("output_intermediate_dir", "folder that is uploaded during the training")
    resource_config = _property("resource_config", "resourceconfig.json")
    user_entry_point = _property("user_entry_point", "the entry point, or None")

    def __init__(
        self,
        resource_config: dict[str, Any] | None = None,
        input_data_config: dict[str, Any] | None = None,
        hyperparameters: dict[str, Any] | None = None,
    ) -> None:
        resources = resource_config or read_resource_config()
        channels = input_data_config or read_input_data_config()
        split = mapping.split_by_criteria(
            hyperparameters or read_hyperparameters(), params.SAGEMAKER_HYPERPARAMETERS, params.SAGEMAKER_PREFIX
        )
        platform = split.included
        if not hyperparameters:
            _tell_model_dir(split.excluded, platform)
        self._s3_output = platform.get(params.S3_OUTPUT_LOCATION_PARAM)
        self._values: dict[str, Any] = {
            name: tree.path_of(name) for name in tree.PATHS if isinstance(getattr(TrainingEnv, name, None), property)
        }
        program = os.environ.get(params.USER_PROGRAM_ENV)
        module = str(platform.get(params.USER_PROGRAM_PARAM)) if program is None else program
        self._values.update(
            additional_framework_parameters={
                key: value for key, value in platform.items() if key not in params.SAGEMAKER_HYPERPARAMETERS
            },
            channel_input_dirs={name: channel_path(name) for name in channels},
            current_host=resources["current_host"],
            framework_module=os.environ.get(params.FRAMEWORK_TRAINING_MODULE_ENV),
            hosts=resources["hosts"],
            hyperparameters=split.excluded,
            input_data_config=channels,
            job_name=os.environ.get(params.TRAINING_JOB_ENV),
            log_level=platform.get(params.LOG_LEVEL_PARAM, logging.INFO),
            module_dir=str(platform.get(params.SUBMIT_DIR_PARAM, tree.path_of("code_dir"))),
            module_name=module[: -len(".py")] if module.endswith(".py") else module,
            network_interface_name=resources.get("network_interface_name", _DEFAULT_INTERFACE),
            num_cpus=num_cpus(),
            num_gpus=num_gpus(),
            resource_config=resources,
            user_entry_point=program or platform.get(params.USER_PROGRAM_PARAM),
        )
        self._values.update(self._more_values())
        self._values["is_master"] = self.current_host == self.master_hostname
        _set_variables(platform, self.current_host)

    def sagemaker_s3_output(self) -> str | None:
        """Return the hyperparameter `sagemaker_s3_output`."""
        return self._s3_output

    def to_cmd_args(self) -> list[str]:
        """Return the user's hyperparameters as arguments of the script, as SM_USER_ARGS has them."""
        return mapping.to_cmd_args(self.hyperparameters)

    def to_env_vars(self) -> dict[str, str]:
        """Return the SM_* variables."""
        return mapping.to_env_vars(
            {
                **{name: self[name] for name in self._variables()},
                "hps": self.hyperparameters,
                "framework_params": self.additional_framework_parameters,
                "channels": sorted(self.channel_input_dirs),
                "training_env": dict(self),
                "user_args": self.to_cmd_args(),
                **{f"channel_{name}": path for name, path in self.channel_input_dirs.items()},
                **{f"hp_{name}": value for name, value in self.hyperparameters.items()},
            }
        )

    def _variables(self) -> tuple[str, ...]:
        return _VARIABLES

    def _more_values(self) -> dict[str, Any]:
        return {"master_hostname": self.hosts[0]}


class Environment(TrainingEnv):
    """The job as `sagemaker_training.environment.Environment()` describes it: also its instance groups.

    Args: as `TrainingEnv`.
    """

    current_instance_group = _property("current_instance_group", "name of this host's group")
    current_instance_group_hosts = _property("current_instance_group_hosts", "names of its hosts")
    current_instance_type = _property("current_instance_type", "such as ml.p4d.24xlarge")
    distribution_hosts = _property("distribution_hosts", "hosts of `distribution_instance_groups`")
    distribution_instance_groups = _property("distribution_instance_groups", "groups that a distribution runs on")
    instance_groups = _property("instance_groups", "names of all groups")
    instance_groups_dict = _property("instance_groups_dict", "group -> its name, type and hosts")
    is_hetero = _property("is_hetero", "whether there are several groups")
    is_modelparallel_enabled = _property("is_modelparallel_enabled", "whether SM_HP_MP_PARAMETERS has parameters")
    is_smddpmprun_installed = _property("is_smddpmprun_installed", "whether PATH has smddpmprun")
    is_smddprun_installed = _property("is_smddprun_installed", "whether PATH has smddprun")
    num_neurons = _property("num_neurons", "AWS's Neuron cores of the host")
    topology = _property("topology", "host -> rack of AWS's machines; Clary knows none")

    def _variables(self) -> tuple[str, ...]:
        names = (*_VARIABLES, *_VARIABLES_OF_GROUPS)
        return (*names, "topology") if self.topology else names

    def _more_values(self) -> dict[str, Any]:
        resources = self.resource_config
        instance_type = resources.get("current_instance_type", "local")
        group = resources.get("current_group_name", DEFAULT_GROUP)
        groups = {each["instance_group_name"]: each for each in resources.get("instance_groups", [])}
        framework = self.additional_framework_parameters
        is_distributed = any(framework.get(name) for name in _DISTRIBUTIONS)
        distributed = framework.get(params.DISTRIBUTION_INSTANCE_GROUPS, [group] if is_distributed else [])
        hosts = [host for name, each in groups.items() if name in distributed for host in each["hosts"]]
        if not groups:
            hosts = list(self.hosts)
        parameters = os.environ.get(params.SM_HP_MP_PARAMETERS)
        return {
            "current_instance_group": group,
            "current_instance_group_hosts": groups[group]["hosts"] if group in groups else [],
            "current_instance_type": instance_type,
            "distribution_hosts": hosts,
            "distribution_instance_groups": distributed,
            "instance_groups": list(groups),
            "instance_groups_dict": groups,
            "is_hetero": len(groups) > 1,
            "is_modelparallel_enabled": parameters and parameters != "{}",
            "is_smddpmprun_installed": validate_smddpmprun(),
            "is_smddprun_installed": validate_smddprun(),
            "master_hostname": (hosts or self.hosts)[0],
            "num_neurons": num_neurons(instance_type),
            "topology": resources.get("topology", []),
        }


def _set_variables(platform: Mapping[str, Any], current_host: str) -> None:
    """Set variables that programs started by the script read; values of the job stay if no parameter has another."""
    region = platform.get(params.REGION_NAME_PARAM) or os.environ.get("AWS_DEFAULT_REGION")
    job_name = platform.get(params.JOB_NAME_PARAM)
    os.environ[params.CURRENT_HOST_ENV] = current_host
    os.environ[params.REGION_NAME_ENV] = region or os.environ.get(params.REGION_NAME_ENV, "")
    os.environ[params.JOB_NAME_ENV] = job_name or os.environ.get(params.JOB_NAME_ENV, "")


def _tell_model_dir(values: dict[str, Any], platform: Mapping[str, Any]) -> None:
    """Give a trial the `model_dir` of its own that the arguments of the script have."""
    own = f"{values.get(_MODEL_DIR)}/{os.environ.get(params.TRAINING_JOB_ENV)}/model"
    if params.TUNING_METRIC_PARAM in platform and os.environ.get(_MODEL_DIR_VARIABLE) == own:
        values[_MODEL_DIR] = own


def _count(variable: str) -> int | None:
    told = os.environ.get(variable, "")
    return int(told) if told.isdigit() else None
