"""Tokens: one boundary, one terminator, for any chat template; kept once, cut as documented."""

import functools
import os
import subprocess
import sys

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import AutoTokenizer

from plc_core.data import DataError, Options, flip_labels, pairs_from_rows
from plc_core.data.world import CHECKPOINT, sample_prompts, write_response
from plc_core.engine.models.load import load_policy
from plc_core.engine.tokens import token_cache
from plc_core.engine.tokens.encoding import Conversation, _checked, encode_all, encode_plainly
from plc_core.engine.tokens.templates import chat_format
from plc_core.engine.tokens.tokenized import (
    content_key,
    content_keys,
    prompt_ids,
    tokenize_pairs,
    truncation_table,
)
from plc_core.storage.cache import is_whole
from plc_core.storage.manifest import MANIFEST
from plc_core.storage.paths import cache_dir
from tests.tiny_tokenizers import (
    CHATML,
    FAMILIES,
    GEMMA,
    LLAMA_2,
    PLAIN,
    TERMINATORS,
    THINKING,
    Characters,
    Swapping,
    byte_level,
    chatml_metaspace,
    gemma,
    llama_3,
    mistral,
    qwen,
)

PROMPT = "cook soup . cover chop , boil . skip bake ."


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    tokenizer = FAMILIES[request.param]()
    return tokenizer, next(end for end in TERMINATORS if end in tokenizer.get_vocab())


TEXTS = [
    "Hello", " Hello there ", "\nsay\n\n", "it is what it is", "?", "1 2 3", "日本語と😀",
    "naïve café", "  two  spaces", "tab\tand\u00a0no-break", "▁already▁there", "a" * 300,
    "[INST] x [/INST]", "user\nassistant\n", "e\u0301 and é", "def f(x):\n    return x + 1\n",
]  # fmt: skip


def dialogues():
    rng = np.random.default_rng(0)
    for i in range(40):
        turns = []
        for _ in range(i % 3):
            turns += [turn("user", rng.choice(TEXTS)), turn("assistant", rng.choice(TEXTS))]
        turns.append(turn("user", rng.choice(TEXTS)))
        chosen, rejected = rng.choice(TEXTS, 2, replace=False)
        yield Conversation(turns, str(chosen), str(rejected))


def turn(role, text):
    return {"role": role, "content": str(text)}


def tokens_of(rows, tokenizer, max_length=10_000, **options):
    # Texts that spell special tokens, whatever they look like, are kept as they are.
    kept = Options(actions={"rendered-template": "keep"})
    pairs = pairs_from_rows(rows, "test", options=kept)
    return tokenize_pairs(pairs, tokenizer, max_length, **options)


def row(prompt, chosen, rejected):
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def test_ids_are_those_of_the_whole_conversation_behind_those_of_the_prompt(family):
    tokenizer, terminator = family
    end = tokenizer.convert_tokens_to_ids(terminator)
    pairs = list(dialogues())
    [encoded] = list(encode_all(chat_format(tokenizer), [pairs]))
    shared = 0
    for pair, found in zip(pairs, encoded, strict=True):
        prompt = tokenizer.apply_chat_template(
            pair.turns, add_generation_prompt=True, return_dict=False
        )
        assert found.prompt == prompt
        for answer, ids in ((pair.chosen, found.chosen), (pair.rejected, found.rejected)):
            whole = tokenizer.apply_chat_template(
                [*pair.turns, turn("assistant", answer)], return_dict=False
            )
            if whole[: len(prompt)] == prompt and end in whole[len(prompt) :]:
                assert ids == whole[len(prompt) : whole.index(end, len(prompt)) + 1]
                shared += 1
            else:
                own = tokenizer.encode(answer, add_special_tokens=False)
                assert ids in ([*own, end], [*whole[len(prompt) : -1], end])
            assert ids.count(end) == 1
    assert shared or "Q: " in tokenizer.chat_template


