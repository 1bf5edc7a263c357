"""Context managers that stop and allow the refresh of trials."""

from clary.train.debugger.reading.refreshing import no_refresh, refresh

__all__ = ["no_refresh", "refresh"]
