"""From pairs to token ids: the model's own chat template, one boundary, one terminator."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from plc_core.data import DataError, Pairs
from plc_core.data.pairs import FEATURES
from plc_core.data.rules import FINDINGS, Action, chosen_actions
from plc_core.engine.tokens.templates import CannotRenderError, Turns, chat_format
from plc_core.engine.tokens.token_cache import TOKENS, Truncation, cut_tokens, token_file
from plc_core.progress import Progress

_KINDS = {
    "template-refused": "cannot be written in the model's template and vocabulary and are left out",
    "template-rewritten": "have an answer that the chat template writes otherwise than it is: "
    "white space cut off, reasoning added or dropped",
    "truncated": "are longer than max_length and lost tokens",
    "identical-tokens": "have the same tokens on both sides and train nothing",
    "folded": "have their system turn inside the user's: the chat template takes no system turn",
    "own": "have an answer that the chat template would make share a token with the prompt; it is "
    "tokenised by itself",
}
_RULES = tuple(_KINDS)[:4]
_REASONS = {
    "template-rewritten": "the chat template writes an answer otherwise than it is",
    "identical-tokens": "both answers have the same tokens",
}


@dataclass(frozen=True)
class Tokens:
    """Pairs and their token ids, row by row the same.

    Attributes:
        pairs: those that remain, with the marks and findings of the rules template-refused,
            template-rewritten, truncated and identical-tokens.
        dataset: on disk: pair_id, prompt_ids, chosen_ids, rejected_ids, in the observed
            orientation; an answer's ids end with its terminator, unless it lost it to max_length.
        max_length: of a prompt with the longer of its answers, in tokens.
        kinds: ids of the pairs to which something happened: the four rules, and folded
            and own, which `sentences` explains.
        counts: pairs (that came in), each kind, tokens (that remain) and tokens_lost.
    """

    pairs: Pairs
    dataset: Dataset
    max_length: int
    kinds: dict[str, pa.ChunkedArray]
    counts: dict[str, int]

    def sentences(self) -> list[str]:
        """What a person should know before training: a sentence for each kind that there is."""
        return [
            f"{self.counts[kind]:,} of {self.counts['pairs']:,} pairs {what} (the first is "
            f"{self.kinds[kind][0]})."
            for kind, what in _KINDS.items()
            if self.counts[kind]
        ]


def tokenize_pairs(
    pairs: Pairs,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    actions: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Tokens:
    """Token ids of every pair, written with the model's own chat template.

    The prompt ids are the template's with its generation prompt, shared by both sides. An answer's
    are those behind them in the whole conversation, up to and with one terminator; where the whole
    does not begin with the prompt's ids, the answer's own. Nothing is added to what the template
    writes, so a BOS is there once or not at all. Contents that spell a special token are plain
    text, in training and in prompts for generation: no user can end a turn.

    A pair longer than `max_length` loses the start of its prompt first (but for a BOS), down to
    half of `max_length`, then the end of the longer answer (the terminator with it), and never all
    of an answer.

    Tokens are kept in the cache folder, whole and as the pairs were read, so that every
    max_length, noise rate and objective shares them.

    Args:
        pairs: any; where corruption swapped a label, the tokens are swapped too.
        actions: what is done under those rules, where it is not as in `plc_core.data.RULES`.

    Raises:
        DataError: where the template refuses every pair, a rule with the action error finds one,
            an action is unknown, max_length is too small, or the tokenizer has no template or no
            terminator.
    """
    if type(max_length) is not int or not 4 <= max_length < 2**31:
        raise DataError(f"max_length is {max_length!r}; a pair needs at least 4 tokens.")
    decided = chosen_actions(actions or {})
    file = token_file(pairs, tokenizer, progress)
    if len(pairs) and file.refused.all():
        raise DataError(
            f"The chat template of {tokenizer.name_or_path!r} cannot render pair "
            f"{file.note('pair_id')[0]}, or the tokenizer cannot spell it: "
            f"{file.note('refused')[0]}. It is the first of {len(pairs):,}, and all are refused. "
            "Is it the model for these pairs?"
        )
    cut = Truncation(file, max_length)
    found, kept = _found(cut, decided)
    noted = {name: file.note(name).to_numpy() for name in ("folded", "own")}
    kinds = {kind: file.note("pair_id").filter(rows) for kind, rows in (found | noted).items()}
    findings = _findings(pairs, cut, found, decided)
    left = int(cut.sizes[:, kept].sum())
    lost = int(file.sizes[:, kept].sum()) - left
    return Tokens(
        pairs=_marked(pairs, found, kept, decided, findings),
        dataset=cut_tokens(cut, _flips(pairs), kept, tokenizer.bos_token_id),
        max_length=max_length,
        kinds=kinds,
        counts={"pairs": len(pairs)}
        | {kind: len(ids) for kind, ids in kinds.items()}
        | {"tokens": left, "tokens_lost": lost},
    )


def truncation_table(
    pairs: Pairs,
    tokenizer: PreTrainedTokenizerBase,
    lengths: Sequence[int] = (256, 512, 1024, 2048),
    progress: Progress | None = None,
) -> pd.DataFrame:
    """What each max_length would cut: one row a length, from one pass over the pairs.

    Columns: max_length, pairs, truncated and identical (pairs), tokens, tokens_lost, and the
    shares truncated_share, identical_share, lost_share. Refused pairs do not count. Identical are
    pairs with the same tokens on both sides, which train nothing.
    """
    if wrong := [length for length in lengths if length < 4]:
        raise DataError(f"A maximum length is {wrong[0]}; a pair needs at least 4 tokens.")
    file = token_file(pairs, tokenizer, progress)
    count, tokens = int((~file.refused).sum()), int(file.sizes.sum())
    rows = []
    for length in lengths:
        cut = Truncation(file, length)
        truncated, identical = int(cut.shortened.sum()), int(cut.identical.sum())
        lost = tokens - int(cut.sizes.sum())
        rows.append([length, count, truncated, identical, tokens, lost])
    names = ["max_length", "pairs", "truncated", "identical", "tokens", "tokens_lost"]
    table = pd.DataFrame(rows, columns=names)
    for part, share in (("truncated", "truncated_share"), ("identical", "identical_share")):
        table[share] = table[part] / table["pairs"]
    return table.assign(lost_share=table["tokens_lost"] / table["tokens"])


def prompt_ids(tokenizer: PreTrainedTokenizerBase, turns: Turns) -> list[int]:
    """The ids of a prompt, up to and including the template's start of the answer.

    Raises DataError where the template refuses it.
    """
    chat = chat_format(tokenizer)
    try:
        return chat.ids(chat.folded(turns), chat.spells_special(turns), prompt=True)
    except CannotRenderError as error:
        raise DataError(
            f"The chat template of {tokenizer.name_or_path!r} cannot render a prompt: {error}."
        ) from error


def content_key(prompt: npt.ArrayLike, chosen: npt.ArrayLike, rejected: npt.ArrayLike) -> str:
    """A name for the tokens of a pair that is the same in both orientations, 32 hex digits."""
    first, *sides = (np.asarray(ids, dtype="<i4").tobytes() for ids in (prompt, chosen, rejected))
    parts = [first, *sorted(sides)]
    sizes = np.array([len(part) for part in parts], dtype="<i8").tobytes()
    return hashlib.sha256(sizes + b"".join(parts)).hexdigest()[:32]


def content_keys(dataset: Dataset) -> list[str]:
    """The `content_key` of every row of tokenised pairs."""
    keys: list[str] = []
    columns = list(TOKENS)[1:]
    for batch in dataset.select_columns(columns).with_format("arrow").iter(1000):
        lists = [batch[name].combine_chunks() for name in columns]
        values = [column.values.to_numpy() for column in lists]
        bounds = [column.offsets.to_pylist() for column in lists]
        keys += [
            content_key(*(v[b[row] : b[row + 1]] for v, b in zip(values, bounds, strict=True)))
            for row in range(len(batch))
        ]
    return keys


def _found(
    cut: Truncation, actions: Mapping[str, Action]
) -> tuple[dict[str, npt.NDArray[np.bool_]], npt.NDArray[np.bool_]]:
    """[pairs] which pairs fall under each rule, and which remain."""
    file = cut.file
    rewritten = file.note("rewritten").to_numpy()
    under = (file.refused, rewritten, cut.shortened, cut.identical)
    found, kept = {}, np.ones(len(file.refused), dtype=bool)
    for rule, rows in zip(_RULES, under, strict=True):
        found[rule] = rows & kept  # a pair that is left out meets no later rule
        if found[rule].any() and actions[rule] == "error":
            first = file.note("pair_id").filter(found[rule])[0]
            raise DataError(
                f"{found[rule].sum():,} of {len(kept):,} pairs {_KINDS[rule]} (max_length is "
                f"{cut.max_length}; the first is {first})."
            )
        if actions[rule] == "drop":
            kept &= ~found[rule]
    return found, kept


def _findings(
    pairs: Pairs,
    cut: Truncation,
    found: Mapping[str, npt.NDArray[np.bool_]],
    actions: Mapping[str, Action],
) -> pa.Table:
    file = cut.file
    whole, left = file.sizes.sum(0), cut.sizes.sum(0)
    tables = []
    for rule, rows in found.items():
        if rule == "template-refused":
            turns = pairs.dataset.select(np.flatnonzero(rows))["prompt"]
            why = file.note("refused").filter(rows).to_pylist()
            reasons = list(map(_refusal, why, turns))
        elif rule == "truncated":
            sizes = zip(whole[rows].tolist(), left[rows].tolist(), strict=True)
            reasons = [f"{all_:,} tokens, {all_ - kept:,} of them lost" for all_, kept in sizes]
        else:
            reasons = [_REASONS[rule]] * int(rows.sum())
        columns = {"pair_id": file.note("pair_id").filter(rows), "reason": reasons}
        columns |= dict.fromkeys(("file", "row"), pa.nulls(len(reasons)))
        columns |= {"rule": [rule] * len(reasons), "action": [actions[rule]] * len(reasons)}
        tables.append(pa.table([columns[name] for name in FINDINGS.names], FINDINGS.names))
    return pa.concat_tables([table.cast(FINDINGS) for table in tables])


def _refusal(reason: str, turns: Sequence[Mapping[str, str]]) -> str:
    # The pair will be in no file of the run, so its prompt says which it was.
    return f"{reason}; the last turn begins {turns[-1]['content'][:80]!r}"


def _marked(
    pairs: Pairs,
    found: Mapping[str, npt.NDArray[np.bool_]],
    kept: npt.NDArray[np.bool_],
    actions: Mapping[str, Action],
    findings: pa.Table,
) -> Pairs:
    # What an earlier call found at another max_length no longer holds.
    stale = pc.is_in(pairs.findings["rule"], pa.array(_RULES))
    earlier = pairs.findings.filter(
        pc.invert(pc.and_(stale, pc.equal(pairs.findings["action"], "keep")))
    )
    findings = pa.concat_tables([earlier, findings])
    before = pairs.dataset.select_columns(["marks"]).with_format("arrow")[:]["marks"].to_pylist()
    marks = [[mark for mark in row or [] if mark not in _RULES] for row in before]
    for rule, rows in found.items():
        for row in np.flatnonzero(rows) if actions[rule] == "keep" else ():
            marks[row].append(rule)
    dataset, path = pairs.dataset, pairs.path
    if marks != [row or [] for row in before]:
        # The other columns stay mapped to their file.
        dataset = dataset.remove_columns("marks").add_column(
            "marks", marks, new_fingerprint=uuid.uuid4().hex, feature=FEATURES["marks"]
        )
        dataset, path = dataset.select_columns(list(FEATURES)), None
    if not kept.all():
        dataset, path = dataset.select(np.flatnonzero(kept)), None
    return replace(pairs, dataset=dataset, findings=findings, path=path)


def _flips(pairs: Pairs) -> npt.NDArray[np.bool_]:
    column = pairs.dataset.select_columns(["flipped"]).with_format("arrow")[:]["flipped"]
    return column.to_numpy().astype(bool)
