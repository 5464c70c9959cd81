"""A person's decisions on the pairs of a run: a log, so that each is on disk at once and undone.

    decisions/decisions.jsonl       one line a decision: pair_id, decision, note, decided; the last
                                    line of a pair counts, and lines of one decision on many pairs
                                    have the same `bulk`
    decisions/decisions.lines.json  how many lines it has at least (`plc_core.storage.logs`)

It lies below the run folder; `plc_core.runs.cleaned` writes the dataset that they leave beside it,
and nothing else of a run is written. No torch here.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from plc_core.runs import Run
from plc_core.runs.status import now
from plc_core.storage.files import RunError, is_there, unreadable
from plc_core.storage.logs import append_entries, read_entries, truncate

DECISIONS = ("keep", "flip", "tie", "drop")
"""What may be decided on a pair; a note may stand without one."""

_SECONDS = 10.0
_KEPT_FILES = 4
_Stamp = tuple[int, int, int]

# By file, what was read of it last: a page asks for it with every click.
_read: dict[Path, tuple[_Stamp, dict[str, Decision]]] = {}


@dataclass(frozen=True)
class Decision:
    """What was decided on one pair, and when (UTC)."""

    pair_id: str
    decision: str | None
    note: str = ""
    decided: str = ""


@dataclass(frozen=True)
class Undone:
    """What `undo` took back: the pairs, and what had been decided on them (None: only noted)."""

    pairs: tuple[str, ...]
    decision: str | None


def read_decisions(run: Run) -> dict[str, Decision]:
    """The decisions on a run's pairs by pair id; empty while there are none. Not to be changed.

    Raises:
        RunError: for a file that cannot be read, leads elsewhere, or lacks lines that it had; it is
            never overwritten.
    """
    path = decisions_file(run, "decisions.jsonl")
    stamp = _stamp(path)
    known = _read.get(path)
    if stamp is None or known is None or known[0] != stamp:
        found: dict[str, Decision] = {}
        for line in read_entries(path, "decision", _parsed):
            _take(found, line.content[0])
        if stamp is None:
            return found
        known = _remember(path, stamp, found)
    return known[1]


def decide(run: Run, pair_id: str, decision: str | None, note: str = "") -> dict[str, Decision]:
    """Keep a decision, or take it back (None without a note); all decisions after it.

    It is added to the file, one process at a time, and is on disk when this returns.

    Raises:
        RunError: where the decision is not one of `DECISIONS`, the run has no such pair, or the
            file cannot be read or written.
    """
    _check(run, decision, [pair_id])
    path = decisions_file(run, "decisions.jsonl")
    with exclusively(path.parent):
        kept = read_decisions(run)
        return _added(path, kept, [Decision(pair_id, decision, note, now())], None)


def decide_all(run: Run, pair_ids: Collection[str], decision: str | None) -> dict[str, Decision]:
    """One decision on many pairs, whose notes stay; `undo` takes it back as one.

    Raises:
        RunError: as `decide`.
    """
    _check(run, decision, pair_ids)
    path = decisions_file(run, "decisions.jsonl")
    with exclusively(path.parent):
        kept = read_decisions(run)
        when = now()
        new = [
            Decision(pair_id, decision, kept[pair_id].note if pair_id in kept else "", when)
            for pair_id in dict.fromkeys(pair_ids)
        ]
        return _added(path, kept, new, secrets.token_hex(4))


def undo(run: Run) -> Undone | None:
    """Take back what was decided last, on one pair or on many at once; None where nothing is left.

    Its lines leave the file, so it can be called until the first decision is undone.

    Raises:
        RunError: where the file cannot be read or written.
    """
    path = decisions_file(run, "decisions.jsonl")
    with exclusively(path.parent):
        _stamp(path)  # a pipe or a device is refused
        lines = read_entries(path, "decision", _parsed)  # a broken file is left alone
        if not lines:
            return None
        bulk = lines[-1].content[1]
        first = len(lines) - 1
        while bulk is not None and first and lines[first - 1].content[1] == bulk:
            first -= 1
        last: list[Decision] = [line.content[0] for line in lines[first:]]
        # What a kill cut off is known for that by the line behind it, and goes with it.
        truncate(path, lines[first - 1].end if first else 0)
        return Undone(tuple(entry.pair_id for entry in last), last[-1].decision)


def decisions_file(run: Run, name: str) -> Path:
    """The path of a file in the folder of decisions; RunError for one that leads elsewhere."""
    folder = run.path / "decisions"
    path = folder / name
    is_there(path)  # a folder that may not be read is not one without decisions
    if folder.is_symlink() or path.is_symlink() or (folder / ".lock").is_symlink():
        raise RunError(f"{path} leads outside the run {run.name!r}; it was left alone.")
    return path


@contextlib.contextmanager
def exclusively(folder: Path) -> Iterator[None]:
    """Hold the folder of decisions, which is made where it is missing, against other processes."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be made: {error.strerror}.") from None
    lock = FileLock(folder / ".lock", timeout=_SECONDS)
    try:
        lock.acquire()
    except (Timeout, OSError) as error:
        raise RunError(f"Another process is writing in {folder}: {error}. Try again.") from None
    try:
        yield
    finally:
        lock.release()


