"""The files of settings: the launchers', the small ones, and the paper's."""

import pandas as pd
import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file

from notebooks.studies.main_results import MainConfig
from notebooks.studies.plan_runs import plan_runs
from notebooks.studies.win_rate_study import BENCHMARK_NAMES
from plc_core.analysis.paper import published
from plc_core.data import DATASETS
from plc_core.engine.arguments import Machine, check_machine
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
def test_the_papers_settings_have_its_training_surface(path):
    values = notebook_values(
        ROOT / "notebooks" / "01_train.ipynb", yaml.safe_load(path.read_text())
    )
    config = TrainConfig(**values)
    surface = {line["setting"]: line["value"] for line in published("training").to_dict("records")}
    assert surface.pop("scheduler_warmup") == 0.1  # no parameter: the trainer's own
    assert {name: getattr(config, name) for name in surface} == surface
    assert config.precision == "bf16"
    assert config.name == path.stem
    assert config.data in DATASETS
    assert 0 < config.max_length <= config.tokens_per_forward == config.row_tokens


def test_every_setting_of_the_paper_has_a_recipe():
    """Model and dataset of each row of its tables; a model's own file is on UltraFeedback."""
    tables = [published(name)[["model", "dataset"]] for name in ("main_results", "cells", "noise")]
    tables.append(published("aggregates", table="tab:dataset-transfer-qwen")[["model", "dataset"]])
    rows = pd.concat(tables).drop_duplicates()
    models = rows["model"].str.lower().replace("phi-2-2.7b", "phi-2")
    ending = ("-" + rows["dataset"].str.lower()).replace("-ultrafeedback", "")
    assert {path.stem for path in (RECIPES / "paper").glob("*.yaml")} == set(models + ending)


def test_the_main_table_asks_for_the_papers_57_cells_and_methods():
    """One call of 02: its ragged grid, under the paper's names of data, models and benchmarks."""
    asked = yaml.safe_load((RECIPES / "tables" / "57-cells.yaml").read_text())
    values = notebook_values(ROOT / "notebooks" / "02_main_results.ipynb", asked)
    config = MainConfig(**values)
    ours = {ours: paper for paper, ours in BENCHMARK_NAMES.items()}
    cells = [
        (dataset, model, ours[benchmark])
        for (dataset, model), own in config.places().items()
        for benchmark in (config.benchmarks if own is None else own)
    ]
    table = published("cells")
    keys = ["dataset", "model", "benchmark"]
    assert len(cells) == 57
    assert sorted(cells) == sorted(set(table[keys].itertuples(index=False, name=None)))
    for methods in config.parts().values():
        assert list(methods) == list(dict.fromkeys(table["method"]))
    # The models' own recipes differ in nothing else that is trained.
    first, *others = (
        yaml.safe_load((RECIPES / "paper" / f"{model.lower()}.yaml").read_text())
        for model in config.models
    )
    for own in others:
        assert {name for name in own if own[name] != first[name]} == {"name", "model"}


@pytest.mark.parametrize(
    "path", sorted((RECIPES / "paper").glob("*-*-*-*.yaml")), ids=lambda p: p.stem
)
def test_a_models_settings_differ_in_their_data_alone(path):
    own = yaml.safe_load(path.read_text())
    model = path.stem.removesuffix(f"-{own['data']}")
    first = yaml.safe_load(path.with_name(f"{model}.yaml").read_text())
    assert {k for k in own if own[k] != first[k]} == {"name", "data"}
    assert list(own) == list(first)


@pytest.mark.parametrize("name", ["world", "small-real"])
def test_the_small_settings_can_be_planned(name):
    (plan,) = plan_runs(name, {"PLC": {"objective": "plc"}}, [0])
    assert plan.parameters["num_pairs"] <= 2048


CORRUPTION = ("flip_rate", "tie_rate", "warm_share", "annotator")


@pytest.mark.parametrize("name", ["own-data", "own-data-gpu", "small-real"])
def test_settings_for_ones_own_data_corrupt_nothing(name):
    values = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    config = TrainConfig(**notebook_values(ROOT / "notebooks" / "01_train.ipynb", values))
    assert {what: getattr(config, what) for what in CORRUPTION} == {
        what: TrainConfig.model_fields[what].default for what in CORRUPTION
    }
    assert (config.num_pairs is None) == name.startswith("own-data")
    assert config.model != "world"
    check_machine(config, Machine(gpu=name.endswith("gpu"), memory=0, bf16=False))
