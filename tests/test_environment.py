"""Variables are set within a block only, whatever stood before and however the block ends."""

import os

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
