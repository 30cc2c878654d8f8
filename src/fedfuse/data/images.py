"""Images over devices whose groups differ by swapped labels or by rotation: MNIST, Fashion-MNIST, digits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fedfuse.data.checks import check_splits
from fedfuse.data.directory import directory_with
from fedfuse.data.federation import Federation, cuts_beside, default_features
from fedfuse.data.idx import read_idx
from fedfuse.data.partition import (
    Deal,
    Dirichlet,
    Even,
    Grouping,
    LabelSwap,
    Partitioner,
    Rotation,
    TestPartition,
    deal_by_shares,
    deal_enough,
    deal_test,
    in_groups,
)
from fedfuse.errors import FedfuseError
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Floats, Ints

Groups: TypeAlias = Literal["swap", "rotate"] | Grouping

N_CLASSES = 10
_IDX = (
    *("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    *("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
)
FILES: dict[str, tuple[str, ...]] = {
    name: tuple(f"{name}/{file}" for file in _IDX) for name in ("mnist", "fashion-mnist")
}


@dataclass(frozen=True)
class Images:
    """Images with their labels.

    Attributes
    ----------
    pixels
        Rows x height x width, or rows x channels x height x width.
    labels
        Class numbers from 0.
    brightest
        What is divided by, so that features lie between 0 and 1.
    """

    pixels: npt.NDArray[Any]
    labels: Ints
    brightest: float = 255.0

    def __post_init__(self) -> None:
        if self.pixels.ndim not in (3, 4) or len(self.pixels) != len(self.labels) or not len(self.labels):
            raise FedfuseError(
                f"images must be rows x (channels x) height x width with one label each, got arrays of shapes "
                f"{self.pixels.shape} and {self.labels.shape}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image, channels first."""
        height, width = self.pixels.shape[-2:]
        return (self.pixels.shape[1] if self.pixels.ndim == 4 else 1, height, width)

    def at(self, rows: Ints) -> Images:
        """Return some of the images."""
        return Images(self.pixels[rows], self.labels[rows], self.brightest)


def mnist(
    seed: int = 0,
    *,
    devices: int = 20,
    groups: Groups = "swap",
    alpha: float | None = 1.0,
    test_partition: TestPartition = "independent",
    validation: float = 0.2,
    least: int = 5,
    data_dir: str | Path | None = None,
) -> Federation:
    """Return MNIST over devices in four groups, as the paper has it: 60,000 images to learn from, 10,000 to test.

    Parameters
    ----------
    seed
        Draws who gets which images, and the validation rows.
    devices
        How many; neighbours are in one group, five each by default.
    groups
        ``"swap"``: group c exchanges the labels c and 8 - c. ``"rotate"``: its images are turned by c times 90
        degrees. Or a `partition.LabelSwap` or `partition.Rotation` of your own.
    alpha
        Of the Dirichlet law of the devices' shares in each class; None for even shares.
    test_partition
        Test images are dealt by a new draw (``"independent"``), or with the shares of the training images
        (``"same_shares"``): then a device is tested on the classes that it has learned.
    validation
        The share of a device's training images that is kept for validation.
    least
        Every device has at least so many training, validation and test images.
    data_dir
        Where the files are; see `data_directory`.
    """
    train, test = read_images("mnist", data_dir)
    partition = _partitioner(alpha)
    return image_federation(
        train, test, seed=seed, devices=devices, groups=groups, partition=partition,
        test_partition=test_partition, validation=validation, least=least,
    )  # fmt: skip


def fashion_mnist(
    seed: int = 0,
    *,
    devices: int = 20,
    groups: Groups = "swap",
    alpha: float | None = 1.0,
    test_partition: TestPartition = "independent",
    validation: float = 0.2,
    least: int = 5,
    data_dir: str | Path | None = None,
) -> Federation:
    """Return Fashion-MNIST over devices in four groups; everything is as in `mnist`."""
    train, test = read_images("fashion-mnist", data_dir)
    partition = _partitioner(alpha)
    return image_federation(
        train, test, seed=seed, devices=devices, groups=groups, partition=partition,
        test_partition=test_partition, validation=validation, least=least,
    )  # fmt: skip


def digits(
    seed: int = 0,
    *,
    devices: int = 20,
    groups: Groups = "swap",
    alpha: float | None = 10.0,
    test_partition: TestPartition = "independent",
    test: float = 0.2,
    validation: float = 0.2,
    least: int = 2,
) -> Federation:
    """Return the 1,797 digits (8 x 8 pixels) that come with scikit-learn, over devices in four groups.

    A quick start that needs no file. The images are few, about 90 for each of 20 devices, so shares are rather
    even by default (``alpha=10``): with those of `mnist` (``alpha=1``) some devices would have next to no image
    of the two classes that tell their group. Images for the test, a share of each class, are set aside before
    anything is dealt. The other parameters are as in `mnist`.

    >>> digits(seed=0)
    Federation(20 devices, 1,797 rows (76 to 109 each), 1 x 8 x 8 features, 10 classes)
    """
    from sklearn.datasets import load_digits

    check_splits(test, validation, seed)
    if not test:
        raise FedfuseError("test must be a share above 0 for digits, got 0; their test images are cut off first")
    known = load_digits()
    whole = Images(known.images.astype(np.uint8), known.target.astype(np.int64), 16.0)
    shares = np.tile([1 - test, test], (N_CLASSES, 1))
    aside = deal_by_shares(whole.labels, shares, generator(seed, "digits test images"))
    learn, tested = (whole.at(rows) for rows in aside.rows())
    return image_federation(
        learn, tested, seed=seed, devices=devices, groups=groups, partition=_partitioner(alpha),
        test_partition=test_partition, validation=validation, least=least,
    )  # fmt: skip


