from __future__ import annotations

import json
from pathlib import Path

import pytest

from mie.core.documents import DatasetInfo, add_facts, facts_of, read_document, write_document
from mie.errors import MieError


def test_what_is_written_is_read_back_with_its_keys_in_order(tmp_path: Path) -> None:
    body = {"schema_version": 3, "name": "sehnervenköpfe", "counts": {"b": 1, "a": [2, None, 0.1]}}
    path = tmp_path / "thing.json"
    write_document(path, body)
    found = read_document(path, "thing", version=3)
    assert found == body
    assert [*found, *found["counts"]] == [*body, "b", "a"]
    # The layout of every document that people have on disk.
    assert path.read_text() == json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def test_numbers_that_json_does_not_have_can_be_forbidden(tmp_path: Path) -> None:
    write_document(tmp_path / "a.json", {"x": float("nan")})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_document(tmp_path / "b.json", {"x": float("nan")}, allow_nan=False)
    assert not (tmp_path / "b.json").exists()


@pytest.mark.parametrize(
    ("content", "what", "found"),
    [
        (b"{", "thing.json is not valid JSON", "Expecting"),
        (b'{"a": "\xff"}', "thing.json is not valid JSON", "utf-8"),
        (b"[1]", "thing.json is not a JSON object", "list"),
        (b"{}", "thing of another schema version", "None"),
        (b'{"schema_version": 2}', "thing of another schema version", "2"),
    ],
)
def test_what_is_no_such_document_is_named(tmp_path: Path, content: bytes, what: str, found: str) -> None:
    path = tmp_path / "thing.json"
    path.write_bytes(content)
    with pytest.raises(MieError) as error:
        read_document(path, "thing", version=3, fix="make it again")
    assert error.value.what == what
    assert error.value.where == str(path)
    assert found in str(error.value.found)
    if "version" in what:
        assert (error.value.expected, error.value.fix) == ("3", "make it again")


def test_a_missing_document_names_its_folder(tmp_path: Path) -> None:
    with pytest.raises(MieError) as error:
        read_document(tmp_path / "run.json", "run")
    assert (error.value.what, error.value.where) == ("no run here", str(tmp_path))
    assert error.value.expected == "a folder with run.json"


def test_a_perspective_keeps_its_facts_under_its_name() -> None:
    info: DatasetInfo = {
        "name": "d",
        "description": "",
        "digest": "0",
        "counts": {
            "samples": 0,
            "by_split": {},
            "by_perspective": {},
            "by_task": {},
            "by_modality": {},
            "by_source": {},
            "patients_known": 0,
        },
        "rejected": {},
        "licenses": {},
        "deidentified": False,
        "recipe": {},
        "versions": {},
    }
    assert facts_of(info, "counting") is None
    add_facts(info, "counting", {"cells": 3})
    assert facts_of(info, "counting") == {"cells": 3}
    assert list(info)[-1] == "counting"
