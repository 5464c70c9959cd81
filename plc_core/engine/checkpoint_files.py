"""Whether the files of a checkpoint are what was written there, and no others came in."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError, safe_open

from plc_core.engine.models.model_files import is_looked_for, misplaced
from plc_core.storage.files import ForeignFileError, RunError, is_there, read_json
from plc_core.storage.manifest import MANIFEST, first_damaged, first_unlisted

TRAINER_STATE = "trainer_state.json"
_OLD_LIST = "plc_files.json"  # names and sizes, of versions without checksums


def check_checkpoint(checkpoint: Path) -> None:
    """RunError where a file of a checkpoint is not what was written.

    One that was written without checksums, by an older version, has its files looked at: those of
    torch have checksums of their own, but its weights are taken as they are.
    """
    check_files(checkpoint)
    if not has_list(checkpoint):
        _look_at(checkpoint)
    check_step(checkpoint)


def check_files(checkpoint: Path, needed: Callable[[str], bool] = lambda name: True) -> None:
    """RunError where a `needed` file is damaged, one to be loaded was added, or the list is of
    another run or checkpoint.
    """
    try:
        name = first_damaged(checkpoint, needed)
        added = first_unlisted(checkpoint, is_looked_for) if name is None else None
    except ForeignFileError as error:
        advice = remedy_of(checkpoint)
        if error.written_as is not None:
            advice = misplaced(checkpoint, Path(error.written_as).parent.name)
        raise RunError(f"{error.path} {error.why}. {advice}") from None
    if name is not None:
        raise damaged(checkpoint, name)
    if added is not None:
        raise RunError(
            f"{checkpoint / added} is not in {MANIFEST} beside it: it came later. Take it out of "
            "the folder."
        )


def check_step(checkpoint: Path) -> None:
    """RunError where the folder's name is not of the step it was written at, as of a copy."""
    step = read_json(checkpoint / TRAINER_STATE, sealed=False).get("global_step")
    if step != step_of(checkpoint):
        advice = misplaced(checkpoint, f"checkpoint-{step}")
        raise RunError(f"{checkpoint} is the checkpoint of step {step}. {advice}")


def has_list(checkpoint: Path) -> bool:
    """Whether a checkpoint has the list of its checksums."""
    return is_there(checkpoint / MANIFEST)


def damaged(checkpoint: Path, name: str) -> RunError:
    """The sentence for a file of a checkpoint."""
    return RunError(f"{checkpoint / name} is damaged or missing. {remedy_of(checkpoint)}")


def remedy_of(checkpoint: Path) -> str:
    """What to do where a checkpoint cannot be used."""
    return f"Delete the folder {checkpoint} to go on from an earlier checkpoint."


def _look_at(checkpoint: Path) -> None:
    advice = remedy_of(checkpoint)
    names = {str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*")}
    if not any(map(_is_weights, names)):
        raise RunError(f"{checkpoint.name} has no weights. {advice}")
    needed = {"optimizer.pt", "scheduler.pt"}
    if _OLD_LIST in names:  # sharded optimizers have other names
        needed = set(read_json(checkpoint / _OLD_LIST, sealed=False))
    for name in sorted(needed - names):
        raise RunError(f"{checkpoint.name} has no {name}. {advice}")
    for name in sorted(names):
        path = checkpoint / name
        try:
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


def step_of(checkpoint: Path) -> int:
    """The step that the name of a checkpoint's folder says."""
    return int(checkpoint.name.rpartition("-")[2])
