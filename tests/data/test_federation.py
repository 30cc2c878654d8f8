"""Federations from arrays: parts partition the rows, order does not matter, and bad devices are named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfuse.data import Federation
from fedfuse.data.federation import cut_points, cuts_with_test, shuffled_rows
from fedfuse.errors import FedfuseError

PARTS = ("train", "validation", "test")


def numbered(counts, start=0):
    """Devices whose single feature numbers all rows, and whose target is half of it."""
    ends = start + np.cumsum(counts)
    return [
        (np.arange(e - n, e, dtype=float)[:, None], np.arange(e - n, e) / 2 + 0.25)
        for e, n in zip(ends, counts, strict=True)
    ]


def good(n=10, p=2):
    rng = np.random.default_rng(n)
    return rng.normal(size=(n, p)), rng.normal(size=n)


counts_lists = st.lists(st.integers(3, 60), min_size=1, max_size=8)
shares = st.floats(0, 0.95)


@given(counts_lists, shares, shares, st.integers(0, 2**40))
def test_parts_partition_the_rows_of_every_device(counts, test, validation, seed):
    fed = Federation.from_arrays(numbered(counts), test=test, validation=validation, seed=seed)
    for i, (X, y) in enumerate(numbered(counts)):
        rows = [fed.rows(part).of(i) for part in PARTS]
        together = np.concatenate([part for part, _ in rows])
        assert np.array_equal(np.sort(together, axis=0), X)
        assert np.array_equal(np.sort(np.concatenate([part for _, part in rows])), y)
        assert all(np.array_equal(part[:, 0] / 2 + 0.25, target) for part, target in rows)


@given(counts_lists, shares, shares)
def test_every_part_asked_for_has_a_row_and_the_shares_hold(counts, test, validation):
    sizes = np.diff(cut_points(np.array(counts), test, validation), axis=1)
    for n, (train, val, tested) in zip(counts, sizes, strict=True):
        assert train + val + tested == n
        assert train >= 1
        assert (tested > 0) == (test > 0)
        assert (val > 0) == (validation > 0)
        if tested > 1 and train > 1:
            assert abs(tested - test * n) <= 0.5
        if val > 1 and train > 1:
            assert abs(val - validation * (n - tested)) <= 0.5


def test_the_protocol_split_is_exact_for_multiples_of_five():
    n = 5 * np.arange(10, 2000, 7)
    sizes = np.diff(cut_points(n, 0.2, 0.2), axis=1)
    assert np.array_equal(sizes[:, 2], n // 5)


@given(st.permutations(range(5)))
def test_permuting_devices_permutes_rows_names_and_truth(order):
    counts, truth = [4, 9, 6, 12, 5], [0, 1, 0, 2, 1]
    data, names = numbered(counts), "abcde"
    plain = Federation.from_arrays(dict(zip(names, data, strict=True)), truth=truth)
    moved = Federation.from_arrays({names[i]: data[i] for i in order}, truth=[truth[i] for i in order])
    assert moved.names == tuple(names[i] for i in order)
    assert np.array_equal(moved.truth, plain.truth[list(order)])
    for at, i in enumerate(order):
        assert np.array_equal(np.sort(moved.rows("all").of(at)[0], axis=0), data[i][0])
        assert np.array_equal(moved.rows("test").counts[at], plain.rows("test").counts[i])


def test_same_seed_same_split_other_seed_other_split():
    data = numbered([40, 30])
    a, b, c = (Federation.from_arrays(data, seed=s) for s in (7, 7, 8))
    assert a.fingerprint == b.fingerprint != c.fingerprint
    assert np.array_equal(a.cuts, c.cuts)


def test_a_device_keeps_its_split_when_another_one_changes():
    a = Federation.from_arrays(numbered([40, 30]))
    b = Federation.from_arrays(numbered([40, 300]))
    assert np.array_equal(a.rows("test").of(0)[0], b.rows("test").of(0)[0])


def test_shuffled_rows_stay_within_their_device():
    rows = shuffled_rows(np.array([3, 0, 50]), seed=1)
    assert sorted(rows[:3]) == [0, 1, 2]
    assert sorted(rows[3:]) == list(range(3, 53))


def test_layout_types_and_input_untouched():
    X = np.asfortranarray(np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32))
    before = X.copy()
    fed = Federation.from_arrays({1: (X, X[:, 0] > 0), 2: (X, X[:, 1] > 0)})
    assert fed.X.dtype == np.float64
    assert fed.X.flags.c_contiguous
    assert fed.y.dtype == np.int64
    assert fed.names == ("1", "2")
    assert fed.features == ("x0", "x1", "x2")
    assert np.array_equal(X, before)


def test_images_lie_in_a_line_and_remember_their_shape():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, size=(20, 3, 4, 5), dtype=np.uint8)
    y = rng.integers(0, 2, 20)
    fed = Federation.from_arrays({"a": (pixels, y), "b": (pixels[::-1].astype(np.float32), y)})
    assert fed.shape == (3, 4, 5)
    assert fed.X.dtype == np.float32
    assert fed.X.shape == (40, 60)
    assert "3 x 4 x 5 features" in repr(fed)
    order = shuffled_rows(np.array([20, 20]), 0)
    assert np.array_equal(fed.X[:20].reshape(20, 3, 4, 5), pixels[order[:20]])
    assert np.array_equal(fed.X[20:].reshape(20, 3, 4, 5), pixels[::-1][order[20:] - 20])


def test_rows_in_a_line_can_be_given_a_shape():
    X, y = good(12, 6)
    fed = Federation.from_arrays([(X, y)], shape=(2, 3))
    assert fed.shape == (2, 3)
    assert fed.X.dtype == np.float32
    bare = Federation.from_arrays([(X, y)])
    assert bare.shape is None
    assert len({fed.fingerprint, replace(fed, shape=(3, 2)).fingerprint, replace(fed, shape=None).fingerprint}) == 3


def test_a_tensor_is_known_by_what_it_can_do():
    class Tensor:
        """On another processor, and part of a graph: numpy alone would refuse it."""

        def __init__(self, values):
            self.values = values

        def detach(self):
            return self

        def cpu(self):
            return self.values

    X, y = good()
    a, b = Federation.from_arrays([(Tensor(X), Tensor(y))]), Federation.from_arrays([(X, y)])
    assert a.fingerprint == b.fingerprint


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    X, y = torch.rand(12, 1, 2, 2, requires_grad=True), torch.arange(12) % 3
    fed = Federation.from_arrays({"a": (X, y), "b": (X.to(torch.bfloat16), y)})
    assert fed.shape == (1, 2, 2)
    assert fed.classes == (0, 1, 2)
    assert np.allclose(np.sort(fed.X[:12, 0]), np.sort(X.detach().numpy()[:, 0, 0, 0]))


def test_index_by_name_and_position():
    fed = Federation.from_arrays({"a": good(), "b": good()})
    assert fed.index("b") == fed.index(1) == 1
    with pytest.raises(FedfuseError, match="no device is called 'z'; known: 'a', 'b'"):
        fed.index("z")
    with pytest.raises(FedfuseError, match="device 2 is outside"):
        fed.index(2)


@pytest.mark.parametrize(
    ("y", "goal", "classes"),
    [
        (["no", "yes"] * 5, "classification", ("no", "yes")),
        ([True, False] * 5, "classification", (False, True)),
        ([3, 1] * 5, "classification", (1, 3)),
        ([2.0, 0.0] * 5, "classification", (0, 2)),
        (np.array(["b", "a"] * 5, dtype=object), "classification", ("a", "b")),
        (np.array([b"b", b"a"] * 5), "classification", ("a", "b")),
        (pd.Series([0.5, 1.5] * 5, dtype="category"), "classification", (0.5, 1.5)),
        ([0.5, 1.5] * 5, "regression", ()),
    ],
)
def test_goal_is_told_from_the_target(y, goal, classes):
    fed = Federation.from_arrays([(np.arange(10.0)[:, None], y)])
    assert (fed.goal, fed.classes) == (goal, classes)
    assert fed.n_classes == len(classes)
    order = fed.X[:, 0].astype(int)
    if classes:
        assert [classes[k] for k in fed.y] == [np.asarray(y).astype(type(classes[0]))[i] for i in order]


@pytest.mark.parametrize(("distinct", "goal"), [(20, "classification"), (21, "regression")])
def test_many_whole_numbers_are_values(distinct, goal):
    y = np.arange(100) % distinct
    fed = Federation.from_arrays([(np.zeros((100, 1)), y)])
    assert fed.goal == goal
    assert fed.metric == ("accuracy" if goal == "classification" else "rmse")


def test_goal_can_be_forced():
    X, y = np.zeros((10, 1)), np.arange(10) % 2
    assert Federation.from_arrays([(X, y)], goal="regression").y.dtype == np.float64
    assert Federation.from_arrays([(X, y == 1)], goal="regression").y.dtype == np.float64
    assert Federation.from_arrays([(X, y + 0.5)], goal="classification").classes == (0.5, 1.5)
    assert Federation.from_arrays([(X, np.ones(10))], goal="regression").goal == "regression"


def test_classes_are_numbered_over_all_devices():
    X = np.zeros((5, 1))
    fed = Federation.from_arrays({"a": (X, ["x"] * 5), "b": (X, ["z"] * 5), "c": (X, ["y"] * 5)})
    assert fed.classes == ("x", "y", "z")
    assert [set(fed.rows("all").of(i)[1]) for i in range(3)] == [{0}, {2}, {1}]


def test_data_frames_bring_their_column_names():
    frame = pd.DataFrame({"age": range(10), "dose": 1.0})
    y = np.linspace(0, 1, 10)
    assert Federation.from_arrays([(frame, y)]).features == ("age", "dose")
    with pytest.raises(FedfuseError, match="same columns in the same order"):
        Federation.from_arrays([(frame, y), (frame[["dose", "age"]], y)])


def test_numbers_kept_as_objects_are_numbers():
    fed = Federation.from_arrays([(np.arange(10).reshape(5, 2).astype(object), np.linspace(0, 1, 5))])
    assert fed.X.sum() == 45


def test_truth_may_be_text():
    fed = Federation.from_arrays([good(), good(), good()], truth=["north", "south", "north"])
    assert fed.truth.tolist() == [0, 1, 0]


def test_repr_is_a_summary():
    text = "Federation(2 devices, 30 rows (10 to 20 each), 2 features, regression)"
    assert repr(Federation.from_arrays([good(10), good(20)])) == text


X, Y = good()
BAD = {
    "empty list": ([], {}, "federation is empty"),
    "empty mapping": ({}, {}, "federation is empty"),
    "no pair": ({"a": X}, {}, r"device 'a': expected a pair \(X, y\), got an array of shape \(10, 2\)"),
    "same name": ({1: (X, Y), "1": (X, Y)}, {}, "two devices are called '1'"),
    "no rows": ({"a": (X, Y), "b": (X[:0], Y[:0])}, {}, "device 'b' has no rows"),
    "too few": ({"a": (X, Y), "b": (X[:2], Y[:2])}, {}, r"'b' \(2\); each needs at least 3 .* test=0"),
    "too few without test": ([(X, Y), (X[:1], Y[:1])], {"test": 0}, r"'1' \(1\); each needs at least 2"),
    "many too few": ([(X[:2], Y[:2])] * 9, {}, r"9 of 9 devices: '0' \(2\), .* and 4 more"),
    "widths": ({"a": (X, Y), "b": (X[:, :1], Y)}, {}, "device 'b' has 1 features, device 'a' has 2"),
    "no columns": ({"a": (X[:, :0], Y)}, {}, "device 'a': X has no columns"),
    "1-D": ({"a": (Y, Y)}, {}, r"device 'a': X has shape \(10,\).*reshape\(-1, 1\)"),
    "3-D": ({"a": (X[None], Y)}, {}, r"device 'a': X has 1 rows but y has 10 values"),
    "0-D": ({"a": (1.0, Y)}, {}, r"device 'a': X has shape \(\), but must be rows x features"),
    "row shapes": (
        {"a": (np.zeros((10, 2, 2)), Y), "b": (np.zeros((10, 2, 3)), Y)},
        {},
        r"one row of device 'b' has the shape \(2, 3\), of device 'a' \(2, 2\)",
    ),
    "image and table": (
        {"a": (X, Y), "b": (np.zeros((10, 2, 1)), Y)},
        {},
        r"one row of device 'b' has the shape \(2, 1\), of device 'a' \(2,\)",
    ),
    "shape": ({"a": (X, Y)}, {"shape": (2, 2)}, r"shape \(2, 2\) has 4 values, but rows have 2"),
    "two shapes": ({"a": (np.zeros((10, 2, 2)), Y)}, {"shape": (4, 1)}, r"shape \(4, 1\) was given, but .*\(2, 2\)"),
    "lengths": ({"a": (X, Y[1:])}, {}, "device 'a': X has 10 rows but y has 9 values"),
    "y 2-D": ({"a": (X, Y[:, None])}, {}, r"device 'a': y has shape \(10, 1\)"),
    "y dates": ({"a": (X, np.arange(10).astype("datetime64[D]"))}, {}, r"y has the type datetime64"),
    "text in y": (
        {"a": (X, list("abcdefghij"))},
        {"goal": "regression"},
        "holds 'a', but a regression needs",
    ),
    "objects in y": (
        {"a": (X, np.array([{}] * 9 + [[]], dtype=object))},
        {"goal": "regression"},
        "holds '{}'",
    ),
    "mixed y": ({"a": (X, np.array([1, "b"] * 5, dtype=object))}, {}, "mixes int and str"),
    "kinds of y": (
        {"a": (X, Y), "b": (X, ["u"] * 10)},
        {},
        "target of device 'b' is text, that of .*numbers",
    ),
    "one class": ([(X, np.ones(10)), (X, np.ones(10))], {}, "the target is 1.0 in every row"),
    "one text": ([(X, ["sick"] * 10)], {}, "the target is sick in every row"),
    "truth": ([(X, Y)], {"truth": [0, 1]}, r"truth has shape \(2,\).*each of the 1 devices"),
    "test": ([(X, Y)], {"test": 1.0}, "test must be a share of at least 0 and below 1, got 1.0"),
    "validation": ([(X, Y)], {"validation": -0.1}, "validation must be .*got -0.1"),
    "nan share": ([(X, Y)], {"test": float("nan")}, "test must be .*got nan"),
    "seed": ([(X, Y)], {"seed": -1}, "seed must be a whole number of at least 0, got -1"),
    "no seed": ([(X, Y)], {"seed": None}, "seed must be .*got None"),
    "share of text": ([(X, Y)], {"test": "half"}, "test must be .*got 'half'"),
    "no data": (5, {}, "a list of .*got an object of type int"),
    "ragged X": ({"a": ([[1, 2], [3]], [0, 1])}, {}, "device 'a': the rows of X differ in length"),
    "goal": ([(X, Y)], {"goal": "ranking"}, "goal must be .*got 'ranking'"),
    "features": ([(X, Y)], {"features": ["a"]}, "1 feature names were given for 2 columns"),
}


@pytest.mark.parametrize(("data", "options", "words"), BAD.values(), ids=BAD)
def test_bad_input_gets_one_clear_line(data, options, words):
    with pytest.raises(FedfuseError, match=words) as caught:
        Federation.from_arrays(data, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("features", [None, ["age", "dose"]])
def test_a_value_that_is_not_finite_is_placed(value, features):
    bad = X.copy()
    bad[7, 1] = value
    column = "dose" if features else "x1"
    with pytest.raises(FedfuseError, match=rf"device 'b': X\[7, 1\] is {value} \(column '{column}'\)"):
        Federation.from_arrays({"a": (X, Y), "b": (bad, Y)}, features=features)
    target = Y.copy()
    target[3] = value
    with pytest.raises(FedfuseError, match=rf"device 'b': y\[3\] is {value}"):
        Federation.from_arrays({"a": (X, Y), "b": (X, target)})


def test_a_missing_label_is_placed():
    labels = np.array(["u", "v", None, "u", "v"] * 2, dtype=object)
    with pytest.raises(FedfuseError, match=r"device 'a': y\[2\] is None"):
        Federation.from_arrays({"a": (X, labels)})


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (np.array([["1", "2"], ["3", "four"]]), r"X\[0, 0\] is .*'1'"),
        (np.array([[1, 2], [3, "four"]], dtype=object), r"X\[1, 1\] is 'four'"),
        (np.array([[1, 2], [{}, 4]], dtype=object), r"X\[1, 0\] is \{\}"),
        (np.array([[1j, 2]]), r"X\[0, 0\] is"),
    ],
)
def test_text_where_numbers_are_needed_is_placed(table, words):
    with pytest.raises(FedfuseError, match=rf"device '0': {words}"):
        Federation.from_arrays([(table, np.arange(len(table)))])


@settings(max_examples=20)
@given(st.integers(0, 3), st.integers(0, 9))
def test_missing_objects_are_found(column, row):
    table = np.arange(40).reshape(10, 4).astype(object)
    table[row, column] = None
    with pytest.raises(FedfuseError, match=rf"X\[{row}, {column}\] is nan"):
        Federation.from_arrays([(table, np.linspace(0, 1, 10))])


def test_cut_points_by_hand():
    assert cut_points(np.array([10, 3]), test=0.2, validation=0.2).tolist() == [[0, 6, 8, 10], [10, 11, 12, 13]]
    cuts = cuts_with_test(np.array([10, 5]), np.array([3, 1]), validation=0.2)
    assert cuts.tolist() == [[0, 8, 10, 13], [13, 17, 18, 19]]
