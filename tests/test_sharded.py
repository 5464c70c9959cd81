"""Weights sharded over two ranks (FSDP2, on CPUs): trained, resumed and checked as on one.

accelerate offers FSDP2 for GPUs only; the script below tells it that two CPU processes are such.
"""

import json
import os
import re
import shutil
import subprocess
import sys

import pandas as pd
import pytest
import safetensors.torch
import torch

from plc_core.engine import pipeline
from plc_core.engine.checkpoints import last_checkpoint, trained_checkpoint
from plc_core.engine.config import TrainConfig
from plc_core.engine.pipeline import train
from plc_core.runs import open_run
from plc_core.storage.files import RunError
from plc_core.storage.manifest import list_checksums
from tests.paths import ROOT

SCRIPT = """
import json, os, sys
os.environ |= {
    "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
}
from accelerate import PartialState
from accelerate.utils import DistributedType
from transformers import TrainerCallback

made = PartialState.__init__

def as_gpus(self, *args, **kwargs):
    made(self, *args, **kwargs)
    if self.distributed_type == DistributedType.MULTI_CPU:
        self._shared_state["distributed_type"] = DistributedType.MULTI_GPU

PartialState.__init__ = as_gpus
from plc_core.engine import pipeline
from plc_core.engine.config import TrainConfig
from plc_core.engine.trainer import PreferenceTrainer

load = pipeline.load_policy

class Dies(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            control.should_save = True

    def on_save(self, args, state, control, **kwargs):
        if state.global_step == 2:
            raise KeyboardInterrupt

begun = PreferenceTrainer.__init__

def dying(self, *args, **kwargs):
    begun(self, *args, **kwargs)
    self.add_callback(Dies())

for values, kind in json.loads(sys.argv[1]):
    os.environ["FSDP_STATE_DICT_TYPE"] = kind
    config = TrainConfig(**values)
    double = lambda *args: (lambda m, t: (m.double(), t))(*load(*args))
    pipeline.load_policy = double if config.precision == "fp32" else load
    PreferenceTrainer.__init__ = dying
    try:
        pipeline.train(config)
    except KeyboardInterrupt:
        pass
    PreferenceTrainer.__init__ = begun
    pipeline.train(config.model_copy(update={"resume": True}))
"""


