"""What is said of settings that cannot work, or would crawl, on the machine at hand."""

import numpy as np
import pytest

from plc_core.engine.arguments import Machine, check_machine, machine_warnings
from plc_core.engine.config import TrainConfig
from plc_core.engine.models.load import load_policy
from plc_core.storage.files import RunError

CPU = Machine(gpu=False, memory=16 * 2**30, bf16=False)
GPU = Machine(gpu=True, memory=80 * 2**30, bf16=True)
SIZES = np.full(512, 400)


@pytest.fixture(scope="module")
def model():
    return load_policy("world")[0]


def said(model, machine=CPU, sizes=SIZES, seconds=1e-4, **changes):
    config = TrainConfig(name="x", **changes)
    return machine_warnings(config, machine, model, sizes, 32, seconds)


def test_what_works_is_not_spoken_of(model):
    assert said(model) == []
    settings = {"precision": "bf16", "row_tokens": 9216, "tokens_per_forward": 9216}
    assert said(model, GPU, seconds=9.0, **settings) == []


def test_compiling_is_refused_without_a_gpu():
    config = TrainConfig(name="x", compile=True)
    check_machine(config, GPU)
    with pytest.raises(RunError, match="set compile to false"):
        check_machine(config, CPU)


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"precision": "bf16"}, "set precision to fp32"),
        ({"seconds": 0.002}, "about 02:33 on this machine, and the run of 32 steps about 1:21:55"),
        ({"seconds": 0.5}, "14 days"),
        ({"machine": Machine(False, 2**26, False)}, "or less, or gradient_checkpointing to true"),
        ({"machine": Machine(True, 2**24, True), "gradient_checkpointing": True}, "or less."),
    ],
    ids=str,
)
def test_what_would_crawl_is_told_with_the_remedy(model, changes, remedy):
    found = said(model, **changes)
    assert len(found) == 1
    assert remedy in found[0]


def test_the_memory_is_near_the_measured_one(model):
    """27 GiB for 9,216 tokens of a model of 1.5 B with adapters, of which 3 are its weights."""
    model.config.num_hidden_layers, model.config.hidden_size = 28, 1536
    settings = {"precision": "bf16", "lora_rank": 16, "tokens_per_forward": 9216}
    sizes = np.full(64, 1000)
    assert said(model, Machine(True, 26 * 2**30, True), sizes, **settings) == []
    (sentence,) = said(model, Machine(True, 16 * 2**30, True), sizes, **settings)
    assert "needs about 22 GiB" in sentence
