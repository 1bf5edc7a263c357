"""Choice of the steps that are saved."""

from clary.train.debugger.save_config import SaveConfig, SaveConfigMode

__all__ = ["SaveConfig", "SaveConfigMode"]
