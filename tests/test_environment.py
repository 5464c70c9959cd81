"""Variables are set within a block only, whatever stood before and however the block ends."""

import os
import subprocess
import sys

import pytest

from plc_core.environment import environment


def test_variables_are_set_within_and_as_before_after(monkeypatch):
    monkeypatch.setenv("PLC_TEST_KNOWN", "before")
    monkeypatch.delenv("PLC_TEST_NEW", raising=False)
    with (
        pytest.raises(RuntimeError, match="inside"),
        environment({"PLC_TEST_KNOWN": "within", "PLC_TEST_NEW": "within"}),
    ):
        assert os.environ["PLC_TEST_KNOWN"] == os.environ["PLC_TEST_NEW"] == "within"
        raise RuntimeError("inside")
    assert os.environ["PLC_TEST_KNOWN"] == "before"
    assert "PLC_TEST_NEW" not in os.environ


def test_a_locale_without_unicode_gets_question_marks_and_no_traceback(tmp_path):
    """LC_ALL=C with Python's own ways around it switched off."""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for words in (["notebooks.evidence"], ["plc_core.batch", "no such notebook – é"]):
        ended = subprocess.run(
            [sys.executable, "-m", *words], env=os.environ | plain, capture_output=True
        )
        assert b"Traceback" not in ended.stderr
        assert b"?" in ended.stdout + ended.stderr
