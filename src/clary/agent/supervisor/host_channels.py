"""The channels of one host: fetched or read from this machine's cache, and mounted or copied for the program.

Where: `wiring` creates one per host. A channel that is a snapshot of the cache is mounted as an overlay: the program
may change its files, the cache stays unchanged, and the channel's folder in the tree on this machine is empty. A copy
is made instead if hosts have no mounts, if the kernel refuses overlays, and for folders that the agent itself reads:
code in a channel, checkpoints inside a channel.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path, PurePosixPath

from clary.agent.archives import Mounts
from clary.agent.channels import ChannelFacts, fetch_channel
from clary.agent.channels.cache import ChannelCache, Snapshot, copy_snapshot
from clary.agent.environments.code import ObjectSource, code_channel
from clary.agent.host.overlay_support import why_no_overlay
from clary.agent.host.sandbox import Bind
from clary.agent.small_files import names_in
from clary.base.errors import AgentError
from clary.contract.launch_plan import Channel, InputMode, Isolation, LaunchPlan
from clary.contract.ml_tree import OPT_ML, MlTree
from clary.contract.object_store import ObjectStore

CACHE_FOLDER = "channels"  # below the machine's cache
_CLOSE_S = 5.0


class HostChannels:
    """Fetches channels; every method may be called from any thread.

    Args:
        plan: of the attempt.
        tree: the host's `/opt/ml` on this machine.
        host_folder: the host's folder, in which overlays are tried out.
        stop: event that ends the fetch.
    """

    def __init__(self, plan: LaunchPlan, *, tree: MlTree, host_folder: Path, stop: threading.Event) -> None:
        self._plan = plan
        self._tree = tree
        self._host_folder = host_folder
        self._stop = stop
        self._cache = ChannelCache(
            Path(plan.cache_folder) / CACHE_FOLDER,
            limit_bytes=plan.channel_cache_bytes if plan.cache_folder else 0,
            endpoint_url=plan.object_store.url,
            stop=stop,
        )
        self._lock = threading.Lock()
        self._shown: dict[str, Snapshot] = {}  # snapshots under overlays, held until the attempt ends
        self._summaries: dict[str, str] = {}
        self._tidying: threading.Thread | None = None
        self._has_tried_overlays = False
        self._refusal: str | None = None  # reason why overlays are refused; the next attempt tries again

    @property
    def summaries(self) -> tuple[str, ...]:
        """Sources of the channels' data, as lines for the log."""
        with self._lock:
            return tuple(self._summaries.values())

    def fetch(self, channel: Channel, *, store: ObjectStore, host_index: int, num_hosts: int) -> ChannelFacts:
        """Fetch one channel and make it visible to the program.

        Args: as `fetch_channel`.
        Raises: as `fetch_channel`; also AgentError if a snapshot cannot be copied.
        """
        is_copied = self._cache.is_on and channel.input_mode is not InputMode.PIPE and self._is_copied(channel)

        def bring(why_not_kept: str = "") -> ChannelFacts:
            return fetch_channel(
                channel,
                store=store,
                tree=self._tree,
                host_index=host_index,
                num_hosts=num_hosts,
                cache=self._cache,
                is_copied=is_copied,
                why_not_kept=why_not_kept,
            )

        facts = bring()
        if facts.snapshot is not None and not is_copied:
            self._show(channel, facts.snapshot)
        elif facts.snapshot is not None:
            why_not_copied = self._copy(channel, facts.snapshot)
            if why_not_copied:
                facts = bring(why_not_copied)
        with self._lock:
            if facts.summary:
                self._summaries[channel.name] = facts.summary
        if facts.snapshot is not None and facts.snapshot.num_fetched:
            self._tidy_later()
        return facts

    def code_source(self, store: ObjectStore) -> ObjectSource:
        """Return the source of code archives."""
        return self._cache.source(store)

    def binds(self) -> list[Bind]:
        """The binds that show parts of the cache in the host."""
        inside = MlTree(OPT_ML)
        with self._lock:
            return [
                Bind(
                    source=str(snapshot.path),
                    target=str(inside.channel(name)),
                    overlay=True,
                    copied_otherwise=True,
                )
                for name, snapshot in self._shown.items()
            ]

    def mounts(self) -> Mounts:
        """Return folder -> snapshot for the channels that are empty in the tree on this machine.

        Links in results may lead to these channels.

        Call it after the program's end. Files that the program has written into such a channel are lost when the
        program ends. The tree is not changed, because the program may have left links in it to other paths of the
        machine.
        """
        with self._lock:
            shown = {
                self._tree.channel(name).relative_to(self._tree.root).parts: snapshot.path
                for name, snapshot in self._shown.items()
            }
        # A host that could not mount its overlay has made a copy, which has the program's changes.
        return {place: path for place, path in shown.items() if not names_in(self._tree.root, place)}

    def close(self) -> None:
        """Release the cache's snapshots after the program's end; a second call does nothing."""
        with self._lock:
            shown, self._shown = self._shown, {}
            tidying = self._tidying
        for snapshot in shown.values():
            snapshot.release()
        if tidying is not None:
            tidying.join(_CLOSE_S)

    def _show(self, channel: Channel, snapshot: Snapshot) -> None:
        """Mount an overlay of a snapshot for the program."""
        with self._lock:
            former = self._shown.get(channel.name)
            self._shown[channel.name] = snapshot
        if former is not None:
            former.release()

    def _copy(self, channel: Channel, snapshot: Snapshot) -> str:
        """Copy a snapshot for the program; return "", or the reason why there is no room."""
        folder = self._tree.channel(channel.name)
        try:
            self._cache.free_disk(folder, snapshot.size_bytes)
            copy_snapshot(snapshot.path, folder, size_bytes=snapshot.size_bytes)
        except AgentError as error:
            if "free_bytes" not in error.details:
                raise
            return error.message  # the disk is full: the channel may still fit without the cache
        except OSError as error:
            raise AgentError(f"Channel {channel.name} cannot be written below {folder}: {error}") from error
        finally:
            snapshot.release()
        return ""

    def _is_copied(self, channel: Channel) -> bool:
        plan = self._plan
        if plan.isolation is not Isolation.NAMESPACES or channel.name == code_channel(plan):
            return True
        place = PurePosixPath(MlTree(OPT_ML).channel(channel.name))
        checkpoints = PurePosixPath(os.path.normpath(plan.checkpoint_local_path or MlTree(OPT_ML).checkpoints))
        if plan.checkpoint_s3_uri is not None and (
            checkpoints.is_relative_to(place) or place.is_relative_to(checkpoints)
        ):
            return True
        return self._overlay_refusal() is not None

    def _overlay_refusal(self) -> str | None:
        with self._lock:
            if not self._has_tried_overlays:
                try:
                    self._refusal = self._cache.refusal(
                        f"overlay-{os.geteuid()}-{os.stat(self._host_folder).st_dev}",
                        lambda: why_no_overlay(self._host_folder),
                    )
                except OSError as error:
                    self._refusal = f"overlays cannot be tried out: {error}"
                self._has_tried_overlays = True
            return self._refusal

    def _tidy_later(self) -> None:
        with self._lock:
            if self._tidying is None or not self._tidying.is_alive():
                self._tidying = threading.Thread(target=self._cache.tidy, name="channel-cache-tidying", daemon=True)
                self._tidying.start()
