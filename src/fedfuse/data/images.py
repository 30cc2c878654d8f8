"""Images over devices whose groups differ by swapped labels or by rotation: MNIST, Fashion-MNIST, digits.

MNIST's files have the idx format (http://yann.lecun.com/exdb/mnist, bottom): a magic number, 0x800 plus the number of
dimensions where values are unsigned bytes; sizes; values.
"""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fedfuse.data.checks import check_splits
from fedfuse.data.download import directory_with, files_of
from fedfuse.data.federation import Federation, cuts_with_test, default_features
from fedfuse.data.partition import Partition, TestPartition, draw, draw_test
from fedfuse.errors import FedfuseError, check_choice
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Floats, Ints

Groups: TypeAlias = Literal["swap", "rotate"]

N_CLASSES, N_GROUPS = 10, 4
_GZIP_MAGIC = b"\x1f\x8b"


class Images(NamedTuple):
    """Images: pixels (rows x height x width) that become features between 0 and 1, and class numbers from 0."""

    pixels: npt.NDArray[Any]
    labels: Ints
    brightest: float = 255.0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image, channels first."""
        return (1, *self.pixels.shape[1:])

    def at(self, rows: Ints) -> Images:
        """Return some of the images."""
        return Images(self.pixels[rows], self.labels[rows], self.brightest)


def mnist(
    seed: int = 0, *, name: str = "mnist", min_rows: int = 5, data_dir: str | Path | None = None, **options: Any
) -> Federation:
    """Return MNIST or Fashion-MNIST over devices in four groups; for options see `image_federation`."""
    return image_federation(*read_images(name, data_dir), seed=seed, min_rows=min_rows, **options)


def digits(
    seed: int = 0, *, alpha: float | None = 10.0, test: float = 0.2, min_rows: int = 2, **options: Any
) -> Federation:
    """Return the 1,797 digits (8 x 8 pixels) that come with scikit-learn, over devices in four groups.

    A quick start that needs no file. There are only about 90 images for each of 20 devices, so shares are rather
    even by default (``alpha=10``): with ``alpha=1`` as in `mnist` some devices would have next to no image of the
    two classes that tell their group. Test images, a share of each class, are set aside first. The other options
    are those of `image_federation`.

    >>> digits(seed=0)
    Federation(20 devices, 1,797 rows (76 to 109 each), 1 x 8 x 8 features, 10 classes)
    """
    from sklearn.datasets import load_digits

    check_splits(test, 0, seed)
    if not test:
        raise FedfuseError("test must be above 0 for digits, got 0: their test images are split off first")
    known = load_digits()
    whole = Images(known.images.astype(np.uint8), known.target.astype(np.int64), 16.0)
    shares = np.tile([1 - test, test], (N_CLASSES, 1))
    sets = Partition.by_shares(whole.labels, shares, generator(seed, "digits test images"))
    learned, tested = (whole.at(rows) for rows in sets.rows())
    return image_federation(learned, tested, seed=seed, alpha=alpha, min_rows=min_rows, **options)


def image_federation(
    train: Images,
    test: Images,
    *,
    seed: int = 0,
    devices: int = 20,
    groups: Groups = "swap",
    alpha: float | None = 1.0,
    test_partition: TestPartition = "independent",
    validation: float = 0.2,
    min_rows: int = 1,
) -> Federation:
    """Give images to devices in four groups.

    Parameters
    ----------
    seed
        Draws each device's images, and its validation rows.
    devices
        How many; consecutive ones are in one group, five each by default.
    groups
        ``"swap"``: group c exchanges the labels c and 8 - c. ``"rotate"``: its images are rotated counter-clockwise by
        c times 90 degrees.
    alpha
        Parameter of the Dirichlet distribution of the devices' shares in each class; None for even shares.
    test_partition
        Test images are given to devices by a new draw (``"independent"``), or with the shares of the training
        images (``"same_shares"``): then a device is tested on the classes that it has learned.
    validation
        The share of a device's training images that is kept for validation.
    min_rows
        Every device has at least so many training, validation and test images.
    """
    check_splits(0, validation, seed)
    check_choice("groups", groups, Groups)
    if train.shape != test.shape or (groups == "rotate" and train.shape[1] != train.shape[2]):
        need = "must agree, and be square where images are rotated"
        raise FedfuseError(f"training images have the shape {train.shape}, test images {test.shape}: they {need}")
    if devices < N_GROUPS:
        raise FedfuseError(f"{N_GROUPS} groups need at least as many devices, got devices={devices}")
    truth = np.sort(np.arange(devices) % N_GROUPS)
    # The purposes key the draws: other words would be other data.
    need_rows, rng = _rows_needed(min_rows, validation), generator(seed, "deal training rows")
    learned = draw(train.labels, devices, alpha, rng, need_rows, "training rows")
    rng = generator(seed, "deal test rows")
    tested = draw_test(learned, test.labels, alpha, rng, min_rows, test_partition)
    cuts = cuts_with_test(learned.counts, tested.counts, validation)
    # From bytes to numbers in one step, device by device.
    X: Floats = np.empty((int(cuts[-1, -1]), prod(train.shape)), np.float32)
    y = np.empty(len(X), np.int64)
    for i, (rows, test_rows) in enumerate(zip(learned.rows(), tested.rows(), strict=True)):
        rows = generator(seed, "split", i).permutation(rows)
        start, _, middle, stop = cuts[i]
        for images, at, span in ((train, rows, slice(start, middle)), (test, test_rows, slice(middle, stop))):
            pixels, labels, group = images.pixels[at], images.labels[at], int(truth[i])
            if groups == "rotate":
                pixels = np.rot90(pixels, group, axes=(1, 2))
            else:
                labels = np.where(labels == group, 8 - group, np.where(labels == 8 - group, group, labels))
            y[span] = labels
            np.divide(pixels.reshape(len(at), -1), np.float32(images.brightest), out=X[span], casting="same_kind")
    classes = tuple(range(max(N_CLASSES, int(y.max()) + 1)))
    names, columns = tuple(str(i) for i in range(devices)), default_features(X.shape[1])
    return Federation(names, X, y, cuts, "classification", classes, columns, truth, shape=train.shape)


def _rows_needed(min_rows: int, validation: float) -> int:
    """Return how many rows a device needs so that training and validation each have at least so many.

    >>> _rows_needed(5, 0.2), _rows_needed(1, 0.0)
    (23, 1)
    """
    if min_rows < 1:
        raise FedfuseError(f"min_rows must be at least 1 row, got {min_rows}")
    rows = min_rows
    while validation and np.diff(cuts_with_test(np.array([rows]), np.array([0]), validation)[0, :3]).min() < min_rows:
        rows += 1
    return rows


def read_images(name: str, data_dir: str | Path | None = None) -> tuple[Images, Images]:
    """Return the training and the test images of ``"mnist"`` or ``"fashion-mnist"``, as the files have them."""
    directory = directory_with(name, data_dir)
    paths = [directory / file for file in files_of(name)]
    train, labels, test, test_labels = (read_idx(path, ndim) for path, ndim in zip(paths, (3, 1, 3, 1), strict=True))
    for path, pixels, numbers in ((paths[0], train, labels), (paths[2], test, test_labels)):
        if pixels.shape != (len(numbers), 28, 28) or not len(pixels) or numbers.max() >= N_CLASSES:
            found = f"images of shape {pixels.shape}, and the file beside it {len(numbers)} labels"
            need = f"n x 28 x 28 and n labels from 0 to {N_CLASSES - 1} are expected"
            raise FedfuseError(f"{str(path)!r} holds {found} up to {numbers.max(initial=0)}: {need}")
    return Images(train, labels.astype(np.int64)), Images(test, test_labels.astype(np.int64))


def read_idx(path: str | Path, ndim: int) -> npt.NDArray[np.uint8]:
    """Read an idx file of unsigned bytes with ``ndim`` dimensions, gzipped or not, as a read-only array."""
    header = np.dtype([("magic", ">u4"), ("shape", ">u4", (ndim,))])
    try:
        data = Path(path).read_bytes()
        data = gzip.decompress(data) if data[:2] == _GZIP_MAGIC else data
        magic, shape = np.frombuffer(data, header, 1)[0]
        values = np.frombuffer(data, np.uint8, offset=header.itemsize)
        if magic != 0x800 + ndim:
            raise ValueError(f"its magic number is 0x{magic:08x}, but 0x{0x800 + ndim:08x} is expected")
        return np.asarray(values.reshape(*shape.tolist()))
    except FileNotFoundError:
        raise FedfuseError(f"there is no file {str(path)!r}; check the path") from None
    except (EOFError, ValueError, gzip.BadGzipFile, zlib.error) as problem:
        raise FedfuseError(f"{str(path)!r} is damaged, or no idx file: {problem}; delete it and get it again") from None
