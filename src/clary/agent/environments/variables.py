"""Variables of the program: the service's variables of every container, and the SM_* variables of AWS's launchers.

Where: the supervisor merges them into a launcher's context. Every value is computed; from the agent's own environment
only the names in `INHERITED`, PIP_* and UV_* except secrets, and, unless the user sets it, PATH are copied.
Source: sagemaker-training 5.1.4 `Environment.to_env_vars` (compared with its own output in
`tests/assets/sm_variables`); SDK 3.27 `container_drivers/scripts/environment.py` for variables that only SDK v3 sets.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from clary.agent.environments.compilation import compilation_variables
from clary.agent.environments.config_files import (
    channels_of,
    errors_folder,
    host_names,
    input_data_config,
    network_interface,
    profiles_folder,
    resource_config,
    run_folder,
    status_token_file,
    step_counts_folder,
    steps_folder,
)
from clary.agent.environments.package_index import is_secret
from clary.agent.environments.stop_notice import stop_notice_path
from clary.contract import deep_profiles, step_counts
from clary.contract.launch_plan import HostPlan, Isolation, LaunchPlan
from clary.contract.ml_tree import MlTree
from clary.contract.object_store.library_variables import ENDPOINT, OF_ENDPOINT, library_variables
from clary.contract.settings import hyperparameters as hps
from clary.contract.settings.distribution import INSTANCE_GROUPS, DistributionKind, read_distribution
from clary.contract.step_records import FOLDER_VARIABLE
from clary.contract.training_values import STATUS_PATH

# Variables that the user's Environment cannot change: they describe the platform. Other variables of the user take
# precedence, except variables of proxies in hosts with namespaces, of a warm pool's cache, and of CUDA on CPUs; PATH
# and NO_PROXY are joined.
RESERVED = frozenset(
    {
        "TRAINING_JOB_NAME",
        "TRAINING_JOB_ARN",
        "CURRENT_HOST",
        "SAGEMAKER_BASE_DIR",
        "CLARY_STOP_NOTICE",
        "CLARY_STOP_GRACE_S",
        "CLARY_COLLECTIVE_SECRET",
        "CLARY_HOST_GPUS",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ENDPOINT_URL",
        "S3_ENDPOINT_URL",
    }
)
# Variables copied from the agent's environment: this machine's time zone, libraries, certificates and proxies.
INHERITED = frozenset(
    {
        "TZ",
        "LD_LIBRARY_PATH",
        "CUDA_HOME",
        "CUDA_PATH",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
    }
)
# File stem -> variable with the path of a request's JSON file, for SageMaker's libraries; the debugger's hook needs the
# first.
CONFIG_FILE_VARIABLES = {
    "debughookconfig": "SMDEBUG_CONFIG_FILE_PATH",
    "tensorboardoutputconfig": "TENSORBOARD_CONFIG_FILE_PATH",
}
PROXY_VARIABLES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy")
_INHERITED_PREFIXES = ("PIP_", "UV_")
# If the user sets one of these variables, Weights & Biases reports to a server.
_WANDB_ONLINE = frozenset({"WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"})
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MASTER_NAME_OF_V3 = "algo-1"  # hard-coded in SDK v3's environment script
POOL_CACHE_FOLDER = "warmpoolcache"  # below /opt/ml/sagemaker, as on SageMaker


def program_variables(
    plan: LaunchPlan,
    host: HostPlan,
    inside: MlTree,
    *,
    python: str,
    shims_folder: str,
    machine: Mapping[str, str],
    brings_wandb_key: bool = False,
) -> dict[str, str]:
    """Return the whole environment of the program, except the launcher's variables for ranks.

    It includes SM_* unless the request has a ContainerEntrypoint: such programs set their own, as on SageMaker.

    Args:
        inside: `/opt/ml` in the program's view.
        python: interpreter of the prepared environment.
        shims_folder: folders put before the environment's own programs in PATH, separated by colons.
        machine: the agent's environment, from which the names in `INHERITED`, `PIP_*`, `UV_*` and PATH are copied,
            without secrets; logins of package indexes are no secrets here.
        brings_wandb_key: whether the code includes a key of Weights & Biases.
    """
    variables = service_variables(plan, host, inside, python=python, shims_folder=shims_folder, machine=machine)
    if brings_wandb_key and "WANDB_MODE" not in plan.user_environment:
        variables.pop("WANDB_MODE", None)
    if plan.command is None:
        variables = {**sm_variables(plan, host, inside), **variables}
    return variables


def service_variables(
    plan: LaunchPlan,
    host: HostPlan,
    inside: MlTree,
    *,
    python: str,
    shims_folder: str,
    machine: Mapping[str, str],
) -> dict[str, str]:
    """Return the variables that the service sets in every container.

    Args: as `program_variables`.
    """
    endpoint = plan.job_endpoint
    interface = network_interface(plan)
    variables = {
        **{name: value for name, value in machine.items() if _is_inherited(name)},
        "HOME": str(run_folder(inside) / "home"),
        "CLARY_ERRORS_FOLDER": str(errors_folder(inside)),
        FOLDER_VARIABLE: str(steps_folder(inside)),
        deep_profiles.FOLDER_VARIABLE: str(profiles_folder(inside)),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        # A character that the log cannot encode must not fail a training.
        "PYTHONIOENCODING": "utf-8:backslashreplace",
        "AWS_REGION": plan.region,
        "AWS_DEFAULT_REGION": plan.region,
        "AWS_EC2_METADATA_DISABLED": "true",  # no metadata service runs here; a search for it takes seconds
        "SAGEMAKER_JOB_NAME": hps.platform_text(plan.hyperparameters, hps.JOB_NAME) or plan.job_name,
        "SAGEMAKER_REGION": hps.platform_text(plan.hyperparameters, hps.REGION) or plan.region,
        "SAGEMAKER_METRICS_DIRECTORY": str(inside.output / "metrics" / "sagemaker"),
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        "CLARY_COLLECTIVE_INTERFACE": interface,
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, host.resources.gpu_indices)),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order of driver and service; CUDA's default is the fastest GPU first
    }
    variables |= {
        name: str(inside.config / f"{stem}.json")
        for stem, name in CONFIG_FILE_VARIABLES.items()
        if stem in plan.config_documents
    }
    if plan.checkpoint_s3_uri is not None:
        variables[step_counts.FOLDER_VARIABLE] = str(step_counts_folder(inside))
    variables |= _reporting_variables(plan, host, inside)
    variables |= compilation_variables(plan, host, inside)
    variables |= library_variables(endpoint.url)
    if ENDPOINT in plan.user_environment:  # a store of the user's own, which may have TLS
        for name in OF_ENDPOINT:
            del variables[name]
    variables |= plan.environment.variables
    variables |= {name: value for name, value in plan.user_environment.items() if name not in RESERVED}
    variables |= {
        "TRAINING_JOB_NAME": plan.job_name,
        "TRAINING_JOB_ARN": plan.job_arn,
        "CURRENT_HOST": host.name,
        "CLARY_STOP_NOTICE": str(stop_notice_path(inside)),
        "CLARY_STOP_GRACE_S": f"{plan.stop_grace_s:g}",
        "CLARY_COLLECTIVE_SECRET": collective_secret(plan),
        "CLARY_HOST_GPUS": ",".join(map(str, host.resources.gpu_indices)),  # for the launchers' nvidia-smi
        "AWS_ENDPOINT_URL": endpoint.url,
        "S3_ENDPOINT_URL": endpoint.url,  # the toolkit passes this variable to its S3 client: no other store's
        "AWS_ACCESS_KEY_ID": endpoint.credentials.access_key_id,
        "AWS_SECRET_ACCESS_KEY": endpoint.credentials.secret_access_key,
        "PATH": ":".join(
            (
                shims_folder,
                str(PurePosixPath(python).parent),
                plan.user_environment.get("PATH") or machine.get("PATH") or _DEFAULT_PATH,
            )
        ),
    }
    if plan.shares_hosts:
        variables["SAGEMAKER_MANAGED_WARMPOOL_CACHE_DIRECTORY"] = str(pool_cache(plan, host.name, inside))
    if hps.is_enabled(plan.hyperparameters, hps.CUDA_ON_CPU):
        variables[hps.CUDA_ON_CPU_VARIABLE] = "1"
    if plan.isolation is Isolation.PROCESSES:
        variables["SAGEMAKER_BASE_DIR"] = str(inside.root)  # the toolkit's variable for a tree at another path
    if plan.isolation is Isolation.NAMESPACES:
        # Hosts have no route to a proxy of the machine; they use their own proxy through the relay.
        for name in PROXY_VARIABLES:
            variables.pop(name, None)
        if plan.proxy_url is not None and not plan.network_isolation:
            variables |= dict.fromkeys(PROXY_VARIABLES, plan.proxy_url)
    if any(name in PROXY_VARIABLES for name in variables):
        _keep_from_proxy(variables, plan)
    return variables


def _reporting_variables(plan: LaunchPlan, host: HostPlan, inside: MlTree) -> dict[str, str]:
    """Return the variables that tell libraries how to report a training; the user's Environment overrides them.

    transformers (with KubeflowCallback) posts its progress to the URL given in the Kubeflow trainer's variables; MLflow
    and Weights & Biases write into the folder that becomes output.tar.gz.
    Source: docs/user-guides/trainjob-progress.md of kubeflow/trainer; MLflow's MLFLOW_TRACKING_URI and
    MLFLOW_ALLOW_FILE_STORE; WANDB_MODE and WANDB_DIR of wandb.
    """
    variables = {
        "MLFLOW_TRACKING_URI": f"file:{inside.output_data / 'mlruns'}",
        "MLFLOW_ALLOW_FILE_STORE": "true",  # newer releases refuse local folders without this variable
        "WANDB_DIR": str(inside.output_data),
    }
    if not plan.user_environment.keys() & _WANDB_ONLINE:
        variables["WANDB_MODE"] = "offline"
    if not plan.network_isolation:  # isolated hosts cannot reach the service
        path = STATUS_PATH.format(job=plan.job_name, attempt=plan.attempt, host=host.name)
        variables["KUBEFLOW_TRAINER_SERVER_URL"] = f"{plan.job_endpoint.url.rstrip('/')}{path}"
        variables["KUBEFLOW_TRAINER_SERVER_TOKEN"] = str(status_token_file(inside))
    return variables


def pool_cache(plan: LaunchPlan, host: str, inside: MlTree) -> PurePosixPath:
    """Return the path, in programs' view, of the cache folder that successive jobs of a warm pool share.

    Args:
        plan: of an attempt in the pool.
        host: name of the host.
        inside: `/opt/ml` in the program's view.
    Source: SAGEMAKER_MANAGED_WARMPOOL_CACHE_DIRECTORY, "Persistent cache" in the developer guide.
    """
    if plan.isolation is Isolation.PROCESSES:
        return PurePosixPath(plan.pool_folder) / host / POOL_CACHE_FOLDER
    return PurePosixPath(inside.root) / "sagemaker" / POOL_CACHE_FOLDER


def collective_secret(plan: LaunchPlan) -> str:
    """Return the secret that the ranks of an attempt share; the agents' token cannot be derived from it."""
    text = f"collectives:{plan.job_name}:{plan.attempt}"
    return hmac.new(plan.agent_token.encode(), text.encode(), hashlib.sha256).hexdigest()


