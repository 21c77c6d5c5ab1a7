"""Faces in photographs and in head volumes."""

import nibabel as nib
import numpy as np
import pytest
from skimage import data

from mie.images.volumes import canonical
from mie.privacy import Gate, Policy, PrivacyError, faces
from mie.privacy.heads import find_head
from mie.privacy.scan import scan_files
from tests.privacy.heads import head

ELSEWHERE = "example.org"


def test_a_face_is_found_where_it_is_and_is_blacked_out():
    picture = np.ascontiguousarray(data.astronaut()[:256, 100:356])
    boxes = faces.face_boxes(picture)
    inside = np.zeros(picture.shape[:2], bool)
    for left, top, right, bottom in boxes:
        inside[top:bottom, left:right] = True
    assert inside[80:160, 90:160].all()  # brows to chin
    assert inside.mean() < 0.5
    with pytest.raises(PrivacyError, match="a face in a photograph"):
        Gate(Policy(deidentified=True), ELSEWHERE).release(picture, "a")
    sent = Gate(Policy(deidentified=True, redact=True), ELSEWHERE).release(picture, "a")
    assert (sent[80:160, 90:160] == 0).all()
    assert np.array_equal(sent[230:], picture[230:])


@pytest.mark.parametrize("name", ["retina", "immunohistochemistry", "coffee"])
def test_images_without_a_face(name):
    picture = np.ascontiguousarray(getattr(data, name)())
    assert faces.is_colour(picture)
    assert faces.face_boxes(picture) == []


def test_grey_images_are_not_searched():
    grey = np.repeat(data.camera()[..., None], 3, axis=2)
    assert not faces.is_colour(grey)
    assert not faces.is_colour(grey[..., 0])
    assert faces.is_colour(data.astronaut())


def test_a_grey_face_beside_a_coloured_legend_is_not_taken_for_a_photograph():
    """The other side of the limit: what is grey within a coloured image is not reported."""
    picture = np.ascontiguousarray(data.astronaut()[:256, 100:356])
    assert faces.face_boxes(picture)
    grey = np.repeat(picture.mean(axis=2).astype(np.uint8)[..., None], 3, axis=2)
    grey[:, -16:] = (200, 40, 40)
    assert faces.is_colour(grey)
    assert faces.face_boxes(grey) == []


def test_without_the_extra_a_photograph_needs_the_users_word(monkeypatch):
    monkeypatch.setattr(faces, "can_look", lambda: False)
    picture = np.ascontiguousarray(data.retina()[400:656, 400:656])
    for policy in (Policy(), Policy(redact=True)):  # what has no place cannot be blacked out
        with pytest.raises(PrivacyError, match="faces are not looked for"):
            Gate(policy, ELSEWHERE).release(picture, "a")
    assert Gate(Policy(deidentified=True), ELSEWHERE).release(picture, "a") is picture
    assert Gate(Policy(allow_phi=True), ELSEWHERE).release(picture, "a") is picture
    grey = np.ascontiguousarray(np.repeat(picture[..., :1], 3, axis=2))
    assert Gate(Policy(), ELSEWHERE).release(grey, "a") is grey


AFFINE = np.diag([2.0, 2.0, 2.0, 1.0])


def found(values, affine=AFFINE):
    return find_head(canonical(values, affine))


def test_a_head_with_its_face_and_without():
    assert found(head()).has_face
    for removed in (head(face=False, cut=60), head(cut=70), head(skull=False)):
        assert not found(removed).has_face


def test_the_orientation_of_the_file_does_not_matter():
    values = head()
    turned = values.transpose(2, 0, 1)[::-1, :, ::-1]  # superior to inferior, right, posterior
    affine = np.array([[0, 2, 0, 0], [0, 0, -2, 238], [-2, 0, 0, 258], [0, 0, 0, 1.0]])
    whole, cut = found(turned, affine), found(head(cut=70).transpose(2, 0, 1)[::-1, :, ::-1], affine)
    assert whole == found(values)
    assert whole.has_face
    assert not cut.has_face


def test_a_volume_that_begins_below_the_vertex():
    below = found(head()[:, :, :75])
    assert below.bump is not None
    assert below.has_face
    assert not found(head(face=False)[:, :, :75]).has_face


def test_what_is_no_head_or_shows_no_face_region():
    assert found(head()[:, :, 70:]) is None  # ends above the nose
    body = np.zeros((200, 130, 60), np.float32)
    body[10:190, 10:120] = 500
    body += np.random.default_rng(0).normal(0, 20, body.shape).astype(np.float32)
    assert found(body) is None
    assert found((head() > 300).astype(np.uint8)) is None  # a label map
    assert found(np.zeros((100, 120, 130), np.float32)) is None


def test_volumes_are_looked_at(tmp_path):
    named = nib.Nifti1Image(head(), AFFINE)
    named.header["descrip"] = b"SMITH^JOHN"
    nib.save(named, tmp_path / "whole.nii.gz")
    nib.save(nib.Nifti1Image(head(cut=70), AFFINE), tmp_path / "cut.nii")
    scan = scan_files(tmp_path, Gate(Policy(), "nowhere"), lambda *_: None)
    assert (scan.images, scan.volumes) == (0, 2)
    kinds = sorted((f.where, f.kind) for f in scan.findings)
    assert kinds == [("whole.nii.gz", "face"), ("whole.nii.gz", "header")]
