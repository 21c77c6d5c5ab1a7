"""What the libraries of large models print while we work."""

import logging

import pytest

pytest.importorskip("diffusers", reason="models are an optional extra")
pytest.importorskip("transformers", reason="models are an optional extra")

from mie.networks.pretrained import quiet


@pytest.mark.parametrize("library", ["diffusers", "transformers"])
def test_warnings_of_the_libraries_are_held_back_and_errors_are_not(library, monkeypatch):
    import diffusers.utils.logging
    import transformers.utils.logging

    shown = []
    (handler, *_) = logging.getLogger(library).handlers
    monkeypatch.setattr(handler, "emit", lambda record: shown.append(record.getMessage()))
    logger = logging.getLogger(f"{library}.models.some")
    with quiet():
        with quiet():  # as in two threads
            logger.warning("one")
        logger.warning("two")
        logger.error("three")
        assert not transformers.utils.logging.is_progress_bar_enabled()
    logger.warning("four")
    assert shown == ["three", "four"]
    assert diffusers.utils.logging.is_progress_bar_enabled()