def sm_variables(plan: LaunchPlan, host: HostPlan, inside: MlTree) -> dict[str, str]:
    """Return the SM_* variables: the toolkit's, byte for byte, and additional variables of SDK v3.

    The toolkit's value wins for a name that both set. A hyperparameter with `=` in its name has no SM_HP_* variable,
    because an environment cannot contain such a name.

    Args: as `program_variables`.
    """
    values = _toolkit_values(plan, host, inside)
    variables = {f"SM_{name.upper()}": _text(value) for name, value in values.items()}
    for name, value in _v3_values(plan, host, inside).items():
        variables.setdefault(name, value if isinstance(value, str) else json.dumps(value))
    return {name: value for name, value in variables.items() if "=" not in name and "\0" not in name + value}


def _toolkit_values(plan: LaunchPlan, host: HostPlan, inside: MlTree) -> dict[str, Any]:
    """Return the values of the toolkit's `to_env_vars` before it converts names to upper case and values to text."""
    resources = resource_config(plan, host)
    groups = {group["instance_group_name"]: group for group in resources["instance_groups"]}
    channels = {channel.name: str(inside.channel(channel.name)) for channel in channels_of(plan, host)}
    user_values = hps.user_values(plan.told_hyperparameters)
    training_env = _training_env(plan, host, inside)
    values = {
        "hosts": resources["hosts"],
        "network_interface_name": resources["network_interface_name"],
        "hps": user_values,
        "user_entry_point": training_env["user_entry_point"],
        "framework_params": training_env["additional_framework_parameters"],
        "resource_config": resources,
        "input_data_config": input_data_config(plan, host),
        "output_data_dir": str(inside.output_data),
        "channels": sorted(channels),
        "current_host": host.name,
        "current_instance_type": host.instance_type,
        "current_instance_group": host.instance_group,
        "current_instance_group_hosts": groups[host.instance_group]["hosts"],
        "instance_groups": list(groups),
        "instance_groups_dict": groups,
        "distribution_instance_groups": training_env["distribution_instance_groups"],
        "is_hetero": len(groups) > 1,
        "module_name": training_env["module_name"],
        "log_level": training_env["log_level"],
        "framework_module": training_env["framework_module"],
        "input_dir": str(inside.input),
        "input_config_dir": str(inside.config),
        "output_dir": str(inside.output),
        "num_cpus": training_env["num_cpus"],
        "num_gpus": training_env["num_gpus"],
        "num_neurons": 0,
        "model_dir": str(inside.model),
        "module_dir": training_env["module_dir"],
        "training_env": training_env,
        "user_args": list(hps.cli_arguments(plan.told_hyperparameters)),
        "output_intermediate_dir": str(inside.intermediate),
    }
    values |= {f"channel_{name}": path for name, path in channels.items()}
    values |= {f"hp_{name}": value for name, value in user_values.items()}
    return values


