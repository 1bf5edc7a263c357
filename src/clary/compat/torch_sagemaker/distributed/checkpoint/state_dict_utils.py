"""`sm_state_dict_type` and `init_optim_state`."""

from clary.train.parallel.fsdp.local_state import SMStateDictType, init_optim_state, sm_state_dict_type

__all__ = ["SMStateDictType", "init_optim_state", "sm_state_dict_type"]
