"""Keys that may stand in the Slurm settings, and the check of their values.

Where: `settings` checks `[slurm."ml.x"]` when it reads the file; `engines.slurm` turns them into options of sbatch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clary.base.errors import ContractError, Fault

# Key -> its meaning.
SLURM_OPTIONS: Mapping[str, str] = {
    "partition": "partitions, with commas between",
    "spot_partition": "partition for jobs with EnableManagedSpotTraining, whose hosts others may preempt",
    "constraint": "features of nodes",
    "gres": "generic resources of a node, such as gpu:a100:8",
    "account": "account that pays",
    "qos": "quality of service",
    "reservation": "reservation to use",
}
_VALUE = re.compile(r"[A-Za-z0-9_.,:;|&*()\[\]@/+=-]{1,256}")


def check_slurm_options(instance_type: str, options: Mapping[str, Any], *, source: str) -> None:
    """Refuse an unknown key, or an invalid value.

    Args:
        instance_type: type that the options apply to; `*` for all types.
        options: keys and values of the type's table.
        source: file that holds the table, named in the error.
    Raises: ContractError naming file, type and key, with the expected and the given value.
    """
    for name, value in options.items():
        where = f'{source}: [slurm."{instance_type}"], {name}'
        if name not in SLURM_OPTIONS:
            raise ContractError(f"{where}: unknown key; known are {', '.join(SLURM_OPTIONS)}", fault=Fault.USER)
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise ContractError(
                f"{where}: expected text that matches {_VALUE.pattern}, got {value!r}", fault=Fault.USER
            )
