"""Trials that are not refreshed for a while."""

from clary.train.debugger.reading.refreshing import no_refresh, refresh

__all__ = ["no_refresh", "refresh"]
