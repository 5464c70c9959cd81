"""Rows as people have them: each becomes a pair that says what they say, or is listed by a rule."""

import json

import pytest

from plc_core.data import DataError, Options, load_pairs, pairs_from_rows
from tests.test_sources import written

U = {"role": "user", "content": "Hi"}
A = {"role": "assistant", "content": "Hello"}
B = {"role": "assistant", "content": "Go away"}
S = {"role": "system", "content": "Be kind."}
HI = {"prompt": "Hi"}
ROW = HI | {"chosen": "Hello", "rejected": "Go away"}


def read(*rows, **actions):
    return pairs_from_rows(rows, "test", options=Options(actions=actions.get("actions", {})))


def only(row):
    [pair] = read(row).dataset
    return pair


def rule_of(row):
    [finding] = read(row).findings.to_pylist()
    assert finding["action"] == "drop"
    return finding["rule"]


# ---- chat templates ------------------------------------------------------------------------------

CHATML = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
LLAMA_3 = (
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request.\n\n"
)
# The prompt, what stands before an answer in its field, and what stands behind it.
RENDERED = {
    "ChatML": (CHATML, "", "<|im_end|>\n"),
    "ChatML, bare answers": (CHATML, "", ""),
    "ChatML, whole": (None, CHATML, "<|im_end|>\n"),
    "ChatML, twice": (CHATML, CHATML, "<|im_end|>"),
    "ChatML, answers only": ("Hi", "", "<|im_end|>"),
    "Llama 3": (LLAMA_3, "", "<|eot_id|>"),
    "Llama 3, whole": (None, LLAMA_3, "<|eot_id|>"),
    "Llama 4": (
        "<|header_start|>user<|header_end|>\n\nHi<|eot|>"
        "<|header_start|>assistant<|header_end|>\n\n", "", "<|eot|>",
    ),
    "Gemma": (
        "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n", "", "<end_of_turn>\n",
    ),
    "Zephyr": ("<|system|>\n</s>\n<|user|>\nHi</s>\n<|assistant|>\n", "", "</s>"),
    "Zephyr, split before the answer": ("<|user|>\nHi</s>\n", "<|assistant|>\n", "</s>\n"),
    "Phi": ("<|user|>\nHi<|end|>\n<|assistant|>\n", "", "<|end|>"),
    "Tulu": ("<|user|>\nHi\n<|assistant|>\n", "", ""),
    "Llama 2": ("<s>[INST] Hi [/INST]", " ", " </s>"),
    "Mistral": ("[INST] Hi [/INST]", "", "</s>"),
    "DeepSeek": ("<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜>", "", "<｜end▁of▁sentence｜>"),
    "Alpaca": (f"{ALPACA}### Instruction:\nHi\n\n### Response:\n", "", ""),
    "Alpaca, bare": ("### Instruction:\nHi\n\n### Response:", "\n", ""),
    "Guanaco": (None, "### Human: Hi### Assistant: ", ""),
    "Vicuna": ("USER: Hi ASSISTANT:", " ", "</s>"),
    "tokens of begin and end": ("Hi", "<s>", "</s>"),
}  # fmt: skip


@pytest.mark.parametrize("name", RENDERED)
def test_a_text_that_a_template_wrote_is_turned_back_into_its_turns(name):
    prompt, before, behind = RENDERED[name]
    row = {"prompt": prompt, "chosen": f"{before}Hello{behind}",
           "rejected": f"{before}Go away{behind}"}  # fmt: skip
    pair = only(row)
    assert (pair["prompt"], pair["chosen"], pair["rejected"]) == ([U], "Hello", "Go away")
    assert pair["pair_id"] == only(ROW)["pair_id"]
    assert "from-template" in pair["marks"]


@pytest.mark.parametrize(
    "prompt",
    [
        f"<|im_start|>system\nBe kind.<|im_end|>\n{CHATML}",
        "<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHi [/INST]",
        "<|system|>\nBe kind.</s>\n<|user|>\nHi</s>\n<|assistant|>\n",
    ],
)
def test_the_system_turn_of_a_template_is_one(prompt):
    assert only(ROW | {"prompt": prompt})["prompt"] == [S, U]


def test_earlier_turns_and_white_space_inside_a_template_are_kept():
    prompt = "<s>[INST] Hi [/INST] Hello </s><s>[INST] And? [/INST]"
    assert only(ROW | {"prompt": prompt})["prompt"] == [U, A, U | {"content": "And?"}]
    assert only(ROW | {"chosen": "  x \n<|im_end|>\n"})["chosen"] == "  x \n"