def _training_env(plan: LaunchPlan, host: HostPlan, inside: MlTree) -> dict[str, Any]:
    """Return SM_TRAINING_ENV: every property of the toolkit's Environment."""
    platform = hps.platform_values(plan.hyperparameters)
    resources = resource_config(plan, host)
    groups = {group["instance_group_name"]: group for group in resources["instance_groups"]}
    distribution_groups = _distribution_groups(plan, host)
    distribution_hosts = [name for group in groups if group in distribution_groups for name in groups[group]["hosts"]]
    master = (distribution_hosts or resources["hosts"])[0]
    image_and_user = {**plan.environment.variables, **plan.user_environment}
    # An empty variable hides the hyperparameter from module_name only, as in the toolkit.
    told = image_and_user.get(hps.PROGRAM_VARIABLE)
    program = told or platform.get(hps.PROGRAM)
    module = str(platform.get(hps.PROGRAM)) if told is None else told  # "None" without a program
    parameters = plan.user_environment.get("SM_HP_MP_PARAMETERS")
    return {
        "additional_framework_parameters": hps.framework_parameters(plan.hyperparameters),
        "channel_input_dirs": {c.name: str(inside.channel(c.name)) for c in channels_of(plan, host)},
        "current_host": host.name,
        "current_instance_group": host.instance_group,
        "current_instance_group_hosts": groups[host.instance_group]["hosts"],
        "current_instance_type": host.instance_type,
        "distribution_hosts": distribution_hosts,
        "distribution_instance_groups": distribution_groups,
        "framework_module": plan.user_environment.get("SAGEMAKER_TRAINING_MODULE"),
        "hosts": resources["hosts"],
        "hyperparameters": hps.user_values(plan.told_hyperparameters),
        "input_config_dir": str(inside.config),
        "input_data_config": input_data_config(plan, host),
        "input_dir": str(inside.input),
        "instance_groups": list(groups),
        "instance_groups_dict": groups,
        "is_hetero": len(groups) > 1,
        "is_master": host.name == master,
        "is_modelparallel_enabled": parameters and parameters != "{}",
        # the launchers' shims, which come first in PATH, include smddpmprun and smddprun
        "is_smddpmprun_installed": True,
        "is_smddprun_installed": True,
        "job_name": plan.job_name,
        "log_level": platform.get(hps.LOG_LEVEL, logging.INFO),
        "master_hostname": master,
        "model_dir": str(inside.model),
        "module_dir": str(platform.get(hps.SUBMIT_DIRECTORY, inside.code)),
        "module_name": module.removesuffix(".py"),
        "network_interface_name": resources["network_interface_name"],
        "num_cpus": _num_cpus(host),
        "num_gpus": len(host.resources.gpu_indices),
        "num_neurons": 0,
        "output_data_dir": str(inside.output_data),
        "output_dir": str(inside.output),
        "output_intermediate_dir": str(inside.intermediate),
        "resource_config": resources,
        "topology": None,
        "user_entry_point": program,
    }


