"""A person's decisions on the pairs of a run, and the dataset that is left after them.

    decisions/decisions.jsonl          one line a pair: pair_id, decision, note, decided
    decisions/cleaned.parquet, .jsonl  the run's pairs after the decisions, for `load_pairs`
    decisions/cleaned.json             what was kept, reversed, tied, left out and restored

They lie below the run folder; nothing else of a run is written. No torch here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from plc_core.files import RunError, replacing, write_json
from plc_core.runs import Run
from plc_core.runs.status import now

DECISIONS = ("keep", "flip", "tie", "drop")
"""What may be decided on a pair; a note may stand without one."""

OF_UNDECIDED = ("restored", "injected_ties")
"""What is counted of the undecided pairs in an exported file."""

Format = Literal["parquet", "jsonl"]

_FIELDS = ("prompt", "chosen", "rejected", "score_chosen", "score_rejected", "votes")
_NAMED = ("source", "split", "injected_tie")
_OTHER = {"chosen": "rejected", "rejected": "chosen"}
_SECONDS = 10.0
_BATCH = 1_000


@dataclass(frozen=True)
class Decision:
    """What was decided on one pair, and when (UTC)."""

    pair_id: str
    decision: str | None
    note: str = ""
    decided: str = ""


def read_decisions(run: Run) -> dict[str, Decision]:
    """The decisions on a run's pairs by pair id; empty while there are none.

    Raises:
        RunError: for a file that cannot be read, or leads elsewhere; it is never overwritten.
    """
    path = _file(run, "decisions.jsonl")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None
    found = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            decision = _parsed(line, path, number)
            found[decision.pair_id] = decision
    return found


def decide(run: Run, pair_id: str, decision: str | None, note: str = "") -> dict[str, Decision]:
    """Keep a decision, or take it back (None without a note); all decisions after it.

    The file is replaced in one piece, one process at a time, and is on disk when this returns.

    Raises:
        RunError: where the decision is not one of `DECISIONS`, or the file cannot be read or
            written.
    """
    if decision is not None and decision not in DECISIONS:
        raise RunError(f"A decision is one of {', '.join(DECISIONS)}; it is {decision!r}.")
    path = _file(run, "decisions.jsonl")
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise RunError(f"{path.parent} cannot be made: {error.strerror}.") from None
    with _alone(path.parent):
        kept = read_decisions(run)
        if decision is None and not note:
            kept.pop(pair_id, None)
        else:
            kept[pair_id] = Decision(pair_id, decision, note, now())
        with replacing(path) as temporary:
            # ASCII, so that any text of any user can be written.
            temporary.write_text(
                "".join(json.dumps(asdict(entry)) + "\n" for entry in kept.values())
            )
    return kept


def export_cleaned(
    run: Run,
    form: Format = "parquet",
    undecided: bool = True,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Path, dict[str, int]]:
    """Write the pairs as the decisions leave them, for `plc_core.load_pairs`.

    A decision is about the pair as the run observed it, and as it was shown. A pair to keep is as
    it was observed, injected flips included. A flip changes sides: answers, scores and votes. A tie
    gets the one vote "tie", by which `load_pairs` knows that it prefers nothing. A dropped pair is
    left out. An undecided pair has the order that it had in the user's data: where the run had
    reversed its label (`flipped` in pairs.parquet), it is reversed back and marked `restored`. The
    pair that an injected tie replaced is not in the run, so an undecided one stays, and is counted.

    Beside the fields of a pair each row names the run, its id there, the decision, the note,
    whether it was restored and, where the run has such, whether it is an injected tie; readers keep
    these as metadata.

    Args:
        undecided: False leaves out what nothing was decided on.
        tell: is called with the pairs written so far and all.

    Returns:
        The file, and how many pairs were kept, flipped, tied, dropped and undecided; and how many
        of the undecided ones in the file were restored, and how many are injected ties.
    """
    kept = read_decisions(run)
    path = _file(run, f"cleaned.{form}")
    counts = dict.fromkeys((*DECISIONS, "undecided", *OF_UNDECIDED), 0)
    source = run.path / "pairs.parquet"
    try:
        path.parent.mkdir(exist_ok=True)
        with pq.ParquetFile(source) as file, _alone(path.parent), replacing(path) as temporary:
            done, total = 0, file.metadata.num_rows
            with _writer(temporary, form) as write:
                for batch in file.iter_batches(_BATCH, columns=_present(file.schema_arrow)):
                    write(
                        _cleaned(pa.Table.from_batches([batch]), run.name, kept, undecided, counts)
                    )
                    done += len(batch)
                    tell(done, total)
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"The cleaned pairs of {run.name!r} cannot be written: {error}") from None
    write_json(
        path.with_suffix(".json"),
        {"run": run.name, "file": path.name, "written": now(), "undecided_kept": undecided}
        | counts,
    )
    return path, counts


def _cleaned(
    table: pa.Table,
    run: str,
    kept: Mapping[str, Decision],
    undecided: bool,
    counts: dict[str, int],
) -> pa.Table:
    ids = table["pair_id"].to_pylist()
    said = [kept.get(pair_id, Decision(pair_id, None)) for pair_id in ids]
    words = [decision.decision or "undecided" for decision in said]
    for word in words:
        counts[word] += 1
    is_open = pa.array([word == "undecided" for word in words])
    restored = pc.and_(is_open, _marker(table, "flipped"))
    if undecided:
        counts["restored"] += pc.sum(restored).as_py()
        ties = pc.and_(is_open, _marker(table, "injected_tie"))
        counts["injected_ties"] += pc.sum(ties).as_py()
    flips = pc.or_(restored, pa.array([word == "flip" for word in words]))
    for one in ("chosen", "score_chosen"):
        other = one.replace("chosen", "rejected")
        if {one, other} <= set(table.column_names):
            a, b = table[one], table[other]
            table = _with(table, one, pc.if_else(flips, b, a))
            table = _with(table, other, pc.if_else(flips, a, b))
    given = table["votes"].to_pylist() if "votes" in table.column_names else [None] * len(ids)
    votes = [
        ["tie"]
        if word == "tie"
        else [_OTHER.get(vote, vote) for vote in own]
        if flip and own
        else own
        for word, own, flip in zip(words, given, flips.to_pylist(), strict=True)
    ]
    table = _with(table, "votes", pa.array(votes, pa.list_(pa.string())))
    table = table.rename_columns([{"pair_id": "run_pair_id"}.get(n, n) for n in table.column_names])
    table = _with(table, "run", pa.array([run] * len(ids)))
    table = _with(table, "decision", pa.array(words))
    table = _with(table, "note", pa.array([decision.note for decision in said], pa.string()))
    table = _with(table, "restored", restored)
    if "flipped" in table.column_names:
        table = table.drop_columns("flipped")
    stays = [word != "drop" and (undecided or word != "undecided") for word in words]
    return table.filter(pa.array(stays))


def _marker(table: pa.Table, name: str) -> pa.Array:
    """A marker of corruption, one bool a row; false where the run does not know it."""
    if name not in table.column_names:
        return pa.array([False] * len(table))
    return table[name].combine_chunks().fill_null(False)


def _with(table: pa.Table, name: str, values: Any) -> pa.Table:
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, values)
    return table.append_column(name, values)


def _present(schema: pa.Schema) -> list[str]:
    missing = {"pair_id", "prompt", "chosen", "rejected"} - set(schema.names)
    if missing:
        raise RunError(f"pairs.parquet lacks the column(s) {', '.join(sorted(missing))}.")
    return [name for name in ("pair_id", *_FIELDS, *_NAMED, "flipped") if name in schema.names]


@contextlib.contextmanager
def _writer(path: Path, form: Format) -> Iterator[Callable[[pa.Table], None]]:
    if form == "jsonl":
        with path.open("w", encoding="ascii") as lines:

            def write_lines(table: pa.Table) -> None:
                lines.writelines(json.dumps(row) + "\n" for row in table.to_pylist())

            yield write_lines
        return
    writer: pq.ParquetWriter | None = None
    try:

        def write_table(table: pa.Table) -> None:
            nonlocal writer
            writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
            writer.write_table(table)

        yield write_table
    finally:
        if writer is not None:
            writer.close()


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    lock = FileLock(folder / ".lock", timeout=_SECONDS)
    try:
        lock.acquire()
    except (Timeout, OSError) as error:
        raise RunError(f"Another process is writing in {folder}: {error}. Try again.") from None
    try:
        yield
    finally:
        lock.release()


def _file(run: Run, name: str) -> Path:
    folder = run.path / "decisions"
    path = folder / name
    if folder.is_symlink() or path.is_symlink() or (folder / ".lock").is_symlink():
        raise RunError(f"{path} leads outside the run {run.name!r}; it was left alone.")
    return path


def _parsed(line: str, path: Path, number: int) -> Decision:
    try:
        entry = json.loads(line)
        decision = entry["decision"]
        if decision is not None and decision not in DECISIONS:
            raise ValueError(f"the decision {decision!r} is not known")
        note, decided = str(entry.get("note") or ""), str(entry.get("decided") or "")
        return Decision(str(entry["pair_id"]), decision, note, decided)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(
            f"{path}, line {number}, is no decision ({error}). Mend or remove the line: nothing is "
            "written over it."
        ) from None
