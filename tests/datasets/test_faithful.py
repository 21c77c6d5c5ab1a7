"""The check of rephrasings: what says the same passes, what loses or adds anything that counts does not."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mie.datasets.faithful import Sentence, any_of, fault, filled, take_apart
from mie.perspectives.perception.phrasings import HOLISTIC, LESION, STRUCTURE, ask_for_all, ask_for_one
from mie.perspectives.transformation.phrasings import NAMED, PHRASINGS, all_words, ask
from mie.records import Target
from mie.vocabulary import COLOURS, MODALITIES

TARGETS = [
    Target("optic disc", "anatomy"),
    Target("hard exudates", "lesion", True),
    Target("red blood cells", "anatomy", True),
    Target("left lung", "anatomy"),
    Target("liver", "anatomy"),
    Target("liver tumour", "lesion"),
    Target("T2 lesion", "lesion"),
]
colours = st.sampled_from(list(COLOURS))


@st.composite
def perception(draw):
    template = draw(st.sampled_from((*STRUCTURE, *LESION)))
    target, colour = draw(st.sampled_from(TARGETS)), draw(colours)
    text = ask_for_one(template, target, colour, draw(st.sampled_from(list(MODALITIES))))
    return (
        take_apart(text, template, {"classes": [{"target": target.name, "colour": colour}]}),
        target,
        colour,
    )


@st.composite
def holistic(draw):
    template = draw(st.sampled_from(HOLISTIC))
    names = draw(st.lists(st.sampled_from(TARGETS), min_size=2, max_size=3, unique=True))
    painted = list(zip(names, draw(st.permutations(list(COLOURS))), strict=False))
    text = ask_for_all(template, painted, "CT")
    classes = [{"target": target.name, "colour": colour} for target, colour in painted]
    return take_apart(text, template, {"classes": classes}), painted


@st.composite
def transformation(draw):
    key = draw(st.sampled_from(list(PHRASINGS)))
    numbers = st.integers(-1000, 3000)
    level = draw(numbers)
    width = draw(numbers.filter(lambda n: n not in (0, level)))
    words = all_words(
        "MRI",
        "brain",
        {
            "views": draw(st.integers(20, 200)),
            "factor": draw(st.sampled_from((2, 3, 4, 8))),
            "artifacts": draw(st.sampled_from(("hair", "hair and a ruler"))),
            "source": "T1-weighted MRI",
            "goal": draw(st.sampled_from(("CT", "FLAIR MRI", "PET"))),
            "window": draw(st.sampled_from(("lung", "soft tissue", "bone"))),
            "level": level,
            "width": width,
        },
    )
    template = draw(st.sampled_from(PHRASINGS[key]))
    return take_apart(ask(template, words), template, {"named": [words[n] for n in NAMED.get(key, ())]})


sentences = st.one_of(
    perception().map(lambda found: found[0]), holistic().map(lambda found: found[0]), transformation()
)


@given(sentences)
def test_every_sentence_is_faithful_to_itself(sentence):
    assert sentence is not None
    assert fault(sentence, sentence.text) is None


@given(sentences, st.data())
def test_no_number_may_change_go_or_come(sentence, data):
    numbers = list(re.finditer(r"\d+", sentence.text))
    if numbers:
        at = data.draw(st.sampled_from(numbers))
        other = data.draw(st.integers(0, 5000).map(str).filter(lambda n: n != at[0]))
        for new in (other, ""):
            changed = sentence.text[: at.start()] + new + sentence.text[at.end() :]
            assume(set(re.findall(r"\d+", changed)) != {n[0] for n in numbers})
            assert fault(sentence, changed) is not None
    assert fault(sentence, sentence.text.rstrip(".?") + ", 77 times.") is not None


@given(perception(), colours)
def test_no_colour_may_change_go_or_come(found, other):
    sentence, _, colour = found
    assume(other != colour)
    rest = re.sub(rf"\b{colour}\b(?! blood)", "{}", sentence.text)
    assert fault(sentence, rest.format(*[other] * 2)) is not None
    assert fault(sentence, rest.format(*["clear"] * 2)) is not None
    assert fault(sentence, f"{sentence.text[:-1]} and {other}.") is not None
    assert fault(sentence, rest.format(*[f"dark {colour}"] * 2)) is not None


@given(sentences, st.data())
def test_no_entity_may_go(sentence, data):
    assume(sentence.entities)
    word = data.draw(st.sampled_from(sentence.entities))
    gone = any_of([word]).sub("thing", sentence.text)
    assert fault(sentence, gone) is not None


@given(sentences)
def test_negations_sides_and_limits_stay(sentence):
    for word in ("only", "not", "without", "no", "do not"):
        if re.search(rf"\b{word}\b", sentence.text):
            assert fault(sentence, re.sub(rf"\b{word}\b", "", sentence.text)) is not None
    for added in ("on the left", "only", "but not the rest", "without the rest", "on the CT and the PET"):
        if not any(word in sentence.text for word in added.split()[-2:]):
            assert fault(sentence, f"{sentence.text[:-1]} {added}.") is not None


@given(holistic())
def test_a_colour_stays_with_its_target(found):
    sentence, painted = found
    (first, one), (second, two), *_ = painted
    swapped = [(first, two), (second, one), *painted[2:]]
    behind = ", ".join(f"the {target.name} in {colour}" for target, colour in painted)
    before = ", ".join(f"{colour} for the {target.name}" for target, colour in painted)
    wrong = ", ".join(f"the {target.name} in {colour}" for target, colour in swapped)
    tail = (
        " Leave the rest of the CT slice unchanged."
        if "CT" in sentence.text
        else " Leave the rest unchanged."
    )
    for words in (behind, before):
        trouble = fault(sentence, f"Please use {words}.{tail}")
        assert trouble is None or not trouble.startswith("colour"), trouble
    assert fault(sentence, f"Please use {wrong}.{tail}").startswith("colour")
    assert fault(sentence, sentence.text.replace(one, "#").replace(two, one).replace("#", two)) is not None


PAIRED = Sentence(
    "Paint the liver red and the liver tumour blue.",
    ("liver", "liver tumour"),
    (("liver", "red"), ("liver tumour", "blue")),
)


@pytest.mark.parametrize(
    "text",
    [
        "Paint the liver red and the liver tumour blue.",
        "Paint the liver tumour blue and the liver red.",
        "Use red for the liver and blue for the liver tumour.",
        "Use blue for the liver tumour and red for the liver.",
        # The targets may be named first.
        "Mark the liver and the liver tumour: paint the liver red and the liver tumour blue.",
    ],
)
def test_pairs_may_stand_in_any_order(text):
    assert fault(PAIRED, text) is None


@pytest.mark.parametrize(
    "text",
    [
        "Paint the liver blue and the liver tumour red.",
        "Use blue for the liver and red for the liver tumour.",
        # Once the colour stands before its target and once behind: which is whose?
        "Paint red the liver and the liver tumour blue.",
        "Paint the liver red and blue the liver tumour.",
        "Paint the liver and the liver tumour red and blue.",
        "Paint the liver tumour and the liver red and blue.",
        "Mark the liver tumour and the liver: paint the liver blue and the liver tumour red.",
    ],
)
def test_pairs_must_not_be_swapped_or_unclear(text):
    assert fault(PAIRED, text) == "colour: it is not clear which colour goes with which target"


def test_the_longer_of_two_names_is_read_first():
    pattern = any_of(["liver", "liver tumour"])
    assert [m[0] for m in pattern.finditer("liver tumour, liver")] == ["liver tumour", "liver"]


@pytest.mark.parametrize(
    ("template", "words", "good", "bad"),
    [
        (
            "Tint the {target} {colour}; do not change the surrounding tissue.",
            {"target": "hard exudates", "colour": "red"},
            [
                "Give the hard exudates a red tint, but do not alter the tissue around them.",
                "Shade the hard exudates in red; don't touch anything else.",
            ],
            [
                ("Give the hard exudates a red tint.", "negation"),
                ("Give the exudates a red tint; do not change the tissue.", "entity"),
                ("Tint the hard exudates; do not change the surrounding tissue.", "colour"),
                ("Tint the hard exudates red or green; do not change the surrounding tissue.", "colour"),
                ("Remove the hard exudates in red; do not change the surrounding tissue.", "action"),
                ("Tint both hard exudates on the left red; do not change the tissue.", "side"),
                ("Sure! Tint the hard exudates red and do not change the tissue.", "form"),
                ("Tint the hard exudates red;\ndo not change the surrounding tissue.", "form"),
                ("**Tint** the hard exudates red; do not change the tissue.", "form"),
                ("Tint the hard exudates red; do not change the tissue. " * 9, "form"),
                ("Red hard exudates, do not " + "really " * 40, "form"),
            ],
        ),
        (
            "Set window level {level} and window width {width}, the {window} preset.",
            {"level": -600, "width": 1500, "window": "lung"},
            [
                "Use the lung preset: width 1500, level -600.",
                "Show the lung preset, centred at −600 and 1500 wide.",
                "Lung preset please, WW/WL 1500/-600.",
            ],
            [
                ("Use the lung preset: width -600, level 1500.", "number"),
                ("Use the lung preset: level 600, width 1500.", "number"),
                ("Use the lung preset: level -600.", "number"),
                ("Use the bone preset: level -600, width 1500.", "entity"),
                ("Use the lung preset, -600 and 1500.", "number"),
            ],
        ),
        (
            "Remove the {size} {lesion} in the {place}.",
            {"size": "small", "lesion": "polyp", "place": "upper left quadrant"},
            ["Please erase the small polyp that lies in the upper left quadrant."],
            [
                ("Please erase the small polyp that lies in the upper right quadrant.", "entity"),
                ("Please show the small polyp that lies in the upper left quadrant.", "action"),
                ("Please add a small polyp in the upper left quadrant.", "action"),
                ("Please erase the large polyp in the upper left quadrant.", "entity"),
            ],
        ),
        (
            "Add a {lesion} of {mm} mm and leave {factor} % of it bright.",
            {"lesion": "cyst", "mm": 12, "factor": 40},
            ["Insert a cyst of 12 mm, keep 40 % of it bright."],
            [
                ("Insert a cyst of 12 cm, keep 40 % of it bright.", "number"),
                ("Insert a cyst of 40 mm, keep 12 % of it bright.", "number"),
                ("Insert two cysts of 12 mm, keep 40 % of a cyst bright.", "number"),
            ],
        ),
    ],
)
def test_examples(template, words, good, bad):
    sentence = take_apart(ask(template, words), template, {})
    for text in good:
        assert fault(sentence, text) is None, text
    for text, kind in bad:
        assert str(fault(sentence, text)).split(":")[0] in (kind, "length"), (text, fault(sentence, text))


def test_a_target_of_another_sentence_is_not_let_in():
    template = "Highlight the {target} in {colour}."
    sentence = take_apart("Highlight the optic disc in red.", template, {})
    others = any_of(["optic disc", "cup", "fovea"])
    assert fault(sentence, "Mark the optic disc in red.", others) is None
    assert fault(sentence, "Mark the optic disc and the fovea in red.", others) == "entity: 'fovea' is new"


def test_places_are_found_again_and_foreign_texts_are_not():
    assert filled("Paint the {target} {colour}.", "Paint the hard exudates red.") == {
        "target": "hard exudates",
        "colour": "red",
    }
    assert filled("{goal} to {goal}", "CT to CT") == {"goal": "CT"}
    assert filled("{goal} to {goal}", "CT to PET") is None
    assert take_apart("Something else.", "Paint the {target} {colour}.", {}) is None


NATURAL = {
    "Highlight the {target} in {colour}.": [
        "Could you highlight the optic disc using red?",
        "Make the optic disc stand out in red.",
    ],
    "Overlay the {target} in {colour} and leave everything else untouched.": [
        "Place a red overlay on the optic disc, keeping everything else unchanged.",
        "Add a red overlay to the optic disc while everything else is left untouched.",
    ],
    "Which pixels belong to the {target}? Fill {it} with {colour}.": [
        "Find every pixel that belongs to the optic disc and fill those pixels with red.",
        "Identify the pixels of the optic disc and colour them red.",
    ],
    "Apply a {colour} tint to the {target} only.": [
        "Tint only the optic disc red.",
        "Give just the optic disc a red tint.",
    ],
    "Shade the {target} in {colour} so that the anatomy underneath stays visible.": [
        "Apply red shading to the optic disc, keeping the underlying anatomy visible.",
    ],
    "Denoise this MRI slice.": [
        "Remove the noise from this MRI slice.",
        "Please reduce the noise of this MRI slice.",
    ],
    "This MRI was accelerated {factor} times: reconstruct it as if fully sampled.": [
        "Reconstruct this 4x accelerated MRI as though it were fully sampled.",
        "This MRI has an acceleration factor of 4; restore it to full sampling.",
    ],
    "Take {artifacts} out of the picture and keep the lesion as it is.": [
        "Remove hair from the picture while keeping the lesion unchanged.",
        "Erase hair in the image and leave the lesion intact.",
    ],
    "Convert this {anatomy} {source} to {goal}.": [
        "Turn this brain T1-weighted MRI into PET.",
        "Transform this T1-weighted MRI of the brain into a PET image.",
    ],
}


@pytest.mark.parametrize("template", NATURAL)
def test_what_a_person_would_say_is_let_through(template):
    words = {"target": "optic disc", "colour": "red", "it": "it", "factor": 4, "artifacts": "hair"}
    words |= {"anatomy": "brain", "source": "T1-weighted MRI", "goal": "PET"}
    sentence = take_apart(ask(template, words), template, {})
    for text in NATURAL[template]:
        assert fault(sentence, text) is None, text


@pytest.mark.parametrize(
    ("template", "good", "bad"),
    [
        (
            "Make the larger of the two {colour}.",
            "Turn the bigger of the two red, please.",
            "Make the smaller of the two red.",
        ),
        ("Undo that.", "Could you undo that?", "Please repeat that."),
        ("Undo the last two steps.", "Please undo the last two steps.", "Undo the last three steps."),
        (
            "Show the {target} as a contour instead of a filled area.",
            "Display the liver as an outline instead of a filled area.",
            "Show the liver as a filled area instead of a contour.",
        ),
        ("Now the other one, in {colour}.", "And now the other one in red.", "Now the same one, in red."),
        (
            "Go back to how it looked after the {turn} turn.",
            "Return to how things looked after the third turn.",
            "Go back to how it looked after the fourth turn.",
        ),
        (
            "Take the colour off the {target}.",
            "Take the overlay off the liver.",
            "Put the colour on the liver.",
        ),
        ("Withdraw the last step.", "Please cancel the last step.", "Withdraw everything."),
    ],
)
def test_a_turn_refers_to_what_it_referred_to(template, good, bad):
    words = {"colour": "red", "target": "liver", "turn": "third"}
    text = template.format(**words)
    sentence = take_apart(text, template, {"phrasing": "any"})
    assert fault(sentence, text) is None
    assert fault(sentence, good) is None
    assert fault(sentence, bad) is not None
    alone = take_apart(text, template, {})
    assert alone.turn is False
