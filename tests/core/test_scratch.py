"""Arrays on the disk: the same values as in memory, no files left, a full disk said when they are made."""

import contextvars
import errno
import gc
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from mie.core import scratch


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Everything on the disk, in a folder of its own, a few elements at a time."""
    monkeypatch.setattr(scratch, "_IN_MEMORY", 0)
    monkeypatch.setattr(scratch, "_SHARED", 1 << 12)
    monkeypatch.setattr(scratch, "BLOCK", 100)
    with scratch.scratch_folder(tmp_path):
        yield tmp_path


def files_mapped(folder: Path) -> int:
    return sum(str(folder) in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_files_have_no_name_and_go_with_the_last_array(on_disk: Path) -> None:
    large = scratch.zeros((30, 40), np.float32)
    view = large[3:5].T
    assert files_mapped(on_disk) == 1
    assert list(on_disk.iterdir()) == []
    del large
    gc.collect()
    assert files_mapped(on_disk) == 1
    assert (view == 0).all()
    del view
    gc.collect()
    assert files_mapped(on_disk) == 0


@dataclass(frozen=True)
class Thing:
    name: str
    image: np.ndarray
    masks: dict[str, np.ndarray]
    missing: np.ndarray | None = None


def test_a_record_is_put_aside_with_its_arrays(on_disk: Path) -> None:
    draw = np.random.default_rng(1)
    thing = Thing("a", draw.integers(0, 9, (20, 30, 3)), {"b": draw.random((20, 30)) < 0.5})
    kept = [scratch.aside(thing) for _ in range(5)]
    assert files_mapped(on_disk) > 1  # of 4 KiB or one array each
    scratch.give_back()
    for one in kept:
        np.testing.assert_array_equal(one.image, thing.image)
        np.testing.assert_array_equal(one.masks["b"], thing.masks["b"])
        assert one.masks["b"].dtype == np.bool_
        assert one.missing is None
    again = scratch.aside(kept[0])
    assert again.image is kept[0].image  # not a second time
    assert scratch.put_aside(kept[0].image[2:4]).base is not None


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(7,), (1, 5), (40, 3), (6, 50, 4), (50, 1, 30)])
def test_blocks_cover_an_array_once(on_disk: Path, order: str, shape: tuple[int, ...]) -> None:
    array = scratch.zeros(shape, np.int16, order)
    places = list(scratch.blocks(array))
    for at in places:
        array[at] += 1
    assert (array == 1).all()
    assert len(places) > 1 or array.nbytes <= 100 or max(array.strides) == array.strides[np.argmax(shape) - 1]
    assert list(scratch.blocks(np.zeros((0, 3)))) == []


def test_chosen_values_and_counts_are_numpys(on_disk: Path) -> None:
    draw = np.random.default_rng(2)
    values, other = draw.normal(size=(30, 20)), draw.random((30, 20))
    np.testing.assert_array_equal(scratch.chosen(values, None), values.ravel())
    np.testing.assert_array_equal(scratch.chosen(values, lambda v: v > 0), values[values > 0])
    np.testing.assert_array_equal(scratch.chosen(values, lambda v: v > 0.5, by=other), values[other > 0.5])
    assert scratch.chosen(values, lambda v: v > 99).size == 0
    assert scratch.counted(lambda a, b: a > b, values, other) == (values > other).sum()


def test_processes_and_threads_have_places_of_their_own(on_disk: Path) -> None:
    mine = scratch.put_aside(np.full(10, 1))
    child = os.fork()
    if child == 0:
        scratch.put_aside(np.full(10, 2))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    after = scratch.put_aside(np.full(10, 3))
    assert (mine == 1).all()
    assert (after == 3).all()
    context = contextvars.copy_context
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(context().run, scratch.put_aside, np.full(30, at)) for at in range(200)]
        found = [job.result() for job in jobs]
    assert all((one == at).all() for at, one in enumerate(found))


def test_a_full_disk_is_said_when_the_array_is_made(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left") as caught:
        scratch.zeros((30, 40))
    assert caught.value.errno == errno.ENOSPC
    assert files_mapped(on_disk) == 0