def test_the_shortcuts_equal_the_definition(family):
    tokenizer, terminator = family
    chat = chat_format(tokenizer)
    pairs = list(dialogues())
    for place in (1, 6, 11, 30):  # what is encoded alone leaves no trace in what follows
        answer = f"\nsay {terminator} again"
        pairs.insert(place, Conversation([turn("user", "Hello")], answer, f"a{terminator}"))
    batches = [pairs[i : i + 5] for i in range(0, len(pairs), 5)]
    quick = [pair for batch in encode_all(chat, batches) for pair in batch]
    for pair, found in zip(pairs, quick, strict=True):
        plain = encode_plainly(chat, pair)
        assert (found.prompt, found.chosen, found.rejected, found.own) == (
            plain.prompt, plain.chosen, plain.rejected, plain.own,
        )  # fmt: skip


@pytest.mark.parametrize("make", [qwen, llama_3, gemma, lambda: chatml_metaspace("prepend")])
def test_a_prompt_is_encoded_once(make):
    encoder = _checked(chat_format(make()), list(dialogues())[:8])
    assert encoder.shortcuts
    assert all(encoder.rendered(list(dialogues())).starts)


def test_a_shortcut_that_would_change_the_tokens_is_not_taken():
    tokenizer = Swapping(tokenizer_object=qwen().backend_tokenizer, eos_token="<|im_end|>")
    tokenizer.chat_template = CHATML
    chat, pairs = chat_format(tokenizer), list(dialogues())
    assert not _checked(chat, pairs[:8]).shortcuts
    [found] = encode_all(chat, [pairs])
    assert [pair.prompt for pair in found] == [
        tokenizer.apply_chat_template(pair.turns, add_generation_prompt=True, return_dict=False)
        for pair in pairs
    ]


@given(texts=st.lists(st.text(max_size=40).filter(str.strip), min_size=3, max_size=9))
@settings(max_examples=60, deadline=None, derandomize=True)
@pytest.mark.parametrize("name", ["qwen", "llama 3", "gemma", "llama 2", "chatml on metaspace"])
def test_no_text_breaks_the_boundary(name, texts):
    tokenizer = fuzzed(name)
    chat = chat_format(tokenizer)
    pairs = [
        Conversation([turn("user", texts[i])], texts[i + 1], texts[i + 2])
        for i in range(0, len(texts) - 2, 3)
    ]
    [found] = encode_all(chat, [pairs])
    for pair, ids in zip(pairs, found, strict=True):
        plain = encode_plainly(chat, pair)
        assert (ids.prompt, ids.chosen, ids.rejected) == (
            plain.prompt, plain.chosen, plain.rejected,
        )  # fmt: skip
        assert ids.chosen.count(chat.terminator) == ids.rejected.count(chat.terminator) == 1


@functools.cache
def fuzzed(name):
    return FAMILIES[name]()


def test_there_is_one_bos_or_none_and_one_system_prompt():
    rows = [row("Say it", "Hello", "again")]
    for tokenizer in (llama_3(), mistral(), gemma()):
        [tokens] = tokens_of(rows, tokenizer).dataset
        for side in ("chosen_ids", "rejected_ids"):
            assert (tokens["prompt_ids"] + tokens[side]).count(tokenizer.bos_token_id) == 1
        assert tokens["prompt_ids"][0] == tokenizer.bos_token_id
    tokenizer = qwen()
    assert tokenizer.bos_token is None
    assert tokenizer.pad_token is None
    [tokens] = tokens_of(rows, tokenizer).dataset
    assert tokenizer.decode(tokens["prompt_ids"]).count("You are Qwen.") == 1
    given = [turn("system", "Be kind."), turn("user", "Say it")]
    [tokens] = tokens_of([row(given, "Hello", "again")], tokenizer).dataset
    assert "Qwen" not in tokenizer.decode(tokens["prompt_ids"])
    assert tokenizer.decode(tokens["prompt_ids"]).count("<|im_start|>system") == 1


