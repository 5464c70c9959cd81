"""Verdict: what one run says to the five questions that people open it with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import streamlit as st
from inspection.digest import Digest
from inspection.judged_answers import (
    judged,
    judgement_files,
    kl_by_run,
    nearest_dpo,
    prompt_set,
)
from inspection.step_metrics import noise_of
from inspection.verdicts import (
    CALIBRATED,
    NOISY,
    Answer,
    beats_dpo,
    is_probability,
    noisy,
    ranks_better,
    separates_ties,
)
from listing import listed, training_runs
from marking import literal
from reading import audit_tables, config_of, open_training, read_digest, shown_errors
from selection import head

from plc_core.evaluation.results import is_matched
from plc_core.evaluation.win_rate import JoinError
from plc_core.runs import Run
from plc_core.runs.listing import RunSummary

MOST_PAIRS = 100_000
"""Of more pairs so many are drawn by chance: their intervals are narrow enough."""

SAME = ("data", "num_pairs", "seed", "model", "flip_rate", "flips", "tie_rate", "annotator")
"""Parameters that a KL control shares: it starts from the same model and pairs."""

STYLE = """<style>
.v-said {font-weight: 600; font-size: 1.3rem; line-height: 1.2}
.v-said::before {content: ""; display: inline-block; width: .75rem; height: .75rem;
  margin-right: .45rem; border-radius: 50%; border: 2px solid; vertical-align: -.05rem}
.v-said.yes::before {background: currentColor}
.v-said.unknown {font-weight: 400; opacity: .8}
.v-said.unknown::before {border-style: dotted}
.v-gauge {position: relative; height: 2.3rem; margin: .3rem .6rem 0}
.v-gauge > * {position: absolute}
.v-line {left: 0; right: 0; top: .75rem; border-top: 1px solid; opacity: .3}
.v-yes {top: .1rem; height: 1.3rem; background: currentColor; opacity: .09}
.v-bound {top: .1rem; height: 1.3rem; border-left: 2px dashed; opacity: .55}
.v-range {top: .6rem; height: .3rem; border-radius: .2rem; background: currentColor; opacity: .55}
.v-dot {top: .4rem; width: .7rem; height: .7rem; margin-left: -.35rem; border-radius: 50%;
  background: currentColor}
.v-gauge small {top: 1.4rem; transform: translateX(-50%); opacity: .7; white-space: nowrap}
.v-gauge .v-side {transform: none; font-weight: 600}
.v-number {margin-right: .6rem; font-size: 1.25rem; font-weight: 600;
  font-variant-numeric: tabular-nums}
