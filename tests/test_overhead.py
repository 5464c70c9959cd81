"""The benchmark beside TRL: one real run in a tiny setting, its table and its sentence."""

import json

import numpy as np
import pandas as pd
import pytest

from notebooks.overhead import measure as overhead
from notebooks.overhead.measure import OverheadConfig
from notebooks.overhead.table import (
    DPO,
    PLC,
    REFERENCE,
    found,
    overhead_table,
    reading,
    runtime_table,
)
from plc_core.analysis.paper import published
from plc_core.batch import run_notebook
from plc_core.parameters import ParameterError, checked, notebook_values
from plc_core.runs import open_run
from tests.paths import ROOT, shared_file

NOTEBOOK = ROOT / "notebooks" / "11_overhead.ipynb"
TRL, STORED = (
    "TRL, 8 a forward, no checkpointing",
    "TRL, 8 a forward, checkpointing, precompute_ref_log_probs True",
)


def timings(**seconds):
    """Of 10 pairs a step, two rounds: seconds of each step by name. TRL's own pass takes 0.05."""
    rows = [
        {"what": name, "round": number, "seconds": steps, "pairs": 10, "peak_gib": 2.0,
         "reference_seconds": 0.05 if name == STORED and not number else np.nan, "error": None}
        for name, rounds in seconds.items()
        for number, steps in enumerate(rounds)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def measured(plc=((1.1, 1.1), (1.2, 1.2))):
    return timings(
        **{
            DPO: [[1.0, 1.0], [1.0, 1.0]],
            PLC: plc,
            REFERENCE: [[0.25], [0.25]],
            TRL: [[5.0], [5.0]],
            STORED: [[4.0], [4.0]],
        }
    )


def test_the_notebook_runs_and_its_report_begins_with_a_sentence(tmp_path):
    values = {
        "name": "overhead", "runs_dir": str(tmp_path), "model": "world", "lora_rank": 2,
        "batch_pairs": 8, "steps": 2, "warm_up": 1, "rounds": 2,
        "trl_settings": [
            {"pairs_per_forward": 4, "gradient_checkpointing": False},
            {"pairs_per_forward": 8, "precompute_ref_log_probs": True},
        ],
    }  # fmt: skip
    run_notebook(NOTEBOOK, values)
    run = open_run(tmp_path / "overhead")
    table = run.table("timings.parquet")
    assert table.groupby("what").size().to_dict() == {
        DPO: 2, PLC: 2, REFERENCE: 2, "TRL, 4 a forward, no checkpointing": 2, STORED: 2,
    }  # fmt: skip
    passes = table.groupby("what")["reference_seconds"].max()
    assert passes.notna().sum() == 1 and passes[STORED] > 0
    trained = table[table["what"] != REFERENCE]
    assert {len(s) for s in trained["seconds"]} == {2}
    assert (trained["peak_gib"] > 0.1).all()
    # Interleaved: the second round goes backwards.
    assert table["what"].tolist() == table["what"].tolist()[::-1]
    notebook = json.loads((run.path / "notebook.ipynb").read_text())
    shown = json.dumps(notebook["cells"], ensure_ascii=False)
    assert "**PLC-DPO's step against DPO's: " in shown
    assert "compared with TRL at its best of 2 settings" in shown
    report = (run.path / "report.html").read_text()
    said, picture, table = map(report.index, ("step against DPO", 'class="plc-figure"', "peak GiB"))
    assert said < picture < table < report.index("How to read this")
    for shown in ("110-step total", "not measured", "1.362 [1.312, 1.430]", "2 of 2 steps"):
        assert shown in report


@pytest.mark.parametrize("installed", [False, True])
def test_trl_is_tried_at_its_best_on_a_gpu(monkeypatch, installed):
    """With the reference computed before, many pairs a forward, and Liger where it is installed."""
    monkeypatch.setattr(overhead, "find_spec", lambda name: object() if installed else None)
    config = OverheadConfig(name="names", batch_pairs=64)
    names = list(overhead._contenders(config, overhead.Work(lambda: None, None, True)))[3:]
    before = "no checkpointing, precompute_ref_log_probs True"
    assert {f"TRL, {n} a forward, {before}" for n in (8, 16, 32)} < set(names)
    liger = [name for name in names if name.endswith("use_liger_kernel True")]
    assert (f"TRL, 16 a forward, {before}, use_liger_kernel True" in liger) == installed
    assert len(names) == len(set(names)) == (9 if installed else 5)


def test_the_defaults_of_the_notebook_are_the_configs():
    assert notebook_values(NOTEBOOK, {}) == OverheadConfig(name="overhead").model_dump()


def test_the_table_in_numbers():
    table = overhead_table(measured([[1.0, 4.0], [2.0, 2.0]]), 50.0, 0.05)
    row = table.loc[PLC].drop("remark")
    assert row.to_dict() == pytest.approx(
        {"pairs/s": 5.0, "slowest step": 2.5, "fastest step": 10.0, "tokens/s": 250.0,
         "peak GiB": 2.0, "% of matrix rate": 25.0}
    )  # fmt: skip
    assert np.isnan(table.loc[REFERENCE, "% of matrix rate"])


def test_the_sentence_has_the_sign_and_counts_the_reference_pass():
    sentence = reading(measured())
    assert "+15.0 % time (from +10.0 to +20.0 over 2 rounds; it takes more time" in sentence
    assert "TRL at its best of 2 settings" in sentence
    assert f"4.00 times as many ({STORED}: 2.0 GiB here, 2.0 there)" in sentence
    # 10 pairs take 1 s and their reference 0.25 s; TRL 4 s and 0.5 s, or 5 s as it goes.
    assert (
        f"over one epoch, both reference passes included, 3.60 times as many ({STORED}: "
        in sentence
    )
    slow = measured().assign(
        reference_seconds=[0.2 if what == STORED else np.nan for what in measured()["what"]]
    )
    assert f"included, 4.00 times as many ({TRL}: " in reading(slow)
    assert "it takes less time" in reading(measured([[0.9], [0.8]]))
    assert "no difference from DPO's step shown" in reading(measured([[0.9], [1.1]]))
    one = measured().query("round == 0")
    assert "+10.0 % time (one round, which says nothing of a difference)" in reading(one)
    assert found(one).startswith("**PLC-DPO's step against DPO's: +10.0 % time (one round, ")
    assert ")**; compared with TRL at its best" in found(one)


def test_the_runtime_table_is_the_papers_with_ones_own_above_it():
    """Windows of 120 steps: totals of their first 110, medians and ranges over three windows."""
    dpo = [[1.0] * 110 + [9.0] * 10, [1.2] * 120, [1.1] * 120]
    plc = [[1.1] * 120, [1.2] * 120, [1.1] * 120]
    table = runtime_table(timings(**{DPO: dpo, PLC: plc, TRL: [[5.0]] * 3}))
    assert table.loc["here"].to_dict("index") == {
        DPO: {"110-step total": "121 s", "Median s/step": "1.100 [1.000, 1.200]",
              "Overhead": "–", "windows": "3 of 120 steps"},
        PLC: {"110-step total": "121 s", "Median s/step": "1.100 [1.100, 1.200]",
              "Overhead": "+0.0 [+0.0, +10.0] %", "windows": "3 of 120 steps"},
    }  # fmt: skip
    assert table.loc["paper, eight B200"].to_dict("index") == {
        DPO: {"110-step total": "378 s", "Median s/step": "1.362 [1.312, 1.430]",
              "Overhead": "–", "windows": "3 of 500 steps"},
        PLC: {"110-step total": "377 s", "Median s/step": "1.110 [1.068, 1.190]",
              "Overhead": "≈ 0 (-18.5 % by these medians)", "windows": "3 of 500 steps"},
    }  # fmt: skip


def test_the_runtime_table_leaves_open_what_was_not_measured():
    """Windows shorter than the paper's run have no total; without DPO there is no overhead."""
    table = runtime_table(measured())
    assert table.loc["here", "110-step total"].tolist() == ["not measured"] * 2
    assert table.loc[("here", PLC), "Overhead"] == "+15.0 [+10.0, +20.0] %"
    lost = measured()
    lost["seconds"] = lost["seconds"].where(lost["what"] != DPO, lost["seconds"].map(lambda _: []))
    table = runtime_table(lost).loc["here"]
    assert table["Overhead"].tolist() == ["–", "–"]
    assert table["Median s/step"].tolist() == ["–", "1.150 [1.100, 1.200]"]
    assert (
        reading(lost) == "PLC-DPO and DPO were not both measured, so there is nothing to compare."
    )


def test_the_windows_of_the_published_table_are_those_of_its_caption():
    source = shared_file("paper/plc-dpo.tex").read_text()
    (line,) = {(row.windows, row.window_steps) for row in published("runtime").itertuples()}
    assert line == (3, 500)
    assert "three repeated 500-step windows" in source
    assert "eight NVIDIA B200 GPUs" in source


def test_a_setting_that_does_not_fit_is_said_and_not_compared():
    table = measured()
    out = table["what"].isin([TRL, STORED])
    table.loc[out, "error"] = "out of memory"
    table["seconds"] = [[] if lost else s for lost, s in zip(out, table["seconds"], strict=True)]
    assert reading(table).endswith("no setting of TRL could be run here.")
    row = overhead_table(table, 50.0, 0.05).loc[TRL]
    assert row["remark"] == "out of memory"
    assert np.isnan(row["pairs/s"])


@pytest.mark.parametrize("setting", [{"optim": "sgd"}, {"pairs_per_forward": 48}], ids=str)
def test_a_setting_of_trl_that_cannot_fill_a_step_is_refused(setting):
    with pytest.raises(ParameterError, match="needs pairs_per_forward, which divides batch_pairs"):
        checked({"name": "x", "trl_settings": [setting]}, OverheadConfig)
