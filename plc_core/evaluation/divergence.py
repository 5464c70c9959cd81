"""How far a policy moved from its reference on a benchmark: log-ratios of its own samples."""

from __future__ import annotations

import contextlib
import json

import pandas as pd
import pyarrow as pa

from plc_core.engine.forward.logprobs import response_logps
from plc_core.engine.forward.packing import PairCollator
from plc_core.engine.tokens.tokenized import prompt_ids
from plc_core.evaluation.generate import answer_store
from plc_core.evaluation.policies import Decoding, LocalPolicy
from plc_core.runs import Run
from plc_core.runs.status import now
from plc_core.storage.files import RunError, write_json, write_table

LOG_PROBS = pa.schema(
    {
        "prompt_id": pa.string(),
        "turn": pa.int64(),
        "policy": pa.string(),
        "decoding": pa.string(),
        "policy_logp": pa.float64(),  # nats per response, its terminator included
        "reference_logp": pa.float64(),
    }
)


def measure_log_ratios(
    run: Run,
    benchmark: str,
    policy: LocalPolicy,
    reference: LocalPolicy,
    decoding: Decoding,
    row_tokens: int = 1024,
    name: str = "trained",
) -> pd.DataFrame:
    """Log-probs of a run's sampled answers under its policy and its reference.

    Writes generations/<benchmark>-log-probs.parquet, where rows of other policies stay, and a
    record beside it. The mean of policy_logp - reference_logp over answers sampled at temperature 1
    estimates KL(policy || reference), in nats per response. The tokens are those that were sampled,
    which the text does not always give back.

    Args:
        benchmark: by its name in generations/.
        decoding: of the answers, at temperature 1 over the whole distribution.
        row_tokens: of a packed row; a longer answer gets a row of its own.
        name: of the policy, as in the answers' column `policy`.

    Raises:
        RunError: for another decoding, or where answers are not in the cache any more.
    """
    if decoding.temperature != 1 or decoding.top_p != 1:
        raise RunError(f"The KL is estimated from samples at temperature 1, not {decoding.label}.")
    answers = run.table(f"generations/{benchmark}.parquet")
    own = answers[(answers["policy"] == name) & (answers["decoding"] == decoding.label)]
    store = answer_store(policy, decoding)
    conversations = [json.loads(text) for text in own["conversation"]]
    keys = [policy.key(turns) for turns in conversations]
    if lost := sum(key not in store for key in keys):
        raise RunError(
            f"{lost:,} of {len(keys):,} sampled answers of {run.name!r} to {benchmark!r} are not "
            "in the cache any more; delete them from the run's generations to sample them anew."
        )
    prompts = [prompt_ids(policy.tokenizer, turns) for turns in conversations]
    responses = [store[key]["ids"] for key in keys]
    collator = PairCollator(row_tokens)
    sides = [
        response_logps(side.model, prompts, responses, collator) for side in (policy, reference)
    ]
    columns = {
        "prompt_id": own["prompt_id"].tolist(),
        "turn": own["turn"].tolist(),
        "policy": own["policy"].tolist(),
        "decoding": own["decoding"].tolist(),
        "policy_logp": sides[0],
        "reference_logp": sides[1],
    }
    table = pa.table(columns, schema=LOG_PROBS)
    path = run.path / "generations" / f"{benchmark}-log-probs.parquet"
    stays = LOG_PROBS.empty_table()
    with contextlib.suppress(RunError):  # missing, or damaged: others are measured again
        stays = run.read_table(path, filters=[("policy", "!=", name)])
    whole = pa.concat_tables([stays, table])
    write_table(path, whole)
    write_json(path.with_suffix(".json"), {"rows": len(whole), "written": now()})
    return table.to_pandas()
