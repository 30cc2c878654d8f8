"""Federations from PyTorch-like data sets, which give their rows one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.data import checks
from fedfuse.data.federation import Federation, Goal, cut_points, cuts_with_test, default_features
from fedfuse.data.targets import check_same_kind, encode_target, target_array
from fedfuse.errors import FedfuseError
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Floats, Ints

_WANTED = "a data set (len(), and items that are pairs (x, y)) or a tuple (training set, test set)"


def federation_from_datasets(
    data: Mapping[Any, Any] | Sequence[Any],
    *,
    goal: Goal | None = None,
    truth: Sequence[int] | npt.ArrayLike | None = None,
    test: float = 0.2,
    validation: float = 0.2,
    seed: int = 0,
) -> Federation:
    """Build a federation from one data set per device.

    Parameters
    ----------
    data
        ``{name: data set}`` or ``{name: (training set, test set)}``, or a list of these. A data set has a length
        and its items are pairs (x, y) of numbers, arrays, tensors or images; it is read once, so that random
        augmentation is drawn once. Values are taken as they are, as float32: scale images beforehand.
    goal, truth
        As in `Federation.from_arrays`.
    test, validation, seed
        As in `Federation.from_arrays`; ``test`` counts for devices without a test set only.

    Examples
    --------
    >>> rows = [(np.full((1, 4, 4), i % 3), i % 3) for i in range(30)]
    >>> fed = federation_from_datasets({"a": rows, "b": (rows, rows[:6])})
    >>> fed, fed.rows("test").counts.tolist()
    (Federation(2 devices, 66 rows (30 to 36 each), 1 x 4 x 4 features, 3 classes), [6, 6])
    """
    checks.check_splits(test, validation, seed)
    sets = {name: _train_and_test(name, value) for name, value in checks.named_devices(data, "data set").items()}
    names = tuple(sets)
    learn, tested = np.array([[len(part) for part in parts] for parts in sets.values()], dtype=np.int64).T
    own = tested > 0
    for chosen, share in ((own, 0.0), (~own, test)):
        checks.check_counts(learn[chosen], list(compress(names, chosen)), share, validation)
    # A test set follows the other rows; without one, test rows are cut off them.
    n_cut = np.where(own, 0, np.diff(cut_points(learn, test, validation))[:, 2])
    cuts = cuts_with_test(learn - n_cut, tested + n_cut, validation)
    shape = _item(names[0], sets[names[0]][0], 0)[0].shape
    X: Floats = np.empty((cuts[-1, 3], prod(shape)), np.float32)
    columns, ys = default_features(X.shape[1]), {}
    for i, (name, parts) in enumerate(sets.items()):
        # Rows to learn from are shuffled as everywhere; those of a test set keep their order.
        shuffled = np.argsort(generator(seed, "split", i).permutation(learn[i]))
        rows = X[cuts[i, 0] : cuts[i, 3]]
        ys[name] = _read(name, parts, np.append(shuffled, learn[i] + np.arange(tested[i])), rows, shape)
        checks.check_finite(rows, name, columns)
    check_same_kind(ys)
    groups = checks.truth_array(truth, len(names))
    found, y, classes = encode_target(np.concatenate([*ys.values()]), goal, "the target")
    return Federation(names, X, y, cuts, found, classes, columns, groups, shape=shape if len(shape) > 1 else None)


def _train_and_test(name: str, value: Any) -> tuple[Any, Any]:
    """Return a device's data set, or its training and its test set; the second is empty where there is none."""
    parts = value if isinstance(value, tuple) else (value, ())
    if len(parts) != 2:
        raise FedfuseError(f"device {name!r}: expected {_WANTED}, got a tuple of {len(parts)}")
    for part in parts:
        if not (hasattr(part, "__len__") and hasattr(part, "__getitem__")):
            raise FedfuseError(f"device {name!r}: expected {_WANTED}, got a {type(part).__name__}")
    train, test = parts
    if isinstance(value, tuple) and not len(test):
        raise FedfuseError(f"device {name!r}: its test set is empty; leave it out to cut test rows off")
    return train, test


def _read(name: str, parts: tuple[Any, Any], places: Ints, X: Floats, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Read every item of a device once, into its place; return the targets."""
    y: list[Any] = [None] * len(places)
    items = ((data, item) for data in parts for item in range(len(data)))
    for place, (data, item) in zip(places, items, strict=True):
        x, y[place] = _item(name, data, item)
        if x.shape != shape:
            raise FedfuseError(
                f"device {name!r}: item {item} has the shape {x.shape}, but the first item of all has "
                f"{shape}: give all items one shape"
            )
        X[place] = x.ravel()
    return target_array(np.array(y), name, len(y))


def _item(name: str, data: Any, item: int) -> tuple[npt.NDArray[Any], Any]:
    pair = data[item]
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise FedfuseError(f"device {name!r}: item {item} is no pair (x, y), but a {type(pair).__name__}")
    x, y = (checks.as_numpy(part, "an item", name) for part in pair)
    if x.dtype.kind not in "biuf":
        raise FedfuseError(f"device {name!r}: item {item} holds {x.dtype}, but features must be numbers")
    if y.size != 1:
        raise FedfuseError(f"device {name!r}: the target of item {item} has the shape {y.shape}, but must be one value")
    return x, y.item()
