"""Input channels: the selection of a job's data, its layout, and its transfer to the program.

selection  objects that a host gets: prefix, single object, manifest, shards
layout     path of each object below the channel's folder; hostile keys are refused
unpacking  decompression of objects during the transfer
cache      objects that this machine keeps between jobs
fetching   File channels (and FastFile ones, fetched in full)
pipe       Pipe channels: one named pipe per epoch
recordio   framing of records in pipes
"""

from clary.agent.channels.fetching import ChannelFacts, fetch_channel
from clary.agent.channels.pipe import PipeFeeder
from clary.agent.channels.selection import ChannelObject, Selection, select_objects

__all__ = ["ChannelFacts", "ChannelObject", "PipeFeeder", "Selection", "fetch_channel", "select_objects"]
