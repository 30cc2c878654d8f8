"""Objects whose arrays lie in memory that processes share."""

from __future__ import annotations

from multiprocessing import Pipe

import numpy as np
import pytest

from fedfuse.engines.shared_memory import pack, receive_parcel
from fedfuse.errors import FedfuseError

ARRAYS = {
    "a": np.arange(12.0).reshape(3, 4),
    "b": np.asfortranarray(np.ones((2, 5), np.float32)),
    "c": np.empty((0, 3)),
}


def received(parcel):
    here, there = Pipe()
    with here, there:
        parcel.send(here)
        return receive_parcel(there)


def check_equal(found, expected=ARRAYS):
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_what_is_packed_comes_out():
    parcel = pack(ARRAYS)
    check_equal(parcel.open())
    check_equal(received(parcel))
    assert received(pack("no arrays at all")) == "no arrays at all"


def test_only_the_receiver_sees_what_it_writes():
    parcel = pack(ARRAYS)
    one, other = received(parcel), received(parcel)
    one["a"][:] = -1
    check_equal(other)
    check_equal(parcel.open())


def test_arrays_that_lie_in_a_block_are_not_copied_again():
    rows = pack(np.arange(1000.0))
    data = rows.open()
    parcel = pack({"whole": data, "piece": data[10:20], "new": np.ones(3)}, *rows.blocks)
    assert parcel.blocks[0] is rows.blocks[0]
    assert parcel.blocks[1].size == 64
    check_equal(received(parcel), {"whole": data, "piece": data[10:20], "new": np.ones(3)})


def test_tensors_are_arrays_too():
    torch = pytest.importorskip("torch")
    module, data = torch.nn.Linear(100, 3), torch.arange(1000.0)
    parcel = pack((module, data))
    assert parcel.blocks[0].size >= 4 * 1303  # nothing of them is in the pickle
    rows = pack(np.arange(10.0))
    known = pack(torch.from_numpy(rows.open()), *rows.blocks)
    assert known.blocks[1].size == 1  # lies where the rows do
    again, same = received(parcel)
    assert torch.equal(same, data)
    assert torch.equal(again.weight, module.weight)
    assert again.weight.requires_grad


def test_what_cannot_be_pickled_is_refused():
    with pytest.raises(FedfuseError, match=r"need a model that can be pickled, and .*lambda.*engine='inprocess'"):
        pack(lambda: None)
