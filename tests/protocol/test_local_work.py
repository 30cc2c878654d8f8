import numpy as np
import pytest

from fedfuse.errors import FedfuseError
from fedfuse.protocol.local_work import Decay, Grow, Paced, Uneven, Work, parse, value
from fedfuse.protocol.tasks import Install, MetaTrain, Train, for_device


def test_growing_work_of_the_paper():
    """Synthetic: ceil(k/20); 620 rounds make 9,920 steps."""
    assert sum(value(Grow(20), k) for k in range(620)) == 9920
    assert sum(value(Grow(2), k) for k in range(62)) == 992
    assert [value(Grow(1), k) for k in range(3)] == [1, 2, 3]


def test_decay_of_the_paper():
    assert [round(value(Decay(0.01), k), 5) for k in (0, 4, 5, 10)] == [0.01, 0.01, 0.009, 0.0081]


@pytest.mark.parametrize("schedule", [0.25, Grow(20), Decay(0.01, 0.5, 3), Uneven(10), Paced(7)])
def test_written_and_read_again(schedule):
    assert parse(str(schedule)) == schedule


@pytest.mark.parametrize("text", ["x", "shrink(3)", "grow(1,2,3)", "grow(x)", "uneven()"])
def test_nonsense_is_refused(text):
    with pytest.raises(FedfuseError, match="neither a number nor a schedule"):
        parse(text)


def test_work_of_a_round():
    assert Work(steps=Grow(20), lr=Decay(0.1, 0.5, 10)).at(25) == Work(steps=2, lr=0.025)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 1.5}, "whole number"),
        ({"lr": 0.0}, "lr"),
        ({"lr": Uneven(2)}, "lr cannot be drawn for each device"),
        ({"batch": 0}, "batch"),
        ({"solver": "magic"}, "solver"),
    ],
)
def test_bad_work_is_explained(settings, words):
    with pytest.raises(FedfuseError, match=words):
        Work(**settings)


@pytest.mark.parametrize("most", [0, 1.5, float("inf"), float("nan")])
@pytest.mark.parametrize("kind", [Uneven, Paced])
def test_uneven_work_is_whole(kind, most):
    with pytest.raises(FedfuseError, match="whole number of at least 1"):
        kind(most)


def test_uneven_work_is_uniform_and_drawn_by_key():
    """PROTOCOL 6.8: each device of each round draws from 1 to T."""
    drawn = [Uneven(10).drawn(0, k, i) for k in range(40) for i in range(50)]
    counts = np.bincount(drawn, minlength=11)[1:]
    assert set(drawn) == set(range(1, 11))
    assert abs(counts - 200).max() < 5 * np.sqrt(200 * 0.9)
    assert drawn == [Uneven(10).drawn(0, k, i) for k in range(40) for i in range(50)]
    assert drawn != [Uneven(10).drawn(1, k, i) for k in range(40) for i in range(50)]


def test_a_paced_device_keeps_its_pace():
    paces = {i: {Paced(10).drawn(0, k, i) for k in range(5)} for i in range(30)}
    assert all(len(pace) == 1 for pace in paces.values())
    assert len(set.union(*paces.values())) > 5


def test_work_of_a_device():
    """Resolved when the order is made, whatever the task; an exact solver has no steps to draw."""
    for task in (Train(Work(steps=Uneven(10))), MetaTrain(Work(steps=Uneven(10)), np.zeros(2), 0.1)):
        steps = [for_device(task, 0, k, 1).work.steps for k in range(20)]
        assert steps == [Uneven(10).drawn(0, k, 1) for k in range(20)]
    exact = Train(Work(steps=Uneven(10), solver="exact"))
    assert for_device(exact, 0, 0, 0) is exact
    assert for_device(Install(np.zeros(2)), 0, 0, 0).model.size == 2
    assert for_device(Train(Work(steps=10)), 0, 0, 0, most=4).work.steps == 4
    assert Work(steps=Uneven(10)).at(3).steps == Uneven(10)
