"""Rows as people have them: each becomes a pair that says what they say, or is listed by a rule.

Tables of rows by what is special about them; `test_nasty_pairs` reads the worst ones from a file.
"""

import json

import pytest

from plc_core.data import RULES, DataError, Options, load_pairs, pairs_from_rows
from plc_core.data.dialogues import is_visible
from tests.test_sources import written

U = {"role": "user", "content": "Hi"}
A = {"role": "assistant", "content": "Hello"}
B = {"role": "assistant", "content": "Go away"}
S = {"role": "system", "content": "Be kind."}
HI = {"prompt": "Hi"}
ROW = HI | {"chosen": "Hello", "rejected": "Go away"}
AB = HI | {"response_a": "Hello", "response_b": "Go away"}
MULTIPREF = {"text": "Hi", "completion_a": "Hello", "completion_b": "Go away"}
NAN = float("nan")


def read(*rows, **actions):
    return pairs_from_rows(rows, "test", options=Options(actions=actions.get("actions", {})))


def only(row):
    [pair] = read(row).dataset
    return pair


def rule_of(row):
    [finding] = read(row).findings.to_pylist()
    assert finding["action"] == "drop"
    return finding["rule"]


def cases(listed):
    """A case for each row of each rule, named by the rule and the row's key or place."""
    return [
        pytest.param(rule, row, id=f"{rule}: {name}")
        for rule, rows in listed.items()
        for name, row in (rows.items() if isinstance(rows, dict) else enumerate(rows))
    ]


# ---- the same pair in other spellings ------------------------------------------------------------