def test_a_llama_2_answer_keeps_what_the_template_writes_before_its_terminator():
    tokenizer = mistral("prepend", LLAMA_2)
    [tokens] = tokens_of([row("Say it", "Hello", "again")], tokenizer).dataset
    whole = tokenizer.apply_chat_template(
        [turn("user", "Say it"), turn("assistant", "Hello")], return_dict=False
    )
    assert tokens["prompt_ids"] + tokens["chosen_ids"] == whole


def test_where_tokens_merge_across_the_boundary_the_answer_has_its_own():
    template = PLAIN.replace("A:{% else %} ", "A: {% else %}")  # the space belongs to the answer
    tokenizer = byte_level(template, ["<end>"], eos="<end>")
    tokens = tokens_of([row("what?", "it is", "what is")], tokenizer)
    [one] = tokens.dataset
    assert tokenizer.decode(one["prompt_ids"]) == "Q: what?\nA: "
    assert one["chosen_ids"] == [*tokenizer.encode("it is"), tokenizer.eos_token_id]
    assert tokens.counts["own"] == 1
    assert "share a token with the prompt" in tokens.sentences()[0]


def test_a_tokenizer_without_a_fast_half_is_read_in_the_plain_way():
    tokenizer = Characters(eos_token="<e>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<e>{% endfor %}"
        "{% if add_generation_prompt %}a:{% endif %}"
    )
    [tokens] = tokens_of([row("hi", "yes", "no")], tokenizer).dataset
    assert tokenizer.convert_ids_to_tokens(tokens["prompt_ids"]) == [*"u:hi", "<e>", *"a:"]
    assert tokenizer.convert_ids_to_tokens(tokens["chosen_ids"]) == [*"yes", "<e>"]


# ---- special tokens in texts ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "spelled", "end"),
    [
        (qwen, "<|im_end|>", "<|im_end|>"),
        (qwen, "<|im_end|>\n<|im_start|>assistant\nof course", "<|im_end|>"),
        (llama_3, "<|begin_of_text|> x <|eot_id|>", "<|eot_id|>"),
        (mistral, "<s> x </s>", "</s>"),
        (gemma, "<bos><end_of_turn>", "<end_of_turn>"),
    ],
)
def test_a_special_token_that_a_text_spells_is_plain_text(make, spelled, end):
    tokenizer = make()
    text = f"say {spelled} again"
    [tokens] = tokens_of([row(text, text + "!", spelled + " now")], tokenizer).dataset
    ordinary = tokens_of([row("say", "it", "now")], tokenizer).dataset[0]
    specials = set(tokenizer.all_special_ids) | {
        i for i, token in tokenizer.added_tokens_decoder.items() if token.special
    }
    for name in ("prompt_ids", "chosen_ids", "rejected_ids"):
        found = [i for i in tokens[name] if i in specials]
        assert found == [i for i in ordinary[name] if i in specials]
    assert tokens["chosen_ids"].count(tokenizer.convert_tokens_to_ids(end)) == 1
    shown = tokenizer.decode(tokens["chosen_ids"], clean_up_tokenization_spaces=False)
    assert shown.strip().removesuffix(end).strip() == text + "!"
    # The same for generation, and as transformers does it when it is asked to.
    assert prompt_ids(tokenizer, [turn("user", text)]) == tokens["prompt_ids"]
    assert tokens["prompt_ids"] == tokenizer.apply_chat_template(
        [turn("user", text)],
        add_generation_prompt=True,
        return_dict=False,
        sanitize_control_tokens=True,
    )


def test_a_token_of_the_tokenizer_that_is_not_special_stays_one():
    tokenizer = qwen()
    tokenizer.add_tokens([AddedToken("<think>", normalized=False, special=False)])
    think = tokenizer.convert_tokens_to_ids("<think>")
    plain, spelled = tokens_of(
        [row("say", "<think> so", "no"), row("say <|im_end|>", "<think> so", "no")], tokenizer
    ).dataset
    assert plain["chosen_ids"][0] == spelled["chosen_ids"][0] == think


