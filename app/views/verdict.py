"""Verdict: what one run says to the five questions that people open it with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import streamlit as st
from inspection.digest import Digest
from inspection.verdicts import (
    CALIBRATED,
    NOISY,
    Answer,
    is_probability,
    ranks_better,
    separates_ties,
)
from like_runs import against_dpo, noise
from marking import literal
from reading import audit_tables, open_training, read_digest, shown_errors
from selection import head

from plc_core.typography import minus

MOST_PAIRS = 100_000
"""Of more pairs so many are drawn by chance: their intervals are narrow enough."""

STYLE = """<style>
.v-said {font-weight: 600; font-size: 1.3rem; line-height: 1.2}
.v-said::before {content: ""; display: inline-block; width: .75rem; height: .75rem;
  margin-right: .45rem; border-radius: 50%; border: 2px solid; vertical-align: -.05rem}
.v-said.yes::before {background: currentColor}
.v-said:is(.undecided, .unknown, .unasked) {font-weight: 400; opacity: .8}
.v-said.undecided::before {background: linear-gradient(90deg, currentColor 50%, transparent 50%)}
.v-said.unknown::before {border-style: dotted}
.v-said.unasked::before {display: none}
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
.v-beside {opacity: .75; font-size: .8rem; margin-top: .3rem}
</style>"""


@dataclass(frozen=True)
class Question:
    """A question, where its evidence is, and how its number and bound are drawn and written.

    `words` are its answers by what `Answer.said` names them, where those do not say enough.
    """

    text: str
    page: str
    help: str
    ends: tuple[float, float]
    percent: bool = False
    sign: str = ""
    bound: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    side: str = "yes"


NOT_KNOWN = {"unknown": "not known", "unasked": "does not apply"}
NOT_SHOWN = NOT_KNOWN | {"undecided": "not shown"}

QUESTIONS = (
    Question(
        "Beats DPO at equal KL?",
        "views/wins.py",
        "The win rate against the plain DPO run whose KL to the reference is within a "
        "tenth of this run's. A tie counts one half; greedy and sampled answers weigh alike. It "
        "is of one training seed.",
        (0.3, 0.7),
        percent=True,
        bound=": even",
        words=NOT_SHOWN,
    ),
    Question(
        "Does q_flip beat margin and length?",
        "views/corruption.py",
        "How well q_flip ranks reversed labels first (AUROC, at each pair's last visit), minus "
        "the same of the stronger rival: the margin alone, or the answers' lengths alone. The "
        "stronger rival decides. DeLong's interval for correlated areas.",
        (-0.1, 0.1),
        sign="+",
        bound=": no better",
        words=NOT_SHOWN,
    ),
    Question(
        "Is q a probability?",
        "views/corruption.py",
        f"Yes if q_flip differs from the share of reversed labels by less than {CALIBRATED:.0%} "
        "on average (ECE, ten bins, bootstrap over pairs). The method does not promise it.",
        (0.0, 0.4),
        percent=True,
        words=NOT_SHOWN,
    ),
    Question(
        "Does q_tie find ties?",
        "views/ties.py",
        "How well q_tie ranks ties above other pairs (AUROC): above clean and above reversed "
        "ones, whichever is worse. 0.5 is guessing.",
        (0.2, 0.8),
        bound=": guessing",
        words=NOT_SHOWN,
    ),
    Question(
        "How noisy are the data?",
        "views/routing.py",
        "The share of reversed labels, as this run estimates it from the margins of its first "
        "epoch. Other runs on the same pairs have other margins, so their estimates differ, though "
        "the true share is one: trust what their intervals have in common. A label audit asks more "
        "evidence.",
        (0.0, 0.5),
        percent=True,
        words=NOT_KNOWN
        | {
            "yes": f"above {100 * NOISY:.0f} %",
            "no": f"at most {100 * NOISY:.0f} %",
            "undecided": f"may be above {100 * NOISY:.0f} %",
        },
        side="above",
    ),
)


def page() -> None:
    """Draw the page."""
    chosen = head("Verdict")
    if chosen is None:
        return
    root, name = chosen
    st.html(STYLE)
    with shown_errors(name):
        run = open_training(root, name)
        places = [st.container(border=True) for _ in QUESTIONS]
        # First what needs no visit: those of a large run may take a minute to be read.
        _draw(places[4], QUESTIONS[4], lambda: noise(root, run), name)
        _draw(places[0], QUESTIONS[0], lambda: against_dpo(root, run), name)
        found = read_digest(run)
        answers = _of_pairs(str(found.folder), found)
        for place, question, answer in zip(places[1:4], QUESTIONS[1:4], answers, strict=True):
            _show(place, question, answer, name)
        if found.size > MOST_PAIRS:
            st.caption(f"Measured on {MOST_PAIRS:,} of {found.size:,} pairs, drawn at random.")


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
        beside = f'<div class="v-beside">{literal(found.beside)}</div>' if found.beside else ""
        middle.html(_number(question, found) + _gauge(question, found) + beside)
        right.page_link(question.page, label="Evidence", query_params={"run": name},
                        icon=":material/arrow_forward:")  # fmt: skip


def _number(question: Question, found: Answer) -> str:
    """The interval in figures, and what it is of; why there is none, where there is none."""
    said = f'<span class="v-of">{literal(found.of)}</span>'
    if not _is_drawn(found):
        return said

    def words(value: float) -> str:
        scale, digits = (100, 1) if question.percent else (1, 3)
        return minus(f"{scale * value:{question.sign}.{digits}f}")

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


page()