UNREAD = {
    "a tool's turn": HI | {"prompt": f"<|im_start|>tool\n5<|im_end|>\n{CHATML}"},
    "a turn without an end": {"prompt": f"<|im_start|>system\nBe kind.\n{CHATML}"},
    "an answer that goes on": {"chosen": f"Hello<|im_end|>\n{CHATML}And? <|im_end|>"},
    "Alpaca's input": {"prompt": "### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:"},
    "Vicuna's preface": {"prompt": "A chat between a curious user and an AI. USER: Hi ASSISTANT:"},
    "Command R": {"prompt": "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hi<|END_OF_TURN_TOKEN|>"},
    "Mistral's system": {"prompt": "[SYSTEM_PROMPT]Be kind.[/SYSTEM_PROMPT][INST]Hi[/INST]"},
    "OpenChat": {"prompt": "GPT4 Correct User: Hi<|end_of_turn|>GPT4 Correct Assistant:"},
    "plain names": {"prompt": "User: Hi\nAssistant:"},
    "inside messages": {"prompt": [U | {"content": CHATML}]},
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_a_template_wrote_and_cannot_be_told_exactly_is_listed(name):
    assert rule_of(ROW | UNREAD[name]) == "rendered-template"
    kept = read(ROW | UNREAD[name], actions={"rendered-template": "keep"})
    assert "rendered-template" in kept.dataset["marks"][0]


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("What does <|im_start|> mean?", ["spells-template"]),
        ("Put [INST] before it.", ["spells-template"]),
        ("was <s>old</s>", []),
        ("### Response times\nare short", []),
        ("The ASSISTANT: who is it?", []),
        ("x <| y |> z", []),
        ("Human: is what he said", []),
    ],
)
def test_a_text_that_speaks_of_a_template_stays_as_it_is(text, marks):
    pair = only(ROW | {"chosen": text})
    assert (pair["chosen"], pair["marks"]) == (text, marks)


# ---- more than text ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        {"images": ["a.png"]}, {"image": {"bytes": b"x", "path": None}}, {"video": "a.mp4"},
        {"audio": [0.5]}, {"tools": '[{"type": "function"}]'}, {"documents": [{"text": "x"}]},
        {"Images": ["a.png"]}, {"image_url": "a.png"}, {"chosen_image": b"x"}, {"files": ["a.pdf"]},
        {"image_0": "a.png"}, {"screenshot": b"x"}, {"tool_calls": [{"name": "f"}]},
        {"passages": ["a passage"]}, {"available_tools": ["f"]},
        {"prompt": {"messages": [U], "tools": [{"type": "function"}]}},
        {"prompt": json.dumps({"messages": [U], "tools": [{"type": "function"}]})},
    ],
)  # fmt: skip
def test_a_row_with_more_than_text_is_listed(more):
    assert rule_of(ROW | more) == "more-than-text"
    kept = read(ROW | more, actions={"more-than-text": "keep"})
    assert kept.dataset["marks"][:] == [["more-than-text"]]


@pytest.mark.parametrize(
    "more",
    [
        {"images": []}, {"images": [None]}, {"image": None}, {"tools": "[]"}, {"audio": ""},
        {"image": {"bytes": None, "path": None}}, {"documents": {}}, {"video": False},
        {"num_images": 0}, {"image": float("nan")}, {"imagery": "vivid"}, {"toolset": "x"},
        {"source_document": "wiki-17"}, {"num_documents": 3}, {"has_image": "False"},
    ],
)  # fmt: skip
def test_an_empty_column_of_images_or_tools_is_nothing(more):
    assert only(ROW | more)["marks"] == []


@pytest.mark.parametrize(
    "more",
    [
        {"images": ["a.png"]}, {"function_call": {"name": "f"}}, {"audio": {"id": "x"}},
        {"attachments": ["a.pdf"]}, {"image_url": "a.png"}, {"tools": [{"name": "f"}]},
        {"content": [{"type": "thinking", "thinking": "x"}]},
        {"content": [{"type": "reasoning", "text": "x"}, {"type": "text", "text": "Hello"}]},
    ],
)  # fmt: skip
def test_a_message_with_more_than_text_is_listed(more):
    row = {"prompt": [U], "chosen": [A | more], "rejected": [B]}
    assert rule_of(row) == "unsupported-turn"


