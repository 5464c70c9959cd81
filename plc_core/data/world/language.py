"""The controlled world's language: 203 words, four families of checklist prompts.

A prompt asks for two to four items in a given order and forbids one more::

    describe kettle : weight light , colour red , size tiny . cover size , colour . skip weight .
    cook soup . cover chop , boil , salt . skip bake .
    pack beach . cover towel , hat . skip coat .
    meet friday . cover rent , sales . skip travel .

Everything is a whole word between single spaces, punctuation included, so that a word-level
tokenizer is exact and the gold reward never has to guess. Only `describe` prompts carry a card:
the value of every requested and forbidden attribute, in shuffled order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

PAD, BOS, EOS, ANSWER = "<pad>", "<bos>", "<eos>", "<ans>"
SPECIAL_WORDS = (PAD, BOS, EOS, ANSWER)
PROMPT_WORDS = (":", ",", ".", "cover", "skip")

REQUEST_COUNTS = (2, 3, 3, 4)  # a uniform draw: three items are asked for half of the time

DESCRIBE = "describe"
ATTRIBUTE_VALUES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "weight": ("light", "heavy", "solid", "feathery"),
        "colour": ("red", "blue", "green", "white"),
        "size": ("tiny", "small", "large", "huge"),
        "material": ("wood", "steel", "glass", "cotton"),
        "age": ("new", "recent", "old", "ancient"),
        "price": ("free", "cheap", "fair", "costly"),
        "shape": ("round", "square", "flat", "curved"),
        "smell": ("fresh", "sweet", "smoky", "musty"),
    }
)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@dataclass(frozen=True)
class Family:
    """One kind of prompt: its subjects, its items and the two wordings of an item sentence."""

    name: str
    subjects: tuple[str, ...]
    items: tuple[str, ...]
    wordings: tuple[str, str]  # "{item}" and, for describe, "{value}" stand for the words


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family.name: family
        for family in (
            Family(
                DESCRIBE,
                _words(
                    "kettle lamp chair bottle basket clock mirror pillow drum ladder wallet "
                    "umbrella bicycle carpet"
                ),
                tuple(ATTRIBUTE_VALUES),
                ("its {item} is {value} .", "the {item} is {value} ."),
            ),
            Family(
                "cook",
                _words(
                    "soup stew pasta curry risotto pancake omelette chili pizza salad dumpling "
                    "lasagna porridge noodles"
                ),
                _words("chop boil salt bake fry stir peel rinse grill mash season simmer"),
                ("then {item} it .", "next , {item} it ."),
            ),
            Family(
                "pack",
                _words(
                    "beach camping skiing hiking sailing wedding festival museum cabin picnic "
                    "desert island airport marathon"
                ),
                _words("towel hat coat map torch camera rope tent book knife blanket whistle"),
                ("bring a {item} .", "put in the {item} ."),
            ),
            Family(
                "meet",
                _words(
                    "monday tuesday wednesday thursday friday saturday sunday morning noon "
                    "evening midnight spring summer autumn"
                ),
                _words(
                    "rent sales travel budget hiring safety software parking training marketing "
                    "insurance holidays"
                ),
                ("we discuss {item} .", "talk about {item} ."),
            ),
        )
    }
)

FILLERS = ("um", "well", "so", "like", "anyway", "hmm")
CHAT = (
    "my cousin says hello .",
    "it may rain later today .",
    "i had a long lunch .",
    "the bus was slow again .",
)
NICE = ("hope this helps .", "have a lovely day .", "glad to be useful .")
RUDE = ("what a silly question .", "you should really know that .")
LEAD = ("here is the answer .", "sure , here you go .")


def _vocabulary() -> tuple[str, ...]:
    texts: list[str] = [*SPECIAL_WORDS, *PROMPT_WORDS]
    for family in FAMILIES.values():
        texts += [family.name, *family.subjects, *family.items]
        texts += [word for word in " ".join(family.wordings).split() if word[0] != "{"]
    for values in ATTRIBUTE_VALUES.values():
        texts += values
    texts += FILLERS
    texts += " ".join((*CHAT, *NICE, *RUDE, *LEAD)).split()
    return tuple(dict.fromkeys(texts))


VOCABULARY: tuple[str, ...] = _vocabulary()  # a word's place is its token id


@dataclass(frozen=True)
class WorldPrompt:
    """One prompt of the controlled world.

    Attributes:
        family: `describe`, `cook`, `pack` or `meet`.
        subject: what the answer is about, a subject of the family.
        requested: the 2 to 4 items to mention, in the order asked for.
        forbidden: the item that must not be mentioned.
        card: for `describe`, (attribute, value) of all requested and forbidden attributes in the
            order they are written; empty for the other families.
    """

    family: str
    subject: str
    requested: tuple[str, ...]
    forbidden: str
    card: tuple[tuple[str, str], ...] = ()

    @property
    def values(self) -> dict[str, str]:
        """The card as a dictionary, attribute to value; empty outside `describe`."""
        return dict(self.card)

    @property
    def text(self) -> str:
        """The prompt as the model reads it: words and punctuation between single spaces."""
        card = " , ".join(f"{item} {value}" for item, value in self.card)
        opening = (
            f"{self.family} {self.subject} : {card} ."
            if card
            else (f"{self.family} {self.subject} .")
        )
        return f"{opening} cover {' , '.join(self.requested)} . skip {self.forbidden} ."


def sample_prompt(rng: np.random.Generator) -> WorldPrompt:
    """Draw one prompt: a uniform family and subject, and 2, 3, 3 or 4 requested items."""
    family = tuple(FAMILIES.values())[rng.integers(len(FAMILIES))]
    subject = family.subjects[rng.integers(len(family.subjects))]
    count = REQUEST_COUNTS[rng.integers(len(REQUEST_COUNTS))]
    chosen = [family.items[i] for i in rng.permutation(len(family.items))[: count + 1]]
    card: tuple[tuple[str, str], ...] = ()
    if family.name == DESCRIBE:
        shuffled = [chosen[i] for i in rng.permutation(count + 1)]
        card = tuple((item, draw(ATTRIBUTE_VALUES[item], rng)) for item in shuffled)
    return WorldPrompt(family.name, subject, tuple(chosen[:count]), chosen[count], card)


def sample_prompts(n: int, seed: int) -> list[WorldPrompt]:
    """Draw `n` independent prompts; the same seed gives the same list, and a longer one extends it.

    Prompts may repeat, though seldom: the smallest corner of the world, two items in a family
    other than `describe`, holds 18,480 different ones.
    """
    rng = np.random.default_rng(seed)
    return [sample_prompt(rng) for _ in range(n)]


def parse_prompt(text: str) -> WorldPrompt:
    """Read a prompt back from its text: the exact inverse of `WorldPrompt.text`.

    Raises:
        ValueError: the text is not a prompt of this world; the message says what is wrong in it.
    """
    sentences = text.split(" . ")
    if len(sentences) != 3 or not sentences[2].endswith(" ."):
        raise _malformed(text, "it needs three sentences, 'SUBJECT . cover ITEMS . skip ITEM .'")
    opening, cover, skip = sentences[0], sentences[1], sentences[2].removesuffix(" .")
    head, colon, listing = opening.partition(" : ")
    name, _, subject = head.partition(" ")
    if name not in FAMILIES:
        raise _malformed(text, f"{name!r} is not one of {', '.join(FAMILIES)}")
    family = FAMILIES[name]
    if subject not in family.subjects:
        raise _malformed(text, f"{subject!r} is no subject of {name!r}")
    if not cover.startswith("cover ") or not skip.startswith("skip "):
        raise _malformed(text, "the second sentence starts with 'cover', the third with 'skip'")
    requested = tuple(cover.removeprefix("cover ").split(" , "))
    forbidden = skip.removeprefix("skip ")
    for item in (*requested, forbidden):
        if item not in family.items:
            raise _malformed(text, f"{item!r} is no item of {name!r}")
    if len({*requested, forbidden}) != len(requested) + 1:
        raise _malformed(text, "requested and forbidden items must all differ")
    if len(requested) not in REQUEST_COUNTS:
        raise _malformed(text, f"{len(requested)} items are requested, expected 2 to 4")
    if bool(colon) != (name == DESCRIBE):
        raise _malformed(text, f"only {DESCRIBE!r} has, and needs, a card after ' : '")
    card = _parse_card(text, listing) if colon else ()
    if card and sorted(item for item, _ in card) != sorted((*requested, forbidden)):
        raise _malformed(text, "the card must give each requested and forbidden attribute once")
    return WorldPrompt(name, subject, requested, forbidden, card)


def draw(options: tuple[str, ...], rng: np.random.Generator) -> str:
    """One of `options`, uniformly."""
    return options[rng.integers(len(options))]


def _parse_card(text: str, listing: str) -> tuple[tuple[str, str], ...]:
    card = []
    for entry in listing.split(" , "):
        item, _, value = entry.partition(" ")
        if value not in ATTRIBUTE_VALUES.get(item, ()):
            raise _malformed(text, f"{entry!r} is no attribute with one of its values")
        card.append((item, value))
    return tuple(card)


def _malformed(text: str, problem: str) -> ValueError:
    shown = text if len(text) <= 200 else text[:200] + "..."
    return ValueError(f"Not a prompt of the controlled world: {problem}. Found: {shown!r}")
