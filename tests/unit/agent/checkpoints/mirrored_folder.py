"""One host's folder with its writer of sets, driven look by look; restores into folders of their own."""

from __future__ import annotations

import itertools
from pathlib import Path

from fake_checkpoint_store import FakeCheckpointStore, FakeClock

from clary.agent.checkpoints.folder import CheckpointFolder
from clary.agent.checkpoints.grouping import Sight, choose, contents_of, follow
from clary.agent.checkpoints.history import Writer
from clary.agent.checkpoints.places import Prefix
from clary.agent.checkpoints.publishing import Publisher
from clary.agent.checkpoints.restoring import Restored, restore
from clary.agent.checkpoints.scanning import scan
from clary.agent.checkpoints.storing import SetWriter
from clary.agent.object_store import parse_s3_uri

URI = "s3://bucket/ckpt"
HOSTS = ("algo-1", "algo-2")
_numbers = itertools.count()


class MirroredFolder:
    """A host that has restored its folder and mirrors it when told."""

    def __init__(
        self, parent: Path, store: FakeCheckpointStore, *, host: str = "algo-1", uri: str = URI, hosts=("algo-1",)
    ) -> None:
        self.store = store
        self.path = parent / f"{host}-{next(_numbers)}"
        self.folder = CheckpointFolder(self.path)
        self.prefix = Prefix(parse_s3_uri(uri))
        self.notes: list[str] = []
        self.clock = FakeClock()
        self.sights: dict[str, Sight] = {}
        self.restored: Restored = restore(self.folder, self.prefix, store, host=host, first=hosts[0], others=hosts[1:])
        site = Writer(
            host=host,
            is_first=host == hosts[0],
            others=tuple(name for name in hosts if name != host),
            job_arn="arn",
            attempt=1,
        )
        self.writer = SetWriter(
            self.folder,
            self.prefix,
            store,
            writer=site,
            history=self.restored.history,
            clock=self.clock,
            may_name_plain=lambda file: self.publisher.may_name_plain(file),
        )
        self.publisher = Publisher(self.prefix, store, writer=site, names=self.writer.names, note=self.notes.append)

    def write(self, path: str, text: str | bytes) -> None:
        place = self.path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode() if isinstance(text, str) else text)

    def round(self, *, settle_s: float = 0.0, publish: bool = True) -> bool:
        """One look, and a set of what may be taken; returns whether there is a new one."""
        self.clock.seconds += 1
        snapshot = scan(self.folder)
        now_s = self.clock.monotonic()
        self.sights = follow(self.sights, contents_of(snapshot), taken=self.writer.taken, now_s=now_s)
        choice = choose(self.sights, now_s=now_s, settle_s=settle_s, patience_s=10)
        is_new = False if choice.is_empty and not self.writer.is_uncertain else self.writer.take(snapshot, choice)
        if publish:
            self.publisher.publish(self.writer.last)
        return is_new

    def content(self) -> dict[str, str]:
        return content_of(self.path)


def content_of(path: Path) -> dict[str, str]:
    """Return every file below a folder, and links as `-> target`."""
    found = {}
    for place in sorted(path.rglob("*")):
        name = place.relative_to(path).as_posix()
        if place.is_symlink():
            found[name] = f"-> {place.readlink()}"
        elif place.is_file():
            found[name] = place.read_text()
    return found
