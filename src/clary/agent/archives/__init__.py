"""Tar archives: reading hostile ones, writing deterministic ones.

members     a tar stream as checked members: names, kinds and sizes are safe to use, damage is an error
extraction  members into a folder, never outside it
gzip_writer one gzip stream compressed by several threads
tar_writer  members out to a stream
trees       folders of this host as members
"""

from clary.agent.archives.extraction import ArchiveFacts, extract_tar
from clary.agent.archives.gzip_writer import GzipWriter
from clary.agent.archives.links import NO_MOUNTS, Mounts
from clary.agent.archives.members import ArchiveLimits, Member, MemberKind, Readable, read_members
from clary.agent.archives.tar_writer import TarWriter
from clary.agent.archives.trees import TreeFacts, TreeSource, has_members, walk_tree, write_tree

__all__ = [
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
