"""The report of a training run: what it says first, the pairs it lists, the commands it gives."""

import re
import shlex

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from notebooks.training_report import (
    agreement_before_training,
    headline,
    next_steps,
    ranking_table,
    suspicious,
    suspicious_pairs,
)
from plc_core import open_run
from plc_core.parameters import notebook_values
from tests.fake_run import write_fake_run
from tests.paths import ROOT
from tests.rewritten import rewrite


@pytest.fixture
def own(tmp_path):
    """A run on one's own data: no true states, no reversed labels, no scores, one odd text."""
    path = write_fake_run(tmp_path, "own", pairs=200, posterior=True)
    pairs = pd.read_parquet(path / "pairs.parquet")
    names = [n for n in pairs if n.startswith(("oracle", "score", "rating"))]
    pairs = pairs.drop(columns=names).assign(flipped=False)
    pairs["chosen"] = "<script>alert(1)</script> **bold** " + pairs["chosen"] + "x" * 5_000
    schema = pq.read_schema(path / "pairs.parquet")
    kept = pa.schema([field for field in schema if field.name in pairs])
    rewrite(path / "pairs.parquet", pa.Table.from_pandas(pairs, kept, preserve_index=False))
    return open_run(path)


def told(run, **changes):
    run.update_info(**changes)
    return run


def config(run, **changes):
    return told(run, config=run.info["config"] | changes)


def test_it_says_first_what_came_of_the_run(own):
    config(own, data="/data/my pairs.jsonl", model="/models/tiny", objective="dpo")
    said = headline(own)
    lead = re.search(r'class="plc-lead">(.*?)</p>', said)[1]
    assert "agreed with <b>63 %</b> [53, 72]" in lead and "<b>27 % [21, 33]</b>" in lead
    assert "DPO (β = 0.2) trained tiny on 200 pairs of my pairs.jsonl" in said
    assert "AUROC" not in said and "nan" not in said.lower() and "n=0" not in said


def test_what_is_not_known_yet_and_what_went_wrong_is_said(own):
    metrics = own.metrics().assign(noise_low=0.0, noise_high=0.48, noise_rate=0.24)
    rewrite(own.path / "metrics.parquet", metrics)
    told(own, alerts=["The policy has not moved: <raise> the learning rate."])
    said = headline(own)
    assert "not known yet" in said and "24 %" not in said
    assert '<div class="plc-alert">The policy has not moved: &lt;raise&gt;' in said
    assert suspicious(own).empty
    assert "No pair is listed" in suspicious_pairs(own)


def test_where_the_truth_is_known_the_ranking_is_judged(tmp_path):
    run = open_run(write_fake_run(tmp_path, "world", pairs=120))
    assert "reversed labels ranked by q_flip, AUROC" in headline(run)
    table = ranking_table(run).set_index("score")
    assert list(table.index) == ["q_flip", "-margin"]
    assert re.fullmatch(r"0\.\d{3} \[0\.\d{3}, [01]\.\d{3}\]", table.loc["q_flip", "AUROC"])
    assert "Truth: " in suspicious_pairs(run)


def test_the_pairs_with_the_lowest_margins_are_listed_with_their_texts(own):
    last = own.visits().sort_values("step").drop_duplicates("pair_id", keep="last")
    lowest = last[last["margin"] < 0].nsmallest(50, "margin")
    table = suspicious(own)
    assert table["pair_id"].tolist() == lowest["pair_id"].tolist()
    assert len(table) == 50
    html = suspicious_pairs(own)
    assert [*dict.fromkeys(re.findall(r"<code>(.*?)</code>", html))] == table["pair_id"].tolist()
    assert re.search(r"m −\d", html) and not re.search(r"[mz] -", html)
    assert "starts with the highest w · q_flip; sort it by margin, ascending" in html
    assert "<script>" not in html and "&lt;script&gt;alert(1)&lt;/script&gt; **bold**" in html
    assert "more characters" in html and "Truth" not in html
    assert html.count("<div") == html.count("</div>")
    assert html.count("<details>") == html.count("</details>") > 50


def test_agreement_is_of_labels_not_trained_on_yet():
    visits = pd.DataFrame(
        {
            "step": np.repeat([0, 1, 2, 3, 4], 4),
            "epoch": np.repeat([0, 0.25, 0.5, 0.75, 1.0], 4),
            "margin": [-1] * 8 + [1, 1, 1, -1] * 2 + [9] * 4,
        }
    )
    share, low, high, n = agreement_before_training(visits)
    assert (share, n) == (0.75, 8)
    assert low < 0.75 < high
    assert agreement_before_training(visits.head(0)) is None


def test_the_commands_are_those_of_the_checkout_and_train_on_what_was_decided(own):
    config(own, data="/data/x.jsonl", model="/my models/tiny", lora_rank=8, flip_rate=0.2)
    blocks = re.findall("<pre>(.*?)</pre>", next_steps(own))
    app, export, again = (shlex.split(re.sub("&#x27;", "'", block)) for block in blocks)
    assert app[-1] == str(own.path.parent)
    assert app[:3] == [".venv/bin/plc", "app", "--runs"]
    assert export[-1] == str(own.path)
    exec(export[2].replace("sys.argv[1]", repr(export[-1])), {})  # as the shell would
    given = {k: yaml.safe_load(v) for k, v in zip(again[5::3], again[6::3], strict=True)}
    values = notebook_values(ROOT / again[3], given)
    assert values["name"] == "own-cleaned" and values["model"] == "/my models/tiny"
    assert values["flip_rate"] == 0.0 and values["lora_rank"] == 8
    cleaned = pd.read_parquet(values["data"])
    assert len(cleaned) == len(own.pairs())