def image_federation(
    train: Images,
    test: Images,
    *,
    devices: int,
    groups: Groups,
    partition: Partitioner,
    seed: int = 0,
    test_partition: TestPartition = "independent",
    validation: float = 0.2,
    least: int = 1,
) -> Federation:
    """Deal images to devices in groups, any images and any rules; the parameters are as in `mnist`.

    ``partition`` is a `partition.Dirichlet`, `partition.Even` or `partition.Shards`.
    """
    check_splits(0, validation, seed)
    if train.shape != test.shape:
        raise FedfuseError(f"training images have the shape {train.shape}, test images {test.shape}: they must agree")
    rule = _grouping(groups)
    truth = in_groups(devices, rule.n_groups)
    need, rng = _rows_needed(least, validation), generator(seed, "deal training rows")
    learn = deal_enough(partition, train.labels, devices, rng, need, "training rows")
    rng = generator(seed, "deal test rows")
    tested = deal_test(learn, partition, test.labels, rng, least, test_partition)
    cuts = cuts_beside(learn.counts, tested.counts, validation)
    X, y = _laid_out(train, learn, test, tested, cuts, rule, truth, seed)
    classes = tuple(range(max(N_CLASSES, int(y.max()) + 1)))
    names, columns = tuple(str(i) for i in range(devices)), default_features(X.shape[1])
    return Federation(names, X, y, cuts, "classification", classes, columns, truth, shape=train.shape)


def read_images(name: str, data_dir: str | Path | None = None) -> tuple[Images, Images]:
    """Return the training and the test images of ``"mnist"`` or ``"fashion-mnist"``, as the files have them."""
    way = f"get it with 'fedfuse data fetch {name}'"
    directory = directory_with(FILES[name], name, way, data_dir)
    files = [directory / file for file in FILES[name]]
    return _read_pair(*files[:2]), _read_pair(*files[2:])


def _read_pair(images: Path, labels: Path) -> Images:
    pixels, numbers = read_idx(images, 3), read_idx(labels, 1)
    if len(pixels) != len(numbers):
        raise FedfuseError(
            f"{str(images)!r} holds {len(pixels):,} images, but {str(labels)!r} {len(numbers):,} labels: "
            "they do not belong together; get both again"
        )
    if pixels.shape[1:] != (28, 28) or not len(pixels):
        raise FedfuseError(f"{str(images)!r} holds images of shape {pixels.shape}, but n x 28 x 28 is expected")
    if numbers.max() >= N_CLASSES:
        raise FedfuseError(f"{str(labels)!r} holds the label {numbers.max()}, but 0 to {N_CLASSES - 1} are expected")
    return Images(pixels, numbers.astype(np.int64))


def _partitioner(alpha: float | None) -> Partitioner:
    return Even() if alpha is None else Dirichlet(alpha)


def _grouping(groups: Groups) -> Grouping:
    if isinstance(groups, str):
        rules: dict[str, Grouping] = {"swap": LabelSwap(), "rotate": Rotation()}
        if groups not in rules:
            raise FedfuseError(f"groups must be 'swap' or 'rotate', or a LabelSwap or Rotation, got {groups!r}")
        return rules[groups]
    return groups


def _rows_needed(least: int, validation: float) -> int:
    """Return how many rows a device needs so that training and validation each have at least so many.

    >>> _rows_needed(5, 0.2), _rows_needed(1, 0.0)
    (23, 1)
    """
    if least < 1:
        raise FedfuseError(f"least must be at least 1 row, got {least}")
    rows = least
    while validation and _smaller_part(rows, validation) < least:
        rows += 1
    return rows


def _smaller_part(rows: int, validation: float) -> int:
    cuts = cuts_beside(np.array([rows]), np.array([0]), validation)
    return int(np.diff(cuts[0, :3]).min())


def _laid_out(
    train: Images,
    learn: Deal,
    test: Images,
    tested: Deal,
    cuts: Ints,
    rule: Grouping,
    truth: Ints,
    seed: int,
) -> tuple[Floats, Ints]:
    """Write each device's images to their place: from bytes to numbers in one step, device by device."""
    X: Floats = np.empty((int(cuts[-1, -1]), int(np.prod(train.shape))), np.float32)
    y = np.empty(len(X), np.int64)
    for i, (rows, test_rows) in enumerate(zip(learn.rows(), tested.rows(), strict=True)):
        rows = generator(seed, "split", i).permutation(rows)
        start, _, middle, stop = cuts[i]
        for images, at, span in ((train, rows, slice(start, middle)), (test, test_rows, slice(middle, stop))):
            some = images.at(at)
            pixels, y[span] = rule.apply(some.pixels, some.labels, int(truth[i]))
            np.divide(pixels.reshape(len(at), -1), np.float32(images.brightest), out=X[span], casting="same_kind")
    return X, y