def config(folder, name, **changes):
    """45 pairs over three steps; the epoch does not divide evenly over two ranks."""
    values = {
        "name": name, "runs_dir": str(folder), "num_pairs": 45, "batch_pairs": 16,
        "pairs_per_forward": 4, "flip_rate": 0.3, "learning_rate": 1e-3, "save_steps": 2,
        "calibration_order": "score-first",
    }  # fmt: skip
    return TrainConfig(**values | changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs on two ranks, interrupted after step 2 and resumed, and the same on one."""
    folder = tmp_path_factory.mktemp("sharded")
    (folder / "ranks.py").write_text(SCRIPT)
    runs = [
        (config(folder, "full").model_dump(), "FULL_STATE_DICT"),
        (config(folder, "lora", lora_rank=4).model_dump(), "SHARDED_STATE_DICT"),
        (config(folder, "bf16", lora_rank=4, precision="bf16").model_dump(), "FULL_STATE_DICT"),
    ]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = subprocess.run(
        [*command, str(folder / "ranks.py"), json.dumps(runs)],
        capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | {"PYTHONPATH": "."},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    with pytest.MonkeyPatch.context() as patch:
        load = pipeline.load_policy
        patch.setattr(
            pipeline, "load_policy", lambda *args: (lambda m, t: (m.double(), t))(*load(*args))
        )
        train(config(folder, "full-one"))
        train(config(folder, "lora-one", lora_rank=4))
    train(config(folder, "bf16-one", lora_rank=4, precision="bf16"))
    train(config(folder, "bf16-split", lora_rank=4, precision="bf16", pairs_per_forward=8))
    return folder


@pytest.mark.parametrize(("name", "tolerance"), [("full", 1e-6), ("lora", 1e-3)])
def test_two_ranks_with_sharded_weights_train_as_one(folder, name, tolerance):
    """Adapters are fp32 in any case, so that Adam's first steps differ by more."""
    two, one = open_run(folder / name), open_run(folder / f"{name}-one")
    assert two.status["state"] == "done"
    assert two.info["hardware"]["processes"] == 2
    both = (r.visits().set_index(["step", "pair_id"]).sort_index() for r in (two, one))
    pd.testing.assert_frame_equal(*both, atol=tolerance, rtol=1e-5)
    columns = ["loss", "grad_norm", "ema_mean", "ema_std"]
    pd.testing.assert_frame_equal(
        two.metrics()[columns], one.metrics()[columns], rtol=tolerance, atol=tolerance
    )


def test_in_16_bits_ranks_change_no_more_than_other_forwards_do(folder):
    """bfloat16 rounds each forward in its own way, and ranks forward pairs in other company."""
    ranks, one, split = (
        open_run(folder / name).visits().set_index(["step", "pair_id"]).sort_index()["margin"]
        for name in ("bf16", "bf16-one", "bf16-split")
    )
    assert ranks.index.equals(one.index)
    assert ((ranks - one) ** 2).mean() < 9 * ((split - one) ** 2).mean()


def test_log_probs_leave_sharded_weights_unrounded(folder):
    """bfloat16 would round a sum of ten nats by 0.03; so much must not be added to step 0."""
    noise = [
        open_run(folder / name).info["margin_noise"]["step_0_std"] for name in ("bf16", "bf16-one")
    ]
    assert noise[0] == pytest.approx(noise[1], rel=0.05)


def test_a_checkpoint_of_sharded_weights_loads_like_any_other(folder):
    two, one = (
        safetensors.torch.load_file(
            trained_checkpoint(open_run(folder / name)) / "model.safetensors"
        )
        for name in ("full", "full-one")
    )
    assert two.keys() - one.keys() == {"lm_head.weight"}  # the embedding's, once more
    for name, weights in one.items():
        torch.testing.assert_close(two[name], weights, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "file", "damage"),
    [
        ("full", "optimizer.bin", None),
        ("full", "optimizer.bin", 1000),
        ("full", "rng_state_1.pth", None),
        ("full", "model.safetensors", None),
        ("full", "checksums.json", None),
        ("lora", "optimizer_0/__1_0.distcp", None),
        ("lora", "optimizer_0/__1_0.distcp", 1000),
        ("lora", "optimizer_0/.metadata", None),
        ("lora", "pytorch_model_fsdp_0/__0_0.distcp", None),
    ],
)
def test_a_sharded_checkpoint_is_used_only_when_it_is_whole(folder, tmp_path, name, file, damage):
    shutil.copytree(folder / name, tmp_path / name)
    run = open_run(tmp_path / name)
    checkpoint = last_checkpoint(run)
    if damage is None:
        (checkpoint / file).unlink()
    else:
        os.truncate(checkpoint / file, damage)
    with pytest.raises(RunError, match=f"{re.escape(file)} is damaged or missing. Delete"):
        last_checkpoint(run)


def test_a_deepspeed_checkpoint_is_known_by_its_list(folder, tmp_path):
    """Its files by name only; nothing here runs DeepSpeed."""
    shutil.copytree(folder / "full-one", tmp_path / "zero3")
    run = open_run(tmp_path / "zero3")
    checkpoint = trained_checkpoint(run)
    (checkpoint / "global_step3").mkdir()
    shard = checkpoint / "global_step3" / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    (checkpoint / "optimizer.pt").rename(shard)
    with pytest.raises(RunError, match=r"optimizer\.pt is damaged or missing"):
        last_checkpoint(run)
    list_checksums(checkpoint)
    assert last_checkpoint(run) == checkpoint
    shard.unlink()
    with pytest.raises(RunError, match=r"global_step3/zero_pp_rank_0\S* is damaged or missing"):
        last_checkpoint(run)
