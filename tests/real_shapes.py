"""Studies on the shapes of real benchmarks, made as small as they can be, in this process.

Seven benchmarks in their published formats (AlpacaEval's two share prompts and ids, MT-Bench and
Vicuna share categories, MT-Bench has two turns), two models with random weights, two data sets of
messages, and a reward model as judge: nothing is downloaded, and no kernel is started.
"""

import ast
import contextlib
import gc
import json
import os
import random
from pathlib import Path

import IPython.display
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from notebooks.studies import ensure_runs
from plc_core import TrainConfig, evaluate, train
from tests.paths import ROOT
from tests.tiny_tokenizers import qwen

SENTENCE = "hello there how are you well thank say it again user and the model def return Grüße"
SIZES = {
    "ultrafeedback-test": 9,
    "alpaca-eval": 7,
    "alpaca-eval-2": 7,
    "mt-bench": 4,
    "vicuna": 5,
    "evol-instruct": 6,
    "hh-rlhf": 8,
}
"""Prompts of each benchmark, under its name."""
TRAINING = {"num_pairs": 12, "batch_pairs": 4, "pairs_per_forward": 4, "max_length": 96}
TRAINING |= {"learning_rate": 2e-2, "eval_prompts": 0}
"""Parameters of 01_train: three steps that move a policy with random weights."""


def text(rng, least=2, most=7):
    return " ".join(rng.choices(SENTENCE.split(), k=rng.randint(least, most)))


def benchmark_files(folder):
    """The seven benchmarks, a file each in its published format, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    asked = [text(rng) + f" {n}" for n in range(SIZES["alpaca-eval"])]
    places = ["helpful_base", "koala", "vicuna"]  # AlpacaEval's own `dataset`
    alpaca = [
        {"instruction": each, "output": text(rng), "generator": "x", "dataset": places[n % 3]}
        for n, each in enumerate(asked)
    ]
    categories = ["coding", "writing"]
    rows = {
        "ultrafeedback-test": [
            {"prompt": (own := text(rng) + f" u{n}"), "prompt_id": f"{n:04x}"}
            | {side: messages(own, text(rng)) for side in ("chosen", "rejected")}
            for n in range(SIZES["ultrafeedback-test"])
        ],
        "alpaca-eval": alpaca,
        "alpaca-eval-2": alpaca,
        "mt-bench": [
            {"question_id": 81 + n, "category": categories[n % 2]}
            | {"turns": [text(rng) + f" m{n}", text(rng)]}
            for n in range(SIZES["mt-bench"])
        ],
        "vicuna": [
            {"question_id": 1 + n, "category": categories[n % 2], "turns": [text(rng) + f" v{n}"]}
            for n in range(SIZES["vicuna"])
        ],
        "evol-instruct": [
            {"idx": n + 1, "Skill": ["Math", "coding"][n % 2], "Difficulty": 3}
            | {"Instruction": text(rng) + f" e{n}"}
            for n in range(SIZES["evol-instruct"])
        ],
        "hh-rlhf": [
            {
                side: f"\n\nHuman: {own}\n\nAssistant: {text(rng)}"
                for own in [text(rng) + f" h{n}"]
                for side in ("chosen", "rejected")
            }
            for n in range(SIZES["hh-rlhf"])
        ],
    }
    files = {}
    for name, own in rows.items():
        as_json = name.startswith("alpaca")
        files[name] = folder / f"{name}.{'json' if as_json else 'jsonl'}"
        lines = json.dumps(own) if as_json else "\n".join(map(json.dumps, own))
        files[name].write_text(lines, encoding="utf-8")
    return {name: str(path) for name, path in files.items()}


def messages(asked, answered):
    """A dialogue of one turn."""
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]


def pair_file(path, seed=0, count=16):
    """Pairs as UltraFeedback's binarized files have them, as JSON lines."""
    rng = random.Random(seed)
    rows = []
    for n in range(count):
        asked = text(rng) + f" p{n}"
        chosen, rejected = (messages(asked, f"{text(rng)} {side}") for side in ("ja", "nein"))
        scores = {"score_chosen": rng.randint(5, 10), "score_rejected": rng.randint(1, 5)}
        rows.append({"prompt": asked, "chosen": chosen, "rejected": rejected, **scores})
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


