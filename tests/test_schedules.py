import pytest

from fedfuse.errors import FedfuseError
from fedfuse.schedules import Decay, Grow, parse, value
from fedfuse.tasks import Work


def test_growing_work_of_the_paper():
    """Synthetic: ceil(k/20); 620 rounds make 9,920 steps."""
    assert sum(value(Grow(20), k) for k in range(620)) == 9920
    assert sum(value(Grow(2), k) for k in range(62)) == 992
    assert [value(Grow(1), k) for k in range(3)] == [1, 2, 3]


def test_decay_of_the_paper():
    assert [round(value(Decay(0.01), k), 5) for k in (0, 4, 5, 10)] == [0.01, 0.01, 0.009, 0.0081]


@pytest.mark.parametrize("schedule", [0.25, Grow(20), Decay(0.01, 0.5, 3)])
def test_written_and_read_again(schedule):
    assert parse(str(schedule)) == schedule


@pytest.mark.parametrize("text", ["x", "shrink(3)", "grow(1,2,3)", "grow(x)"])
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
        ({"batch": 0}, "batch"),
        ({"solver": "magic"}, "solver"),
    ],
)
def test_bad_work_is_explained(settings, words):
    with pytest.raises(FedfuseError, match=words):
        Work(**settings)
