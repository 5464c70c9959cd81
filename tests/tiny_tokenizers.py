"""Tiny tokenizers of the families that models use, trained on a few sentences."""

import json
from functools import cache

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, PreTrainedTokenizer, PreTrainedTokenizerFast

from plc_core.engine.models.packaged_models import PACKAGED, packaged_model_folder
from plc_core.storage.files import RunError

CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\n"
    "You are Qwen.<|im_end|>\n{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = CHATML.replace(
    "{{ m.content }}",
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}",
)
LLAMA_3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
ALTERNATE = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{% endfor %}"
)
MISTRAL = (
    "{{ bos_token }}" + ALTERNATE + "{% for m in messages %}{% if m.role == 'user' %}"
    "[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
LLAMA_2 = MISTRAL.replace(" {{ m.content }}</s>", " {{ m.content | trim }} </s>")
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    + ALTERNATE
    + "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
PLAIN = (  # no special token at all, and a boundary across which tokens merge
    "{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content }}\nA:{% else %} "
    "{{ m.content }}\n{% endif %}{% endfor %}"
)

CORPUS = [
    "Hello there, how are you? I am well, thank you.",
    "You are Qwen. Say it again, user and assistant! The model answers: 1 2 3.",
    "def f(x):\n    return x + 1\n\nGrüße aus Köln, naïve café.",
    "Q: what is it?\nA: it is what it is\n",
]


def byte_level(template, specials, bos=None, eos=None, adds_bos=False):
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(s, normalized=False, special=True) for s in specials],
        show_progress=False,
    )
    core.train_from_iterator(CORPUS, trainer)
    if adds_bos:
        core.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, core.token_to_id(bos))]
        )
    return wrapped(core, template, bos, eos)


def metaspace(template, specials, style, rstrip=False):
    core = Tokenizer(models.BPE(unk_token="<unk>"))
    if style == "first":
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    elif style == "always":
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    elif style == "prepend":  # the older Llama files
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        core.normalizer = normalizers.Sequence(steps)
    else:  # as Gemma
        core.normalizer = normalizers.Replace(" ", "▁")
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    extra = [AddedToken(s, normalized=False, special=True, rstrip=rstrip) for s in specials]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", *extra], show_progress=False
    )
    core.train_from_iterator(CORPUS, trainer)
    core = with_bytes(core)
    return wrapped(core, template, specials[0], specials[1])


def with_bytes(core):
    """The same with a token for each byte, for what the vocabulary lacks."""
    content = json.loads(core.to_str())
    vocabulary = content["model"]["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    content["model"] |= {"byte_fallback": True, "fuse_unk": True}
    return Tokenizer.from_str(json.dumps(content))


def wrapped(core, template, bos, eos):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token=bos, eos_token=eos)
    tokenizer.chat_template = template
    return tokenizer


def qwen(template=CHATML):
    return byte_level(template, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], eos="<|im_end|>")


def llama_3():
    names = ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
    return byte_level(LLAMA_3, names, bos=names[0], eos=names[1], adds_bos=True)


def mistral(style="first", template=MISTRAL):
    return metaspace(template, ["<s>", "</s>"], style)


def gemma(style="gemma"):
    return metaspace(GEMMA, ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"], style)


def chatml_metaspace(style, rstrip=False):
    return metaspace(CHATML, ["<|im_start|>", "<|im_end|>"], style, rstrip)


FAMILIES = {
    "qwen": qwen,
    "qwen thinking": lambda: qwen(THINKING),
    "llama 3": llama_3,
    "mistral": mistral,
    "mistral, always": lambda: mistral("always"),
    "mistral, prepend": lambda: mistral("prepend"),
    "llama 2": lambda: mistral("prepend", LLAMA_2),
    "gemma": gemma,
    "gemma, first": lambda: gemma("first"),
    "chatml on metaspace": lambda: chatml_metaspace("first"),
    "chatml on metaspace, always": lambda: chatml_metaspace("always"),
    "chatml on metaspace, prepend": lambda: chatml_metaspace("prepend"),
    "tokens that swallow white space": lambda: chatml_metaspace("gemma", rstrip=True),
    "no special token": lambda: byte_level(PLAIN, ["<end>"], eos="<end>"),
    "smollm2": lambda: smollm2(),
}
TERMINATORS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "</s>", "<end>")


def smollm2():
    """A real one, of the small model; skipped where neither cache, hub nor pip has that."""
    folder, problem = _small_model()
    if folder is None:
        pytest.skip(problem)
    return AutoTokenizer.from_pretrained(folder)


@cache
def _small_model() -> tuple[str | None, str]:
    try:
        return packaged_model_folder(PACKAGED["smollm2-135m"]), ""
    except RunError as error:
        return None, str(error)


class Characters(PreTrainedTokenizer):
    """A token a character."""

    vocab_size = 200

    def get_vocab(self):
        return {chr(i): i for i in range(200)} | self.added_tokens_encoder

    def _tokenize(self, text, **kwargs):
        return list(text)

    def _convert_token_to_id(self, token):
        return ord(token)

    def _convert_id_to_token(self, index):
        return chr(index)


class Swapping(PreTrainedTokenizerFast):
    """A fast tokenizer with a step in Python, which its Rust half knows nothing of."""

    def _encode_plus(self, text, *args, **kwargs):
        texts = text if isinstance(text, list) else [text]
        swapped = [each.replace("e", "a") for each in texts]
        return super()._encode_plus(
            swapped if isinstance(text, list) else swapped[0], *args, **kwargs
        )