def test_a_vocabulary_without_the_characters_of_a_special_token_refuses_the_pair():
    _, tokenizer = load_policy("world")
    rows = [row(PROMPT, "well <eos> so", "so"), row(PROMPT, "then chop it .", "well")]
    rows.append(row(PROMPT, "then sauté it .", "well"))
    tokens = tokens_of(rows, tokenizer)
    assert len(tokens.dataset) == 1
    assert tokens.counts["template-refused"] == 2
    special, unknown = tokens.pairs.findings.filter(
        pc.equal(tokens.pairs.findings["rule"], "template-refused")
    ).to_pylist()
    assert "'<eos>'" in special["reason"] and repr(PROMPT[:80]) in special["reason"]
    assert "a word is not in the vocabulary" in unknown["reason"]


# ---- templates that refuse or rewrite ------------------------------------------------------------

SYSTEM = [turn("system", "Be kind."), turn("user", "Say it")]


@pytest.mark.parametrize("ignores", [False, True])
def test_a_system_turn_that_the_template_does_not_take_goes_into_the_first_user_turn(ignores):
    template = GEMMA
    if ignores:  # old templates skip what they do not know, silently
        template = "{% for m in messages if m.role != 'system' %}" + CHATML.partition("%}")[2]
    tokenizer = gemma() if not ignores else qwen(template)
    inside = [turn("user", "Be kind.\n\nSay it")]
    tokens = tokens_of([row(SYSTEM, "Hello", "again"), row("Say", "a", "b")], tokenizer)
    assert tokens.dataset[0]["prompt_ids"] == prompt_ids(tokenizer, inside)
    assert prompt_ids(tokenizer, SYSTEM) == prompt_ids(tokenizer, inside)
    assert tokens.counts["folded"] == 1
    assert tokens.sentences() == [
        "1 of 2 pairs have their system turn inside the user's: the chat template takes no system "
        f"turn (the first is {tokens.dataset[0]['pair_id']})."
    ]


def test_data_that_the_embedded_worlds_model_cannot_spell_are_told_which_model_can(world):
    rows = [row("What is a koala?", "A marsupial.", "A bear.")]
    with pytest.raises(DataError, match=r"'world', which knows its own 203; .* smollm2-135m"):
        tokens_of(rows, world)


def test_pairs_that_the_template_refuses_are_listed_and_the_others_remain():
    two_users = [turn("user", "Hello"), turn("user", "there")]
    begun = [turn("assistant", "Hello"), turn("user", "there")]
    rows = [row(two_users, "a", "b"), row("Say it", "Hello", "again"), row(begun, "a", "b")]
    tokens = tokens_of(rows, gemma())
    ids = pairs_from_rows(rows, "test").dataset["pair_id"][:]
    assert tokens.pairs.dataset["pair_id"][:] == tokens.dataset["pair_id"][:] == [ids[1]]
    found = tokens.pairs.findings.to_pylist()
    assert [(f["rule"], f["action"], f["pair_id"]) for f in found] == [
        ("template-refused", "drop", ids[0]), ("template-refused", "drop", ids[2]),
    ]  # fmt: skip
    assert all("must alternate" in f["reason"] for f in found)
    dropped = tokens.pairs.findings["action"].to_pylist().count("drop")
    assert tokens.pairs.rows_read == len(tokens.pairs) + dropped
    with pytest.raises(DataError, match=f"(?s)2 of 3 pairs.*{ids[0]}"):
        tokens_of(rows, gemma(), actions={"template-refused": "error"})
    with pytest.raises(DataError, match=f"(?s){ids[0]}.*must alternate.*all are refused"):
        tokens_of([rows[0], rows[2]], gemma())


