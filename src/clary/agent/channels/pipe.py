"""Pipe channels: the channel's objects as one stream per epoch, through named pipes.

Where: the supervisor starts one `PipeFeeder` per Pipe channel before the program and stops it after the program.

Protocol of SageMaker: the program reads epoch 0 from `<data>/<channel>_0`; when all data is written to that pipe, or
the program has closed it earlier, `<data>/<channel>_1` appears, and so on without limit. The pipe of a finished epoch
is removed, so that a program that opens it again gets an error instead of an endless wait.
Objects follow each other without a separator, or wrapped as RecordIO; `CompressionType: Gzip` is unpacked during the
transfer; with a shuffle seed every epoch has another order of objects.

An unreadable object must not look like the end of the data: the pipe then stays open without further bytes, and
`failure` (and the callback) notify the supervisor, which ends the program.

The program owns the folder of the pipes and may replace any pipe by a link, a file or a folder. So the folder is held
open from `start` on, and only a named pipe is opened: any other entry in its place ends the feeding.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator

from clary.agent.channels.fetching import channel_folder
from clary.agent.channels.recordio import MAX_PAYLOAD_BYTES, record_header, record_padding
from clary.agent.channels.selection import ChannelObject, Selection, select_objects
from clary.agent.channels.unpacking import unpacked
from clary.base.beneath import Folder
from clary.base.errors import AgentError, ClaryError, Fault
from clary.contract.launch_plan import Channel
from clary.contract.ml_tree import MlTree
from clary.contract.object_store import ObjectStore

_POLL_S = 0.02  # delay of the first byte for a new reader, and of a stop while the feeder waits for the program
_PIPE_MODE = 0o644  # the program may run as another user
_PIPE_BYTES = 1 << 20  # the size that Linux grants every user
_READ_BYTES = 1 << 18
_SPOOL_MEMORY_BYTES = 64 << 20  # per unpacked object whose size must be known before it is sent
# Errors of opening or making a pipe after the program has removed it or put another entry in its place.
_REPLACED = (errno.ELOOP, errno.EPERM, errno.EISDIR, errno.ENOENT, errno.EEXIST)
_STOP_TIMEOUT_S = 90.0  # a read from the store may last this long before it notices the stop


class PipeFeeder:
    """Writes one channel's data to its pipes, on a thread of its own, from `start` to `stop`.

    Args:
        host_index: index of this host among the hosts that get the channel, from 0.
        num_hosts: number of those hosts.
        finder: store in which `start` finds the objects; None: `store`.
        on_failure: called once, from the feeding thread, with the error that ended the feeding.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        store: ObjectStore,
        tree: MlTree,
        host_index: int,
        num_hosts: int,
        finder: ObjectStore | None = None,
        on_failure: Callable[[ClaryError], None] | None = None,
    ) -> None:
        self._channel = channel
        self._store = store
        self._finder = finder if finder is not None else store
        self._tree = tree
        self._folder: Folder | None = None  # folder of the pipes, open from `start` to `stop`
        self._host_index = host_index
        self._num_hosts = num_hosts
        self._on_failure = on_failure
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"pipe-{channel.name}", daemon=True)
        self._selection: Selection | None = None
        self.failure: ClaryError | None = None
        self.num_epochs = 0  # finished epochs, closed early or written to the end

    def start(self) -> None:
        """Find the objects, make the first pipe and begin to feed.

        Raises: AgentError, ObjectStoreError as `select_objects`; OSError if the pipe cannot be made; then the feeding
            has not begun.
        """
        self._selection = select_objects(self._channel, store=self._finder)
        place = channel_folder(self._channel, self._tree).parent.relative_to(self._tree.root)
        with Folder.at(self._tree.root, create=True) as root:
            self._folder = root.folder(str(place), create=True)
        self._make_pipe(0)
        self._thread.start()

    def stop(self) -> None:
        """Stop the feeding and remove the pipe; a second call does nothing."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_TIMEOUT_S)
        if self._folder is not None and not self._thread.is_alive():
            with contextlib.suppress(OSError):  # the program has put a folder in its place
                self._folder.remove(self._name(self.num_epochs), missing_ok=True)
            self._folder.close()
            self._folder = None

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._feed_epoch(self.num_epochs)
                if self._stop.is_set():
                    return
                self._opened_folder().remove(self._name(self.num_epochs), missing_ok=True)
                self._make_pipe(self.num_epochs + 1)
                self.num_epochs += 1
        except ClaryError as error:
            self._fail(error)
        except OSError as error:
            is_replaced = error.errno in _REPLACED
            hint = "; the program must leave the pipe where it is" if is_replaced else ""
            fault = Fault.USER if is_replaced else Fault.INTERNAL
            self._fail(AgentError(f"Channel {self._channel.name}: its pipe cannot be fed: {error}{hint}", fault=fault))

    def _fail(self, error: ClaryError) -> None:
        if self._stop.is_set():
            return
        self.failure = error
        if self._on_failure is not None:
            self._on_failure(error)

    def _feed_epoch(self, epoch: int) -> None:
        pipe = self._open(epoch)
        if pipe is None:
            return
        try:
            with contextlib.closing(self._epoch_data(epoch)) as pieces:
                for data in pieces:
                    if not self._write(pipe, data):
                        break
        except (ClaryError, OSError) as error:
            # A close now would look to the program like the end of the data.
            self._fail(error if isinstance(error, ClaryError) else AgentError(f"Channel {self._channel.name}: {error}"))
            self._stop.wait()
        finally:
            os.close(pipe)

    def _epoch_data(self, epoch: int) -> Generator[bytes, None, None]:
        assert self._selection is not None
        objects = self._selection.shard(
            self._channel, host_index=self._host_index, num_hosts=self._num_hosts, epoch=epoch
        )
        for item in objects:
            yield from self._record(item) if self._channel.record_wrapper == "RecordIO" else self._content(item)

    def _content(self, item: ChannelObject) -> Iterator[bytes]:
        with self._store.open_reader(item.bucket, item.key) as reader:
            if self._channel.compression == "Gzip":
                yield from unpacked(reader, item, channel=self._channel)
                return
            while data := reader.read(_READ_BYTES):
                yield data

    def _record(self, item: ChannelObject) -> Iterator[bytes]:
        """Yield an object as one record; the size comes first, so the content is buffered until its size is known."""
        with tempfile.SpooledTemporaryFile(max_size=_SPOOL_MEMORY_BYTES) as spool:
            size_bytes = 0
            for data in self._content(item):
                size_bytes += len(data)
                if size_bytes > MAX_PAYLOAD_BYTES:
                    raise AgentError(
                        f"Channel {self._channel.name}: S3 key {item.key!a} has more than {MAX_PAYLOAD_BYTES} "
                        "bytes, which no RecordIO record can hold: use RecordWrapperType None or smaller objects.",
                        fault=Fault.USER,
                        details={"channel": self._channel.name, "key": ascii(item.key)},
                    )
                spool.write(data)
            spool.seek(0)
            yield record_header(size_bytes)
            while data := spool.read(_READ_BYTES):
                yield data
            yield record_padding(size_bytes)

    def _opened_folder(self) -> Folder:
        assert self._folder is not None, "the feeding has begun and not ended"
        return self._folder

    def _name(self, epoch: int) -> str:
        return f"{self._channel.name}_{epoch}"

    def _make_pipe(self, epoch: int) -> None:
        folder, name = self._opened_folder(), self._name(epoch)
        folder.remove(name, missing_ok=True)  # an earlier agent's pipe
        folder.make_fifo(name, mode=_PIPE_MODE)

    def _open(self, epoch: int) -> int | None:
        """Wait until the program opens the pipe; return None if the feeding is stopped first."""
        while not self._stop.is_set():
            try:
                pipe = self._opened_folder().open_fifo(self._name(epoch), os.O_WRONLY)
            except OSError as error:
                if error.errno != errno.ENXIO:  # the program has not opened it yet
                    raise
                self._stop.wait(_POLL_S)
                continue
            with contextlib.suppress(OSError):  # a larger pipe only adds speed
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            return pipe
        return None

    def _write(self, pipe: int, data: bytes) -> bool:
        """Write all of `data`; return False if the program closed the pipe or the feeding was stopped."""
        view = memoryview(data)
        poller = select.poll()
        poller.register(pipe, select.POLLOUT)
        while view:
            if self._stop.is_set():
                return False
            try:
                view = view[os.write(pipe, view) :]
            except BlockingIOError:
                poller.poll(_POLL_S * 1000)
            except BrokenPipeError:
                return False
        return True
