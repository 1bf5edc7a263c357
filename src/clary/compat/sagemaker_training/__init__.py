"""AWS's toolkit in training containers, as far as scripts use it: the description of the job, files and encoders.

Modules: `environment`, `params`, `mapping`, `encoders`, `content_types`, `files`, `errors` and `logging_config`. The
parts that start and prepare scripts are missing, because Clary's agent does that. An installed sagemaker-training
replaces this package.
"""

import sys
from typing import Any

from clary_toolkit.giving_way import has_given_way

_NOT_OFFERED = (
    "cli",
    "entry_point",
    "functions",
    "intermediate_output",
    "modules",
    "mpi",
    "process",
    "pytorch_xla",
    "recordio",
    "runner",
    "smdataparallel",
    "timeout",
    "torch_distributed",
    "trainer",
)

if not has_given_way(__name__, __file__):
    from clary_toolkit import content_types, encoders, environment, errors, files, logging_config, mapping, params
    from clary_toolkit.refusing import refuse_other_modules, stand_in

    for _module in (content_types, encoders, environment, errors, files, logging_config, mapping, params):
        sys.modules[f"{__name__}.{_module.__name__.rpartition('.')[2]}"] = _module
    refuse_other_modules(__name__)


def __getattr__(name: str) -> Any:
    return stand_in(__name__, name, _NOT_OFFERED)
