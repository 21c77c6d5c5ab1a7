"""BERTScore with a tiny encoder, against the definition computed another way."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `models`")
transformers = pytest.importorskip("transformers", reason="needs the extra `models`")

from mie.errors import ConfigError  # noqa: E402
from mie.questions.scoring.bertscore import BertScore  # noqa: E402


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "left", "frontal", "glioma", "a", "right"]
    (folder / "vocab.txt").write_text("\n".join(words))
    tokenizer = transformers.BertTokenizerFast(
        vocab=str(folder / "vocab.txt"), vocab_file=str(folder / "vocab.txt")
    )
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
    )
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_it_is_the_f1_of_the_best_matches(encoder):
    answer, reference = "frontal glioma", "a left frontal glioma"
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
    model = transformers.AutoModel.from_pretrained(encoder).eval()
    states = []
    for text in (answer, reference):
        with torch.no_grad():
            found = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states[1][
                0
            ]
        states.append([vector / vector.norm() for vector in found])
    best = [
        [max(float(one @ other) for other in others) for one in mine[1:-1]]  # without [CLS] and [SEP]
        for mine, others in (states, states[::-1])
    ]
    precision, recall = (sum(found) / len(found) for found in best)
    f1 = 2 * precision * recall / (precision + recall)
    plain = BertScore(str(encoder), layer=1)
    # Beside a longer pair, which pads this one.
    other = ("right right right right right a", "left")
    assert plain.scores([(answer, reference), other])[0] == pytest.approx(f1, abs=1e-5)
    rescaled = BertScore.of(f"{encoder},layer=1,baseline=0.2")
    assert rescaled.scores([(answer, reference)])[0] == pytest.approx((f1 - 0.2) / 0.8, abs=1e-5)
    assert plain.scores([(answer, answer)])[0] == pytest.approx(1.0, abs=1e-5)


def test_what_is_missing_is_said(encoder, tmp_path):
    with pytest.raises(ConfigError, match="no model for BERTScore"):
        BertScore(str(tmp_path))
    with pytest.raises(ConfigError, match="no such layer"):
        BertScore(str(encoder), layer=9).scores([("a", "a")])
