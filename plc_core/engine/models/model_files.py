"""Whether what a model is loaded from is what was written: its files, and what a run began from."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import logging
from pathlib import Path

import torch
import transformers
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from transformers import PreTrainedModel

from plc_core.data.world import CHECKPOINT
from plc_core.runs import Run
from plc_core.storage.files import ForeignFileError, RunError, is_there
from plc_core.storage.manifest import MANIFEST, first_damaged, first_unlisted

logger = logging.getLogger(__name__)

_LOOKED_FOR = (
    *("*.safetensors", "*.safetensors.index.json", "adapter_config.json", "config.json"),
    *("generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template*", "vocab.*", "merges.txt", "*.model"),
)
"""Files that change what is loaded from a folder by being in it."""


class ModelError(ValueError):
    """A model that cannot be used as asked; the message is a sentence for the user."""


def check_model_files(folder: Path) -> None:
    """ModelError where a file that a model is loaded from is not what was written, or was added.

    A folder without a list of checksums, as those of others are, is taken as it is; but not that
    of the embedded world, which comes with one.
    """
    comes_with_us = folder == CHECKPOINT.resolve()
    try:
        name = first_damaged(folder, is_model_file)
        if name is None and comes_with_us and not is_there(folder / MANIFEST):
            name = MANIFEST
        added = first_unlisted(folder, is_looked_for) if name is None else None
    except ForeignFileError as error:
        advice = (
            "Load the folder from where it was written; or, if you copied it here yourself, delete "
            f"that {MANIFEST}."
        )
        if error.written_as is not None:  # without the list the run could not be resumed from it
            advice = misplaced(folder, Path(error.written_as).parent.name)
        raise ModelError(f"{error.path} {error.why}. {advice}") from None
    if name is None and added is None:
        return
    if name is not None:
        said = f"{folder / name} is damaged or missing: it is not what {MANIFEST} beside it says."
        advice = f"Put a copy of it back; or, if you changed it yourself, delete that {MANIFEST}."
    else:
        said = f"{folder / str(added)} is not in {MANIFEST} beside it: it came later."
        advice = f"Take it out of the folder; or, if it belongs there, delete that {MANIFEST}."
    if comes_with_us:
        advice = "The folder is a part of this package: install plc_core again."
    raise ModelError(f"{said} {advice}")


def is_model_file(name: str) -> bool:
    """Whether a model is loaded from a file of this name; an optimizer, which may be large, not."""
    return name.endswith((".safetensors", ".json", ".jinja", ".model", ".txt"))


def is_looked_for(name: str) -> bool:
    """Whether a file of this name changes what is loaded from its folder."""
    return not name.startswith(".") and any(fnmatch.fnmatch(name, known) for known in _LOOKED_FOR)


def misplaced(checkpoint: Path, name: str) -> str:
    """What to do where the checkpoint `name` of a run lies in the folder of another."""
    return f"Rename the folder {checkpoint} back to {name}; or, if it is a copy, delete it."


def model_identity(model: PreTrainedModel | PeftModel, dtype: torch.dtype | None = None) -> str:
    """16 hex digits of what a model computes: its configuration, and all weights and buffers.

    The configuration counts, as the same weights under another rope_theta are another model; where
    a model lies, its precision and the library's version do not.

    Args:
        dtype: of the weights but the adapters', as if the model had been loaded in it.
    """
    ignored = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache"}
    config = {k: v for k, v in model.config.to_dict().items() if k not in ignored}
    if isinstance(model, PeftModel):
        # How strongly adapters add is not in their weights.
        layers = model.named_modules()
        config["scaling"] = {n: m.scaling for n, m in layers if isinstance(m, LoraLayer)}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if dtype is not None and tensor.is_floating_point() and ".lora_" not in name:
            tensor = tensor.to(dtype)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(raw.numpy().data)
    return digest.hexdigest()[:16]


def check_start(run: Run, model: PreTrainedModel | PeftModel, identity: str | None = None) -> None:
    """RunError where the model that a run began from is another now.

    Runs of older versions, and those of a user's own trainer, do not say which it was.

    Args:
        model: loaded now as the run's parameter `model` says, in the run's precision or in fp32.
        identity: of it, where it is known: a hash takes seconds a billion weights.
    """
    before, dtype = recorded_start(run)
    if before is None:
        return
    if identity is None or dtype is not None:
        identity = model_identity(model, dtype)
    if identity == before:
        return
    name, place = run.info["config"].get("model"), model.config.name_or_path
    then = (run.info.get("versions") or {}).get("transformers")
    if then != transformers.__version__:  # which may describe the same model in other words
        logger.warning(
            f"Whether the model {name!r} is still what the run {run.name!r} began from is not "
            f"known: its hash was {before} under transformers {then}, and is {identity} under "
            f"{transformers.__version__}."
        )
        return
    raise RunError(
        f"The run {run.name!r} began from the model {name!r}, and the weights or the configuration "
        f"in {place} are others now (their hash was {before}, and is {identity}): a file there was "
        "replaced or is damaged. Put a copy of that model back there; to use the one that is "
        "there, train a run of another name."
    )


def recorded_start(run: Run) -> tuple[str | None, torch.dtype | None]:
    """The identity of the model that a run began from, None where its record does not say it, and
    the precision that its weights were loaded in, if that is not their own.
    """
    said = run.info.get("reference")
    if not isinstance(said, dict) or not isinstance(said.get("model"), str):
        return None, None
    in_16_bits = str(said.get("precision")).startswith(str(torch.bfloat16))
    return said["model"], torch.bfloat16 if in_16_bits else None
