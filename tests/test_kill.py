"""kill -9 at random moments: a resumed run ends as one that was never interrupted.

Each attempt runs in a process forked from this one, which kills itself with SIGKILL: when it is
about to touch a file of the run (open for writing, rename, remove, make a folder), in the middle
of a file that libraries write themselves (weights, optimizer, scheduler, random states), or
wherever it is when a timer ends. The next attempt resumes, and is killed as well.
"""

import io
import os
import random
import signal
import sys
import threading
from pathlib import Path

import pandas as pd
import pytest
import torch
import transformers.modeling_utils

from plc_core.engine import visits
from plc_core.engine.checkpoints import trained_checkpoint
from plc_core.engine.config import TrainConfig
from plc_core.engine.objective_state import STATE_FILE
from plc_core.engine.pipeline import train
from plc_core.runs import open_run, resolve

KILLS = 30
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
    """Counts what happens to the files of a folder, and dies at number `last`, from 0 on."""

    def __init__(self, folder, last):
        self.folder, self.last, self.count = str(folder), last, 0
        sys.addaudithook(self.audit)
        for module, name in WRITERS:
            setattr(module, name, self.torn(getattr(module, name)))

    def audit(self, event, args):
        if event in CHANGES and str(args[0]).startswith(self.folder):
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


def attempt(settings, last=None, seconds=None):
    """Train in a forked process that dies at event `last` or after `seconds`.

    Returns whether it was killed, and the number of events where it was not.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reader)
            sys.stdout = sys.stderr = io.StringIO()
            visits._STEPS_A_FILE = 1  # a file of visits a step: more to be cut in half
            events = Events(resolve(settings.runs_dir, settings.name), last)
            if seconds is not None:
                threading.Timer(seconds, die).start()
            train(settings)
            os.write(writer, str(events.count).encode())
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as answer:
        count = answer.read()
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or count, "an attempt ended with an error"
    return killed, int(count or 0)


def final_files(run):
    checkpoint = trained_checkpoint(run)
    names = (STATE_FILE, "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth")
    return {name: (checkpoint / name).read_bytes() for name in names}


def assert_same(run, whole):
    assert run.status["state"] == "done"
    pd.testing.assert_frame_equal(run.visits(), whole.visits())
    pd.testing.assert_frame_equal(
        run.metrics().drop(columns=TIMING), whole.metrics().drop(columns=TIMING)
    )
    assert final_files(run) == final_files(whole)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(config(tmp_path_factory.mktemp("whole"), "whole"))


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
