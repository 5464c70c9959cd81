"""kill -9 at random moments: a resumed run ends as one that was never interrupted.

Each attempt samples pairs, reads the reference, trains and evaluates in a process forked from this
one, which kills itself with SIGKILL: when it is about to touch a file of the run or of its cache
(open for writing, rename, remove, make a folder), in the middle of a file that libraries write
themselves (weights, optimizer, scheduler, random states), or wherever it is when a timer ends. The
next attempt resumes, and is killed as well. PLC_KILLS=100 kills more often.
"""

import io
import os
import random
import resource
import signal
import sys
import threading
import traceback
from pathlib import Path

import pandas as pd
import pytest
import torch
import transformers.modeling_utils

from plc_core import evaluate
from plc_core.engine import visits
from plc_core.engine.checkpoints import STATE_FILE, trained_checkpoint
from plc_core.engine.config import TrainConfig
from plc_core.engine.pipeline import train
from plc_core.engine.trainer import PreferenceTrainer
from plc_core.runs import Run, open_run, resolve
from plc_core.storage.files import RunError, read_json

KILLS = int(os.environ.get("PLC_KILLS", "20"))
PROMPTS = 4
TIMING = ["seconds", "pairs_per_second"]
CHANGES = {"open", "os.rename", "os.remove", "os.mkdir"}
WRITERS = [(torch, "save"), (transformers.modeling_utils, "safe_save_file")]