def _added(
    path: Path, kept: dict[str, Decision], new: Iterable[Decision], bulk: str | None
) -> dict[str, Decision]:
    """The decisions after `new`, which are added to the file where they change anything."""
    nothing = Decision("", None)
    changes = [
        entry
        for entry in new
        if replace(entry, decided="")
        != replace(kept.get(entry.pair_id, nothing), pair_id=entry.pair_id, decided="")
    ]
    if not changes:
        return kept
    more = {} if bulk is None else {"bulk": bulk}
    append_entries(path, (asdict(entry) | more for entry in changes))
    after = dict(kept)
    for entry in changes:
        _take(after, entry)
    stamp = _stamp(path)
    return after if stamp is None else _remember(path, stamp, after)[1]


def _take(found: dict[str, Decision], entry: Decision) -> None:
    if entry.decision is None and not entry.note:
        found.pop(entry.pair_id, None)
    else:
        found[entry.pair_id] = entry


def _remember(
    path: Path, stamp: _Stamp, found: dict[str, Decision]
) -> tuple[_Stamp, dict[str, Decision]]:
    _read.pop(path, None)
    _read[path] = stamp, found
    while len(_read) > _KEPT_FILES:
        with contextlib.suppress(KeyError, StopIteration, RuntimeError):  # another thread's
            _read.pop(next(iter(_read)))
    return stamp, found


def _stamp(path: Path) -> _Stamp | None:
    """What changes with the file's content; None without a file."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from None
    if not path.is_file():
        raise RunError(f"{path} cannot be read: it is not a regular file.")
    return state.st_mtime_ns, state.st_size, state.st_ino


def _check(run: Run, decision: str | None, pair_ids: Collection[str]) -> None:
    if decision is not None and decision not in DECISIONS:
        raise RunError(f"A decision is one of {', '.join(DECISIONS)}; it is {decision!r}.")
    if unknown := run.unknown_pairs(pair_ids):
        pairs = run.path / "pairs.parquet"
        raise RunError(f"{pairs} has no pair {unknown[0]!r}; their ids are its column pair_id.")


def _parsed(entry: Any) -> tuple[Decision, str | None]:
    """A line's decision, and the name of the bulk that it was made with."""
    decision = entry["decision"]
    if decision is not None and decision not in DECISIONS:
        raise ValueError(f"the decision {decision!r} is not known")
    note, decided = str(entry.get("note") or ""), str(entry.get("decided") or "")
    bulk = entry.get("bulk")
    return (
        Decision(str(entry["pair_id"]), decision, note, decided),
        None if bulk is None else str(bulk),
    )
