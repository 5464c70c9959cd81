"""DeepSpeed's ZeRO-3 over two ranks, on CPUs: trained, interrupted and resumed as on one.

accelerate offers DeepSpeed for GPUs only; the script tells it that two CPU processes are such.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pandas as pd
import pytest
import yaml

from plc_core.engine.checkpoints import trained_checkpoint
from plc_core.engine.pipeline import train
from plc_core.runs import open_run
from tests.paths import ROOT
from tests.test_sharded import config

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="DeepSpeed is not installed (DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed)",
)

SCRIPT = """
import json, sys
import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from transformers import TrainerCallback

made, joined = PartialState.__init__, AcceleratorState.__init__
PartialState.__init__ = lambda self, cpu=False, **kwargs: made(self, cpu=False, **kwargs)
PartialState._prepare_backend = lambda *args: ("gloo", DistributedType.MULTI_GPU)
PartialState.set_device = lambda self: setattr(self, "device", torch.device("cpu"))
AcceleratorState.__init__ = lambda self, mixed_precision=None, cpu=False, *args, **kwargs: joined(
    self, mixed_precision, False, *args, **kwargs
)
from plc_core.engine import arguments
from plc_core.engine.config import TrainConfig
from plc_core.engine.pipeline import train
from plc_core.engine.trainer import PreferenceTrainer

its = arguments.TrainingArguments
arguments.TrainingArguments = lambda **kwargs: its(**kwargs | {"use_cpu": False})

class Dies(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        if state.global_step == 2:
            raise KeyboardInterrupt

begun = PreferenceTrainer.__init__

def dying(self, *args, **kwargs):
    begun(self, *args, **kwargs)
    self.add_callback(Dies())

values = json.loads(sys.argv[1])
if not values["resume"]:
    PreferenceTrainer.__init__ = dying
try:
    train(TrainConfig(**values))
except KeyboardInterrupt:
    pass
assert PartialState().distributed_type == DistributedType.DEEPSPEED
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs over two ranks as the project's recipe says, interrupted and resumed; and on one."""
    folder = tmp_path_factory.mktemp("zero3")
    (folder / "ranks.py").write_text(SCRIPT)
    recipe = yaml.safe_load((ROOT / "notebooks/recipes/accelerate/zero3.yaml").read_text())
    asked = recipe["deepspeed_config"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "DS_ACCELERATOR": "cpu",
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": str(asked["zero_stage"]),
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": str(asked["zero3_init_flag"]).lower(),
        "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": str(asked["zero3_save_16bit_model"]).lower(),
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": str(asked["gradient_accumulation_steps"]),
        "ACCELERATE_GRADIENT_CLIPPING": str(asked["gradient_clipping"]),
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    # Each in processes of its own: transformers loads sharded whatever is loaded after DeepSpeed.
    for name, rank in (("full", 0), ("lora", 4)):
        for resume in (False, True):
            values = config(folder, name, lora_rank=rank, resume=resume).model_dump()
            result = subprocess.run(
                [*command, str(folder / "ranks.py"), json.dumps(values)],
                capture_output=True, text=True, check=False, cwd=ROOT, env=environment,
            )  # fmt: skip
            assert result.returncode == 0, result.stderr[-3000:]
    train(config(folder, "full-one"))
    train(config(folder, "lora-one", lora_rank=4))
    return folder


@pytest.mark.parametrize(("name", "tolerance"), [("full", 2e-3), ("lora", 5e-3)])
def test_two_ranks_train_as_one(folder, name, tolerance):
    """To rounding: two ranks add in fp32 in another order, and Adam's first steps are signs."""
    two, one = open_run(folder / name), open_run(folder / f"{name}-one")
    assert two.status["state"] == "done"
    assert two.info["hardware"]["processes"] == 2
    both = (r.visits().set_index(["step", "pair_id"]).sort_index() for r in (two, one))
    pd.testing.assert_frame_equal(*both, atol=tolerance, rtol=1e-4)
    columns = ["loss", "grad_norm", "ema_mean", "ema_std"]
    pd.testing.assert_frame_equal(
        two.metrics()[columns], one.metrics()[columns], rtol=tolerance, atol=tolerance
    )


def test_a_checkpoint_holds_whole_weights(folder):
    assert (trained_checkpoint(open_run(folder / "full")) / "model.safetensors").exists()
    assert (trained_checkpoint(open_run(folder / "lora")) / "adapter_model.safetensors").exists()
