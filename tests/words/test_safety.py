"""Sentences that speak of a removal or an addition and ask for none, with every verb: nothing is altered."""

from __future__ import annotations

import itertools

from mie.words import parse
from tests.words.blind import ALTERING

VERBS = (  # infinitive, participle, gerund
    ("remove", "removed", "removing"),
    ("delete", "deleted", "deleting"),
    ("erase", "erased", "erasing"),
    ("excise", "excised", "excising"),
    ("resect", "resected", "resecting"),
    ("eliminate", "eliminated", "eliminating"),
    ("take out", "taken out", "taking out"),
    ("cut out", "cut out", "cutting out"),
    ("get rid of", "gotten rid of", "getting rid of"),
    ("wipe out", "wiped out", "wiping out"),
    ("zap", "zapped", "zapping"),
    ("heal", "healed", "healing"),
    ("ablate", "ablated", "ablating"),
    ("clear", "cleared", "clearing"),
    ("add", "added", "adding"),
    ("insert", "inserted", "inserting"),
    ("implant", "implanted", "implanting"),
    ("simulate", "simulated", "simulating"),
    ("create", "created", "creating"),
    ("generate", "generated", "generating"),
    ("introduce", "introduced", "introducing"),
    ("paint in", "painted in", "painting in"),
    ("grow", "grown", "growing"),
    ("inject", "injected", "injecting"),
)
TARGETS = (("tumour", "CT"), ("polyp", "endoscopy"), ("skin lesion", "dermoscopy"), ("glioma", "MRI"))
SENTENCES = """
Should we {v} the {t}?
Should the {t} be {d}?
Do you think we should {v} the {t}?
Why did they {v} the {t}?
When will you {v} the {t}?
The {t} was {d} last year.
The {t} has been {d}. Mark the scar region of the {t}.
The surgeon {d} the {t}. Show where it was.
The surgeon will {v} the {t} tomorrow; outline it.
My doctor wants to {v} the {t}, please show it.
Do not {v} the {t}.
Please don't {v} the {t}, mark it.
Never {v} the {t}.
Before {g} the {t}, outline it in red.
After {g} the {t} they closed. Show the {t}.
Instead of {g} the {t}, highlight it.
Highlight the {t} without {g} it.
Mark the {t} that we are going to {v}.
Mark the {t} which should be {d}.
Mark the {t} to be {d}.
Outline the {t} so that the surgeon can {v} it.
Show the {t} I want to {v} later.
He asked whether to {v} the {t}.
I am not asking you to {v} the {t}.
I did not say {v} the {t}.
There is no need to {v} the {t}; show it.
What happens if we {v} the {t}?
How do surgeons {v} the {t}?
Explain how to {v} the {t}.
Is it possible for a surgeon to {v} the {t}?
Write "{v} the {t}" below the image.
The note says "{v} the {t}". Mark the {t}.
If you {v} the {t} I will complain.
It would be a mistake to {v} the {t}.
We refused to {v} the {t}.
She decided against {g} the {t}.
We plan on {g} the {t} next week, so contour it.
{g} the {t} was difficult.
Forget it, don't {v} the {t}.
{v} the {t}? No. Just mark it.
{v} the {t}... no wait, highlight it instead.
I thought about {g} the {t} but show it instead.
The patient hopes they {v} the {t}.
Has anybody {d} the {t}?
Can the {t} be {d}?
Was the {t} {d}?
Tell me whether to {v} the {t}.
Let me know if you would {v} the {t}.
Show me how you would {v} the {t}.
Rather than {v} the {t}, colour it green.
The plan to {v} the {t} was cancelled. Outline the {t}.
Which {t} should be {d}?
Where was the {t} {d}?
Mark where the {t} was {d}.
We {d} the {t} yesterday, show me the result.
Please label the {d} {t}.
The {d} {t} in red please.
{t}, not {d} yet, please mark.
{t} ({d} 2019): outline.
You must not {v} the {t}.
You are not allowed to {v} the {t}.
I forbid you to {v} the {t}.
It is forbidden to {v} the {t}.
Under no circumstances {v} the {t}.
Avoid {g} the {t}.
Refrain from {g} the {t}.
Stop {g} the {t}!
Nobody may {v} the {t}.
We cannot {v} the {t}, mark it.
Unable to {v} the {t}; show it.
Failed to {v} the {t}. Highlight it.
No one {d} the {t}.
The attempt to {v} the {t} failed; outline the {t}.
Imagine they {d} the {t}; where would it have been?
Consent to {v} the {t} was given. Mark it.
""".strip().splitlines()
OTHER_LANGUAGES = """
Soll der Tumor entfernt werden?
Der Tumor wurde entfernt. Bitte die Leber zeigen.
Entferne den Tumor nicht.
Bitte den Tumor nicht entfernen, nur markieren.
Markiere den Tumor, der entfernt werden soll.
Bevor wir den Tumor entfernen, bitte umranden.
Statt den Tumor zu entfernen, markiere ihn.
Der Chirurg hat den Tumor entfernt.
Der Chirurg will den Tumor entfernen, bitte zeige ihn.
Warum wurde der Tumor entfernt?
Kann man den Tumor entfernen?
Füge keinen Tumor hinzu.
Faut-il enlever la tumeur ?
La tumeur a été enlevée. Montre le foie.
N'enlève pas la tumeur.
Ne supprimez pas la tumeur, montrez-la.
Marque la tumeur qui sera enlevée.
Avant d'enlever la tumeur, entoure-la.
Au lieu d'enlever la tumeur, montre-la.
Le chirurgien a enlevé la tumeur.
Pourquoi a-t-on enlevé la tumeur ?
N'ajoute pas de tumeur.
¿Hay que quitar el tumor?
El tumor fue extirpado. Muestra el hígado.
No quites el tumor.
No elimines el tumor, márcalo.
Marca el tumor que será extirpado.
Antes de quitar el tumor, señálalo.
En vez de quitar el tumor, márcalo.
El cirujano quitó el tumor.
¿Por qué quitaron el tumor?
No añadas un tumor.
肿瘤需要切除吗？
肿瘤已被切除，请标出肝脏
不要切除肿瘤
请勿删除肿瘤，只标记
切除肿瘤前，请标出它
为什么要切除肿瘤？
医生切除了肿瘤
不要添加肿瘤
""".strip().splitlines()


def test_a_sentence_that_speaks_of_a_change_asks_for_none() -> None:
    for sentence, (at, (verb, done, doing)) in itertools.product(SENTENCES, enumerate(VERBS)):
        target, modality = TARGETS[at % len(TARGETS)]
        text = sentence.format(v=verb, d=done, g=doing, t=target)
        assert parse(text[0].upper() + text[1:], modality).operation not in ALTERING, text


def test_so_it_is_in_other_languages() -> None:
    for text in OTHER_LANGUAGES:
        assert parse(text, "CT").operation not in ALTERING, text
