"""Small files that unpack to a lot: a sentence that names the bound, within 2 GB of memory."""

import json
import os
import subprocess
import sys
import time
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plc_core.data import DataError, load_pairs
from plc_core.data.bounds import Bounds
from tests.paths import ROOT

MIB = 2**20
ROW = b'{"prompt":"Hi","chosen":"a","rejected":"b"}\n'
MOST = 2_000_000_000

READ = """
import sys
from pathlib import Path
from plc_core.data import DataError, load_pairs
try:
    pairs = load_pairs(sys.argv[1])
    said = f"{len(pairs)} of {pairs.rows_read}"
except DataError as error:
    said = str(error)
print(said.splitlines()[0])
# Not ru_maxrss, which begins at what the parent had.
(peak,) = (l.split()[1] for l in Path("/proc/self/status").open() if l.startswith("VmHWM"))
print(1024 * int(peak))
"""


def gz(path, parts):
    packer = zlib.compressobj(6, wbits=31)
    with path.open("wb") as file:
        for part in parts:
            file.write(packer.compress(part))
        file.write(packer.flush())


def zst(path, parts):
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        for part in parts:
            file.write(part)


def arrow(path, table, new=pa.ipc.new_file):
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema, options=options) as writer:
        writer.write_table(table)


def parquet(path, table, **options):
    pq.write_table(table, path, compression="zstd", write_statistics=False, **options)


def dictionary(rows, size):
    indices = pa.array(np.zeros(rows, np.int32))
    others = {"chosen": ["a"] * rows, "rejected": ["b"] * rows}
    return pa.table({"prompt": pa.DictionaryArray.from_arrays(indices, ["x" * size])} | others)


def zeros(mebibytes):
    """A column of one text, all of whose bytes are zero, beside an empty one."""
    offsets = pa.py_buffer(np.array([0, 0, mebibytes * MIB], np.int32).tobytes())
    buffers = [None, offsets, pa.py_buffer(bytes(mebibytes * MIB))]
    return pa.table({"prompt": pa.Array.from_buffers(pa.string(), 2, buffers)})


def views(rows, size):
    """A column of many texts that are the same bytes."""
    one = pa.array(["x" * size], pa.string_view()).buffers()
    whole = [None, pa.py_buffer(one[1].to_pybytes()[:16] * rows), *one[2:]]
    return pa.table({"prompt": pa.Array.from_buffers(pa.string_view(), rows, whole)})


