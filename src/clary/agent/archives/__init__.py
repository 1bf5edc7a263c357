"""Tar archives: safe reading of hostile archives, deterministic writing.

members     parse a tar stream into checked members: names, kinds and sizes are safe to use, damage is an error
extraction  write members into a folder, never outside it
gzip_writer compress one gzip stream with several threads
tar_writer  write members to a stream
trees       read folders of this host as members
"""

from clary.agent.archives.extraction import ArchiveFacts, extract_tar
from clary.agent.archives.gzip_writer import GzipWriter
from clary.agent.archives.links import NO_MOUNTS, Mounts
from clary.agent.archives.members import BLOCK_BYTES, ArchiveLimits, Member, MemberKind, Readable, read_members
from clary.agent.archives.tar_writer import TarWriter
from clary.agent.archives.trees import TreeFacts, TreeSource, has_members, walk_tree, write_tree

__all__ = [
    "BLOCK_BYTES",
    "NO_MOUNTS",
    "ArchiveFacts",
    "ArchiveLimits",
    "GzipWriter",
    "Member",
    "MemberKind",
    "Mounts",
    "Readable",
    "TarWriter",
    "TreeFacts",
    "TreeSource",
    "extract_tar",
    "has_members",
    "read_members",
    "walk_tree",
    "write_tree",
]
