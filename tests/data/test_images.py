"""Images: idx files as they are written, devices as the protocol (section 1.3) has them."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
from functools import cache

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.data import available, load
from fedfuse.data.download import files_of
from fedfuse.data.images import Images, digits, image_federation, mnist, read_idx, read_images
from fedfuse.errors import FedfuseError

PARTS = ("train", "validation", "test")


def idx(array):
    """An array of bytes in the idx format."""
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + np.asarray(array, np.uint8).tobytes()


def planted(n=60, n_test=40):
    """Images that number themselves, (row number) in the first pixel, (label) in the second."""
    sets = []
    for count in (n, n_test):
        pixels = np.zeros((count, 28, 28), np.uint8)
        pixels[:, 0, 0], pixels[:, 0, 1] = np.arange(count), np.arange(count) % 10
        sets.append((pixels, np.arange(count) % 10))
    return sets


@pytest.fixture
def small(tmp_path):
    """A data directory with a small MNIST."""
    (tmp_path / "mnist").mkdir()
    (train, labels), (test, test_labels) = planted()
    for file, array in zip(files_of("mnist"), (train, labels, test, test_labels), strict=True):
        (tmp_path / file).write_bytes(gzip.compress(idx(array), 1))
    return tmp_path


@pytest.mark.parametrize("packed", [True, False])
def test_an_idx_file_is_read_as_written(tmp_path, packed):
    array = np.random.default_rng(0).integers(0, 256, (7, 3, 4), dtype=np.uint8)
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    assert np.array_equal(read_idx(path, 3), array)


WHOLE = idx(np.arange(24).reshape(2, 3, 4))
BROKEN = {
    "cut short": (WHOLE[:-1], "cannot reshape array of size 23"),
    "too long": (WHOLE + b"x", "cannot reshape array of size 25"),
    "half a header": (WHOLE[:9], ""),
    "no magic": (b"\0\0", ""),
    "labels": (idx(np.arange(30)), "magic number is 0x00000801, but 0x00000803"),
    "floats": (b"\0\0\x0d\x03" + WHOLE[4:], "magic number is 0x00000d03"),
    "a page": (b"<html>404</html>", "magic number is 0x3c68746d"),
    "half a gzip": (gzip.compress(WHOLE)[:-12], ""),
    "a bent gzip": (gzip.compress(WHOLE)[:-8] + b"\0" * 8, "CRC check failed"),
    "no gzip": (b"\x1f\x8b\x08" + b"\xff" * 40, ""),
    "a giant": (b"\0\0\x08\x03" + b"\xff" * 12, ""),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_idx_file_is_named(tmp_path, case):
    content, words = BROKEN[case]
    (tmp_path / "images.gz").write_bytes(content)
    with pytest.raises(FedfuseError, match=r"images\.gz' is damaged, or no idx file: .*" + words) as caught:
        read_idx(tmp_path / "images.gz", 3)
    assert "\n" not in str(caught.value)


def test_a_missing_idx_file_is_named(tmp_path):
    with pytest.raises(FedfuseError, match=r"there is no file .*images"):
        read_idx(tmp_path / "images", 3)


@pytest.mark.parametrize(
    ("at", "array", "words"),
    [
        (0, np.zeros((5, 28, 28)), r"images of shape \(5, 28, 28\), and the file beside it 60 labels up to 9"),
        (0, np.zeros((60, 8, 8)), r"images of shape \(60, 8, 8\), .* n x 28 x 28 and n labels"),
        (3, np.full(40, 11), r"t10k-images.* 40 labels up to 11"),
    ],
)
def test_files_that_do_not_fit(small, at, array, words):
    (small / files_of("mnist")[at]).write_bytes(idx(array))
    with pytest.raises(FedfuseError, match=words):
        read_images("mnist", small)


def test_every_image_is_on_one_device_with_the_label_of_its_group(small):
    fed = mnist(3, devices=4, min_rows=1, alpha=20.0, data_dir=small)
    assert fed.shape == (1, 28, 28)
    assert fed.X.dtype == np.float32
    assert fed.truth.tolist() == [0, 1, 2, 3]
    images = np.rint(fed.X.reshape(-1, 28, 28) * 255).astype(int)
    learn, test = fed.rows("train+validation"), fed.rows("test")
    for rows, count in ((learn, 60), (test, 40)):
        spans = [np.arange(a, b) for a, b in zip(rows.start, rows.stop, strict=True)]
        assert sorted(images[np.concatenate(spans), 0, 0]) == list(range(count))
        for c, span in enumerate(spans):
            true = images[span, 0, 1]
            assert np.array_equal(fed.y[span], np.where(true == c, 8 - c, np.where(true == 8 - c, c, true)))


def test_rotated_groups_keep_labels_and_turn_images(small):
    swapped, turned = (
        mnist(3, devices=4, groups=g, min_rows=1, alpha=20.0, data_dir=small) for g in ("swap", "rotate")
    )
    assert np.array_equal(swapped.cuts, turned.cuts)
    a, b = (fed.X.reshape(-1, 28, 28) for fed in (swapped, turned))
    for c, (start, *_, stop) in enumerate(turned.cuts):
        assert np.array_equal(b[start:stop], np.rot90(a[start:stop], c, axes=(1, 2)))
    assert np.array_equal(turned.y, np.rint(a[:, 0, 1] * 255))


def test_all_depends_on_the_seed_and_on_nothing_else(small):
    prints = [mnist(seed, devices=4, min_rows=1, alpha=20.0, data_dir=small).fingerprint for seed in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]


def test_too_small_devices_are_an_error(small):
    with pytest.raises(FedfuseError, match=r"device \d+ of 20 got \d training rows, but needs at least 23.*alpha"):
        mnist(data_dir=small)
    with pytest.raises(FedfuseError, match="4 groups need at least as many devices, got devices=2"):
        mnist(devices=2, data_dir=small)
    with pytest.raises(FedfuseError, match="groups must be 'swap' or 'rotate'"):
        mnist(groups="mirror", data_dir=small)
    with pytest.raises(FedfuseError, match="min_rows must be at least 1"):
        mnist(min_rows=0, data_dir=small)


def test_any_images():
    rng = np.random.default_rng(0)
    train, test = (Images(rng.integers(0, 256, (n, 6, 6), np.uint8), np.arange(n) % 12) for n in (240, 60))
    fed = image_federation(train, test, devices=4, groups="rotate", alpha=None, validation=0.0)
    assert fed.shape == (1, 6, 6)
    assert fed.n_classes == 12
    assert fed.rows("train").counts.tolist() == [60] * 4
    assert not fed.rows("validation").counts.any()
    other, wide = (Images(np.zeros((n, 6, 3)), np.arange(n) % 12) for n in (60, 240))
    with pytest.raises(FedfuseError, match=r"training images have the shape \(1, 6, 6\), test images \(1, 6, 3\)"):
        image_federation(train, other, devices=4, groups="swap")
    with pytest.raises(FedfuseError, match="must agree, and be square where images are rotated"):
        image_federation(wide, other, devices=4, groups="rotate")


def test_digits_are_all_there_and_stratified():
    fed = digits(seed=1)
    assert (fed.m, fed.shape, len(fed.y)) == (20, (1, 8, 8), 1797)
    assert fed.X.min() == 0
    assert fed.X.max() == 1
    assert fed.truth.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    sizes = {part: fed.rows(part).counts for part in PARTS}
    assert sizes["test"].sum() == pytest.approx(0.2 * 1797, abs=10)
    assert all(count.min() >= 8 for count in sizes.values())
    assert sizes["train"].min() >= 30
    assert digits(seed=1, alpha=None, devices=10).rows("train").counts.min() >= 110


def test_digits_test_images_hold_a_fifth_of_each_class():
    fed = digits(seed=4, groups="rotate")
    test = np.concatenate([fed.rows("test").of(i)[1] for i in range(fed.m)])
    assert np.abs(np.bincount(test) - 0.2 * np.bincount(fed.y)).max() < 1
    with pytest.raises(FedfuseError, match="test must be above 0 for digits"):
        digits(test=0.0)


@pytest.mark.parametrize("name", ["digits", "digits:rotated"])
def test_the_quick_start_finds_its_groups(name):
    fed = load(name, seed=0)
    result = ff.fit(fed, model="softmax", seed=0)
    assert result.ari == 1.0
    assert result.score("test") > 0.9
    assert result.profile.shape == (1, 8, 8)


@pytest.mark.slow
def test_so_does_the_network():
    result = ff.fit(load("digits", seed=0), seed=0, rounds=20)
    assert result.ari == 1.0
    assert result.score("test") > 0.9


def test_a_result_takes_images_and_remembers_their_shape(tmp_path):
    pytest.importorskip("torch")
    fed = digits(devices=4)
    result = ff.fit(fed, ff.FPFC(lam=0.1, work=ff.Work(lr=0.5), refit=True), rounds=2, out=tmp_path / "run")
    X = fed.rows("test").of(0)[0]
    again = ff.Result.load(tmp_path / "run")
    assert again.profile.shape == (1, 8, 8)
    assert np.array_equal(again.predict(0, X.reshape(-1, 1, 8, 8)), result.predict(0, X))


def needs(name):
    if not {s.name: s.present for s in available()}[name]:
        pytest.skip(f"needs the files of {name} below FEDFUSE_DATA")


@cache
def real(name):
    needs(name)
    return load(name, seed=0)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_real_ones_are_whole(name):
    fed = real(name)
    assert fed.m == 20
    assert len(fed.X) == 70_000
    assert fed.rows("test").counts.sum() == 10_000
    learn = fed.rows("train+validation").counts
    assert np.array_equal(fed.rows("validation").counts, np.rint(0.2 * learn))
    assert fed.X.dtype == np.float32
    assert (fed.X.min(), fed.X.max()) == (0, 1)
    # groups of two labels are only exchanged
    pairs = np.bincount(fed.y, minlength=10)
    assert [pairs[c] + pairs[8 - c] for c in range(4)] == {
        "mnist": [6903 + 6825, 7877 + 7293, 6990 + 6876, 7141 + 6313],
        "fashion-mnist": [14_000] * 4,
    }[name]


def test_same_shares_make_test_classes_those_learned():
    needs("mnist")
    fed = mnist(0, test_partition="same_shares")
    for i in range(fed.m):
        learn, test = (np.bincount(fed.rows(p).of(i)[1], minlength=10) for p in ("train+validation", "test"))
        assert np.corrcoef(learn, test)[0, 1] > 0.99


def test_fashion_by_function():
    needs("fashion-mnist")
    assert mnist(0, name="fashion-mnist").fingerprint == real("fashion-mnist").fingerprint


def test_synthetic_data_need_no_library_of_images():
    words = (
        "import sys; from fedfuse.data.catalog import load; load('synthetic:S4'); import fedfuse.cli; "
        "print([m for m in ('torch', 'requests', 'sklearn.datasets') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
