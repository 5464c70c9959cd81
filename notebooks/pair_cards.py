"""Pairs with their texts in a report, as HTML, and the style of what reports write as HTML."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

_SHOWN, _MOST = 400, 4_000
"""Characters of a text that are shown at first, and that the report holds."""

STYLE = """<style>
.plc-lead {font-size: 1.25rem; line-height: 1.5; margin: .2rem 0 1rem}
.plc-alert {border-left: 4px solid #D55E00; background: rgba(213,94,0,.09); padding: .6rem .9rem;
  margin: .5rem 0}
.plc-facts {display: flex; flex-wrap: wrap; gap: .6rem 2.2rem; margin: 1rem 0}
.plc-facts div {max-width: 20rem}
.plc-facts span {display: block; font-size: .8rem; color: var(--soft, #59636e)}
.plc-facts b {font-size: 1.15rem; font-variant-numeric: tabular-nums; font-weight: 600}
.plc-small {font-size: .85rem; color: var(--soft, #59636e)}
.plc-pair {border-top: 1px solid var(--line, #d1d9e0); padding: .9rem 0 1rem; break-inside: avoid}
.plc-pair h4 {margin: 0 0 .3rem; font-size: 1rem}
.plc-pair h4 code {font-weight: 400; font-size: .8rem; color: var(--soft, #59636e);
  user-select: all}
.plc-why {margin: .1rem 0 .5rem; font-size: .9rem}
.plc-sides {display: grid; grid-template-columns: 1fr 1fr; gap: .8rem}
@media (max-width: 700px) {.plc-sides {grid-template-columns: 1fr}}
.plc-role {font-size: .78rem; color: var(--soft, #59636e); margin-bottom: .15rem}
.plc-text {white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; font-size: .88rem;
  line-height: 1.45; background: rgba(128,128,128,.09); border-radius: .3rem; padding: .5rem .7rem;
  margin-bottom: .5rem; max-height: 26rem; overflow-y: auto}
.plc-text details {display: inline} .plc-text summary {color: var(--link, #0969da); cursor: pointer}
.plc-next li {margin: .7rem 0}
.plc-next pre {background: rgba(128,128,128,.12); padding: .6rem .8rem; margin: .35rem 0;
  white-space: pre-wrap; overflow-wrap: anywhere; border-radius: .3rem; user-select: all}
</style>"""


def pair_card(place: int, numbers: str, why: str, pair: Mapping[Any, Any]) -> str:
    """One pair as HTML: its numbers, why it is shown, and its texts, all literal.

    Args:
        pair: pair_id, prompt (turns), chosen and rejected.
    """
    sides = [
        f'<div><div class="plc-role">{role}</div>{_text(pair[name])}</div>'
        for role, name in (("labelled better", "chosen"), ("labelled worse", "rejected"))
    ]
    turns = "".join(
        f'<div class="plc-role">{escape(str(turn["role"]))}</div>{_text(turn["content"])}'
        for turn in pair["prompt"]
    )
    return (
        f'<div class="plc-pair"><h4>{place}. {escape(numbers)} '
        f"<code>{escape(pair['pair_id'])}</code></h4>"
        + (f'<p class="plc-why">{escape(why)}</p>' if why else "")
        + f'{turns}<div class="plc-sides">{"".join(sides)}</div></div>'
    )


def _text(text: Any) -> str:
    shown = str(text)
    left = len(shown) - _MOST
    html = escape(shown[:_SHOWN])
    if len(shown) > _SHOWN:
        html += f"<details><summary>… more</summary>{escape(shown[_SHOWN:_MOST])}</details>"
    if left > 0:
        html += f"<br><i>{left:,} more characters: see the inspector.</i>"
    return f'<div class="plc-text" dir="auto">{html or "<i>empty</i>"}</div>'
