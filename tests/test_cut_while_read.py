"""A run folder whose JSON is cut while a page reads it: a sentence, and no traceback in the log."""

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.fake_run import write_fake_answers, write_fake_run
from tests.paths import ROOT

PAGES = [f"views/{path.name}" for path in sorted((ROOT / "app" / "views").glob("*.py"))]
HALVES = (0, 1, 2)
"""How much of the text is left: nothing, half, or all but the last brace."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs directory with a run that has files of every kind."""
    root = tmp_path_factory.mktemp("runs")
    path = write_fake_run(root, "cut", seed=9, batch=5, votes=True, ties=12)
    write_fake_answers(path)
    write_fake_run(root, "other", seed=1)
    (path / "decisions").mkdir(exist_ok=True)
    entry = {"pair_id": "0" * 16, "decision": "keep", "note": "", "decided": "now"}
    (path / "decisions" / "decisions.jsonl").write_text(json.dumps(entry) + "\n")
    return root


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[..., str]:
    """A function that opens a page and says its warnings, once nothing of it broke."""
    caplog.set_level(logging.WARNING)

    def opened(root: Path, view: str, **query: str) -> str:
        monkeypatch.setenv("PLC_RUNS", str(root))
        monkeypatch.setattr("sys.argv", ["inspector.py"])
        app = AppTest.from_file(ROOT / "app" / "inspector.py", default_timeout=600)
        for key, value in query.items():
            app.query_params[key] = value
        app.switch_page(view).run()
        assert not app.exception, (view, app.exception)
        traced = [record for record in caplog.records if record.exc_info]
        assert not traced, (view, [(r.getMessage(), r.exc_info) for r in traced])
        kinds = ("warning", "error", "info", "text", "caption")
        return "\n".join(str(element.value) for kind in kinds for element in app.get(kind))

    return opened


def json_files(run: Path) -> Iterator[Path]:
    for pattern in ("*.json", "*.jsonl"):
        yield from run.rglob(pattern)


def cut(text: str, kept: int) -> str:
    return ("", text[: len(text) // 2], text.rstrip()[:-1])[kept]


@pytest.mark.parametrize("kept", HALVES)
@pytest.mark.parametrize("view", PAGES)
def test_files_that_were_cut_are_named(
    whole: Path, tmp_path: Path, page: Callable[..., str], view: str, kept: int
) -> None:
    for place, file in enumerate(json_files(whole / "cut")):
        root = tmp_path / str(place)
        shutil.copytree(whole, root)
        name = file.relative_to(whole)
        (root / name).write_text(cut((root / name).read_text(), kept))
        told = page(root, view, run="cut")
        if file.name == "run.json":
            assert "run.json" in told.replace("\\", "")


@pytest.mark.parametrize("view", PAGES)
def test_a_file_that_is_cut_between_two_reads_ends_in_a_sentence(
    whole: Path, page: Callable[..., str], view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The n-th read of any JSON file meets half of it, for every n that there is."""
    read, count, at = Path.read_bytes, 0, 0

    def read_bytes(path: Path) -> bytes:
        nonlocal count
        text = read(path)
        if path.suffix not in (".json", ".jsonl") or not path.is_relative_to(whole):
            return text
        count += 1
        return text[: len(text) // 2] if count == at else text

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    page(whole, view, run="cut")
    reads, tries = count, 0
    while at < max(reads, count):
        at, count, tries = at + 1, 0, tries + 1
        page(whole, view, run="cut")
    assert tries >= 1
