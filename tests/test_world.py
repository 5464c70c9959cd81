"""The controlled world: its language, its writer, its gold reward and the committed checkpoint."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from plc_core.data.world import (
    CHECKPOINT,
    FAMILIES,
    VOCABULARY,
    WorldPrompt,
    gold_reward,
    max_reward,
    parse_prompt,
    sample_prompts,
    write_response,
)
from plc_core.data.world import language as words
from plc_core.data.world.writer import CARE_SHIFTS, FLAW_RANGES, flaw_rate, habit
from plc_core.engine.world_sft import WorldSFTConfig, main

COOK = "cook soup . cover chop , boil , salt . skip bake ."
DESCRIBE = (
    "describe kettle : weight light , colour red , size tiny . cover size , colour . skip weight ."
)
REMARKS = (*words.CHAT, *words.NICE, *words.RUDE, *words.LEAD)
PROMPTS = sample_prompts(400, seed=1)


def items_only(prompt: WorldPrompt, items: tuple[str, ...]) -> str:
    """Bare item sentences; an attribute that is not on the card gets its first value."""
    rng = np.random.default_rng(len(prompt.text))
    firsts = {item: options[0] for item, options in words.ATTRIBUTE_VALUES.items()}
    values = firsts | prompt.values
    wordings = [FAMILIES[prompt.family].wordings[rng.integers(2)] for _ in items]
    pairs = zip(wordings, items, strict=True)
    return " ".join(wording.format(item=item, value=values.get(item)) for wording, item in pairs)


def test_vocabulary_has_203_words_and_content_words_have_one_meaning() -> None:
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 203
    assert VOCABULARY[:4] == words.SPECIAL_WORDS
    content = [value for values in words.ATTRIBUTE_VALUES.values() for value in values]
    assert len(content) == 8 * 4
    for family in FAMILIES.values():
        assert len(family.subjects) == 14
        assert len(family.items) == (8 if family.name == "describe" else 12)
        content += [family.name, *family.subjects, *family.items]
    assert len(content) == len(set(content))
    assert not {*content, *words.FILLERS} & set(" ".join(REMARKS).split())


def test_parsing_inverts_the_text() -> None:
    assert [parse_prompt(prompt.text) for prompt in PROMPTS] == PROMPTS
    card = (("weight", "light"), ("colour", "red"), ("size", "tiny"))
    kettle = WorldPrompt("describe", "kettle", ("size", "colour"), "weight", card)
    assert parse_prompt(DESCRIBE) == kettle


def test_prompts_and_answers_have_the_stated_make_up() -> None:
    rng = np.random.default_rng(0)
    prompts = sample_prompts(2000, seed=3)
    answers = [write_response(prompt, rng) for prompt in prompts]
    assert sample_prompts(10, seed=3) == prompts[:10] != PROMPTS[:10]
    assert {prompt.family for prompt in prompts} == set(FAMILIES)
    assert {len(prompt.requested) for prompt in prompts} == {2, 3, 4}
    assert all(answers)
    assert np.mean([len(prompt.text.split()) for prompt in prompts]) == pytest.approx(16, abs=1)
    assert np.mean([len(answer.split()) for answer in answers]) == pytest.approx(20, abs=1.5)
    texts = [*answers, *(prompt.text for prompt in prompts)]
    assert set(" ".join(texts).split()) | {*words.SPECIAL_WORDS} == {*VOCABULARY}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it needs three sentences"),
        ("sing soup . cover chop , boil . skip bake .", "'sing' is not one of describe, cook"),
        ("cook kettle . cover chop , boil . skip bake .", "'kettle' is no subject of 'cook'"),
        ("cook soup . cover chop , hat . skip bake .", "'hat' is no item of 'cook'"),
        ("cook soup . cover chop , boil . skip chop .", "must all differ"),
        ("cook soup . cover chop . skip bake .", "1 items are requested, expected 2 to 4"),
        ("cook soup . skip chop . cover bake .", "starts with 'cover'"),
        ("cook soup : size tiny . cover chop , boil . skip bake .", "needs, a card"),
        (DESCRIBE.replace("size tiny", "size red"), "'size red' is no attribute with one"),
        (DESCRIBE.replace("size tiny", "age old"), "the card must give each"),
        (DESCRIBE + " ", "it needs three sentences"),
    ],
)
def test_a_malformed_prompt_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match="Not a prompt of the controlled world") as error:
        parse_prompt(text)
    assert problem in str(error.value)


def test_habits_are_the_same_everywhere() -> None:
    # A changed hash would silently make the committed checkpoint's training data another.
    assert habit("soup", "drop") == pytest.approx(0.7609804877088953, abs=1e-12)


def test_rates_stay_in_their_ranges_and_shift_in_log_odds() -> None:
    for flaw, (low, high) in FLAW_RANGES.items():
        for subject in FAMILIES["pack"].subjects:
            assert low <= flaw_rate(subject, flaw) <= high
    rates = [flaw_rate("soup", "rude", shift) for shift in CARE_SHIFTS]
    odds = [rate / (1 - rate) for rate in rates]
    assert [odds[1] / odds[0], odds[2] / odds[1]] == pytest.approx([np.exp(0.9)] * 2)


@pytest.mark.parametrize(
    "shows",
    [
        lambda p, r: any(remark in r for remark in words.CHAT),
        lambda p, r: r.endswith(words.RUDE),
        lambda p, r: r.split()[0] in words.FILLERS,
        lambda p, r: p.forbidden in r.split(),
        lambda p, r: any(item not in r.split() for item in p.requested),
    ],
    ids=["chat", "rude", "filler", "forbidden", "drop"],
)
def test_flaws_become_commoner_with_less_care(shows: Callable[[WorldPrompt, str], bool]) -> None:
    shares = []
    for shift in CARE_SHIFTS:
        rng = np.random.default_rng(0)
        shown = [shows(p, write_response(p, rng, care_shift=shift)) for p in PROMPTS]
        shares.append(np.mean(shown))
    assert shares[0] + 0.05 < shares[1] < shares[2] - 0.05


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("", 0.0),
        ("then chop it .", 1.0),
        ("then chop it . then boil it .", 2.5),  # a pair in order
        ("then boil it . then chop it .", 2.0),  # out of order
        ("then chop it . then salt it .", 2.5),  # in order although boil is missing
        ("then chop it . then boil it . then salt it . hope this helps .", 4.75),
        ("then chop it . then bake it . then boil it .", 1.0),  # forbidden, the pair remains
        ("then bake it . then bake it .", -2.25),  # forbidden once, then a duplicate
        ("then fry it .", -0.5),  # not requested
        ("then chop it . next , chop it .", 0.25),  # duplicate
        ("um , then chop it .", 0.5),
        ("um well , then chop it .", 0.0),
        ("um then chop it .", 0.5),  # the comma after fillers is optional
        (", then chop it .", -1.0),  # without a filler it is not
        ("then um chop it .", -1.5),  # filler inside: its price, and the sentence is broken
        ("um ,", -0.5),  # nothing but fillers
        ("then chop it . my cousin says hello .", 0.25),
        ("what a silly question .", -1.0),
        ("then chop it . hope this helps .", 1.75),
        ("hope this helps . then chop it .", 0.25),  # courtesy before the end
        ("here is the answer . then chop it .", 1.0),
        ("um , sure , here you go . then chop it .", 0.5),  # still the first sentence
        ("then chop it . here is the answer .", 0.25),  # opening after the start
        ("then chop .", -1.0),
        ("then chop it", -1.0),  # unfinished
        ("then chop it . hope this helps . then", -0.75),  # so the courtesy is not last
        (".", -1.0),
        ("bring a hat .", -1.0),  # another family's wording
        # From here on describe, where the value matters too.
        ("its size is tiny .", 1.0),
        ("the size is huge .", -1.0),  # wrong value
        ("the size is red .", -1.0),  # a value of another attribute
        ("the size is huge . the size is tiny .", -1.75),  # the first mention counts
        ("its weight is light .", -1.5),  # forbidden, whatever the value
        ("its age is old .", -0.5),  # not on the card
        ("its size is tiny . its colour is red .", 2.5),
    ],
)
def test_rules_one_by_one(response: str, reward: float) -> None:
    prompt = DESCRIBE if response.startswith(("its", "the ")) else COOK
    assert gold_reward(prompt, response) == reward
    assert gold_reward(prompt, response, finished=False) == reward - 2


def test_every_two_words_above_the_limit_cost_a_quarter() -> None:
    for extra_words, penalty in enumerate([0.0, 0.0, 0.25, 0.25, 0.5]):
        one_broken_sentence = " ".join(["it"] * (6 * 3 + 12 + extra_words))
        assert gold_reward(COOK, one_broken_sentence) == -1 - penalty


def test_a_flawless_answer_earns_the_maximum_from_a_prompt_or_its_text() -> None:
    rng = np.random.default_rng(5)
    assert (max_reward(COOK), max_reward(DESCRIBE)) == (4.75, 3.25)
    for prompt in PROMPTS:
        best = write_response(prompt, rng, flawless_share=1.0)
        assert gold_reward(prompt, best) == gold_reward(prompt.text, best) == max_reward(prompt)
    with pytest.raises(ValueError, match="Not a prompt of the controlled world"):
        gold_reward("hello", "then chop it .")


def test_hacks_do_not_pay() -> None:
    def rewards(answer: Callable[[WorldPrompt], str]) -> np.ndarray:
        return np.array([gold_reward(prompt, answer(prompt)) for prompt in PROMPTS])

    assert (rewards(lambda p: " ".join([words.NICE[0]] * 5)) == -2.25).all()
    assert (rewards(lambda p: p.text) == -3.0).all()
    assert (rewards(lambda p: items_only(p, p.requested[:1])) == 1.0).all()
    everything = rewards(lambda p: items_only(p, FAMILIES[p.family].items))
    assert everything.mean() == pytest.approx(-3.83, abs=0.4)
    twice = rewards(lambda p: f"{items_only(p, p.requested)} {words.NICE[0]} " * 2)
    assert twice.mean() == pytest.approx(1.17, abs=0.25)


def test_no_word_salad_exceeds_the_maximum() -> None:
    rng = np.random.default_rng(6)
    for prompt in PROMPTS:
        sentences = items_only(prompt, prompt.requested).replace(" .", " .|").split("|")
        pieces = [*sentences, *sentences, *REMARKS, *words.FILLERS, ","]
        for bowl, most in ((pieces, 9), (VOCABULARY, 40)):
            reward = gold_reward(prompt, " ".join(rng.choice(bowl, size=rng.integers(most))))
            assert reward <= max_reward(prompt)
            assert reward % 0.25 == 0


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(CHECKPOINT, local_files_only=True)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, local_files_only=True)


def test_checkpoint_is_small_and_reloads_as_it_was_trained(model: Any) -> None:
    assert sum(file.stat().st_size for file in CHECKPOINT.iterdir()) <= 3e6
    assert (CHECKPOINT / "model.safetensors").stat().st_size <= 0.8e6
    assert model.dtype == torch.float32
    assert sum(weights.numel() for weights in model.parameters()) == 354_304
    assert model.config.rope_parameters["rope_theta"] == 100.0
    frequencies = 100.0 ** (-torch.arange(0, 16, 2) / 16)  # 128 wide, 8 heads
    torch.testing.assert_close(model.model.rotary_emb.inv_freq, frequencies)
    assert model.generation_config.eos_token_id == VOCABULARY.index("<eos>")
    assert model.generation_config.pad_token_id == VOCABULARY.index("<pad>")


def test_token_ids_are_places_in_the_vocabulary(tokenizer: Any) -> None:
    assert tokenizer.convert_ids_to_tokens(list(range(203))) == list(VOCABULARY)
    assert len(tokenizer) == 203
    ids = tokenizer(COOK)["input_ids"]
    assert ids == [VOCABULARY.index(word) for word in COOK.split()]
    assert tokenizer.decode(ids) == COOK
    with pytest.raises(Exception, match="WordLevel error"):  # there is no unknown word
        tokenizer("then flambé it .")


def test_chat_template_writes_each_special_token_once(tokenizer: Any) -> None:
    user = {"role": "user", "content": COOK}
    assistant = {"role": "assistant", "content": "then chop it ."}
    opened = tokenizer.apply_chat_template([user], add_generation_prompt=True, return_dict=False)
    assert opened == [VOCABULARY.index(word) for word in ("<bos>", *COOK.split(), "<ans>")]
    whole = tokenizer.apply_chat_template([user, assistant], return_dict=False)
    assert whole == opened + [VOCABULARY.index(w) for w in ["then", "chop", "it", ".", "<eos>"]]
    system = {"role": "system", "content": "then"}
    with pytest.raises(Exception, match="message 1 has role 'system'"):
        tokenizer.apply_chat_template([system, user])


def test_greedy_answers_are_good_but_not_flawless(tokenizer: Any, model: Any) -> None:
    prompts = PROMPTS[:128]
    texts = [f"<bos> {prompt.text} <ans>" for prompt in prompts]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    width = inputs["input_ids"].shape[1]
    ids = model.generate(**inputs)[:, width:]
    answers = tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert (ids == tokenizer.eos_token_id).any(dim=1).all()
    rewards = [gold_reward(p, a) for p, a in zip(prompts, answers, strict=True)]
    assert 1.5 < np.mean(rewards) < 3.0


def test_schedules() -> None:
    config = WorldSFTConfig()
    shares = [config.flawless_share(step) for step in (0, 85, 127, 170, 849)]
    assert shares == pytest.approx([1, 1, 0.5, 0, 0], abs=0.01)
    assert config.rate(0) == pytest.approx(3e-3 / 50)
    assert config.rate(49) == config.rate(50) == 3e-3
    assert config.rate(849) < 1e-7


def test_two_steps_write_a_loadable_checkpoint(tmp_path: Path) -> None:
    main(["--out", str(tmp_path), "--steps", "2"])
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config.vocab_size == 203
    assert len(AutoTokenizer.from_pretrained(tmp_path)) == 203


def test_the_world_imports_neither_torch_nor_the_engine() -> None:
    source = "".join(path.read_text() for path in CHECKPOINT.parent.glob("*.py"))
    imported = re.findall(r"^(?:import|from) (\S+)", source, flags=re.MULTILINE)
    assert "numpy" in imported
    assert not [n for n in imported if n.startswith(("torch", "transf", "plc_core.engine"))]
