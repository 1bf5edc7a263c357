"""`upload_results`: upload of a host's results, according to the host's role.

Where: the supervisor carries out an upload order with this after the program has exited or was stopped; a job is
Completed only after the leader's call has returned.

STAGE uploads the host's trees to the staging prefix (see `staging`); a host without results uploads nothing.
LEAD merges the trees of all hosts (see `merging`) into the final objects:
- `model.tar.gz`, even if no host has a model, as SageMaker does; for a failed job only if a host has a model;
- `output.tar.gz`, if any host has files in `output/data` or a failure file;
- with CompressionType NONE, instead of archives, one object per file below `model/` and `data/`.
An archive streams through gzip into a multipart upload without a copy on disk and is verified by the size that the
store reports. The last step removes the staged parts; if the store refuses that, the results are complete all the
same, and a note says what stays.

[Note: repeated LEAD] An agent may get the order to lead again because its report was lost. While the staged parts
exist, a repeated merge gives the same objects. They are removed only after a complete and verified merge. A mark in the
metadata of a final object then proves that Clary removed them; it identifies the attempt and the parts. Both archives
carry the mark. If a model is due, only the mark of model.tar.gz counts, because that archive is written after
output.tar.gz. Among the loose objects of each kind, one object gets the mark after all of them are verified. Without
the mark a missing part is an error.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Generator
from dataclasses import dataclass
from itertools import islice

from clary.agent.archives import NO_MOUNTS, Member, Mounts, has_members, walk_tree
from clary.agent.artifacts.merging import Merge
from clary.agent.artifacts.sinks import ArchiveSink, LooseSink
from clary.agent.artifacts.staging import (
    ResultKind,
    missing_parts,
    remove_staging,
    result_sources,
    stage_results,
    staged_members,
    staging_prefix,
)
from clary.agent.notes import NoteBook
from clary.base.errors import AgentError, ObjectStoreError
from clary.contract.agent_protocol import StagedPart, UploadRole
from clary.contract.launch_plan import LaunchPlan
from clary.contract.ml_tree import MlTree
from clary.contract.object_store import ObjectStore, parse_s3_uri

_MARK = "clary-upload"
_MAX_MARK_LOOKUPS = 100  # loose objects whose mark is read; the first object of this attempt has the mark


@dataclass(frozen=True, kw_only=True)
class UploadFacts:
    """Objects that a host has written."""

    staged: tuple[StagedPart, ...] = ()
    uploaded: tuple[str, ...] = ()  # URIs of final objects, or of their common prefix where they are loose
    is_empty: bool = False  # whether it is known that no final object holds a file
    notes: tuple[str, ...] = ()


def upload_results(
    role: UploadRole,
    *,
    plan: LaunchPlan,
    host: str,
    tree: MlTree,
    store: ObjectStore,
    staged: tuple[StagedPart, ...] = (),
    mounts: Mounts = NO_MOUNTS,
    omits_empty_model: bool = False,
) -> UploadFacts:
    """Write this host's share of the job's results; repeating it gives the same objects.

    Args:
        host: name of this host in the plan.
        tree: this host's `/opt/ml` as this process sees it; the program has ended.
        staged: with LEAD, the parts that the other hosts have staged.
        mounts: folders that the program saw in `tree` and that lie elsewhere; links in results may lead to them.
        omits_empty_model: with LEAD, whether to write no model archive if no host has a model.
    Raises: AgentError, ObjectStoreError naming the path or object that could not be read or written. An unverified
        object counts as not written; the staged parts then still exist.
    """
    if role is UploadRole.STAGE:
        return _stage(plan, host=host, tree=tree, store=store, mounts=mounts)
    lead = _Lead(plan, host=host, tree=tree, store=store, staged=staged, mounts=mounts)
    return lead.upload(omits_empty_model=omits_empty_model)


def _stage(plan: LaunchPlan, *, host: str, tree: MlTree, store: ObjectStore, mounts: Mounts) -> UploadFacts:
    notes = NoteBook()
    parts = [
        stage_results(kind, plan=plan, host=host, tree=tree, store=store, notes=notes, mounts=mounts)
        for kind in ResultKind
    ]
    return UploadFacts(staged=tuple(part for part in parts if part is not None), notes=notes.lines())


class _Lead:
    """The leader's upload."""

    def __init__(
        self,
        plan: LaunchPlan,
        *,
        host: str,
        tree: MlTree,
        store: ObjectStore,
        staged: tuple[StagedPart, ...],
        mounts: Mounts,
    ) -> None:
        self._plan = plan
        self._host = host
        self._tree = tree
        self._mounts = mounts
        self._store = store
        self._staged = tuple(part for part in staged if part.host != host)
        self._notes = NoteBook()
        self._metadata = {_MARK: self._mark()}
        self._loose_sinks: list[LooseSink] = []
        self._has_content = False  # whether a host has results of any kind
        self._is_model_due = False  # whether the model's archive is written even if it is empty

    def upload(self, *, omits_empty_model: bool) -> UploadFacts:
        """Write and verify the final objects, then tidy up."""
        self._is_model_due = self._plan.output.is_compressed and not omits_empty_model
        self._require_known_hosts()
        missing = missing_parts(self._staged, store=self._store)
        if missing:
            return self._after_removal(missing)
        # The model comes last: its mark says that all objects are complete, see [Note: repeated LEAD].
        uploaded = [
            uri for kind in (ResultKind.OUTPUT, ResultKind.MODEL) if (uri := self._upload_kind(kind)) is not None
        ]
        self._tidy_up()
        return UploadFacts(
            uploaded=tuple(reversed(uploaded)), is_empty=not self._has_content, notes=self._notes.lines()
        )

    def _tidy_up(self) -> None:
        """Mark loose objects and remove the staged parts; the final objects are complete, so an error is only noted.

        Without the mark the parts stay, because a repeated order needs one of the two; see [Note: repeated LEAD].
        """
        try:
            for sink in self._loose_sinks:
                sink.mark(self._metadata)
            remove_staging(self._plan, store=self._store)
        except (ObjectStoreError, AgentError) as error:
            self._notes.add(
                f"the results are complete, but their staged parts could not be removed from "
                f"{staging_prefix(self._plan)}: {error.message}"
            )

    def _upload_kind(self, kind: ResultKind) -> str | None:
        """Write the final objects of one kind and return their URI, or None if there is nothing to write."""
        sources = result_sources(kind, self._tree, self._mounts)
        has_own = has_members(sources)
        parts = {part.host: part for part in self._staged if part.kind == kind.value}
        uri = self._final_uri(kind)
        is_compressed = self._plan.output.is_compressed
        self._has_content |= has_own or bool(parts)
        if not has_own and not parts and (kind is ResultKind.OUTPUT or not self._is_model_due):
            return None
        sink: ArchiveSink | LooseSink
        if is_compressed:
            sink = ArchiveSink(self._store, parse_s3_uri(uri), metadata=self._metadata)
        else:
            sink = LooseSink(self._store, parse_s3_uri(uri), notes=self._notes)
        try:
            compares = len(parts) + has_own > 1 or len(sources) > 1
            merge = Merge(sink, notes=self._notes, label=kind.value, compares=compares)
            for host in self._plan.hosts:
                for members in self._trees_of(host.name, kind, parts):
                    with contextlib.closing(members):
                        merge.add_host(host.name, members)
            sink.finish()
        finally:
            sink.abort()
        if isinstance(sink, LooseSink):
            if not sink.num_objects:
                return None
            self._loose_sinks.append(sink)
        return uri

    def _trees_of(
        self, host: str, kind: ResultKind, parts: dict[str, StagedPart]
    ) -> Generator[Generator[Member, None, None], None, None]:
        """Yield a host's members, tree by tree: from this host's own folder, or from another host's staged archive."""
        if host == self._host:
            follow_links = not self._plan.output.is_compressed
            own_notes = NoteBook()
            sources = result_sources(kind, self._tree, self._mounts)
            yield walk_tree(sources, notes=own_notes, follow_links=follow_links)
            for note in own_notes.lines():
                self._notes.add(f"{host}: {kind.value}: {note}")
        elif host in parts:
            yield staged_members(parts[host], store=self._store)

    def _after_removal(self, missing: tuple[StagedPart, ...]) -> UploadFacts:
        """Answer a repeated LEAD whose parts were removed; see [Note: repeated LEAD]."""
        uploaded = tuple(uri for kind in ResultKind if self._is_marked(uri := self._final_uri(kind)))
        if not uploaded or (self._owes_model() and self._plan.output.model_uri not in uploaded):
            hosts = ", ".join(sorted({part.host for part in missing}))
            raise AgentError(
                f"Results that {hosts} had staged are gone: expected {missing[0].uri} with "
                f"{missing[0].size_bytes} bytes. Was {self._plan.output.s3_output_path} cleared while the job "
                "ran?",
                details={"missing": [part.uri for part in missing]},
            )
        self._tidy_up()
        return UploadFacts(uploaded=uploaded, notes=self._notes.lines())

    def _owes_model(self) -> bool:
        """Whether a complete merge includes the model's archive."""
        has_parts = any(part.kind == ResultKind.MODEL.value for part in self._staged)
        has_own = has_members(result_sources(ResultKind.MODEL, self._tree, self._mounts))
        return self._plan.output.is_compressed and (self._is_model_due or has_parts or has_own)

    def _is_marked(self, uri: str) -> bool:
        """Whether the final objects at `uri` were completed by this attempt from these parts."""
        place = parse_s3_uri(uri)
        keys = [place.key]
        if not self._plan.output.is_compressed:
            objects = self._store.list_objects(place.bucket, place.key)
            keys = [info.key for info in islice(objects, _MAX_MARK_LOOKUPS)]
        for key in keys:
            facts = self._store.head(place.bucket, key)
            if facts is not None and facts.metadata.get(_MARK) == self._metadata[_MARK]:
                return True
        return False

    def _mark(self) -> str:
        parts = sorted(f"{part.uri} {part.size_bytes}" for part in self._staged)
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        return f"{self._plan.job_name}/{self._plan.attempt}/{digest}"

    def _require_known_hosts(self) -> None:
        known = {host.name for host in self._plan.hosts}
        unknown = sorted({part.host for part in self._staged} - known | ({self._host} - known))
        if unknown:
            raise AgentError(
                f"Job {self._plan.job_name} has no host {', '.join(unknown)}: the results cannot be merged."
            )

    def _final_uri(self, kind: ResultKind) -> str:
        output = self._plan.output
        return output.model_uri if kind is ResultKind.MODEL else output.output_uri