ROW_SAID, PIECE_SAID = "bound row_mb", "in smaller pieces"
OBJECTS = b'{"":[]},' * (MIB // 8)
BOMBS = {
    "line.jsonl.gz": (lambda p: gz(p, [b'{"prompt":"', *[b"a" * MIB] * 2100]), ROW_SAID),
    "line.jsonl.zst": (lambda p: zst(p, [b'{"prompt":"', *[b"a" * MIB] * 2100]), ROW_SAID),
    "element.json.gz": (lambda p: gz(p, [b'[{"prompt":"', *[b"a" * MIB] * 2100]), ROW_SAID),
    "objects.jsonl.zst": (lambda p: zst(p, [b'{"z":[', *[OBJECTS] * 2100]), ROW_SAID),
    "objects.json.zst": (lambda p: zst(p, [b'[{"z":[', *[OBJECTS] * 2100]), ROW_SAID),
    "objects-in-a-row-that-may-be.jsonl.zst": (
        lambda p: zst(p, [ROW[:-2] + b',"z":[', *[OBJECTS] * 15, b"0]}\n"]), "1 of 1"),
    "astral.jsonl.zst": (
        lambda p: zst(p, [b'{"prompt":"\xf0\x9f\x98\x80', *[b"a" * MIB] * 15,
                          b'","chosen":"a","rejected":"b"}\n']), "1 of 1"),
    "field.csv.gz": (
        lambda p: gz(p, [b'prompt,chosen,rejected\n"', *[b"a\n" * (MIB // 2)] * 2100]), ROW_SAID),
    "fields.csv.gz": (
        lambda p: gz(p, [b"prompt,chosen,rejected\n", *[b'"\n",' * (MIB // 4)] * 2100]), ROW_SAID),
    "header.csv.gz": (lambda p: gz(p, [b"a," * (MIB // 2)] * 2100), ROW_SAID),
    "columns.csv.zst": (
        lambda p: zst(p, [",".join(f"c{n}" for n in range(20_000)).encode(), b"\n"]), "columns"),
    "not-in-its-encoding.jsonl.zst": (
        lambda p: zst(p, [b"{", b"\xff" * 9, b"\n", *[b"a" * MIB] * 2100]), "not utf-8"),
    "utf-16.jsonl.zst": (lambda p: zst(p, [b"a\0" * (MIB // 2)] * 2100), ROW_SAID),
    "spaces.json.zst": (lambda p: zst(p, [b"[", *[b" " * MIB] * 2100, ROW, b"]"]), "1 of 1"),
    "blank-lines.jsonl.zst": (lambda p: zst(p, [ROW, *[b"\n" * MIB] * 2100, ROW]), "1 of 2"),
    "zeros.parquet.zst": (lambda p: zst(p, [b"PAR1", *[bytes(MIB)] * 100]), "damaged"),
    "dictionary.parquet": (lambda p: parquet(p, dictionary(2_000, 17 * MIB)), ROW_SAID),
    "dictionaries.parquet": (
        lambda p: parquet(p, pa.table({f"c{n}": dictionary(10, 20 * MIB)["prompt"]
                                       for n in range(20)})), PIECE_SAID),
    "a-page.parquet": (lambda p: parquet(p, zeros(700), use_dictionary=False), PIECE_SAID),
    "a-list.parquet": (
        lambda p: parquet(p, pa.table({"prompt": pa.ListArray.from_arrays(
            [0, 2**26 + 1], pa.array(np.zeros(2**26 + 1, np.int8)))})), PIECE_SAID),
    "prefixes.parquet": (
        lambda p: parquet(p, pa.table({"prompt": ["y" * 17 * MIB] * 20}), use_dictionary=False,
                          column_encoding={"prompt": "DELTA_BYTE_ARRAY"}), ROW_SAID),
    "zeros.arrow": (lambda p: arrow(p, zeros(700)), PIECE_SAID),
    "a-stream.arrow": (lambda p: arrow(p, zeros(700), pa.ipc.new_stream), PIECE_SAID),
    "dictionary.arrow": (lambda p: arrow(p, dictionary(2_000, 17 * MIB)), ROW_SAID),
    "nulls.arrow": (lambda p: arrow(p, pa.table({"prompt": pa.nulls(2**30)})), PIECE_SAID),
    "a-list-of-nulls.arrow": (
        lambda p: arrow(p, pa.table({"prompt": pa.ListArray.from_arrays(
            pa.array([0, 2**31 - 1], pa.int32()), pa.nulls(2**31 - 1))})), ROW_SAID),
    "a-wide-list.arrow": (
        lambda p: arrow(p, pa.table({"prompt": pa.nulls(1, pa.list_(pa.null(), 2**31 - 1))})),
        ROW_SAID),
    "views.arrow": (lambda p: arrow(p, views(3_000, 17 * MIB)), ROW_SAID),
    "runs.arrow": (
        lambda p: arrow(p, pa.table({"prompt": pa.RunEndEncodedArray.from_arrays(
            pa.array([2**30], pa.int32()), pa.array(["a"]))})), PIECE_SAID),
}  # fmt: skip


def read(path):
    """What reading a file says in a process of its own, and the memory that it took at most."""
    found = subprocess.run(
        [sys.executable, "-c", READ, str(path)],
        cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    said, memory = found.stdout.splitlines()
    return said, int(memory)


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_that_unpacks_to_much_ends_in_a_sentence(tmp_path, name):
    path = tmp_path / name
    make, expected = BOMBS[name]
    make(path)
    assert path.stat().st_size < 8 * MIB
    said, memory = read(path)
    assert expected in said
    assert memory < MOST
    if "of" not in expected.split():
        assert name in said or expected == "damaged"


@pytest.mark.parametrize(
    ("line", "head"),
    [(b"\n", ROW), (b"null\n", ROW), (b"{}\n", ROW),
     (b'{"prompt":"","chosen":"","rejected":null}\n', ROW), (b"\v\n", ROW),
     (b'{"prompt":" ","chosen":" ","rejected":" "}\n', ROW), (b'{"chosen":[]}\n', ROW),
     (b"\n", b"prompt,chosen,rejected\nHi,a,b\n"), (b",,\n", b"prompt,chosen,rejected\nHi,a,b\n")],
)  # fmt: skip
def test_blank_rows_pass_at_ten_million_a_minute(tmp_path, line, head):
    """Measured in seconds of the processor, as other work on the machine takes its share."""
    count = 400_000
    path = tmp_path / ("pairs.csv" if head.startswith(b"prompt") else "pairs.jsonl")
    path.write_bytes(head + line * 2000)
    begun = time.process_time()
    load_pairs(path)
    fixed = time.process_time() - begun
    path.write_bytes(head + line * count)
    # 6 us a row; twice that, as two threads of one core slow each other down.
    most = 2 * count * 60 / 10_000_000
    for _ in range(3):  # what a machine that is slow for a while adds is not the reader's
        begun = time.process_time()
        pairs = load_pairs(path)
        took = time.process_time() - begun - fixed
        assert len(pairs) == 1
        assert pairs.rows_read in (1, count + 1)
        if took < most:
            break
    assert took < most


def test_rows_that_are_none_are_listed_each_for_itself(tmp_path):
    rows = [{}, {"a": 1}, {}, {"a": True}, {"a": 1}, {"prompt": "q", "chosen": 1, "rejected": True},
            {"prompt": "q", "chosen": True, "rejected": 1}, None, 1, 1.0, True, None]  # fmt: skip
    alone = []
    for number, row in enumerate(rows):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(ROW + json.dumps(row).encode())
        [found] = load_pairs(path).findings.to_pylist()
        alone.append((found["rule"], found["reason"]))
    path = tmp_path / "all.jsonl"
    path.write_bytes(ROW + "\n".join(map(json.dumps, [*rows, *rows])).encode())
    found = load_pairs(path).findings.to_pylist()
    assert [(row["rule"], row["reason"]) for row in found] == alone * 2
    assert [row["row"] for row in found] == [*range(2, 2 + 2 * len(rows))]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", b"prompt,chosen,rejected\nHi,a,b\n" + b"\r\n" * 50),
     ("a.jsonl", (ROW.decode() + "\n" * 50).encode("utf-16"))],
)  # fmt: skip
def test_blank_lines_that_are_read_one_by_one_are_bounded(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    encoding = "utf-16" if name.endswith("jsonl") else "utf-8"
    assert len(load_pairs(path, encoding=encoding)) == 1
    path.write_bytes(content + b"\n\0" * 2)
    with pytest.raises(DataError, match="more than 10 rows"):
        load_pairs(path, encoding=encoding, bounds={"rows": 10})


def test_every_bound_can_be_raised_and_lowered(tmp_path):
    path = tmp_path / "pairs.jsonl.zst"
    rows = [{"prompt": f"q{n}", "chosen": "a" * 5000, "rejected": "b"} for n in range(20)]
    zst(path, ["\n".join(map(json.dumps, rows)).encode()])
    assert len(load_pairs(path)) == 20
    for bounds, sentence in (
        (
            {"row_mb": 0.004},
            r"row 1: the row holds more than 0.004 MiB.*bounds=\{\"row_mb\": 0.016",
        ),
        ({"unpacked_gb": 0.00005}, "unpacks to more than 5e-05 GiB"),
        ({"pairs": 10}, "more than 10 pairs"),
        ({"rows": 10}, "more than 10 rows"),
    ):
        other = tmp_path / f"{next(iter(bounds))}.jsonl.zst"
        other.write_bytes(path.read_bytes())
        with pytest.raises(DataError, match=sentence) as caught:
            load_pairs(other, bounds=bounds, seed=1, sample=5)
        assert other.name in str(caught.value)
    for bounds in ({"row_mb": 64}, {"pairs": 20, "rows": 20}):
        assert len(load_pairs(path, bounds=bounds)) == 20


@pytest.mark.parametrize(
    ("bounds", "sentence"),
    [({"row": 1}, "no bound 'row'; the bounds are unpacked_gb, row_mb"), ({"row_mb": 0}, "above 0"),
     ({"row_mb": "4"}, "above 0"), ({"row_mb": True}, "above 0"), ([], "numbers by names"),
     ({"row_mb": float("nan")}, "above 0"), ({"pairs": float("inf")}, "above 0")],
)  # fmt: skip
def test_bounds_that_cannot_be_are_a_sentence(bounds, sentence):
    with pytest.raises(DataError, match=sentence):
        Bounds.of(bounds)


def test_a_large_answer_is_read_from_every_format(tmp_path):
    rows = [{"prompt": "q", "chosen": "é" * 3_000_000, "rejected": "b" * 3_000_000}]
    table = pa.Table.from_pylist(rows)
    (tmp_path / "a.jsonl").write_text(json.dumps(rows[0], ensure_ascii=False))
    (tmp_path / "a.json").write_text(json.dumps(rows, ensure_ascii=False))
    (tmp_path / "a.csv").write_text(f"prompt,chosen,rejected\nq,{rows[0]['chosen']},b\n")
    parquet(tmp_path / "a.parquet", table)
    arrow(tmp_path / "a.arrow", table)
    for path in sorted(tmp_path.glob("a.*")):
        [pair] = load_pairs(path).dataset
        assert pair["chosen"] == rows[0]["chosen"], path


def test_tables_with_dictionaries_lists_and_views_are_read_as_before(tmp_path):
    messages = [[{"role": "user", "content": f"q{n} " + "w" * 300}] for n in range(3000)]
    answers = [f"answer {n % 7} " + "v" * 99_000 for n in range(3000)]
    columns = {"prompt": messages, "chosen": answers, "rejected": ["b"] * 3000}
    table = pa.table(columns | {"score_chosen": list(range(3000))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=700)
    assert pq.read_metadata(tmp_path / "a.parquet").row_group(0).column(2).has_dictionary_page
    pairs = load_pairs(tmp_path / "a.parquet")
    assert pairs.dataset["chosen"][:] == answers
    assert [turns[0]["content"] for turns in pairs.dataset["prompt"]] == [
        turns[0]["content"] for turns in messages
    ]
    fields = [pa.field("prompt", pa.string_view()), pa.field("chosen", pa.large_string())]
    fields += [pa.field("rejected", pa.dictionary(pa.int8(), pa.string()))]
    rows = {"prompt": ["p", None], "chosen": ["a", "b"], "rejected": ["c", "d"]}
    for new in (pa.ipc.new_file, pa.ipc.new_stream):
        arrow(tmp_path / "a.arrow", pa.table(rows, schema=pa.schema(fields)), new)
        found = load_pairs(tmp_path / "a.arrow")
        assert (len(found), found.rows_read) == (1, 2)