def _v3_values(plan: LaunchPlan, host: HostPlan, inside: MlTree) -> dict[str, Any]:
    names = host_names(plan)
    is_shared_machine = plan.isolation is Isolation.PROCESSES
    values: dict[str, Any] = {
        "SM_INPUT_DATA_DIR": str(inside.data),
        "SM_OUTPUT_FAILURE": str(inside.failure),
        "SM_HOST_COUNT": len(names),
        "SM_CURRENT_HOST_RANK": names.index(host.name),
        "SM_MASTER_ADDR": plan.host(names[0]).address if is_shared_machine else _MASTER_NAME_OF_V3,
        "SM_MASTER_PORT": plan.network.master_port,
        "SM_SOURCE_DIR": str(inside.code),
        "SM_ENTRY_SCRIPT": "" if plan.program is None else plan.program.name,
    }
    for name, value in hps.user_values(plan.told_hyperparameters).items():
        values[f"SM_HP_{name.replace('-', '_').upper()}"] = value
    return values


def _distribution_groups(plan: LaunchPlan, host: HostPlan) -> list[Any]:
    stated = hps.framework_parameters(plan.hyperparameters).get(INSTANCE_GROUPS)
    if stated is not None:
        return list(stated) if isinstance(stated, list) else [stated]
    is_distributed = read_distribution(plan.hyperparameters).kind is not DistributionKind.PLAIN
    return [host.instance_group] if is_distributed else []


def _num_cpus(host: HostPlan) -> int:
    return max(1, int(host.resources.num_cpus))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _is_inherited(name: str) -> bool:
    return name in INHERITED or (name.startswith(_INHERITED_PREFIXES) and not is_secret(name))


def _keep_from_proxy(variables: dict[str, str], plan: LaunchPlan) -> None:
    """Exclude this service and the hosts from proxies."""
    endpoint_host = plan.job_endpoint.url.partition("://")[2].partition("/")[0].rpartition(":")[0].strip("[]")
    hosts = [text for host in plan.hosts for text in (host.name, host.address) if text]
    direct = ["localhost", "127.0.0.1", endpoint_host, *hosts]
    for name in ("NO_PROXY", "no_proxy"):
        listed = [item for item in variables.get(name, "").split(",") if item]
        variables[name] = ",".join(dict.fromkeys([*listed, *direct]))
