"""The library of AWS's older training containers and those of scikit-learn, as far as training scripts use it.

`training_env()` describes the job. `beta.framework` has the modules; those that start scripts or serve models can be
imported and fail when they are used. An installed sagemaker-containers replaces this package.
"""

from typing import Any

from clary_toolkit.giving_way import has_given_way

_ENTRY_POINT = "entry_point"

if not has_given_way(__name__, __file__):
    from clary_toolkit.environment import TrainingEnv
    from clary_toolkit.refusing import EntryPoint, refuse_other_modules, stand_in

    refuse_other_modules(__name__)


def training_env() -> Any:
    """Return the description of the job. Raises: as `clary_toolkit.environment.TrainingEnv`."""
    return TrainingEnv()


def __getattr__(name: str) -> Any:
    if name == _ENTRY_POINT:
        return EntryPoint(f"{__name__}.{name}")
    return stand_in(__name__, name, ())
