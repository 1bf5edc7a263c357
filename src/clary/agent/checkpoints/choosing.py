"""Choice of the files in the checkpoint folder that may be taken (stored in a set) now, and why others wait. Pure.

[Note: whole files] A file counts as whole if there is evidence (`evidence`) and it is at rest, that is, unchanged for a
moment. A file that another file replaces within that moment can still be at rest: it is kept open, and is at rest if it
is unchanged after the moment and has no name left (`held_files`). A file that keeps growing is not whole: it may be a
checkpoint that is being written.

[Note: files that belong together] A group is taken into the set as a unit once all its files except noise are at rest.
Noise is the files that are never at rest although no save is unfinished, such as a log (`sights`). Noise files that are
whole are taken one by one. A file that was replaced together with other files is taken only while those files are
unchanged since they were taken, so that no set mixes files of two saves. If a group has waited for too long, its whole
files are taken one by one, unless a file of the group is known to be unfinished, or is new without evidence that it is
whole. The set lists the files that were not taken with their group (`left_out`), because the group may be incomplete
without them. Logs are not listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clary.agent.checkpoints.evidence.observations import Decision
from clary.agent.checkpoints.log_names import is_log
from clary.agent.checkpoints.scanning import FileFacts
from clary.agent.checkpoints.sights import Pace, Sight
from clary.contract.checkpoint_sets import rest_of_group

_MAX_NAMED = 2


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The groups and files that may be taken now, and the reasons why other groups wait."""

    whole: frozenset[str] = frozenset()  # groups
    noise: Mapping[str, frozenset[str]] = field(default_factory=dict)  # group -> paths of noise
    single: Mapping[str, frozenset[str]] = field(default_factory=dict)  # group -> paths
    replaced: Mapping[str, FileFacts] = field(default_factory=dict)  # path -> the whole file that had this path
    left_out: Mapping[str, frozenset[str]] = field(default_factory=dict)  # group that is taken -> paths that it lacks
    waiting: Mapping[str, str] = field(default_factory=dict)  # group -> reason of its wait, in words
    unfinished: Mapping[str, Mapping[str, Decision]] = field(
        default_factory=dict
    )  # group that waits -> files that it waits for
    decisions: Mapping[str, Decision] = field(default_factory=dict)  # path -> evidence that it is whole

    @property
    def is_empty(self) -> bool:
        """Whether no file may be taken."""
        return not self.whole and not self.replaced and not any(self.single.values())


def choose(
    sights: Mapping[str, Sight], *, replaced: Mapping[str, FileFacts] | None = None, now_s: float, pace: Pace
) -> Choice:
    """Return the groups and files that may be taken after a look (a scan of the folder).

    Args:
        sights: state of the groups after the look.
        replaced: files that were whole when the look began and that other files have replaced.
        now_s: monotonic time of the look.
        pace: defines how long a file has to rest.
    """
    whole: set[str] = set()
    all_noise, single, waiting, unfinished, left_out = {}, {}, {}, {}, {}
    decisions: dict[str, Decision] = {}
    files: dict[str, FileFacts] = {}
    for name, sight in sights.items():
        noise = sight.noise(now_s, pace)
        if noise:
            all_noise[name] = noise
        is_impatient = False
        is_dirty = sight.is_dirty_but_for(noise)
        if is_dirty and sight.is_at_rest_but_for(noise, now_s, pace):
            whole.add(name)
        elif is_dirty:
            busy = {path for path, file in sight.files.items() if not file.is_at_rest(now_s, pace)}
            waited_for = {
                path: file.decision
                for path in busy - noise
                if (file := sight.files[path]).is_unfinished or file.is_new_and_unknown
            }
            if waited_for:
                unfinished[name] = {path: decision for path, decision in waited_for.items() if decision is not None}
            has_waited = sight.unrest_since_s is not None and now_s - sight.unrest_since_s > pace.patience_s
            is_impatient = has_waited and not waited_for
            if is_impatient:
                single[name] = frozenset(sight.content.files.keys() - busy)
                left_out[name] = frozenset({rest_of_group(name)})
            else:
                waiting[name] = f"{_named(busy - noise)} changed" if busy - noise else "its folders or links changed"
        decisions |= {
            path: file.decision
            for path, file in sight.files.items()
            if file.decision is not None and file.decision.is_whole
        }
        for path in sight.content.files.keys() & (replaced or {}).keys():
            if is_impatient or (path in noise and (sight.files[path].changes_alone or not is_dirty)):
                files[path] = (replaced or {})[path]
        if name in whole and (lacking := frozenset(path for path in noise - files.keys() if not is_log(path))):
            left_out[name] = lacking
    return Choice(
        whole=frozenset(whole),
        noise=all_noise,
        single=single,
        replaced=files,
        left_out=left_out,
        waiting=waiting,
        unfinished=unfinished,
        decisions=decisions,
    )


def to_hold(sights: Mapping[str, Sight], *, now_s: float, pace: Pace) -> list[str]:
    """Return files that might be replaced before they are at rest; files that repeatedly changed alone come first.

    A file that has become busy only at this look, together with other files, is not returned, since it usually comes to
    rest.

    Args:
        sights: group -> its sight after the last look.
        now_s: monotonic time of that look.
        pace: defines how long a file has to rest.
    """
    busy = [
        (not file.changes_alone, path)
        for sight in sights.values()
        for path, file in sight.files.items()
        if file.facts is not None and file.dirty_since_s is not None and not file.is_at_rest(now_s, pace)
        if file.busy_since_s < now_s or file.num_alone
    ]
    return [path for _, path in sorted(busy)]


def _named(paths: frozenset[str] | set[str]) -> str:
    shown = [ascii(path) for path in sorted(paths)]
    more = len(shown) - _MAX_NAMED
    return ", ".join(shown[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