# ---- reasoning -----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["reasoning_content", "thinking", "reasoning_details", "cot"])
def test_reasoning_in_a_field_of_its_own_is_marked_and_never_makes_pairs_equal(field):
    def row(chosen, rejected, answers=(A, B)):
        one, other = answers
        return {"prompt": [U], "chosen": [one | {field: chosen}],
                "rejected": [other | {field: rejected}]}  # fmt: skip

    pairs = read(row("because", "why"), row("so", "why"), row("because", "why"), ROW)
    assert pairs.dataset["marks"][:] == [["reasoning-left-out"]] * 2 + [[]]
    assert pairs.report().count("duplicate") == 1
    assert pairs.report().count("near-duplicate") == 0
    reasoning = {"reasoning_chosen": "because", "reasoning_rejected": "why"}
    assert json.loads(pairs.dataset["metadata"][0]) == reasoning
    assert rule_of(row("because", "why", (A, A))) == "differs-in-reasoning"
    report = read(row("same", "same", (A, A))).report()
    assert (report.count("identical"), report.count("differs-in-reasoning")) == (1, 0)


def test_reasoning_of_an_earlier_turn_is_marked_too():
    row = ROW | {"prompt": [U, A | {"reasoning_content": "hm"}, U], "rejected": "No"}
    assert only(row)["marks"] == ["reasoning-left-out"]


# ---- votes ---------------------------------------------------------------------------------------

AB = HI | {"response_a": "Hello", "response_b": "Go away"}
MULTIPREF = {"text": "Hi", "completion_a": "Hello", "completion_b": "Go away"}


@pytest.mark.parametrize(
    "row",
    [
        AB, AB | {"votes": []}, AB | {"votes": None}, AB | {"votes": ""}, AB | {"votes": [None]},
        AB | {"votes": "[]"}, AB | {"votes": [" "]}, MULTIPREF, AB | {"votes": ["None", "nan"]},
        AB | {"votes": [float("nan")]},
        MULTIPREF | {"normal_worker_annotations": [], "expert_worker_annotations": None},
        MULTIPREF | {"normal_worker_annotations": [{"overall_pref": None}, {}]},
    ],
)  # fmt: skip
def test_a_comparison_without_votes_has_no_label(row):
    assert rule_of(row) == "no-votes"
    # It is not there to contradict anyone, nor on a cycle.
    cycle = [{"prompt": "Hi", "chosen": one, "rejected": other}
             for one, other in (("Hello", "x"), ("x", "Go away"))]  # fmt: skip
    for own in (cycle, [ROW], [ROW | {"chosen": "Go away", "rejected": "Hello"}]):
        pairs = read(*own, row)
        assert pairs.dataset["marks"][:] == [[]] * len(own)


def test_an_annotator_who_said_nothing_has_no_vote():
    pair = only(AB | {"votes": [None, "b", ""], "score_a": 1, "score_b": 5})
    assert (pair["chosen"], pair["votes"]) == ("Go away", ["chosen"])
    assert (pair["score_chosen"], pair["score_rejected"]) == (5, 1)
    assert only(ROW | {"votes": [None]})["votes"] is None


@pytest.mark.parametrize(
    ("chosen", "rejected"), [("a", "b"), ("A", "B"), ("response_a", "response_b")]
)
def test_answers_that_are_named_are_the_answers(chosen, rejected):
    pair = only(AB | {"chosen": chosen, "rejected": rejected})
    assert (pair["chosen"], pair["rejected"]) == ("Hello", "Go away")
    turned = only(AB | {"chosen": rejected, "rejected": chosen})
    assert (turned["chosen"], turned["rejected"]) == ("Go away", "Hello")
    plain = only(ROW | {"chosen": chosen, "rejected": rejected})  # of a choice between letters
    assert (plain["chosen"], plain["rejected"]) == (chosen, rejected)


# ---- scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "rejected"),
    [
        ("chosen_score", "rejected_score"), ("rating_chosen", "rating_rejected"),
        ("chosen-rating", "rejected-rating"), ("score_w", "score_l"), ("w_score", "l_score"),
        ("chosenScore", "rejectedScore"), ("chosen_avg_rating", "rejected_avg_rating"),
        ("reward_chosen", "reward_rejected"), ("chosen_rm_score", "rejected_rm_score"),
        ("Score Chosen", "Score Rejected"), ("preferred_score", "dispreferred_score"),
        ("chosen_model_score", "rejected_model_score"), ("pos_score", "neg_score"),
        ("chosen_ArmoRM_score", "rejected_ArmoRM_score"), ("better_score", "worse_score"),
    ],
)  # fmt: skip
def test_scores_are_read_by_the_field_s_names(chosen, rejected):
    pairs = read(ROW | {chosen: 1.5, rejected: "2"}, ROW | {"prompt": "Ho", chosen: 3, rejected: 3})
    assert pairs.dataset["score_chosen"][:] == [1.5, 3]
    assert pairs.dataset["score_rejected"][:] == [2, 3]
    assert pairs.dataset["marks"][:] == [["inverted-scores"], ["equal-scores"]]
    # The people's own names stay with the pair, for who exports it.
    assert json.loads(pairs.dataset["metadata"][0]) == {chosen: 1.5, rejected: "2"}


