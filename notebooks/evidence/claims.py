"""The claims, what the paper says, and what the study finds: one row a claim.

The verdict follows a rule that was written before any outcome was seen: a claim is *reproduced*
where the 95 % interval over seeds lies wholly on its side of its threshold, *not reproduced* where
it lies wholly on the other side, and *undecided* otherwise, always so with fewer than three seeds.
Words were added later: *smaller* where the paper's number lies beyond the interval, said of
undecided rows too since outcomes were seen, and *higher* or *lower* than the threshold where the
paper claims nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from notebooks.evidence.estimates import (
    BASELINE,
    FEWEST,
    FRESH,
    METHOD,
    Estimate,
    Study,
    over_seeds,
)
from notebooks.evidence.published_claims import (
    NOISY,
    Numbers,
    accuracy_over_dpo,
    at_like_kl,
    dose,
    gap,
    noise_error,
    of_variant,
    over_best_other,
    single,
    training_time,
    win_rate,
    within_sources,
)
from plc_core.analysis.audit import AGAINST_LENGTH, ALIKE_LENGTH
from plc_core.typography import minus

FIRST_VISIT = "training pairs at their first visit"
"""Each before its own update, while the policy is still being trained: neither zero-shot nor held
out, though in one epoch no pair was trained on before it was read."""
HELD_OUT, VOTED, ANSWERS, RUNS = "held-out pairs", "voted pairs, zero-shot", "answers", "whole runs"


@dataclass(frozen=True)
class Claim:
    """One claim.

    `paper` is the number that it prints, with the place; "–" or "not measured" where it claims
    nothing. `published` is that number alone, times `scale`, where it is of the same measure.
    `above` says on which side of `threshold` the claim lies. Claims about the routing can be asked
    of plain DPO too, whose margin is routed without touching the loss: `shadow`. `by_construction`
    is what follows from a setting, whatever the data; `exploratory` what an outcome suggested.
    `read` says of which pairs the number is: the paper reads its tie selectivity and its exact ties
    of pairs that its policies never trained on or never saw; here those are `FIRST_VISIT`.
    """

    text: str
    paper: str
    values: Numbers
    threshold: float = 0.0
    above: bool = True
    digits: int = 3
    scale: float = 1.0
    published: float | None = None
    shadow: bool = False
    by_construction: bool = False
    exploratory: bool = False
    read: str = FIRST_VISIT


def verdict(claim: Claim, found: Estimate | None) -> str:
    """In words, by the rule above; "not run" without results.

    "of these pairs" is added where the interval over pairs, put to that over seeds, would leave it
    undecided: other data may well say otherwise.
    """
    if found is None:
        return "not run"
    if claim.by_construction:
        return "by construction"
    if found.n < FEWEST or math.isnan(found.low) or math.isnan(found.high):
        return "undecided"
    above, below = found.low > claim.threshold, found.high < claim.threshold
    clear = above or below
    if not clear:
        word = "undecided"
    elif claim.paper in ("–", "not measured"):
        word = "higher" if above else "lower"
    else:
        word = "reproduced" if above == claim.above else "not reproduced"
    if word in ("reproduced", "undecided") and claim.published is not None and claim.above:
        word += ", smaller" if found.high * claim.scale < claim.published else ""
    # False where the measure has no interval over pairs.
    within = clear and abs(found.value - claim.threshold) <= math.hypot(
        (found.high - found.low) / 2, found.over_pairs
    )
    return f"{word}, of these pairs" if within else word


def claims_table(model: Study, world: Study, larger: Study) -> pd.DataFrame:
    """Columns: claim, read, paper, world, model, larger, shadow, over, verdict; 95 % intervals, as
    text.

    The verdict is on `model`; `shadow` is the same number of plain DPO's routing there, and `over`
    by how much PLC-DPO's is above it in the same data and seeds.
    """
    rows = []
    for claim in CLAIMS:
        values = claim.values(model, METHOD)
        row = {
            "claim": f"{claim.text} (looked at later)" if claim.exploratory else claim.text,
            "read": claim.read,
            "paper": in_words(claim.paper),
            "world": _shown(claim, claim.values(world, METHOD)),
            "model": _shown(claim, values),
            "larger": _shown(claim, claim.values(larger, METHOD)),
            "shadow": "–",
            "over": "–",
            "verdict": verdict(claim, over_seeds(values)),
        }
        if values.empty and "why" in values.attrs:
            row["verdict"] = "undecided"
        if claim.shadow:
            shadow = claim.values(model, BASELINE)
            row["shadow"] = _shown(claim, shadow)
            over = over_seeds(_by_seed(values).sub(_by_seed(shadow)).dropna().reset_index())
            if over is not None:
                row["over"] = shown(over, claim.digits, claim.scale, signed=True)
        rows.append(row)
    return pd.DataFrame(rows)


def in_words(paper: str) -> str:
    """What a claim prints, with its place in the paper under a name for a reader."""
    for label, place in PLACES.items():
        paper = paper.replace(label, place)
    return paper


def _by_seed(values: pd.DataFrame) -> pd.DataFrame:
    return values.groupby("seed")[["value"]].mean()


def _shown(claim: Claim, values: pd.DataFrame) -> str:
    found = over_seeds(values)
    if found is None:
        return str(values.attrs.get("why", "not run"))
    return shown(found, claim.digits, claim.scale, signed=claim.threshold == 0)


def shown(found: Estimate, digits: int, scale: float = 1.0, signed: bool = False) -> str:
    """An estimate times `scale` as text: value [low, high] (n=seeds)."""
    sign = "+" if signed else ""
    value, low, high = (
        f"{x * scale:{sign}.{digits}f}" for x in (found.value, found.low, found.high)
    )
    interval = "" if math.isnan(found.low) else f" [{low}, {high}]"
    return minus(f"{value}{interval} (n={found.n})")


PLACES = {
    "tab:tie-injection-performance": "table of performance with injected ties",
    "tab:posterior-hard-pair": "table of routing with reversed hard pairs",
    "tab:tie-per-pair": "table of exact ties, pair by pair",
    "tab:multipref-routing": "table of MultiPref",
    "tab:computational-overhead": "table of computational overhead",
    "fig:tie-selectivity": "figure of tie selectivity",
    "app:self-confirmation": "appendix on self-confirmation",
}
"""The paper's labels of tables, figures and sections, in words."""
_VOTES = "tab:multipref-routing"
_OVER_LENGTH = "… more than the answers' difference in length does"
_LENGTH = f"{ALIKE_LENGTH}, "

