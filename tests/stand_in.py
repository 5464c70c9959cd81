"""Notebooks that stop where a test wants to cut them off: nobody guesses how long they take."""

import json
import textwrap
from pathlib import Path

from tests.paths import ROOT

TRAIN = ROOT / "notebooks" / "01_train.ipynb"
TINY = {"num_pairs": 48, "batch_pairs": 16, "pairs_per_forward": 16, "eval_prompts": 8}

STAY = """import time
from pathlib import Path
mark = Path(runs_dir, f"{name}-stays")
first = not mark.exists()
mark.touch()
while first and not Path(runs_dir, "go").exists():
    time.sleep(0.05)"""
"""Code that stays where it is the first time that a run comes there, until the file `go` is."""

_STAY_AT_CHECKPOINT = """from plc_core.engine.trainer import PreferenceTrainer
save = PreferenceTrainer._save_checkpoint
def saved(self, *given):
    save(self, *given)
{stay}
PreferenceTrainer._save_checkpoint = saved"""

_TRAINING = """from plc_core.runs import create_run, open_run
from plc_core.runs.visit_files import VISITS_SCHEMA
if resume:
    run = open_run(f"{runs_dir}/{name}")
else:
    config = {"name": name, "runs_dir": runs_dir, "resume": False}
    run = create_run(runs_dir, name, {"kind": "training", "config": config})
with run.running("training"):
    if not resume:
        nothing = {column: [None] for column in VISITS_SCHEMA.names}
        run.append_visits(nothing | {"pair_id": ["a"], "step": [0]})
    during
    run.update_info(trained_steps=1, went_on=resume)
after"""

_ANALYSIS = """from plc_core.runs import create_run
create_run(runs_dir, name, {"kind": "analysis", "config": {"name": name, "runs_dir": runs_dir}})
after"""

_WITH_FIGURE = """import plotly.graph_objects as go
from plc_core.runs import create_run
config = {"name": name, "runs_dir": runs_dir, "value": value}
run = create_run(runs_dir, name, {"kind": "analysis", "config": config})
with run.running("drawing"):
    (run.path / "tables").mkdir()
    (run.path / "tables" / "results.csv").write_text(f"value\\n{value}\\n")
    print(value)
go.Figure(go.Scatter(y=[value] * 100)).show()"""


def stays(runs_dir: Path | str, name: str) -> bool:
    """Whether the run's notebook has come to where it stays."""
    return Path(runs_dir, f"{name}-stays").exists()


def with_cell(folder: Path, cell: str, before: bool = False) -> Path:
    """The training notebook with a cell more, behind the one that trains, or before it."""
    notebook = json.loads(TRAIN.read_text())
    cells = notebook["cells"]
    place = next(n for n, c in enumerate(cells) if "train(config)" in "".join(c["source"]))
    cells.insert(place + (not before), _code("more", cell))
    return _written(folder / "more.ipynb", notebook)


def stays_at_its_first_checkpoint(folder: Path) -> Path:
    """The training notebook, which stays once its first checkpoint is whole."""
    cell = _STAY_AT_CHECKPOINT.format(stay=textwrap.indent(STAY, "    "))
    return with_cell(folder, cell, before=True)


def training_stand_in(folder: Path, stay: str = "during") -> Path:
    """A notebook that makes the folder of a training run, in the tenth of the time of a real one.

    It stays `during` training, after the first visits, or `after` it, before the report.
    """
    return _stand_in(folder, _TRAINING, stay)


def analysis_stand_in(folder: Path) -> Path:
    """A notebook that begins a report, and stays."""
    return _stand_in(folder, _ANALYSIS, "after")


def analysis_with_figure(folder: Path) -> Path:
    """A notebook that makes a report with a table and a figure of its parameter `value`."""
    return _stand_in(folder, _WITH_FIGURE, "nowhere", "\nvalue = 0  # what it shows")


def _stand_in(folder: Path, source: str, stay: str, more: str = "") -> Path:
    lines = []
    for line in source.splitlines():
        if line.strip() in ("during", "after"):
            indent = line[: -len(line.lstrip())]
            line = textwrap.indent(STAY if line.strip() == stay else "pass", indent)
        lines.append(line)
    parameters = 'name = "x"  # its name\nruns_dir = "runs"  # its place\nresume = False  # go on'
    first = _code("parameters", parameters + more) | {"metadata": {"tags": ["parameters"]}}
    notebook = json.loads(TRAIN.read_text())
    del notebook["metadata"]["plc_config"]
    notebook["cells"] = [first, _code("run", "\n".join(lines))]
    return _written(folder / "stand-in.ipynb", notebook)


def _code(name: str, source: str) -> dict[str, object]:
    cell = {"cell_type": "code", "id": name, "metadata": {}, "outputs": []}
    return cell | {"execution_count": None, "source": source}


def _written(path: Path, notebook: dict[str, object]) -> Path:
    path.write_text(json.dumps(notebook))
    return path
