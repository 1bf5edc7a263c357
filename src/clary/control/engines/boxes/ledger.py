"""Stores boxes, allocations and tokens in small files: a change is on disk before it takes effect.

Where: `scheduler` holds one `BoxLedger`, which stores its files below `<state folder>/boxes/`. Each document is a file
of mode 0600, replaced atomically, so that after a kill at any moment the last change is stored wholly or not at all. A
change whose file could not be written is not made in memory either. A change is never cancelled halfway
(`LeaseBook.change`): otherwise disk and memory would differ.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from clary.base.errors import ContractError, EngineError, Fault
from clary.base.plain import from_plain, to_plain
from clary.base.whole_files import remove_durably, replace_durably
from clary.control.engines.boxes.records import AllocationRecord, BoxRecord, JoinTokenRecord

T = TypeVar("T")

_SUFFIX = ".json"
_DRAFT = ".new"


class BoxLedger:
    """The stored state of the engine of boxes.

    Args:
        folder: folder of the files; `load` makes it.
    """

    def __init__(self, folder: Path) -> None:
        self._boxes = _Shelf(folder / "boxes", BoxRecord)
        self._allocations = _Shelf(folder / "allocations", AllocationRecord)
        self._tokens = _Shelf(folder / "join-tokens", JoinTokenRecord)
        self._folder = folder

    async def load(self) -> None:
        """Read all documents. Raises: EngineError naming a file that cannot be read."""
        await asyncio.to_thread(self._load)

    def _load(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise EngineError(f"{self._folder}: cannot be made: {error.strerror}", fault=Fault.USER) from error
        for shelf in (self._boxes, self._allocations, self._tokens):
            shelf.load()

    @property
    def boxes(self) -> Mapping[str, BoxRecord]:
        """Name -> box."""
        return self._boxes.documents

    @property
    def allocations(self) -> Mapping[str, AllocationRecord]:
        """Tag -> allocation."""
        return self._allocations.documents

    @property
    def join_tokens(self) -> Mapping[str, JoinTokenRecord]:
        """Digest of a token -> its record."""
        return self._tokens.documents

    async def put_box(self, box: BoxRecord) -> None:
        """Store a box. Raises: EngineError if it cannot be written; the old record stays then."""
        await self._boxes.put(box.name, box)

    async def remove_box(self, name: str) -> None:
        """Delete a box; raises as `put_box`."""
        await self._boxes.remove(name)

    async def put_allocation(self, allocation: AllocationRecord) -> None:
        """Store an allocation; raises as `put_box`."""
        await self._allocations.put(allocation.tag, allocation)

    async def remove_allocation(self, tag: str) -> None:
        """Delete an allocation; raises as `put_box`."""
        await self._allocations.remove(tag)

    async def put_join_token(self, token: JoinTokenRecord) -> None:
        """Store a token; raises as `put_box`."""
        await self._tokens.put(token.token_digest, token)

    async def remove_join_token(self, digest: str) -> None:
        """Delete a token; raises as `put_box`."""
        await self._tokens.remove(digest)


class _Shelf:
    """Documents of one class, each in a file of its own."""

    def __init__(self, folder: Path, cls: type[Any]) -> None:
        self._folder = folder
        self._cls = cls
        self.documents: dict[str, Any] = {}

    def load(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for draft in self._folder.glob(f"*{_DRAFT}"):
            draft.unlink(missing_ok=True)  # left by a service that was killed while writing
        self.documents = {
            path.name.removesuffix(_SUFFIX): self._read(path) for path in self._folder.glob(f"*{_SUFFIX}")
        }

    def _read(self, path: Path) -> Any:
        try:
            return from_plain(self._cls, json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, ContractError) as error:
            raise EngineError(
                f"{path} does not hold what the engine of boxes wrote there: {error}; restore the file from a "
                "copy, or move it away and add the boxes again with `clary hosts add`: they then end the "
                "hosts that they run",
                fault=Fault.INFRASTRUCTURE,
            ) from error

    async def put(self, name: str, document: Any) -> None:
        assert is_dataclass(document), "what is stored here is a record"
        text = json.dumps(to_plain(document))
        await self._change(name, text)
        self.documents[name] = document

    async def remove(self, name: str) -> None:
        await self._change(name, None)
        self.documents.pop(name, None)

    async def _change(self, name: str, text: str | None) -> None:
        path = self._folder / f"{name}{_SUFFIX}"
        try:
            if text is None:
                await asyncio.to_thread(remove_durably, path)
            else:
                await asyncio.to_thread(replace_durably, path, text.encode())
        except OSError as error:
            raise EngineError(
                f"{path} could not be written: {error.strerror}; nothing has changed", retryable=True
            ) from error
