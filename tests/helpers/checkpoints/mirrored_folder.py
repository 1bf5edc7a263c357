"""One host's checkpoint folder and its writer of sets, driven poll by poll; restores go to separate folders."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from fake_checkpoint_store import FakeCheckpointStore, FakeClock
from fake_judge import FakeJudge

from clary.agent.checkpoints.choosing import Choice
from clary.agent.checkpoints.folder import CheckpointFolder
from clary.agent.checkpoints.history import Writer
from clary.agent.checkpoints.looking import Looks
from clary.agent.checkpoints.places import Prefix
from clary.agent.checkpoints.publishing import Publisher
from clary.agent.checkpoints.restoring import Restored, restore
from clary.agent.checkpoints.sights import Pace
from clary.agent.checkpoints.storing import SetWriter
from clary.contract.object_store import parse_s3_uri

URI = "s3://bucket/ckpt"
HOSTS = ("algo-1", "algo-2")
PACE = Pace(settle_s=2.0, interval_s=5.0)
_numbers = itertools.count()


class MirroredFolder:
    """A host that has restored its folder and mirrors it when the test calls `round`."""

    def __init__(
        self, parent: Path, store: FakeCheckpointStore, *, host: str = "algo-1", uri: str = URI, hosts=("algo-1",)
    ) -> None:
        self.store = store
        self.path = parent / f"{host}-{next(_numbers)}"
        self.folder = CheckpointFolder(self.path)
        self.prefix = Prefix(parse_s3_uri(uri))
        self.notes: list[str] = []
        self.clock = FakeClock()
        self.judge = FakeJudge()
        self.looks = Looks(
            self.folder, self.judge, pace=PACE, min_rest_s=0.0
        )  # the clock is fake, but files have real times
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
        """Poll the folder once and store a set of the eligible files; return whether there is a new set."""
        self.clock.seconds += 1
        look = self.looks.first if settle_s else self.looks.last
        choice = look(self.writer.taken, now_s=self.clock.monotonic())
        return self._take(choice, publish=publish)

    def pair_of_looks(self, between: Callable[[], object] = lambda: None) -> Choice:
        """Poll twice, call `between` in the middle, and store a set of the chosen files; return the choice."""
        self.clock.seconds += PACE.interval_s - PACE.settle_s
        self.looks.first(self.writer.taken, now_s=self.clock.monotonic())
        between()
        self.clock.seconds += PACE.settle_s
        choice = self.looks.second(self.writer.taken, now_s=self.clock.monotonic())
        self._take(choice, publish=True)
        return choice

    def _take(self, choice: Choice, *, publish: bool) -> bool:
        is_new = False
        try:
            if not choice.is_empty or self.writer.is_uncertain:
                is_new = self.writer.take(self.looks.snapshot, choice, held=self.looks.held)
                self.looks.compare(self.writer.taken, choice, now_s=self.clock.monotonic())
        finally:
            self.looks.forget()
        if publish:
            self.publisher.publish(self.writer.last)
        return is_new

    def content(self) -> dict[str, str]:
        return content_of(self.path)


def content_of(path: Path) -> dict[str, str]:
    """Return the content of every file below a folder, and links as `-> target`."""
    found = {}
    for place in sorted(path.rglob("*")):
        name = place.relative_to(path).as_posix()
        if place.is_symlink():
            found[name] = f"-> {place.readlink()}"
        elif place.is_file():
            found[name] = place.read_text()
    return found
