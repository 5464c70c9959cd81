"""The record of a step: what stops a run, and what is there at which moment."""

import dataclasses

import pytest
import torch

from plc_core.engine.visits import HostCopy, VisitRecorder
from plc_core.objective import PairLogps, build_objective
from plc_core.runs import create_run
from plc_core.storage.files import RunError

IDS = [f"pair-{i}" for i in range(8)]


@pytest.fixture
def recorder(tmp_path):
    return VisitRecorder(create_run(tmp_path, "recorded", {"kind": "training"}), IDS, beta=0.5)


def visit(recorder, rows, step=0, broken=0.0, alike=()):
    """A step of the pairs at `rows`; `broken` is added to every margin, and `alike` are rows whose
    answers have the same tokens.
    """
    objective = build_objective("plc", beta=0.5)
    generator = torch.Generator().manual_seed(step)
    values = torch.randn(4, len(rows), generator=generator)
    logps = PairLogps(*values, *torch.full((2, len(rows)), 7))
    out = objective(logps, 0.5)
    # As on a GPU, where the objective itself does not look at the values.
    out = dataclasses.replace(out, margin=out.margin + broken)
    distinct = torch.tensor([row not in alike for row in rows])
    recorder.add(torch.tensor(rows), logps, out, out.routing, distinct)
    recorder.close_step(step, 0.25, objective.router)


def end(recorder, grad_norm=1.0):
    recorder.end_step(1e-3, torch.tensor(grad_norm), 0.5, seconds=2.0, total_steps=10)


def test_a_step_is_read_once_it_has_ended(recorder):
    visit(recorder, [3, 1, 2, 0])
    recorder.flush()
    assert recorder.run.visits().empty  # its update has not been made
    end(recorder)
    recorder.flush()
    visits, (row,) = recorder.run.visits(), recorder.run.metrics().to_dict("records")
    assert visits["pair_id"].tolist() == ["pair-3", "pair-1", "pair-2", "pair-0"]
    assert row["margin_mean"] == pytest.approx(visits["margin"].mean())
    assert row["ema_mean"] == pytest.approx(visits["margin"].mean())  # of the first step
    assert (row["learning_rate"], row["grad_norm"], row["gamma"]) == (1e-3, 1.0, 0.5)
    assert (row["seconds"], row["pairs_per_second"]) == (2.0, 2.0)


def test_the_posterior_takes_a_step_in_the_order_of_the_training_set(recorder):
    """Whichever forward or rank had which pair: split otherwise, a step says the same."""
    for step in (0, 1):  # the first is before any update, and no evidence
        visit(recorder, [3, 1, 2, 0], step)
        end(recorder)
    recorder.flush()
    margins = recorder.run.visits().query("step == 1").sort_values("pair_id")["margin"]
    assert recorder.posterior.state_dict()["margins"] == [pytest.approx(margins.tolist())]


def test_pairs_whose_answers_are_alike_are_no_evidence_of_noise(recorder):
    for step in (0, 1):
        visit(recorder, [3, 1, 2, 0], step, alike=(1, 2))
        end(recorder)
    (margins,) = recorder.posterior.state_dict()["margins"]
    assert [margin is None for margin in margins] == [False, True, True, False]


def test_on_a_gpu_a_step_is_read_while_the_next_one_computes(recorder):
    recorder.reads_later = True
    for step in range(3):
        visit(recorder, [step, step + 4], step)
        recorder.write_if_due()  # once the step's forwards are asked for
        assert len(recorder._steps) == step
        end(recorder)
    recorder.flush()
    assert recorder.run.visits()["step"].tolist() == [0, 0, 1, 1, 2, 2]


def test_a_rank_that_fails_alone_keeps_what_was_read(recorder, monkeypatch):
    recorder.reads_later = True
    for step in range(2):
        visit(recorder, [step, step + 4], step)
        recorder.write_if_due()
        end(recorder)
    state = type("", (), {"num_processes": 2, "is_main_process": True})
    monkeypatch.setattr("plc_core.engine.visits.PartialState", state)
    recorder.keep()  # the last step's rest is with ranks that will not answer
    assert recorder.run.visits()["step"].tolist() == [0, 0]


def test_a_run_that_fails_keeps_every_step_that_ended_once(recorder, monkeypatch):
    recorder.reads_later = True
    visit(recorder, [0, 1])
    end(recorder)
    monkeypatch.setattr(recorder, "_metrics_row", interrupt)
    with pytest.raises(KeyboardInterrupt):
        recorder.settle()
    monkeypatch.undo()
    recorder.keep()
    recorder.keep()
    assert recorder.run.visits()["pair_id"].tolist() == ["pair-0", "pair-1"]
    assert len(recorder.run.metrics()) == 1


def interrupt(*args):
    raise KeyboardInterrupt


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_broken_margin_stops_the_step_before_its_update(recorder, value):
    with pytest.raises(RunError, match=r"2 pairs .* not finite .*: pair-5, pair-6\. The weights"):
        visit(recorder, [5, 6], broken=value)


@pytest.mark.parametrize("later", [False, True])
def test_a_broken_gradient_is_told_and_its_step_kept(recorder, later):
    recorder.reads_later = later
    visit(recorder, [0, 1])
    with pytest.raises(RunError, match="gradient of step 0 is not finite"):
        end(recorder, grad_norm=float("nan"))
        recorder.flush()
    recorder.keep()
    assert len(recorder.run.visits()) == 2


def test_a_copy_to_the_host_stays_as_it_was():
    values = torch.zeros(2)
    copy = HostCopy(values)
    values += 1
    assert copy.numpy().tolist() == [0, 0]
