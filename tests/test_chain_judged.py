"""Rewards of a study by the chain of answers and judgements: those that the world's run leaves."""

import pandas as pd
import pytest

from notebooks.studies.chain_judged import ChainJudged
from notebooks.studies.kl_control import WORLD, mean_kl, win_rates
from plc_core import TrainConfig, evaluate, train
from plc_core.evaluation.completeness import EvaluationConfig
from plc_core.runs import Run


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Run]:
    folder = str(tmp_path_factory.mktemp("runs"))
    found = []
    for objective in ("dpo", "plc"):
        run = train(
            TrainConfig(
                name=objective, runs_dir=folder, objective=objective, num_pairs=64,
                batch_pairs=16, pairs_per_forward=16, eval_prompts=8,
            )
        )  # fmt: skip
        evaluate(run, 8)
        found.append(run)
    return found


def test_the_chain_gives_what_the_worlds_run_left(runs) -> None:
    config = EvaluationConfig(
        benchmarks=["world"], judges=["gold"], decodings=["greedy", "sampled"], eval_prompts=8
    )
    chain = ChainJudged(config)
    dpo, plc = runs
    for decoding in ("greedy", "sampled"):
        own = WORLD.rewards(plc, decoding)
        pd.testing.assert_series_equal(
            chain.rewards(plc, decoding).rename(None),
            own.set_axis("world/" + own.index).rename(None),
            check_names=False,
        )
    assert mean_kl([plc], chain) == pytest.approx(mean_kl([plc]))
    by_chain = win_rates({"PLC-DPO": [plc]}, [dpo], judged=chain)
    pd.testing.assert_frame_equal(by_chain, win_rates({"PLC-DPO": [plc]}, [dpo]))
    assert set(chain.benchmarks(plc).values()) == {"world"}
    named = win_rates({"PLC-DPO": [plc]}, [dpo], benchmarks=chain.benchmarks(plc), judged=chain)
    assert set(named["benchmark"]) == {"world"}
