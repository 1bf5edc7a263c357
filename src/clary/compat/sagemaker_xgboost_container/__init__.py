"""The library of XGBoost's image, as far as training scripts use it: their data, and training on several hosts.

Modules: `data_utils` and `distributed`. `encoder` belongs to endpoints: it can be imported, and fails when it is used.
In Python versions that the train side does not support, the import raises an error. An installed
sagemaker-xgboost-container replaces this package. Written from public scripts that call it.
"""

import sys
from typing import Any

from clary_toolkit.giving_way import has_given_way

_FIRST_VERSION = (3, 10)  # first Python version that clary.train supports
_NOT_OFFERED = ("encoder",)

if not has_given_way(__name__, __file__):
    if sys.version_info < _FIRST_VERSION:
        raise ImportError(
            f"{__name__} of Clary needs Python 3.10 or newer, this is {sys.version.split()[0]}: choose a newer "
            "interpreter for the job's environment in settings.toml."
        )
    from clary_toolkit.refusing import refuse_other_modules, stand_in

    refuse_other_modules(__name__)


def __getattr__(name: str) -> Any:
    return stand_in(__name__, name, _NOT_OFFERED)
