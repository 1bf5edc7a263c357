"""Objects kept on this machine between jobs, so that unchanged objects are not fetched twice.

naming   names of objects and snapshots, the stamp that shows that a file is unchanged since it was stored; pure
locks    one byte per object in one lock file; folders that are locked while they are used
folder   layout on disk, creation and removal of entries
keeping  the limit on size: the order of eviction, entries that are never evicted
filling  creation of a snapshot from cached and fetched objects
copying  copy of a snapshot to a host's own files
cache    `ChannelCache`, the interface to other parts of the agent
"""

from clary.agent.channels.cache.cache import ChannelCache
from clary.agent.channels.cache.copying import copy_snapshot
from clary.agent.channels.cache.filling import CacheUnusable, Snapshot

__all__ = ["CacheUnusable", "ChannelCache", "Snapshot", "copy_snapshot"]
