"""The vocabulary: complete, without a word that means two things in one modality."""

from __future__ import annotations

import subprocess
import sys

from mie.perspectives.transformation.targets import TARGETS
from mie.sources.catalog import catalog
from mie.vocabulary import COLOURS, MODALITIES
from mie.words.spelling import correct
from mie.words.vocabulary import LANGUAGES, fold, phrase, vocabulary


def test_every_target_of_the_catalogue_is_known_in_its_modality() -> None:
    known = vocabulary().targets
    for entry in catalog().values():
        for target in entry.targets:
            words = known[target.name]
            assert entry.modality in words.modalities, (target.name, entry.modality)
            assert (words.kind, words.plural) == (target.kind, target.plural), target.name


def test_every_transformation_is_known() -> None:
    known = vocabulary().transformations
    assert known.keys() == TARGETS.keys()
    for key, target in TARGETS.items():
        words = known[key]
        assert (words.name, words.task, words.modalities) == (target.name, target.task, target.modalities)


def test_the_colours_are_those_of_an_overlay() -> None:
    assert vocabulary().colours == tuple(COLOURS)


def test_every_target_has_words_in_every_language() -> None:
    for name, target in vocabulary().targets.items():
        missing = [language for language in LANGUAGES[1:] if not target.synonyms.get(language)]
        assert not missing, (name, missing)


def test_no_word_means_two_targets_in_one_modality() -> None:
    known = vocabulary()
    wrong = []
    for key, senses in known.senses.items():
        for modality in MODALITIES:
            own = {
                s.value
                for s in senses
                if s.kind == "target"
                and s.rank < 2
                and (
                    s.modality == modality
                    or (s.modality is None and modality in known.targets[s.value].modalities)
                )
            }
            exact = {s.value for s in senses if s.kind == "target" and s.modality == modality}
            if len(exact or own) > 1:
                wrong.append((key, modality, own))
    assert not wrong


def test_parents_exist_and_lead_up() -> None:
    known = vocabulary()
    assert {"glioma", "brain tumour", "brain lesion", "tumour", "lesion"} <= known.ancestors("glioma")
    for name, target in known.targets.items():
        assert name not in {p for parent in target.parents for p in known.ancestors(parent)}


def test_british_and_american_spelling_fold_to_one() -> None:
    for british, american in (("tumour", "tumor"), ("oedema", "edema"), ("haemorrhage", "hemorrhage")):
        assert fold(british) == fold(american)
    assert fold("four") != fold("for")


def test_every_phrase_is_stored_as_it_is_looked_up() -> None:
    """Plurals and cases that we make ourselves too: "bilises" is folded to "bilizes"."""
    assert [key for key in vocabulary().senses if phrase(" ".join(key)) != key] == []


def test_a_misspelt_word_never_becomes_another_target() -> None:
    assert correct("livr") == "liver"
    assert correct("tuomur") == "tumor"  # two letters from the folded word, one slip from the written one
    assert correct("pigmentation") is None
    assert correct("remote") is None
    assert correct("ileum") != "ilium"
    # Between the subdural and the epidural kind there is no guess.
    assert correct("xydural") is None


def test_the_words_load_no_torch_and_no_image_library() -> None:
    code = "import sys; from mie.words import parse; parse('mark the liver'); "
    code += "print(sorted({'torch', 'cv2'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
