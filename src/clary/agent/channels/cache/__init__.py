"""Objects kept on this machine between jobs, so that unchanged objects are not fetched twice.

naming   names of objects and snapshots, the stamp by which a file shows that it is as it was stored; pure
locks    one byte range an object in one file; folders that are held while they are used
folder   where things lie, and how they appear and disappear
keeping  the bound on size: the order of removal, entries that stay
filling  a snapshot of cached and fetched objects
copying  a snapshot as files of a host's own
cache    `ChannelCache`, which the rest of the agent talks to
"""

from clary.agent.channels.cache.cache import ChannelCache
from clary.agent.channels.cache.copying import copy_snapshot
from clary.agent.channels.cache.filling import CacheUnusable, Snapshot

__all__ = ["CacheUnusable", "ChannelCache", "Snapshot", "copy_snapshot"]