CHATML = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
LLAMA_3 = (
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
LLAMA_4 = (
    "<|header_start|>user<|header_end|>\n\nHi<|eot|><|header_start|>assistant<|header_end|>\n\n"
)
ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request.\n\n"
)
GEMMA = "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"
# The prompt, what stands before an answer in its field, and what stands behind it.
RENDERED = {
    "ChatML": (CHATML, "", "<|im_end|>\n"),
    "ChatML, bare answers": (CHATML, "", ""),
    "ChatML, whole": (None, CHATML, "<|im_end|>\n"),
    "ChatML, twice": (CHATML, CHATML, "<|im_end|>"),
    "ChatML, answers only": ("Hi", "", "<|im_end|>"),
    "Llama 3": (LLAMA_3, "", "<|eot_id|>"),
    "Llama 3, whole": (None, LLAMA_3, "<|eot_id|>"),
    "Llama 4": (LLAMA_4, "", "<|eot|>"),
    "Gemma": (GEMMA, "", "<end_of_turn>\n"),
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


def around(prompt, before, behind=""):
    return {"prompt": prompt, "chosen": f"{before}Hello{behind}",
            "rejected": f"{before}Go away{behind}"}  # fmt: skip


def as_json(value, times):
    return value if not times else as_json(json.dumps(value), times - 1)


OPENAI = {"input": {"messages": [U], "tools": [], "parallel_tool_calls": True},
          "preferred_output": [A], "non_preferred_output": [B]}  # fmt: skip
DIALOGUE = "\n\nHuman: Hi\n\nAssistant:"
NAMES = [("a", "b"), ("A", "B"), ("response_a", "response_b")]
SPELLINGS = {
    "OpenAI's preferences": OPENAI,
    "the same as text": {"input": json.dumps({"messages": [U]}),
                         "preferred_output": json.dumps([A]),
                         "non_preferred_output": json.dumps([B])},
    "messages in an object": {"prompt": {"messages": [U]}, "chosen": {"messages": [U, A]},
                              "rejected": {"conversations": [B]}},
    "a prompt of messages": ROW | {"prompt": [U]},
    "answers behind the prompt": HI | {"chosen": [U, A], "rejected": [U, B]},
    "an answer as a message": HI | {"chosen": [A], "rejected": "Go away"},
    "all of it": {"prompt": [U], "chosen": [U, A], "rejected": [U, B]},
    "no prompt": {"chosen": [U, A], "rejected": [U, B]},
    "ShareGPT": {"prompt": [{"from": "human", "value": "Hi"}],
                 "chosen": [{"from": "gpt", "value": "Hello"}], "rejected": "Go away"},
    "a role in capitals": ROW | {"prompt": [{"role": "Human", "content": "Hi"}]},
    "HH-RLHF in the prompt": ROW | {"prompt": DIALOGUE},
    "HH-RLHF and messages": {"prompt": DIALOGUE, "chosen": f"{DIALOGUE} Hello",
                             "rejected": [U, B]},
    "HH-RLHF without a prompt": {"chosen": f"{DIALOGUE} Hello", "rejected": f"{DIALOGUE} Go away"},
    "one message": HI | {"chosen": A, "rejected": {"from": "model", "value": "Go away"}},
    "parts": ROW | {"prompt": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    "a ranking": {"prompt": f"{DIALOGUE} ",
                  "answers": [{"answer": "Go away", "model": "m", "rank": 2.0},
                              {"answer": "Hello", "model": "n", "rank": 1.0}]},
    "votes": HI | {"response_a": "Go away", "response_b": "Hello", "votes": ["b", "Tie", "B"]},
    "MultiPref": MULTIPREF | {
        "normal_worker_annotations": [{"overall_pref": "A-is-slightly-better"}],
        "expert_worker_annotations": [{"overall_pref": "A-is-clearly-better"}]},
    "JSON three times": {"prompt": "Hi", "chosen": as_json([A], 3), "rejected": as_json([B], 3)},
    "HH-RLHF, the answer with a space": around("\n\nHuman: Hi\n\nAssistant:", " "),
    "HH-RLHF, the answer with the name": around("\n\nHuman: Hi", "\n\nAssistant: "),
    "HH-RLHF, a name in neither": around("\n\nHuman: Hi", " "),
    **{f"answers named {one}": AB | {"chosen": one, "rejected": other} for one, other in NAMES},
}  # fmt: skip


@pytest.mark.parametrize("name", [*SPELLINGS, *RENDERED])
def test_the_same_pair_in_another_spelling(name):
    pair = only(SPELLINGS[name] if name in SPELLINGS else around(*RENDERED[name]))
    assert (pair["prompt"], pair["chosen"], pair["rejected"]) == ([U], "Hello", "Go away")
    assert pair["pair_id"] == only(ROW)["pair_id"]
    assert ("from-template" in pair["marks"]) == (name in RENDERED)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_dialogue_with_several_turns_of_one_speaker_is_the_same_pair(end):
    prompt = f"{end}{end}Human: Hi{end}{end}Assistant:"
    one = only({"prompt": prompt, "chosen": " Hello", "rejected": " Go\n\nAssistant: away"})
    other = only({"chosen": f"{prompt} Hello", "rejected": f"{prompt} Go\n\nAssistant: away"})
    assert one["pair_id"] == other["pair_id"]


@pytest.mark.parametrize(("one", "other"), NAMES)
def test_names_of_answers_follow_the_label_and_are_answers_where_nothing_is_named(one, other):
    turned = only(AB | {"chosen": other, "rejected": one})
    assert (turned["chosen"], turned["rejected"]) == ("Go away", "Hello")
    plain = only(ROW | {"chosen": one, "rejected": other})  # of a choice between letters
    assert (plain["chosen"], plain["rejected"]) == (one, other)


QUESTIONS = [
    "Ho", [{"role": "user", "content": "Ho"}],
    [{"from": "human", "value": "Ho", "role": None}], "\n\nHuman: Ho\n\nAssistant: ",
]  # fmt: skip
ANSWERS = ["x", [{"role": "assistant", "content": "x"}], {"from": "gpt", "value": "x"}]
RANKED = [{"answer": text, "rank": n} for n, text in enumerate("abcdefg")]
LEVEL = [{"answer": text, "rank": n // 2} for n, text in enumerate("abcd")]


@pytest.mark.parametrize(
    "rows",
    [
        [{"prompt": q, "response_a": a, "response_b": "y", "votes": ["tie"]}
         for q in QUESTIONS for a in ANSWERS],
        [{"prompt": q, "response_a": a, "response_b": "y", "votes": ["a", "b"]}
         for q in QUESTIONS for a in ANSWERS],
        [{"prompt": "Ho", "response_a": a, "response_b": b, "votes": ["tie"]}
         for a, b in ("xy", "yx")],
        [{"prompt": q, "answers": RANKED} for q in QUESTIONS],
        [{"prompt": "q", "answers": order} for order in (LEVEL, LEVEL[::-1])],
    ],
    ids=["one tie", "level votes", "either way round", "a ranking", "level ranks"],
)  # fmt: skip
def test_what_a_hash_decides_follows_what_is_said_not_its_spelling_or_order(rows):
    assert len({only(row)["pair_id"] for row in rows}) == 1


# ---- listed --------------------------------------------------------------------------------------

SAID = '"role": "assistant", "content": "Hello"'
UNREAD = {
    "a wrapper with an id": '{"id": "x1", "messages": [{' + SAID + "}]}",
    "a wrapper around one": '{"message": {' + SAID + "}}",
    "choices": '{"choices": [{"message": {' + SAID + "}}]}",
    "NumPy's array": "array([{'role': 'assistant', 'content': 'Hello'}], dtype=object)",
    "a tuple": "({'role': 'assistant', 'content': 'Hello'},)",
    "lines of JSON": '{"role": "user", "content": "Hi"}\n{' + SAID + "}",
    "other names": '[{"speaker": "assistant", "text": "Hello"}]',
    "other letters": '[{"Role": "assistant", "Content": "Hello"}]',
    "an unknown role": '[{"role": "ai", "content": "Hello"}]',
    "one of two roles unknown": '[{"role": "user", "content": "Hi"}, {"role": "?", "content": ""}]',
    "parts without a message": '[{"type": "text", "text": "Hello"}]',
    "escaped": '[{\\"role\\": \\"assistant\\", \\"content\\": \\"Hello\\"}]',
    "cut off": '[{"id": 1, ' + SAID,
    "cut off in a role": '[{"role": "user", "content": "Hi"}, {"role": "assist',
    "a wrapper cut off": '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assist',
    "NaN as Python prints it": "[{'role': 'assistant', 'content': 'Hello', 'ts': nan}]",
    "an array inside": "[{'role': 'user', 'content': array(['Hi'])}]",
    "null": '[{"role": "assistant", "content": null}]',
    "nested too deeply": "[{'role': 'user', 'content': " + "(" * 300 + ")" * 300 + "}]",
}
MORE_IN_A_ROW = [
    {"images": ["a.png"]}, {"image": {"bytes": b"x", "path": None}}, {"video": "a.mp4"},
    {"audio": [0.5]}, {"tools": '[{"type": "function"}]'}, {"documents": [{"text": "x"}]},
    {"Images": ["a.png"]}, {"image_url": "a.png"}, {"chosen_image": b"x"}, {"files": ["a.pdf"]},
    {"image_0": "a.png"}, {"screenshot": b"x"}, {"tool_calls": [{"name": "f"}]},
    {"passages": ["a passage"]}, {"available_tools": ["f"]},
    {"prompt": {"messages": [U], "tools": [{"type": "function"}]}},
    {"prompt": json.dumps({"messages": [U], "tools": [{"type": "function"}]})},
]  # fmt: skip
MORE_IN_A_MESSAGE = [
    {"images": ["a.png"]}, {"function_call": {"name": "f"}}, {"audio": {"id": "x"}},
    {"attachments": ["a.pdf"]}, {"image_url": "a.png"}, {"tools": [{"name": "f"}]},
    {"content": [{"type": "thinking", "thinking": "x"}]},
    {"content": [{"type": "reasoning", "text": "x"}, {"type": "text", "text": "Hello"}]},
]  # fmt: skip
WITHOUT_VOTES = [
    AB, AB | {"votes": []}, AB | {"votes": None}, AB | {"votes": ""}, AB | {"votes": [None]},
    AB | {"votes": "[]"}, AB | {"votes": [" "]}, MULTIPREF, AB | {"votes": ["None", "nan"]},
    AB | {"votes": [NAN]}, AB | {"winner": "model_a"},
    MULTIPREF | {"normal_worker_annotations": [], "expert_worker_annotations": None},
    MULTIPREF | {"normal_worker_annotations": [{"overall_pref": None}, {}]},
]  # fmt: skip
LISTED = {
    "wrong-type": {
        **{f"messages as text: {name}": ROW | {"chosen": text} for name, text in UNREAD.items()},
        "a list of text": ROW | {"chosen": ["Hello"]},
        "a number": ROW | {"chosen": 42},
        "a truth value": ROW | {"chosen": True},
        "an object without a role": ROW | {"chosen": {"content": "Hello"}},
        "annotations of two kinds":
            MULTIPREF | {"normal_worker_annotations": ["Tie", {"overall_pref": "Tie"}]},
        "annotations as a number": MULTIPREF | {"normal_worker_annotations": 5},
        "a rank without end": HI | {"answers": [{"answer": "a", "rank": int("1" * 400)},
                                                {"answer": "b", "rank": 2}]},
        "a name that is no Unicode": ROW | {"ratings_chosen": {"\ud800": "x"}},
        "votes as a number": AB | {"votes": 3},
        "no object": 5,
        "nothing": None,
    },
    "missing-answer": [{"question": "Hi", "response_j": "Hello", "response_k": "No"},
                       {"instruction": "Hi", "input": "", "output": "Hello"}],
    "no-answer": [ROW | {"chosen": []}, ROW | {"chosen": json.dumps([U])}],
    # A common prefix of two texts is no prompt: "The sky is blu" would be a word cut in two.
    "no-prompt": [
        {"chosen": "Yes sir", "rejected": "Yes madam"},
        {"conversations": [U], "chosen": A, "rejected": B},
    ],
    "two-prompts": [
        {"prompt": [S, U], "chosen": [S | {"content": "Be rude."}, U, A], "rejected": "Go"},
        {"prompt": [U], "chosen": [S, U, A], "rejected": [U, B]},
    ],
    "no-votes": WITHOUT_VOTES,
    "unsupported-turn": [
        *({"prompt": [U], "chosen": [A | more], "rejected": [B]} for more in MORE_IN_A_MESSAGE),
        ROW | {"chosen": '[{"role": "assistant", "content": "Ho", "tool_calls": [1]}]'},
    ],
    "more-than-text": [ROW | more for more in MORE_IN_A_ROW],
    "rendered-template": {
        name: ROW | row for name, row in {
            "a tool's turn": {"prompt": f"<|im_start|>tool\n5<|im_end|>\n{CHATML}"},
            "a turn without an end": {"prompt": f"<|im_start|>system\nBe kind.\n{CHATML}"},
            "an answer that goes on": {"chosen": f"Hello<|im_end|>\n{CHATML}And? <|im_end|>"},
            "Alpaca's input":
                {"prompt": "### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:"},
            "Vicuna's preface":
                {"prompt": "A chat between a curious user and an AI. USER: Hi ASSISTANT:"},
            "Command R":
                {"prompt": "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hi<|END_OF_TURN_TOKEN|>"},
            "Mistral's system":
                {"prompt": "[SYSTEM_PROMPT]Be kind.[/SYSTEM_PROMPT][INST]Hi[/INST]"},
            "OpenChat":
                {"prompt": "GPT4 Correct User: Hi<|end_of_turn|>GPT4 Correct Assistant:"},
            "plain names": {"prompt": "User: Hi\nAssistant:"},
            "inside messages": {"prompt": [U | {"content": CHATML}]},
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize(("rule", "row"), cases(LISTED))
def test_what_is_no_pair_of_texts_is_listed_by_its_rule(rule, row):
    assert rule_of(row) == rule
    if RULES[rule].can_keep:
        assert rule in read(row, actions={rule: "keep"}).dataset["marks"][0]


def test_a_comparison_without_votes_contradicts_nobody_and_is_on_no_cycle():
    edges = [HI | {"chosen": "Hello", "rejected": "x"}, HI | {"chosen": "x", "rejected": "Go away"}]
    for own in (edges, [ROW], [ROW | {"chosen": "Go away", "rejected": "Hello"}]):
        assert read(*own, *WITHOUT_VOTES).dataset["marks"][:] == [[]] * len(own)


# ---- kept, and what is said of them --------------------------------------------------------------

TEXTS = [
    '[{"role": "admin", "name": "Ann"}]', '{"users": [{"role": "user", "name": "Ann"}]}',
    'Use [{"role": "user", "content": "hi"}] for it.', '{"capital": "Paris"}', "(Paris.)",
    '[{"role": "user", "content": "hi"}] is how one writes it.', "[1, 2, 3]", "[",
    '["user", "assistant"]', '{"value": 3}', '[{"role": "CEO", "content": "leads"}]',
    '[{"from": "user", "to": "root"}]', "{'role': someone}", '{"role": "user', '"[1, 2]"',
    '{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}', '"[" is a bracket',
    '[{"role": "user", "content": "Hi"}, 5]', "was <s>old</s>", "x <| y |> z",
    "### Response times\nare short", "The ASSISTANT: who is it?", "Human: is what he said",
    "He wrote:\n\nHuman: Hi\n\nAssistant: Ho",
]  # fmt: skip
EMPTY = [
    {"images": []}, {"images": [None]}, {"image": None}, {"tools": "[]"}, {"audio": ""},
    {"image": {"bytes": None, "path": None}}, {"documents": {}}, {"video": False},
    {"num_images": 0}, {"image": NAN}, {"imagery": "vivid"}, {"toolset": "x"},
    {"source_document": "wiki-17"}, {"num_documents": 3}, {"has_image": "False"},
]  # fmt: skip
TEN = ROW | {"score_chosen": 10, "score_rejected": 3}
LEFT_OUT = {
    "chosen says nothing": {"prompt": [S, U], "chosen": [U, A], "rejected": [U, B]},
    "the prompt says nothing": {"prompt": [U], "chosen": [S, U, A], "rejected": [S, U, B]},
    "one answer alone": {"prompt": [S, U], "chosen": "Hello", "rejected": [U, B]},
    "in its own field": HI | {"system": "Be kind.", "chosen": [U, A], "rejected": [U, B]},
    "an empty prompt": {"prompt": "", "chosen": [S, U, A], "rejected": [S, U, B]},
    "no turn in the prompt": {"prompt": [], "chosen": [S, U, A], "rejected": "Go away"},
    "ChatML": ROW | {"prompt": f"<|im_start|>system\nBe kind.<|im_end|>\n{CHATML}"},
    "Llama 2": ROW | {"prompt": "<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHi [/INST]"},
    "Zephyr": ROW | {"prompt": "<|system|>\nBe kind.</s>\n<|user|>\nHi</s>\n<|assistant|>\n"},
}
GRADES = {"chosen_score": "good", "rejected_score": "bad", "score": 3, "negative_score": 1}
KEPT = [
    *((ROW | {"chosen": text}, {"chosen": text, "marks": []}) for text in TEXTS),
    *((ROW | {"chosen": text}, {"chosen": text, "marks": ["spells-template"]})
      for text in ("What does <|im_start|> mean?", "Put [INST] before it.")),
    *((ROW | more, {"marks": []}) for more in EMPTY),
    *((row, {"prompt": [S, U], "chosen": "Hello", "rejected": "Go away"})
      for row in LEFT_OUT.values()),
    ({"prompt": [S, U], "system": "Be rude.", "chosen": "a", "rejected": "b"},
     {"marks": ["prompt-differs"], "metadata": {"system": "Be rude."}}),
    (ROW | {"prompt": "<s>[INST] Hi [/INST] Hello </s><s>[INST] And? [/INST]"},
     {"prompt": [U, A, U | {"content": "And?"}]}),
    (ROW | {"chosen": "  x \n<|im_end|>\n"}, {"chosen": "  x \n"}),
    (ROW | {"prompt": [U, A | {"reasoning_content": "hm"}, U], "rejected": "No"},
     {"marks": ["reasoning-left-out"]}),
    ({"prompt": "Hi", "chosen": [S, U, A], "rejected": [S, U, B]}, {"prompt": [S, U]}),
    (ROW | {"system": "Be kind."}, {"prompt": [S, U]}),
    (ROW | {"prompt": "\n\nHuman: Hi\n\nHuman: there\n\nAssistant:"},
     {"prompt": [U | {"content": "Hi\n\nthere"}]}),
    ({"prompt": "Ho", "chosen": [U, A], "rejected": [U, B]},
     {"prompt": [U], "marks": ["prompt-differs"]}),
    (ROW | {"score_chosen": 7, "score_rejected": "6.5", "source": "s", "judge": "x"},
     {"score_chosen": 7, "score_rejected": 6.5, "source": "s", "metadata": {"judge": "x"}}),
    # Votes: one side, none, and what is none.
    (AB | {"votes": [None, "b", ""], "score_a": 1, "score_b": 5},
     {"chosen": "Go away", "votes": ["chosen"], "score_chosen": 5, "score_rejected": 1}),
    (AB | {"chosen": None, "rejected": None, "votes": ["a"]}, {"chosen": "Hello"}),
    (ROW | {"votes": [None]}, {"votes": None}),
    (ROW | {"votes": ["None", "chosen", NAN, " ", None]}, {"votes": ["chosen"]}),
    (ROW | {"votes": "tie"}, {"votes": ["tie"]}),
    (ROW | {"votes": 12, "system": 3}, {"votes": None, "metadata": {"votes": 12, "system": 3}}),
    # Scores and ratings. A 10 whose ratings are at most 4 may be a misread 1.
    (ROW | {"score_chosen": 7, "score_rejected": 7}, {"marks": ["equal-scores"]}),
    (ROW | {"score_chosen": 7.0, "score_rejected": "7"}, {"marks": ["equal-scores"]}),
    (ROW | {"score_chosen": 6, "score_rejected": 7}, {"marks": ["inverted-scores"]}),
    *((ROW | {"score_chosen": value, "score_rejected": "7"},
       {"marks": [], "score_chosen": None, "score_rejected": 7}) for value in (None, NAN, "N/A")),
    *((TEN | {"ratings_chosen": ratings}, {"marks": ["ten-was-one"]})
      for ratings in ([1, 2], [4, 4], {"honesty": "1"}, {"a": {"Rating": "2"}, "b": "N/A"})),
    *((TEN | more, {"marks": []})
      for more in ({}, {"ratings_chosen": [4.25]}, {"source": "ultrafeedback",
                                                    "ratings_chosen": {"honesty": 5}})),
    (TEN | {"source": "ultrafeedback_binarized"}, {"marks": ["ten-was-one"]}),
    (ROW | {"score_chosen": 7, "score_rejected": 6.5, "ratings_chosen": {"a": 4},
            "ratings_rejected": {"a": 5}},
     {"marks": ["ratings-disagree"],
      "metadata": {"ratings_chosen": {"a": 4}, "ratings_rejected": {"a": 5}}}),
    (ROW | {"score_chosen": 4, "score_rejected": 2, "chosen_rating": [1, 2],
            "rejected_rating": [5]},
     {"score_chosen": 4, "score_rejected": 2, "marks": ["ratings-disagree"]}),
    (ROW | GRADES, {"score_chosen": None, "metadata": GRADES}),
]  # fmt: skip


@pytest.mark.parametrize(("row", "expected"), KEPT)
def test_what_is_kept_says_what_it_said(row, expected):
    pair = only(row)
    pair["metadata"] = json.loads(pair["metadata"])
    assert {name: pair[name] for name in expected} == expected


SCORE_NAMES = (
    "chosen_score rejected_score, rating_chosen rating_rejected, chosen-rating rejected-rating, "
    "score_w score_l, w_score l_score, chosenScore rejectedScore, reward_chosen reward_rejected, "
    "chosen_avg_rating rejected_avg_rating, chosen_rm_score rejected_rm_score, "
    "Score.Chosen Score.Rejected, preferred_score dispreferred_score, pos_score neg_score, "
    "chosen_ArmoRM_score rejected_ArmoRM_score, better_score worse_score"
)


@pytest.mark.parametrize("names", SCORE_NAMES.split(", "))
def test_scores_are_read_by_the_field_s_names(names):
    chosen, rejected = (name.replace(".", " ") for name in names.split())
    pairs = read(ROW | {chosen: 1.5, rejected: "2"}, ROW | {"prompt": "Ho", chosen: 3, rejected: 3})
    assert pairs.dataset["score_chosen"][:] == [1.5, 3]
    assert pairs.dataset["score_rejected"][:] == [2, 3]
    assert pairs.dataset["marks"][:] == [["inverted-scores"], ["equal-scores"]]
    # The people's own names stay with the pair, for who exports it.
    assert json.loads(pairs.dataset["metadata"][0]) == {chosen: 1.5, rejected: "2"}


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


def test_an_unknown_vote_is_quoted_with_those_that_are_known():
    with pytest.raises(DataError, match="unknown-vote: a vote is 'maybe'; known are chosen"):
        read(ROW | {"votes": ["tie", "maybe"]})


def test_a_rule_marks_a_row_once_with_all_its_reasons():
    report = read(TEN | {"score_rejected": 10, "source": "ultrafeedback"}).report()
    assert report.count("ten-was-one") == 1
    assert "score_chosen is 10" in str(report)
    assert "score_rejected is 10" in str(report)


@pytest.mark.parametrize("text", ["\u3164", "\u2800", "\ufe0f", "\u0301", "\u200b\n"])
def test_what_cannot_be_seen_is_blank(text):
    assert not is_visible(text)


@pytest.mark.parametrize("text", ["\U0001fae9", "\ue000", ".", "\u00a0x"])
def test_emoji_newer_than_python_can_be_seen(text):
    assert is_visible(text)


# ---- names of fields -----------------------------------------------------------------------------


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
    path = written(tmp_path / "a.jsonl", json.dumps(OPENAI))
    for columns in ({}, {"prompt": "input"}):
        assert load_pairs(path, columns=columns).dataset["pair_id"][0] == only(ROW)["pair_id"]
    path = written(tmp_path / "b.jsonl", json.dumps(OPENAI | {"input": {"messages": []}}))
    with pytest.raises(DataError) as error:
        load_pairs(path, columns={"prompt": "input"})
    assert "columns=" not in str(error.value)
