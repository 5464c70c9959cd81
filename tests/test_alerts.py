"""What a run is told of its own training."""

import numpy as np
import pandas as pd
import pytest

from plc_core.batch.jobs import run_jobs
from plc_core.engine.config import TrainConfig
from plc_core.engine.pipeline import train
from plc_core.runs import open_run
from plc_core.runs.alerts import training_alerts
from tests.fake_run import write_fake_run
from tests.paths import ROOT


def metrics(sizes, saturated=0.0):
    """Steps whose margins have these root mean squares; step 0 is numerical noise."""
    sizes = np.asarray(sizes, float)
    return pd.DataFrame(
        {
            "step": range(len(sizes)),
            "loss": 0.69,
            "margin_mean": 0.6 * sizes,
            "margin_std": 0.8 * sizes,
            "saturated": saturated,
            "learning_rate": 1e-9,
        }
    )


MOVES = [1e-7, 1e-7, *[0.3] * 38]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (metrics(MOVES), None),
        (metrics(MOVES, 0.8), None),
        (metrics(MOVES, 0.95), "Training is saturated: 95% of the pairs of the last 8 steps"),
        (metrics(MOVES).drop(columns="saturated"), None),  # of an older version
        (metrics([1e-7] * 40), "The policy has not moved: the margins are 1e-07 in size, and"),
        (metrics([1e-7] * 10), "raise the learning rate (its peak was 1e-09)"),
        (metrics([1e-7] * 9), None),  # warm-up is not over
        (metrics([0.1, *[0.2] * 39]), "The policy has not moved"),  # low precision, large noise
        (metrics([0.03, *[0.2] * 39]), "The signal is weak: the margins are 0.2 in size"),
        (metrics([0.01, *[0.2] * 39]), None),
        (metrics([0.0]), None),
        (pd.DataFrame(), None),
    ],
)
def test_an_alert_is_given_where_training_does_nothing(table, said):
    found = training_alerts(table, 40)
    assert len(found) == (said is not None)
    assert said is None or said.lower() in found[0].lower()


def world(folder, name, **changes):
    values = {"num_pairs": 64, "batch_pairs": 16, "pairs_per_forward": 16, "eval_prompts": 0}
    return TrainConfig(**(values | {"name": name, "runs_dir": str(folder)} | changes))


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("still", {"learning_rate": 1e-12}, "The policy has not moved"),
        ("far", {"learning_rate": 0.03, "beta": 100.0, "epochs": 4.0}, "Training is saturated"),
        ("healthy", {"learning_rate": 1e-3}, None),
    ],
)
def test_a_run_says_so_while_it_trains_and_in_its_folder(tmp_path, caplog, name, changes, said):
    run = train(world(tmp_path, name, **changes))
    assert [sentence.partition(":")[0] for sentence in run.info["alerts"]] == [said] * bool(said)
    assert run.status["alerts"] == run.info["alerts"]
    logged = [record.message for record in caplog.records if record.name == "plc_core.runs.alerts"]
    assert logged == run.info["alerts"]


class Finished:
    """An execution that is at work for two looks and then done."""

    def __init__(self) -> None:
        self.looks = 0

    def poll(self):
        self.looks += 1
        return 0 if self.looks > 2 else None

    def said(self):
        return ""

    def stop(self):
        pass


def test_a_job_prints_its_alerts_and_where_run_and_report_lie(tmp_path, capsys):
    def start(notebook, values, scratch):
        run = open_run(write_fake_run(tmp_path, "mine", pairs=8))
        run.set_status(state="running", alerts=["The policy has not moved: raise the rate."])
        return Finished()

    job = {"name": "mine", "runs_dir": str(tmp_path)}
    assert run_jobs(ROOT / "notebooks" / "01_train.ipynb", [job], start=start) == []
    said = capsys.readouterr().err
    assert said.count("mine: The policy has not moved: raise the rate.") == 1
    assert f"Run: {tmp_path / 'mine'}\n" in said
    assert f"Report: {tmp_path / 'mine' / 'report.html'}\n" in said
