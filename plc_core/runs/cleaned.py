"""The dataset that a person's decisions leave, in the format that TRL and `load_pairs` both read.

    decisions/cleaned.parquet, .jsonl  a row a pair, and below it what the export says of itself
    decisions/cleaned.jsonl.sha256     the checksum of the JSON lines
    decisions/cleaned.json             what was kept, reversed, tied, left out and restored

No torch here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from plc_core.data.votes import is_level
from plc_core.runs import Run
from plc_core.runs.decisions import DECISIONS, Decision, decisions_file, exclusively, read_decisions
from plc_core.runs.own_columns import OwnColumns, own_columns
from plc_core.runs.status import now
from plc_core.storage.files import RunError, check_table, replacing, replacing_digested, write_json
from plc_core.storage.identity import origin_of
from plc_core.storage.seals import seal_parquet

COUNTED = ("restored", "injected_ties", "ties")
"""What an export counts beside the decisions: see `export_cleaned`."""

Format = Literal["parquet", "jsonl"]

_SIDES = (("chosen", "rejected"), ("score_chosen", "score_rejected"))
_OTHER = {"chosen": "rejected", "rejected": "chosen"}
_PAIR = (
    *("prompt", "chosen", "rejected", "score_chosen", "score_rejected", "votes"),
    *("source", "split"),
)
_OURS = ("run", "run_pair_id", "decision", "note", "restored", "injected_tie", "tie")
_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
_BATCH = 1_000


def export_cleaned(
    run: Run,
    form: Format = "parquet",
    undecided: bool = True,
    ties: bool = True,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Path, dict[str, int]]:
    """Write the pairs as the decisions leave them, for TRL's `DPOTrainer` and for `load_pairs`.

    prompt, chosen and rejected are messages (TRL's conversational preferences with an explicit
    prompt); of a run whose prompts are texts, all three are texts. The user's own columns are
    there under their own names, `id` among them; one whose name means something else to a reader
    (as `messages`) is `own_<name>`.

    A decision is about the pair as the run observed it, and as it was shown. A pair to keep is as
    it was observed, injected flips included. A flip changes sides: answers, scores, votes and
    whatever columns are named after both sides (`ratings_chosen`, `ratings_rejected`). A tie gets
    the one vote "tie", by which `load_pairs` knows that it prefers nothing. A dropped pair is left
    out. An undecided pair has the order that it had in the user's data: where the run had reversed
    its label (`flipped` in pairs.parquet), it is reversed back and marked `restored`. The pair that
    an injected tie replaced is not in the run, so an undecided one stays, and is counted.

    TRL has no ties: it would train one as a preference for the answer that happens to be in
    `chosen`. So `tie` marks every row that prefers nothing: decided ties, level votes and undecided
    injected ties.

    Each row names the run, its id there (`run_pair_id`), the decision, the note, whether it was
    restored, whether it is a tie and, where the run has such, whether it is an injected one. Where
    the user has a column of such a name, ours is `plc_<name>`; those of an earlier export are
    replaced.

    Args:
        undecided: False leaves out what nothing was decided on.
        ties: False leaves out what prefers nothing.
        tell: is called with the pairs written so far and all.

    Returns:
        The file, and how many pairs were kept, flipped, tied, dropped and undecided; how many of
        the undecided ones that the file may hold were restored, and how many are injected ties;
        and how many prefer nothing, which are in the file unless `ties` is False.

    Raises:
        RunError: where the pairs cannot be read, or the file not be written.
    """
    kept = read_decisions(run)
    path = decisions_file(run, f"cleaned.{form}")
    counts = dict.fromkeys((*DECISIONS, "undecided", *COUNTED), 0)
    source = run.path / "pairs.parquet"
    check_table(source)
    try:
        with (
            pq.ParquetFile(source) as file,
            exclusively(path.parent),
            exporting(path, form) as write,
        ):
            names = _present(file.schema_arrow)
            own = own_columns(file, _OURS)
            done, total = 0, file.metadata.num_rows
            for batch in file.iter_batches(_BATCH, columns=names):
                table = _cleaned(pa.Table.from_batches([batch]), run.name, kept, own, counts)
                write(_chosen_rows(table, own, undecided, ties, counts))
                done += len(batch)
                tell(done, total)
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"The cleaned pairs of {run.name!r} cannot be written: {error}") from None
    said = {"run": run.name, "file": path.name, "written": now()}
    write_json(
        path.with_suffix(".json"),
        said | {"undecided_kept": undecided, "ties_kept": ties} | counts,
    )
    return path, counts


def _cleaned(
    table: pa.Table,
    run: str,
    kept: Mapping[str, Decision],
    own: OwnColumns,
    counts: dict[str, int],
) -> pa.Table:
    """All pairs of a batch as the decisions leave them, dropped ones included."""
    ids = table["pair_id"].to_pylist()
    said = [kept.get(pair_id, Decision(pair_id, None)) for pair_id in ids]
    words = [decision.decision or "undecided" for decision in said]
    for word in words:
        counts[word] += 1
    is_open = pa.array([word == "undecided" for word in words])
    reversed_before, injected = (_marker(table, name) for name in ("flipped", "injected_tie"))
    restored = pc.and_(is_open, reversed_before)
    flips = pc.or_(restored, pa.array([word == "flip" for word in words]))
    given = table["votes"].to_pylist() if "votes" in table.column_names else [None] * len(ids)
    votes = [
        ["tie"]
        if word == "tie"
        else [_OTHER.get(vote, vote) for vote in cast]
        if flip and cast
        else cast
        for word, cast, flip in zip(words, given, flips.to_pylist(), strict=True)
    ]
    result = conversational(_swapped(table, _SIDES, flips))
    result = _with(result, "votes", pa.array(votes, pa.list_(pa.string())))
    result = result.select([name for name in _PAIR if name in result.column_names])
    # Whoever wrote the pairs may have described their columns, which are others now.
    result = result.replace_schema_metadata(None)
    # Sides of the user's columns are those of the data before the run reversed any label.
    metadata = table["metadata"] if "metadata" in table.column_names else None
    users = _swapped(own.table(metadata), own.sides, pc.xor(flips, reversed_before))
    for name in users.column_names:
        result = result.append_column(own.name(name), users[name])
    ours: dict[str, Any] = {
        "run": pa.array([run] * len(ids)),
        "run_pair_id": table["pair_id"],
        "decision": pa.array(words),
        # A lone surrogate is in no file.
        "note": pa.array([d.note.encode("utf-8", "backslashreplace") for d in said]).cast("string"),
        "restored": restored,
        "tie": pc.or_(pa.array([is_level(cast) for cast in votes]), pc.and_(is_open, injected)),
    }
    if "injected_tie" in table.column_names:
        ours["injected_tie"] = injected
    for name, values in ours.items():
        result = result.append_column(_our_name(name, own), values)
    return result


def _our_name(name: str, own: OwnColumns) -> str:
    return f"plc_{name}" if name in own.types else name


def _chosen_rows(
    table: pa.Table, own: OwnColumns, undecided: bool, ties: bool, counts: dict[str, int]
) -> pa.Table:
    """The rows of a batch that go into the file, which are counted."""
    word, tie, restored = (_our_name(name, own) for name in ("decision", "tie", "restored"))
    table = table.filter(pc.not_equal(table[word], "drop"))
    if not undecided:
        table = table.filter(pc.not_equal(table[word], "undecided"))
    counts["ties"] += pc.sum(table[tie]).as_py() or 0
    if not ties:
        table = table.filter(pc.invert(table[tie]))
    counts["restored"] += pc.sum(table[restored]).as_py() or 0
    injected = _our_name("injected_tie", own)
    if injected in table.column_names:
        still = pc.and_(table[injected], pc.equal(table[word], "undecided"))
        counts["injected_ties"] += pc.sum(still).as_py() or 0
    return table


def conversational(table: pa.Table) -> pa.Table:
    """Answers as messages where the prompt is messages: TRL takes no mixture."""
    if _is_text(table.schema.field("prompt").type):
        return table
    for side in ("chosen", "rejected"):
        if _is_text(table.schema.field(side).type):
            said = [
                None if text is None else [{"role": "assistant", "content": text}]
                for text in table[side].to_pylist()
            ]
            table = _with(table, side, pa.array(said, _MESSAGES))
    return table


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _swapped(
    table: pa.Table, sides: tuple[tuple[str, str], ...], flips: pa.Array | pa.ChunkedArray
) -> pa.Table:
    """The table with both columns of each pair of `sides` exchanged in the rows of `flips`."""
    for one, other in sides:
        if {one, other} <= set(table.column_names):
            a, b = table[one], table[other]
            table = _with(table, one, pc.if_else(flips, b, a))
            table = _with(table, other, pc.if_else(flips, a, b))
    return table


def _marker(table: pa.Table, name: str) -> pa.Array:
    """A marker of corruption, one bool a row; false where the run does not know it."""
    if name not in table.column_names:
        return pa.array([False] * len(table))
    return table[name].cast(pa.bool_()).fill_null(False).combine_chunks()


def _with(table: pa.Table, name: str, values: Any) -> pa.Table:
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, values)
    return table.append_column(name, values)


def _present(schema: pa.Schema) -> list[str]:
    missing = {"pair_id", "prompt", "chosen", "rejected"} - set(schema.names)
    if missing:
        raise RunError(f"pairs.parquet lacks the column(s) {', '.join(sorted(missing))}.")
    wanted = ("pair_id", *_PAIR, "flipped", "injected_tie", "metadata")
    return [name for name in wanted if name in schema.names]


@contextlib.contextmanager
def exporting(path: Path, form: Format) -> Iterator[Callable[[pa.Table], None]]:
    """Yield a function that adds rows to an export, which replaces `path` at the end.

    By its checksum `load_pairs` knows damage: Parquet holds it itself, and readers look past it;
    JSON lines have theirs in a file beside them, as every line is a row to whoever reads them.

    Raises:
        RunError: where the disk is full or cannot be written; the export before is as it was.
    """
    with (replacing if form == "parquet" else replacing_digested)(path) as temporary:
        with _writer(temporary, form) as write:
            yield write
        if form == "parquet":
            seal_parquet(temporary, origin_of(path))


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
