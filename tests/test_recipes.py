"""The files of settings: the launchers', and the paper's models."""

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file

from plc_core.engine.config import TrainConfig
from plc_core.parameters import notebook_values
from tests.paths import ROOT

RECIPES = ROOT / "notebooks" / "recipes"


@pytest.mark.parametrize("path", sorted((RECIPES / "accelerate").glob("*.yaml")), ids=str)
def test_the_launchers_settings_are_read_by_accelerate(path):
    read = load_config_from_file(str(path))
    assert read.distributed_type.value in ("MULTI_GPU", "FSDP", "DEEPSPEED")
    assert read.num_processes == 2
    assert read.mixed_precision == "no"


@pytest.mark.parametrize("path", sorted((RECIPES / "paper").glob("*.yaml")), ids=lambda p: p.stem)
def test_the_papers_models_have_its_training_surface(path):
    values = notebook_values(
        ROOT / "notebooks" / "01_train.ipynb", yaml.safe_load(path.read_text())
    )
    config = TrainConfig(**values)
    assert (config.learning_rate, config.beta, config.epochs) == (1e-5, 0.01, 1.0)
    assert (config.lora_rank, config.lora_alpha, config.batch_pairs) == (16, 16, 64)
    assert config.precision == "bf16"
    assert config.name == path.stem
    assert 0 < config.max_length <= config.tokens_per_forward == config.row_tokens


def test_every_model_of_the_paper_has_a_recipe():
    assert {path.stem for path in (RECIPES / "paper").glob("*.yaml")} == {
        "qwen2.5-1.5b", "phi-2", "qwen2.5-7b", "llama-3-8b", "mistral-7b"
    }  # fmt: skip