CLAIMS: tuple[Claim, ...] = (
    Claim("PLC-DPO wins against same-data DPO on clean data, win rate in %",
          "58.3 (tab:tie-injection-performance, 0 % ties)", win_rate((0.0,)), 50.0,
          digits=1, published=58.3, read=ANSWERS),
    Claim("PLC-DPO wins against same-data DPO at 20 % reversed labels, win rate in %",
          "71.0 (app:self-confirmation)", win_rate((0.2,)), 50.0, digits=1, published=71.0,
          read=ANSWERS),
    Claim("PLC-DPO wins against same-data DPO at 30 % exact ties, win rate in %",
          "68.5 (tab:tie-injection-performance)", win_rate((0.0,), "ties", 0.3), 50.0,
          digits=1, published=68.5, read=ANSWERS),
    Claim("Held-out accuracy over DPO, clean data, in points", "–",
          accuracy_over_dpo((0.0,)), scale=100, digits=1, read=HELD_OUT),
    Claim("Held-out accuracy over DPO, 20 to 40 % reversed labels, in points", "–",
          accuracy_over_dpo(NOISY), scale=100, digits=1, read=HELD_OUT),
    Claim("… and over the best other objective, which these pairs chose, in points", "–",
          over_best_other, scale=100, digits=1, read=HELD_OUT),
    Claim("… and over DPO of another β at the same KL, in points", "not measured",
          at_like_kl("accuracy", "test", NOISY, "beta"), scale=100, digits=1, read=HELD_OUT),
    Claim("… and over DPO of another learning rate at the same KL, in points", "not measured",
          at_like_kl("accuracy", "test", NOISY, "learning_rate"), scale=100, digits=1,
          exploratory=True, read=HELD_OUT),
    Claim("Reward of answers over DPO of another β at the same KL, 20 to 40 % reversed labels",
          "not measured", at_like_kl("reward", "responses", NOISY, "beta"), read=ANSWERS),
    Claim("… and over DPO of another learning rate at the same KL", "not measured",
          at_like_kl("reward", "responses", NOISY, "learning_rate"), exploratory=True,
          read=ANSWERS),
    Claim("q_flip ranks reversed labels at 20 %, AUROC", "0.731 (app:self-confirmation)",
          single("flip_auroc", "q_flip", (0.2,)), 0.5, shadow=True, published=0.731),
    Claim("… more than the margin of plain DPO does, AUROC difference", "not measured",
          gap(("flip_auroc", "q_flip"), ("flip_auroc", "-margin"), (0.2,), BASELINE)),
    *(
        Claim(f"{_OVER_LENGTH}, at {100 * rate:.0f} %, AUROC difference", "not measured",
              gap(("flip_auroc", "q_flip"), ("flip_auroc", AGAINST_LENGTH), (rate,)),
              exploratory=True)
        for rate in (0.1, 0.2, 0.3, 0.4)
    ),
    Claim("Mean q_flip of reversed above that of other labels, at 20 %",
          "+0.276 (app:self-confirmation)",
          gap(("q_flip", "flipped"), ("q_flip", "not flipped"), (0.2,)), shadow=True,
          published=0.276),
    Claim("Mean q_flip rises with the noise, from clean data to 30 %",
          "+0.205 from 5 to 30 % of hard pairs (tab:posterior-hard-pair)", dose, shadow=True),
    Claim("q_tie is larger for the smallest score gaps, AUROC, mean of the sources",
          "significant, no size (fig:tie-selectivity)", within_sources("tie_selectivity"), 0.5,
          shadow=True),
    Claim(f"{_OVER_LENGTH}, AUROC difference", "not measured",
          within_sources("tie_selectivity", over=_LENGTH), exploratory=True),
    Claim("q_tie ranks exact ties, AUROC", "0.619 (tab:tie-per-pair)",
          single("tie_auroc", "q_tie", (0.0,)), 0.5, shadow=True, published=0.619),
    Claim("… within the sources that have ties, AUROC", "not measured",
          within_sources("tie_auroc", "q_tie, "), 0.5, shadow=True, exploratory=True),
    Claim(f"{_OVER_LENGTH}, AUROC difference", "not measured",
          within_sources("tie_auroc", "q_tie, ", over=_LENGTH), exploratory=True),
    Claim("The margin per token ranks exact ties within the sources that have some, AUROC",
          "not measured", within_sources("tie_auroc", "-|margin| per token, "), 0.5, shadow=True,
          exploratory=True),
    Claim("q_tie of tie-majority above that of unanimous human votes", f"+0.0186 ({_VOTES})",
          gap(("votes_q_tie", "tie-majority"), ("votes_q_tie", "unanimous"), (0.0,)), digits=4,
          shadow=True, published=0.0186, read=VOTED),
    Claim("… of divergent above that of unanimous votes", f"ordered ({_VOTES})",
          gap(("votes_q_tie", "divergent"), ("votes_q_tie", "unanimous"), (0.0,)), digits=4,
          shadow=True, exploratory=True, read=VOTED),
    Claim("… of tie-majority above that of divergent votes", f"ordered ({_VOTES})",
          gap(("votes_q_tie", "tie-majority"), ("votes_q_tie", "divergent"), (0.0,)), digits=4,
          shadow=True, exploratory=True, read=VOTED),
    Claim("q_tie follows the order of the three vote groups, Kendall's τ-b", "ordered, p not given",
          single("votes_trend", "tau", (0.0,)), shadow=True, read=VOTED),
    Claim("q_tie rises with less agreement within the sources of votes, Kendall's τ",
          "not measured", within_sources("votes_trend", "tau, "), shadow=True, exploratory=True,
          read=VOTED),
    Claim(f"{_OVER_LENGTH}, difference of τ", "not measured",
          within_sources("votes_trend", "tau, ", over=f"tau, {_LENGTH}"), exploratory=True,
          read=VOTED),
    Claim("q_flip finds disagreement with a reward model at 20 %, AUROC",
          "0.779 (app:self-confirmation)", single("reward_auroc", "q_flip", (0.2,)), 0.5,
          shadow=True, published=0.779, read=HELD_OUT),
    Claim(f"{_OVER_LENGTH}, AUROC difference", "not measured",
          gap(("reward_auroc", "q_flip"), ("reward_auroc", AGAINST_LENGTH), (0.2,)),
          exploratory=True, read=HELD_OUT),
    Claim("Little correction early: share of the weight in the first 20 % of training, below 5 %",
          "0.019 (app:self-confirmation)", single("early_share", "all", (0.2,)), 0.05, above=False,
          by_construction=True),
    Claim("No slower than DPO: time of a run over DPO's, below 1.05",
          "0.997 (tab:computational-overhead)", training_time, 1.05, above=False, read=RUNS),
    Claim("Beside the paper: p_flip is better calibrated than q_flip at 20 %, ECE difference", "–",
          gap(("ece", "q_flip"), ("ece", "p_flip"), (0.2,)), shadow=True),
    Claim("Beside the paper: p_flip forecasts better than the base rate at 20 %, Brier difference",
          "–", gap(("brier_base", "p_flip"), ("brier", "p_flip"), (0.2,)), shadow=True,
          exploratory=True),
    Claim("Beside the paper: error of the estimated noise rate under DPO, below 0.1", "–",
          noise_error, 0.1, above=False),
    Claim("Beside the paper: lengths as evidence raise q_flip's AUROC, at 40 % reversed labels",
          "–", of_variant("flip_auroc", "q_flip", (0.4,), "length-evidence", METHOD),
          exploratory=True),
    Claim("… on pairs that it was not found on", "–",
          of_variant("flip_auroc", "q_flip", (0.4,), f"length-evidence-{FRESH}", FRESH, "variants"),
          exploratory=True),
    Claim("… and held-out accuracy there, over DPO, in points", "–",
          of_variant("accuracy", "test", (0.4,), f"length-evidence-{FRESH}", f"{BASELINE}-{FRESH}",
                     "variants"), scale=100, digits=1, exploratory=True, read=HELD_OUT),
)  # fmt: skip
"""Every claim of the table, in its order."""