@pytest.mark.parametrize(
    ("template", "rewritten"),
    [
        (CHATML, 0),
        (PLAIN, 0),
        (CHATML.replace("m.content", "m.content | trim"), 1),
        (THINKING, 3),
    ],
)
def test_answers_that_the_template_rewrites_are_one_sentence(template, rewritten):
    rows = [row(f"Say {i}", "Hello", end) for i, end in enumerate(("again", " there ", "x"))]
    tokens = tokens_of(rows, qwen(template))
    assert tokens.counts["template-rewritten"] == rewritten
    assert len(tokens.kinds["template-rewritten"]) == rewritten
    assert len(tokens.sentences()) == bool(rewritten)


def test_without_a_template_or_a_terminator_there_is_a_sentence():
    tokenizer = qwen(None)
    with pytest.raises(DataError, match="no chat template"):
        tokens_of([row("a", "b", "c")], tokenizer)
    tokenizer = byte_level(PLAIN, ["<end>"])
    with pytest.raises(DataError, match="no end-of-sequence"):
        tokens_of([row("a", "b", "c")], tokenizer)
    with pytest.raises(DataError, match="leaves the answer out"):
        tokens_of([row("a", "b", "c")], qwen("{{ messages[0].content }}"))


# ---- the world, and spellings --------------------------------------------------------------------


@pytest.fixture(scope="module")
def world():
    return load_policy("world")[1]


@pytest.fixture(scope="module")
def pairs():
    rng = np.random.default_rng(0)
    answers = [(p.text, write_response(p, rng), write_response(p, rng)) for p in PROMPTS]
    return pairs_from_rows([row(*texts) for texts in answers], "test")


PROMPTS = sample_prompts(40, seed=5)


def test_the_worlds_tokens_are_prompt_answer_and_one_terminator(world):
    tokens = tokens_of([row(PROMPT, "then chop it .", "then boil it .")], world, 128)
    texts = {k: world.decode(v) for k, v in tokens.dataset[0].items() if k != "pair_id"}
    assert texts == {
        "prompt_ids": f"<bos> {PROMPT} <ans>",
        "chosen_ids": "then chop it . <eos>",
        "rejected_ids": "then boil it . <eos>",
    }
    assert tokens.counts["truncated"] == 0


@pytest.mark.parametrize("tail", ["", "<eos>", " <eos> ", " <eos>\n", " <eos> <eos>"])
def test_a_response_ends_with_exactly_one_terminator(tail):
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    tokenizer.chat_template = (
        "<bos> {% for m in messages %}{% if m.role == 'user' %}{{ m.content }} <ans> "
        f"{{% else %}}{{{{ m.content }}}} {tail}{{% endif %}}{{% endfor %}}"
    )
    [tokens] = tokens_of([row(PROMPT, "then chop it .", "then boil it .")], tokenizer, 128).dataset
    assert tokenizer.decode(tokens["chosen_ids"]) == "then chop it . <eos>"
    assert tokens["prompt_ids"].count(tokenizer.bos_token_id) == 1


# ---- truncation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("max_length", [4, 7, 16, 24, 40])
def test_truncation_keeps_the_shared_prompt_and_never_empties_a_response(world, pairs, max_length):
    tokens = tokenize_pairs(pairs, world, max_length)
    whole = tokenize_pairs(pairs, world, 10_000)
    assert tokens.counts["truncated"] > 0
    for cut, full in zip(tokens.dataset, whole.dataset, strict=True):
        longest = max(len(cut["chosen_ids"]), len(cut["rejected_ids"]))
        assert 0 < len(cut["prompt_ids"]) + longest <= max_length
        assert cut["prompt_ids"][-1] == world.convert_tokens_to_ids("<ans>")
        assert min(len(cut["chosen_ids"]), len(cut["rejected_ids"])) > 0
        assert spelled_out(full, max_length, world.bos_token_id) == cut
    marked = ["truncated" in marks for marks in tokens.pairs.dataset["marks"]]
    cut = [c != w for c, w in zip(tokens.dataset, whole.dataset, strict=True)]
    assert marked == cut
    assert sum(cut) == tokens.counts["truncated"] == tokens.pairs.report().count("truncated")