def config(folder, name, **changes):
    """Two epochs of three steps, the last of four pairs, each in forwards of four pairs."""
    values = {
        "name": name, "runs_dir": str(folder), "num_pairs": 20, "epochs": 2.0, "batch_pairs": 8,
        "pairs_per_forward": 4, "save_steps": 2, "flip_rate": 0.3, "learning_rate": 1e-3,
    }  # fmt: skip
    return TrainConfig(**values | changes)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Events:
    """Counts what happens to the files of some folders, and dies at number `last`, from 0 on."""

    def __init__(self, folders, last):
        self.folders, self.last, self.count = tuple(map(str, folders)), last, 0
        sys.addaudithook(self.audit)
        for module, name in WRITERS:
            setattr(module, name, self.torn(getattr(module, name)))

    def audit(self, event, args):
        if event in CHANGES and str(args[0]).startswith(self.folders):
            written = event != "open" or (isinstance(args[1], str) and args[1].strip("rbt"))
            if written:
                self.happens()

    def happens(self):
        self.count += 1
        return self.count - 1 == self.last and die()

    def torn(self, write):
        def half(content, path, *args, **kwargs):
            write(content, path, *args, **kwargs)
            if self.count == self.last:
                os.truncate(path, Path(path).stat().st_size // 2)
            self.happens()

        return half


def forked(action, folders, last=None, seconds=None):
    """Do something in a forked process that dies at event `last` in the folders, or after so many
    seconds. Returns whether it was killed, and the number of events where it was not.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reader)
            sys.stdout = sys.stderr = io.StringIO()
            # A fork leaves the parent's pool of threads without threads. PyTorch makes another at
            # the first use, where two threads that load weights can meet ("Invalid thread pool!").
            torch.set_num_threads(torch.get_num_threads())
            events = Events(folders, last)
            if seconds is not None:
                threading.Timer(seconds, die).start()
            action()
            os.write(writer, str(events.count).encode())
        except BaseException:
            os.write(writer, traceback.format_exc().encode())
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as answer:
        count = answer.read()
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or count.isdecimal(), f"an attempt ended with an error: {count}"
    return killed, int(count or 0)


def attempt(settings, last=None, seconds=None):
    """Train and evaluate, and be killed at `last` or after `seconds`, as `forked` says it.

    The run has a cache of its own, which the attempts at it share.
    """
    run = resolve(settings.runs_dir, settings.name)
    cache = run.with_name(f"{run.name}-cache")

    def action():
        visits._STEPS_A_FILE = 1  # a file of visits a step: more to be cut in half
        os.environ["PLC_CACHE"] = str(cache)
        evaluate(train(settings), PROMPTS)

    return forked(action, [run, cache], last, seconds)


def final_files(run):
    checkpoint = trained_checkpoint(run)
    names = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth")
    files = {name: (checkpoint / name).read_bytes() for name in names}
    return files | {STATE_FILE: read_json(checkpoint / STATE_FILE)}  # without its run's id


def assert_same(run, whole):
    assert run.status["state"] == "done"
    pd.testing.assert_frame_equal(run.visits(), whole.visits())
    pd.testing.assert_frame_equal(
        run.metrics().drop(columns=TIMING), whole.metrics().drop(columns=TIMING)
    )
    assert final_files(run) == final_files(whole)


def assert_same_answers(run, whole):
    for name in ("generations/world.parquet", "judgements/gold-world.parquet"):
        pd.testing.assert_frame_equal(run.table(name), whole.table(name))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = train(config(tmp_path_factory.mktemp("whole"), "whole"))
    evaluate(run, PROMPTS)
    return run


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_whatever_moment_a_run_is_killed_it_ends_as_if_it_had_not_been(tmp_path, whole):
    killed, events = attempt(config(tmp_path, "counted"))
    assert not killed
    assert events > 60
    assert_same(open_run(tmp_path / "counted"), whole)
    drawn, kills, number = random.Random(0), 0, 0
    while kills < KILLS:
        number += 1
        name, killed = f"killed-{number}", True
        while killed:
            # An attempt that was killed before run.json was whole left nothing to go on with.
            begun = (tmp_path / name / "run.json").exists()
            by_time = drawn.random() < 0.3
            point = (
                {"seconds": drawn.uniform(0, 1)} if by_time else {"last": drawn.randrange(events)}
            )
            killed, _ = attempt(config(tmp_path, name, resume=begun), **point)
            kills += killed
        assert_same(open_run(tmp_path / name), whole)
        assert_same_answers(open_run(tmp_path / name), whole)


# ---- a disk that takes no more ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "what"), [(1_000_000, "the weights"), (2_000_000, "the optimizer's state")]
)
def test_a_disk_that_is_full_at_a_checkpoint_is_a_sentence_and_the_run_goes_on(
    tmp_path, whole, largest_file, size, what
):
    settings = config(tmp_path, "full")
    first = PreferenceTrainer._save_checkpoint

    def full_at_four(self, *args):
        if self.state.global_step == 4:
            largest_file(size)
        first(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PreferenceTrainer, "_save_checkpoint", full_at_four)
        with pytest.raises(RunError, match=r"checkpoint of step 4 cannot be written to .* resume"):
            train(settings)
    largest_file(resource.RLIM_INFINITY)
    run = open_run(tmp_path / "full")
    assert run.status["state"] == "failed"
    assert "cannot be written" in run.status["reason"]
    assert trained_checkpoint(run).name == "checkpoint-2"
    assert_same(train(settings.model_copy(update={"resume": True})), whole)


def test_a_disk_that_is_full_for_the_record_is_a_sentence(tmp_path, whole, monkeypatch):
    settings = config(tmp_path, "full")

    def full(run, columns):
        raise RunError(f"{run.path} cannot be written: No space left on device.")

    with monkeypatch.context() as patch:
        patch.setattr(Run, "append_visits", full)
        with pytest.raises(RunError, match="No space left on device"):
            train(settings)
    assert_same(train(settings.model_copy(update={"resume": True})), whole)


@pytest.mark.skipif(not Path("/sys").is_dir(), reason="needs a folder that nobody can write")
def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path, monkeypatch):
    with pytest.raises(RunError, match="/sys/plc cannot hold runs"):
        train(config("/sys/plc", "x"))
    monkeypatch.setenv("PLC_CACHE", "/sys/plc")
    with pytest.raises(RunError, match=r"cache folder /sys/plc\S* cannot be written"):
        train(config(tmp_path, "x"))
