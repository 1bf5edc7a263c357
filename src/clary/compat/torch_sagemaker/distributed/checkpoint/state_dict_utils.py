"""`sm_state_dict_type`, `init_optim_state` and `compute_auto_checkpoint_interval`."""

from clary.train.parallel.fsdp.checkpoint.local_state import SMStateDictType, init_optim_state, sm_state_dict_type
from clary.train.parallel.fsdp.checkpoint.saving_interval import Interval as _Interval
from clary.train.parallel.fsdp.checkpoint.saving_interval import compute_auto_checkpoint_interval

__all__ = ["SMStateDictType", "_Interval", "compute_auto_checkpoint_interval", "init_optim_state", "sm_state_dict_type"]
