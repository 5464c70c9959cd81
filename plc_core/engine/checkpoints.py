"""Which checkpoint of a run can be used, its policy, and whether the record reaches up to it."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

from peft import PeftModel
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from plc_core.engine.adapters import peft_quiet
from plc_core.engine.models import disable_dropout, load_policy
from plc_core.files import RunError, read_json, write_json
from plc_core.runs import Run

_FILES = "plc_files.json"


def last_checkpoint(run: Run) -> Path | None:
    """The folder of the run's last whole checkpoint, or None; RunError where it is damaged.

    trainer_state.json is what transformers writes last, so a checkpoint that was cut off in the
    middle has none, or half of one, and is passed over. One that lost a file later is an error:
    going on without its optimizer would end with other weights and no word said.
    """
    checkpoint = _last_finished(run)
    if checkpoint is not None:
        _check(checkpoint)
    return checkpoint


def trained_checkpoint(run: Run) -> Path:
    """The folder of the run's last whole checkpoint; RunError where it has none."""
    checkpoint = _last_finished(run)  # its optimizer, which may be large, is not needed
    if checkpoint is None:
        raise RunError(f"The run {run.name!r} has no whole checkpoint, so it has no policy.")
    return checkpoint


def whole_checkpoints(run: Run) -> dict[int, Path]:
    """The folders of the run's whole checkpoints by their step, in order."""
    found = {_step(path): path for path in _finished(run)}
    return dict(sorted(found.items()))


def load_trained(run: Run, checkpoint: Path | None = None) -> PreTrainedModel | PeftModel:
    """The policy of a checkpoint of the run, by itself the last."""
    config = run.info["config"]
    checkpoint = checkpoint or trained_checkpoint(run)
    if not (checkpoint / "adapter_config.json").exists():
        return load_policy(str(checkpoint.resolve()))[0]
    base: Any = load_policy(config["model"])[0]
    if isinstance(base, PeftModel):
        base = base.unload()  # the checkpoint has the adapters that the run began with, trained on
    with peft_quiet():
        adapted = PeftModel.from_pretrained(base, checkpoint)
    disable_dropout(adapted)
    return adapted


def check_record(run: Run, steps: int) -> None:
    """RunError unless metrics and visits hold every step before `steps`."""
    metrics = run.metrics()
    recorded: dict[str, set[int]] = {
        "metrics.parquet": set(metrics["step"]) if len(metrics) else set(),
        "visits": set(run.visits(["step"])["step"]),
    }
    for name, found in recorded.items():
        missing = sorted(set(range(steps)) - found)
        if missing:
            raise RunError(
                f"The run {run.name!r} cannot go on from step {steps}: in its {name} "
                f"{len(missing)} of the steps before are missing, as step {missing[0]}. Start it "
                "anew under another name."
            )


def _finished(run: Run) -> list[Path]:
    return [path for path in (run.path / "checkpoints").glob("*") if _was_finished(path)]


def _last_finished(run: Run) -> Path | None:
    return max(_finished(run), key=_step, default=None)


def _was_finished(path: Path) -> bool:
    if not re.fullmatch(r"checkpoint-\d+", path.name):
        return False
    try:
        return isinstance(read_json(path / "trainer_state.json").get("global_step"), int)
    except RunError:
        return False


def _step(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _check(checkpoint: Path) -> None:
    advice = f"Delete the folder {checkpoint} to go on from an earlier checkpoint."
    sizes = _listed(checkpoint)
    names = {str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*")}
    # Optimizers that are sharded over ranks have files of other names, all of them in the list.
    needed = set(sizes) or {"optimizer.pt", "scheduler.pt"}
    if not any(_is_weights(name) for name in names) and (not sizes or any(map(_is_weights, sizes))):
        raise RunError(f"{checkpoint.name} has no weights. {advice}")
    for name in sorted(needed - names):
        raise RunError(f"{checkpoint.name} has no {name}. {advice}")
    for name in sorted(names):
        path = checkpoint / name
        try:
            if name in sizes and path.stat().st_size != sizes[name]:
                raise OSError(f"it has {path.stat().st_size} bytes and had {sizes[name]}")
            if path.suffix == ".safetensors":
                with safe_open(path, framework="numpy"):
                    pass
            elif path.suffix in (".pt", ".pth", ".bin"):
                # torch.save writes a zip file, with a checksum for everything in it.
                with zipfile.ZipFile(path) as archive:
                    if archive.testzip() is not None:
                        raise zipfile.BadZipFile("a checksum is wrong")
        except (OSError, SafetensorError, zipfile.BadZipFile) as error:
            raise RunError(f"{name} of {checkpoint.name} is damaged ({error}). {advice}") from None


def _is_weights(name: str) -> bool:
    return name.startswith(("model", "adapter")) and name.endswith(".safetensors")


def list_files(checkpoint: Path) -> None:
    """Write down the sizes of the files of weights and states, when all ranks have written them."""
    files = (path for path in checkpoint.rglob("*") if path.is_file())
    kinds = (".safetensors", ".pt", ".pth", ".bin", ".distcp", ".metadata")  # torch's and DCP's
    sizes = {
        str(path.relative_to(checkpoint)): path.stat().st_size
        for path in files
        if path.suffix in kinds or path.name in kinds
    }
    write_json(checkpoint / _FILES, sizes)


def _listed(checkpoint: Path) -> dict[str, int]:
    """The sizes of the files that the checkpoint had; empty where there is no such list."""
    try:
        return {str(name): int(size) for name, size in read_json(checkpoint / _FILES).items()}
    except (RunError, TypeError, ValueError):
        return {}