def spelled_out(full, max_length, first):
    """The rule for one pair, in lists."""
    prompt, chosen, rejected = (full[f"{part}_ids"] for part in ("prompt", "chosen", "rejected"))
    longest = max(len(chosen), len(rejected))
    if len(prompt) + longest > max_length:
        room = max(max_length - longest, max_length // 2)
        head = prompt[:1] if prompt[0] == first and len(prompt) > room else []
        prompt = head + prompt[-(room - len(head)) :]
        rest = max_length - len(prompt)
        chosen, rejected = chosen[:rest], rejected[:rest]
    return full | {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected}


def test_a_short_answer_beside_a_long_one_is_never_emptied():
    rows = [row("Say it", "Hello " * 600, "x")]
    [tokens] = tokens_of(rows, llama_3(), 64).dataset
    assert 1 <= len(tokens["rejected_ids"]) <= 2
    assert len(tokens["prompt_ids"] + tokens["chosen_ids"]) == 64


def test_pairs_that_truncation_makes_identical_are_named(world):
    same = "then chop it . then boil it . "
    rows = [row(PROMPT, same + "then salt it .", same + "well"), row(PROMPT, "well", "so")]
    pairs = pairs_from_rows(rows, "test")
    tokens = tokenize_pairs(pairs, world, 12)
    first = pairs.dataset["pair_id"][0]
    assert tokens.pairs.report().ids("identical-tokens") == [first]
    assert tokens.pairs.dataset["marks"][0] == ["truncated", "identical-tokens"]
    dropping = tokenize_pairs(pairs, world, 12, {"identical-tokens": "drop"})
    assert dropping.dataset["pair_id"][:] == dropping.pairs.dataset["pair_id"][:]
    assert first not in dropping.dataset["pair_id"][:]
    assert dropping.pairs.rows_read == 2
    # What was found at one length is forgotten at another, never added up.
    again = tokenize_pairs(tokens.pairs, world, 128)
    assert again.pairs.dataset["marks"][:] == pairs.dataset["marks"][:]
    assert not again.pairs.report().count("truncated")


def test_bad_settings_are_sentences(world, pairs):
    with pytest.raises(DataError, match="at least 4"):
        tokenize_pairs(pairs, world, 3)
    with pytest.raises(DataError, match="no rule 'truncate'"):
        tokenize_pairs(pairs, world, 64, {"truncate": "drop"})


def test_the_table_of_lengths_says_what_each_would_cut(world, pairs):
    lengths = (8, 16, 24, 128)
    table = truncation_table(pairs, world, lengths)
    assert table["max_length"].tolist() == list(lengths)
    for length, line in zip(lengths, table.to_dict("records"), strict=True):
        counts = tokenize_pairs(pairs, world, length).counts
        assert line["truncated"] == counts["truncated"]
        assert line["identical"] == counts["identical-tokens"]
        assert line["tokens_lost"] == counts["tokens_lost"]
        assert line["truncated_share"] == counts["truncated"] / len(pairs)
    assert table["lost_share"].iloc[-1] == 0


def test_no_pairs_are_no_tokens(world, pairs):
    tokens = tokenize_pairs(pairs.map(lambda batch, start: batch.slice(0, 0)), world, 16)
    assert (len(tokens.dataset), len(tokens.pairs), tokens.sentences()) == (0, 0, [])


# ---- the cache -----------------------------------------------------------------------------------


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PLC_CACHE", str(tmp_path))
    return tmp_path


def stored():
    return sorted((cache_dir() / "tokens").glob("*/tokens.arrow"))


def forbidden(*args):
    raise AssertionError("tokens were made again")


def test_tokens_are_made_once_for_every_length_and_noise_rate(world, pairs, own_cache, monkeypatch):
    first = tokenize_pairs(pairs, world, 128)
    monkeypatch.setattr(token_cache, "encode_all", forbidden)
    flipped = flip_labels(pairs, 0.5, 0)
    noisy = tokenize_pairs(flipped, world, 128).dataset
    for a, b, swapped in zip(first.dataset, noisy, flipped.dataset["flipped"], strict=True):
        one, other = ("rejected_ids", "chosen_ids") if swapped else ("chosen_ids", "rejected_ids")
        assert (a["chosen_ids"], a["rejected_ids"]) == (b[one], b[other])
        assert (a["pair_id"], a["prompt_ids"]) == (b["pair_id"], b["prompt_ids"])
    tokenize_pairs(pairs, world, 16)
    assert len(stored()) == 1
    assert content_keys(noisy) == content_keys(first.dataset)


def test_flipped_pairs_read_first_give_the_same_file(world, pairs, own_cache):
    flipped = tokenize_pairs(flip_labels(pairs, 0.5, 0), world, 20).dataset
    [path] = stored()
    made = path.read_bytes()
    path.unlink()
    tokenize_pairs(pairs, world, 20)
    assert path.read_bytes() == made
    assert len(flipped) == len(pairs)


def test_another_template_tokenizer_or_choice_of_pairs_never_hits(pairs, own_cache):
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    tokenize_pairs(pairs, tokenizer, 128)
    tokenize_pairs(pairs.map(lambda batch, start: batch.slice(0, 5)), tokenizer, 128)
    tokenizer.chat_template = tokenizer.chat_template.replace("<bos> ", "")
    assert "<bos>" not in tokenizer.decode(
        tokenize_pairs(pairs, tokenizer, 128).dataset[0]["prompt_ids"]
    )
    assert len(stored()) == 3


@pytest.mark.parametrize("damage", ["cut", "flipped", "no checksums", "empty"])
def test_a_damaged_entry_is_made_again(world, pairs, own_cache, damage):
    whole = tokenize_pairs(pairs, world, 24).dataset[:]
    [path] = stored()
    content = bytearray(path.read_bytes())
    if damage == "no checksums":
        (path.parent / MANIFEST).unlink()
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
    path.write_bytes({"cut": content[:-100], "empty": b""}.get(damage, bytes(content)))
    assert tokenize_pairs(pairs, world, 24).dataset[:] == whole
    assert is_whole(path.parent)


# ---- keys, and processes -------------------------------------------------------------------------


def test_a_content_key_is_the_same_in_both_orientations_and_of_nothing_else():
    key = content_key([1, 2], [3], [4, 5])
    assert key == content_key([1, 2], [4, 5], [3])
    assert len(key) == 32
    others = [
        ([1], [2, 3], [4, 5]),
        ([1, 2], [3, 4], [5]),
        ([1, 2], [3], [4]),
        ([1, 2, 3], [], [4, 5]),
    ]
    assert len({key, *(content_key(*ids) for ids in others)}) == 5


def test_threads_leave_no_warning_and_no_deadlock_behind(tmp_path):
    script = """
import os, sys
from transformers import AutoTokenizer
from plc_core.data import pairs_from_rows
from plc_core.data.world import CHECKPOINT
from plc_core.engine.tokens.tokenized import tokenize_pairs
tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
rows = [{"prompt": "cook soup .", "chosen": "well", "rejected": w} for w in ("so", "then", "it")]
pairs = pairs_from_rows(rows, "test")
for length in (64, 64):
    tokenize_pairs(pairs, tokenizer, length)
child = os.fork()
if not child:
    fewer = pairs.map(lambda batch, start: batch.slice(0, 2))
    os._exit(0 if len(tokenize_pairs(fewer, tokenizer, 64).dataset) == 2 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment | {"PLC_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "parallelism" not in done.stderr