.v-of {opacity: .75; font-size: .85rem; overflow-wrap: anywhere}
</style>"""


@dataclass(frozen=True)
class Question:
    """A question, where its evidence is, and how its number and bound are drawn and written."""

    text: str
    page: str
    help: str
    ends: tuple[float, float]
    percent: bool = False
    sign: str = ""
    bound: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    side: str = "yes"


QUESTIONS = (
    Question(
        "Beats DPO at equal KL?",
        "views/wins.py",
        "The share of prompts won against the plain DPO run whose KL to the reference is within a "
        "tenth, ties one half; greedy and sampled answers weigh alike. One training seed.",
        (0.3, 0.7),
        percent=True,
        bound=": even",
    ),
    Question(
        "q_flip better than margin and length?",
        "views/corruption.py",
        "AUROC for reversed labels, at each pair's last visit, minus that of the stronger rival: "
        "the margin alone, or the answers' lengths. DeLong's interval for correlated areas.",
        (-0.1, 0.1),
        sign="+",
        bound=": no better",
    ),
    Question(
        "Is q a probability?",
        "views/corruption.py",
        f"Yes where q_flip is off by less than {CALIBRATED:.0%} on average (ECE, ten bins, "
        "bootstrap over pairs). The method does not promise it.",
        (0.0, 0.4),
        percent=True,
    ),
    Question(
        "Do ties separate?",
        "views/ties.py",
        "AUROC of q_tie for ties, against clean and against reversed pairs; the weaker is shown. "
        "0.5 is guessing.",
        (0.2, 0.8),
        bound=": guessing",
    ),
    Question(
        "How noisy are the data?",
        "views/routing.py",
        "The run's own estimate of reversed labels, read from the margins of its first epoch.",
        (0.0, 0.5),
        percent=True,
        words={
            "yes": f"above {100 * NOISY:.0f} %",
            "no": f"at most {100 * NOISY:.0f} %",
            "unknown": f"unknown whether above {100 * NOISY:.0f} %",
        },
        side="above",
    ),
)


def page() -> None:
    """Draw the page."""
    chosen = head("Verdict", "What does this run show, and what does it not?")
    if chosen is None:
        return
    root, name = chosen
    st.html(STYLE)
    with shown_errors(name):
        run = open_training(root, name)
        places = [st.container(border=True) for _ in QUESTIONS]
        # First what needs no visit: those of a large run may take a minute to be read.
        _draw(places[4], QUESTIONS[4], lambda: noisy(noise_of(run.path)), name)
        _draw(places[0], QUESTIONS[0], lambda: _against_dpo(root, run), name)
        found = read_digest(run)
        answers = _of_pairs(str(found.folder), found)
        for place, question, answer in zip(places[1:4], QUESTIONS[1:4], answers, strict=True):
            _show(place, question, answer, name)
        if found.size > MOST_PAIRS:
            st.caption(f"Of {found.size:,} pairs {MOST_PAIRS:,} were drawn by chance.")


def _draw(
    place: st.delta_generator.DeltaGenerator,
    question: Question,
    answer: Callable[[], Answer],
    name: str,
) -> None:
    with place, shown_errors(name):
        _show(place, question, answer(), name)


def _show(
    place: st.delta_generator.DeltaGenerator, question: Question, found: Answer, name: str
) -> None:
    with place:
        left, middle, right = st.columns([0.36, 0.48, 0.16], vertical_alignment="center")
        left.markdown(f"**{question.text}**".replace("_", r"\_"), help=question.help)
        said = question.words.get(found.said, found.said)
        left.html(f'<span class="v-said {found.said}">{said}</span>')
        middle.html(_number(question, found) + _gauge(question, found))
        right.page_link(question.page, label="Evidence", query_params={"run": name},
                        icon=":material/arrow_forward:")  # fmt: skip


def _number(question: Question, found: Answer) -> str:
    """The interval in figures, and what it is of; why there is none, where there is none."""
    said = f'<span class="v-of">{literal(found.of)}</span>'
    if not _is_drawn(found):
        return said

    def words(value: float) -> str:
        scale, digits = (100, 1) if question.percent else (1, 3)
        return f"{scale * value:{question.sign}.{digits}f}".replace("-", "−")

    unit = " %" if question.percent else ""
    interval = f"{words(found.value)}{unit} [{words(found.low)}, {words(found.high)}]"
    return f'<span class="v-number">{interval}</span>{said}'


def _gauge(question: Question, found: Answer) -> str:
    """The interval on a line, the bound that it is held against, and on which side a yes lies."""
    if not _is_drawn(found):
        return ""
    low, high = question.ends
    low, high = min(low, found.low), max(high, found.high)

    def at(value: float) -> float:
        return 100 * (value - low) / (high - low)

    bound, width = at(found.bound), at(found.high) - at(found.low)
    said = f"{100 * found.bound:.0f} %" if question.percent else f"{found.bound:g}"
    left, right = (bound, 0.0) if found.above else (0.0, 100 - bound)
    side = "right:0" if found.above else "left:0"
    return (
        '<div class="v-gauge"><i class="v-line"></i>'
        f'<i class="v-yes" style="left:{left:.1f}%;right:{right:.1f}%"></i>'
        f'<small class="v-side" style="{side}">{question.side}</small>'
        f'<i class="v-bound" style="left:{bound:.1f}%"></i>'
        f'<small style="left:{bound:.1f}%">{said}{question.bound}</small>'
        f'<i class="v-range" style="left:{at(found.low):.1f}%;width:{width:.1f}%"></i>'
        f'<i class="v-dot" style="left:{at(found.value):.1f}%"></i></div>'
    )


def _is_drawn(found: Answer) -> bool:
    return found.low == found.low


@st.cache_data(max_entries=16, show_spinner="Measuring …")
def _of_pairs(folder: str, _found: Digest) -> Sequence[Answer]:
    if not _found.visits:
        return [Answer("no pair has been visited yet")] * 3
    visits, pairs = audit_tables(_found, names=True, most=MOST_PAIRS)
    return [measure(visits, pairs) for measure in (ranks_better, is_probability, separates_ties)]


def _against_dpo(root: Path, run: Run) -> Answer:
    """The run against its KL control among the runs of the same pairs and prompts."""
    if config_of(run).get("objective", "plc") != "plc":
        return Answer(f"this run trained with {config_of(run).get('objective')}: choose PLC-DPO's")
    own = [name for name, kind in judgement_files(run).items() if kind == "scores"]
    if not own:
        return Answer("this run has no judged answers")
    alike = [other.name for other in training_runs(listed(root)) if _is_like(other, run)]
    said = Answer("no DPO run on these pairs answered the same prompts")
    for name in own:
        others = {run.name: run}
        for other in alike:
            with shown_errors(other):
                opened = open_training(root, other)
                if name in judgement_files(opened) and prompt_set(opened, name) == prompt_set(
                    run, name
                ):
                    others[other] = opened
        kls = kl_by_run(others, name)
        objectives = {n: str(config_of(r).get("objective")) for n, r in others.items()}
        near = nearest_dpo(kls, objectives, run.name)
        if near is None:
            continue
        if not is_matched(kls[near].mean, kls[run.name].mean):
            said = Answer(
                f"no DPO run moved as far: {kls[run.name].mean:.2f} nats here, the nearest is "
                f"{near} with {kls[near].mean:.2f}"
            )
            continue
        table = judged({n: others[n] for n in (run.name, near)}, name)
        try:
            return beats_dpo(table, run.name, near)
        except JoinError as error:
            said = Answer(str(error))
    return said


def _is_like(other: RunSummary, run: Run) -> bool:
    config = config_of(run)
    return (
        other.problem is None
        and other.config.get("objective") == "dpo"
        and all(other.config.get(name) == config.get(name) for name in SAME)
    )


page()