def test_a_name_of_its_own_goes_before_the_others_and_words_are_no_scores():
    more = {"score_chosen": 4, "score_rejected": 2, "chosen_rating": [1, 2], "rejected_rating": [5]}
    pair = only(ROW | more)
    assert (pair["score_chosen"], pair["score_rejected"]) == (4, 2)
    assert pair["marks"] == ["ratings-disagree"]
    grades = {"chosen_score": "good", "rejected_score": "bad", "score": 3, "negative_score": 1}
    pair = only(ROW | grades)
    assert pair["score_chosen"] is None
    assert json.loads(pair["metadata"]) == grades


@pytest.mark.parametrize(
    ("rating", "marked"), [(1, True), (2, True), (3, True), (4, True), (4.25, False), (5, False)]
)
def test_a_ten_is_believed_where_its_ratings_are_above_four(rating, marked):
    # UltraFeedback's authors made a 10 a 1 up to a mean of 2, asked again up to 4, and kept it
    # above.
    row = ROW | {"score_chosen": 10, "ratings_chosen": [rating, rating]}
    assert only(row)["marks"] == (["ten-was-one"] if marked else [])


# ---- other shapes --------------------------------------------------------------------------------

SHAPES = {
    "OpenAI's preferences": {"input": {"messages": [U], "tools": [], "parallel_tool_calls": True},
                             "preferred_output": [A], "non_preferred_output": [B]},
    "the same as text": {"input": json.dumps({"messages": [U]}),
                         "preferred_output": json.dumps([A]),
                         "non_preferred_output": json.dumps([B])},
    "messages in an object": {"prompt": {"messages": [U]}, "chosen": {"messages": [U, A]},
                              "rejected": {"conversations": [B]}},
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_other_shapes_are_the_same_pair(name):
    pair = only(SHAPES[name])
    assert (pair["pair_id"], pair["marks"]) == (only(ROW)["pair_id"], [])


LISTED = {
    "a list of text": (ROW | {"chosen": ["Hello"]}, "wrong-type"),
    "a number": (ROW | {"chosen": 42}, "wrong-type"),
    "a truth value": (ROW | {"chosen": True}, "wrong-type"),
    "an object without a role": (ROW | {"chosen": {"content": "Hello"}}, "wrong-type"),
    "no message": (ROW | {"chosen": []}, "no-answer"),
    "ShareGPT's name": ({"conversations": [U], "chosen": A, "rejected": B}, "no-prompt"),
    "StackExchange's names": (
        {"question": "Hi", "response_j": "Hello", "response_k": "No"}, "missing-answer",
    ),
    "instructions": ({"instruction": "Hi", "input": "", "output": "Hello"}, "missing-answer"),
    "annotations of another kind": (
        MULTIPREF | {"normal_worker_annotations": ["Tie", {"overall_pref": "Tie"}]}, "wrong-type",
    ),
    "an arena's verdict": (AB | {"winner": "model_a"}, "no-votes"),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTED)
def test_what_is_no_pair_is_listed(name):
    row, rule = LISTED[name]
    assert rule_of(row) == rule


def test_a_hint_never_repeats_the_mapping_that_was_given(tmp_path):
    row = {"question": "Hi", "response_j": "Hello", "response_k": "Go away"}
    path = written(tmp_path / "a.jsonl", json.dumps(row))
    columns = {}
    for ours, theirs in (("prompt", "question"), ("chosen", "response_j")):
        with pytest.raises(DataError) as error:
            load_pairs(path, columns=columns)
        assert f"is it '{theirs}'?" in str(error.value)
        columns[ours] = theirs
        with pytest.raises(DataError) as error:
            load_pairs(path, columns=columns)
        assert f"is it '{theirs}'?" not in str(error.value)
    whole = columns | {"rejected": "response_k"}
    assert f"say columns={json.dumps(whole)}" in str(error.value)  # ready to be copied
    assert load_pairs(path, columns=whole).dataset["pair_id"][0] == only(ROW)["pair_id"]


def test_a_mapping_of_openai_s_input_is_read_too(tmp_path):
    path = written(tmp_path / "a.jsonl", json.dumps(SHAPES["OpenAI's preferences"]))
    for columns in ({}, {"prompt": "input"}):
        assert load_pairs(path, columns=columns).dataset["pair_id"][0] == only(ROW)["pair_id"]
    row = SHAPES["OpenAI's preferences"] | {"input": {"messages": []}}
    path = written(tmp_path / "b.jsonl", json.dumps(row))
    with pytest.raises(DataError) as error:
        load_pairs(path, columns={"prompt": "input"})
    assert "columns=" not in str(error.value)