def tiny_model(folder, seed=0, judge=False):
    """A model folder with random weights and a chat template; with `judge` a reward model."""
    torch.manual_seed(seed)
    tokenizer = qwen()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_attention_heads=4,
        num_hidden_layers=1, initializer_range=0.5, max_position_embeddings=512, num_labels=1,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
    )  # fmt: skip
    kind = LlamaForSequenceClassification if judge else LlamaForCausalLM
    kind(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def run_cells(notebook, **parameters):
    """Execute a notebook's code cells in this process, with parameters as a batch sets them.

    Args:
        notebook: its name without the ending.

    Returns:
        The notebook's names after its last cell, and as `shown` what it displayed, in order.
    """
    cells = json.loads((ROOT / "notebooks" / f"{notebook}.ipynb").read_text("utf-8"))["cells"]
    shown = []
    names = {"In": [], "__name__": "__main__"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IPython.display, "display", lambda *objects: shown.extend(objects))
        for cell in cells:
            if cell["cell_type"] != "code":
                continue
            sources = ["".join(cell["source"])]
            if "parameters" in cell["metadata"].get("tags", []):
                sources += [f"{name} = {value!r}" for name, value in parameters.items()]
            for source in sources:
                names["In"].append(source)
                *body, last = ast.parse(source).body
                is_value = isinstance(last, ast.Expr)
                whole = ast.Module(body if is_value else [*body, last], [])
                exec(compile(whole, f"{notebook}.ipynb", "exec"), names)
                if is_value:
                    value = eval(compile(ast.Expression(last.value), notebook, "eval"), names)
                    shown += [] if value is None else [value]
    return names | {"shown": shown}


@contextlib.contextmanager
def trained_here():
    """While it lasts, the runs that a study lacks are trained in this process."""

    def run_jobs(notebook, jobs, workers=1, progress=None):
        for job in jobs:
            run = train(TrainConfig(**job))
            evaluate(run, run.info["config"]["eval_prompts"])
        return []

    gc.freeze()  # every training collects garbage: not through all that was imported
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ensure_runs, "run_jobs", run_jobs)
        patch.setattr(os, "fsync", lambda _: None)  # nothing here has to outlive a power cut
        yield
    gc.unfreeze()


class Shapes:
    """A folder with all of it.

    Attributes:
        benchmarks: files of the seven, by name.
        models: two folders.
        data: two files of pairs.
        judge, second_judge: folders of reward models.
        recipe: of the first model and data.
        runs: where runs and reports go.
    """

    def __init__(self, folder):
        self.folder = folder
        self.benchmarks = benchmark_files(folder / "benchmarks")
        self.models = [tiny_model(folder / name, seed) for seed, name in enumerate(("m7b", "m1b"))]
        self.judge = tiny_model(folder / "rm", 7, judge=True)
        self.second_judge = tiny_model(folder / "rm2", 8, judge=True)
        self.data = [
            pair_file(folder / f"{name}.jsonl", seed) for seed, name in enumerate(("uf", "hh"))
        ]
        own = TRAINING | {"model": self.models[0], "data": self.data[0]}
        self.recipe = str(folder / "recipe.yaml")
        Path(self.recipe).write_text(json.dumps(own), encoding="utf-8")  # JSON is YAML
        self.runs = folder / "runs"

    def run(self, notebook, **parameters):
        """The names of a notebook after its last cell; its runs are trained in this process."""
        named = {"runs_dir": str(self.runs), "recipe": self.recipe, "name": notebook}
        with trained_here():
            return run_cells(notebook, **(named | parameters))
