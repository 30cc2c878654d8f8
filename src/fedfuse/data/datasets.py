"""Federations from PyTorch-like data sets, which give their rows one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class _Device:
    name: str
    learn: Any
    test: Any | None

    @property
    def counts(self) -> tuple[int, int]:
        """Items to learn from (or to be split), and items of a test set."""
        return len(self.learn), 0 if self.test is None else len(self.test)


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
    devices = [_device(name, value) for name, value in checks.named_devices(data, "data set").items()]
    names = tuple(device.name for device in devices)
    learn, tested = np.array([device.counts for device in devices], dtype=np.int64).T
    _check_rows(devices, learn, tested, test, validation)
    cuts = _cuts(learn, tested, test, validation)
    X, ys, shape = _read(devices, cuts[:, 0], seed)
    groups = checks.truth_array(truth, len(names))
    found, y, classes = encode_target(np.concatenate(ys), goal, "the target")
    form = shape if len(shape) > 1 else None
    return Federation(names, X, y, cuts, found, classes, default_features(X.shape[1]), groups, shape=form)


def _device(name: str, value: Any) -> _Device:
    parts = value if isinstance(value, tuple) else (value,)
    for part in parts:
        if not (hasattr(part, "__len__") and hasattr(part, "__getitem__")) or len(parts) > 2:
            what = f"a tuple of {len(parts)}" if len(parts) > 2 else f"a {type(part).__name__}"
            raise FedfuseError(f"device {name!r}: expected {_WANTED}, got {what}")
    return _Device(name, parts[0], parts[1] if len(parts) == 2 else None)


def _check_rows(devices: Sequence[_Device], learn: Ints, tested: Ints, test: float, validation: float) -> None:
    own = np.array([device.test is not None for device in devices])
    for device, n in zip(devices, tested, strict=True):
        if device.test is not None and n == 0:
            raise FedfuseError(f"device {device.name!r}: its test set is empty; leave it out to cut test rows off")
    for chosen, share in ((own, 0.0), (~own, test)):
        names = [device.name for device, yes in zip(devices, chosen, strict=True) if yes]
        checks.check_counts(learn[chosen], names, share, validation)


def _cuts(learn: Ints, tested: Ints, test: float, validation: float) -> Ints:
    """Return the cut points: a test set follows the other rows; without one, test rows are cut off them."""
    n_cut = np.diff(cut_points(learn, test, validation)[:, 2:], axis=1)[:, 0]
    own = tested > 0
    return cuts_with_test(np.where(own, learn, learn - n_cut), np.where(own, tested, n_cut), validation)


def _read(
    devices: Sequence[_Device], starts: Ints, seed: int
) -> tuple[Floats, list[npt.NDArray[Any]], tuple[int, ...]]:
    """Return all features, each device's targets, and the shape of an item."""
    shape = _pair(devices[0].name, devices[0].learn, 0)[0].shape
    X: Floats = np.empty((sum(sum(device.counts) for device in devices), prod(shape)), np.float32)
    ys = []
    for i, (device, start) in enumerate(zip(devices, starts, strict=True)):
        n, n_test = device.counts
        # Rows to learn from are shuffled as everywhere; those of a test set keep their order.
        places = np.append(np.argsort(generator(seed, "split", i).permutation(n)), n + np.arange(n_test))
        rows = X[start : start + n + n_test]
        ys.append(_fill(device, places, rows, shape))
        checks.check_finite(rows, device.name, default_features(X.shape[1]))
    check_same_kind(ys, [device.name for device in devices])
    return X, ys, shape


def _fill(device: _Device, places: Ints, X: Floats, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Read every item of a device once, into its place; return the targets."""
    y: list[Any] = [None] * len(places)
    items = ((data, item) for data in (device.learn, device.test) if data is not None for item in range(len(data)))
    for place, (data, item) in zip(places, items, strict=True):
        x, y[place] = _pair(device.name, data, item)
        if x.shape != shape:
            raise FedfuseError(
                f"device {device.name!r}: item {item} has the shape {x.shape}, but the first item of all has "
                f"{shape}: give all items one shape"
            )
        X[place] = x.ravel()
    return target_array(np.array(y), device.name, len(y))


def _pair(name: str, data: Any, item: int) -> tuple[npt.NDArray[Any], Any]:
    pair = data[item]
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise FedfuseError(f"device {name!r}: item {item} is no pair (x, y), but a {type(pair).__name__}")
    x, y = (checks.as_numpy(part, "an item", name) for part in pair)
    if x.dtype.kind not in "biuf":
        raise FedfuseError(f"device {name!r}: item {item} holds {x.dtype}, but features must be numbers")
    if y.size != 1:
        raise FedfuseError(f"device {name!r}: the target of item {item} has the shape {y.shape}, but must be one value")
    return x, y.item()
