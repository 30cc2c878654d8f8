"""Federations from data sets that give their rows one by one."""

from __future__ import annotations

import numpy as np
import pytest

from fedfuse.data import Federation
from fedfuse.errors import FedfuseError


class Rows:
    """A data set: a length, and items."""

    def __init__(self, X, y):
        self.X, self.y, self.read = X, y, 0

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        self.read += 1
        return self.X[i], self.y[i]


def rows(n, start=0):
    X = np.zeros((n, 1, 2, 3), np.float32)
    X[:, 0, 0, 0] = np.arange(start, start + n)
    return Rows(X, np.arange(start, start + n) % 3)


def test_without_a_test_set_it_equals_from_arrays():
    data = {"a": rows(20), "b": rows(13, 100)}
    fed = Federation.from_datasets(data, truth=[0, 1], seed=4)
    same = Federation.from_arrays({k: (d.X, d.y) for k, d in data.items()}, truth=[0, 1], seed=4)
    assert fed.fingerprint == same.fingerprint
    assert (fed.shape, fed.classes, fed.truth.tolist()) == ((1, 2, 3), (0, 1, 2), [0, 1])
    assert fed.features == same.features


def test_a_test_set_is_the_test_part():
    a, b = (rows(20), rows(7, 50)), rows(10, 100)
    fed = Federation.from_datasets({"a": a, "b": b}, validation=0.25)
    assert np.diff(fed.cuts, axis=1).tolist() == [[15, 5, 7], [6, 2, 2]]
    assert np.array_equal(fed.rows("test").of(0)[0][:, 0], np.arange(50, 57))
    assert sorted(fed.rows("train+validation").of(0)[0][:, 0]) == list(range(20))
    assert np.array_equal(fed.X[:, 0] % 3, fed.y)
    assert a[0].read in (20, 21)  # once, and the first item for its shape


def test_flat_items_have_no_shape_and_values_make_a_regression():
    fed = Federation.from_datasets([Rows(np.ones((9, 4)), np.linspace(0, 1, 9))])
    assert fed.shape is None
    assert fed.goal == "regression"
    assert fed.names == ("0",)


def test_torch_datasets():
    torch = pytest.importorskip("torch")
    from torch.utils.data import Subset, TensorDataset

    X, y = torch.rand(30, 1, 4, 4), torch.arange(30) % 2
    whole = TensorDataset(X, y)
    fed = Federation.from_datasets({"a": (Subset(whole, range(20)), Subset(whole, range(20, 30))), "b": whole})
    assert fed.shape == (1, 4, 4)
    assert fed.rows("test").counts.tolist() == [10, 6]
    assert np.array_equal(fed.rows("test").of(0)[0], X[20:].reshape(10, 16).numpy())


BAD = {
    "no data set": ({"a": 3}, r"device 'a': expected a data set \(len.*got a int"),
    "a stream": ({"a": iter([])}, "got a list_iterator"),
    "three": ({"a": (rows(5), rows(5), rows(5))}, "got a tuple of 3"),
    "empty": ({}, "the federation is empty"),
    "something else": (3, "list of data set, got an object of type int"),
    "one name": ({1: rows(5), "1": rows(5)}, "two devices are called '1'"),
    "few": ({"a": rows(2)}, r"too few rows on 1 of 1 devices: 'a' \(2\)"),
    "few to learn": ({"a": (rows(1), rows(5))}, r"'a' \(1\); each needs at least 2"),
    "no test": ({"a": (rows(5), rows(0))}, "device 'a': its test set is empty"),
    "no pair": ({"a": [1, 2, 3]}, r"device 'a': item 0 is no pair \(x, y\), but a int"),
    "shapes": (
        {"a": rows(5), "b": Rows(np.ones((5, 6)), np.ones(5))},
        r"'b': item 0 has the shape \(6,\).*\(1, 2, 3\)",
    ),
    "text": ({"a": [("x", 1)] * 5}, "item 0 holds <U1, but features must be numbers"),
    "targets": ({"a": [(1.0, [1, 2])] * 5}, r"target of item 0 has the shape \(2,\)"),
    "nan": ({"a": [(np.array([np.nan]), i) for i in range(5)]}, r"device 'a': X\[0, 0\] is nan"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_clear_line(case):
    data, words = BAD[case]
    with pytest.raises(FedfuseError, match=words) as caught:
        Federation.from_datasets(data)
    assert "\n" not in str(caught.value)
