import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfuse.core.theory import broken, choose, contraction, inexactness
from fedfuse.errors import FedfuseError

positive = st.floats(0.01, 20)


@given(lam=positive, share=st.floats(0.001, 0.9), a=st.floats(2.1, 6), L_f=positive, bent=st.floats(0, 1))
def test_the_papers_choice_breaks_no_condition(lam, share, a, L_f, bent):
    xi, L_minus = lam * share, bent * L_f
    choice = choose(lam, xi, a, L_f, L_minus)
    found = broken(lam=lam, xi=xi, a=a, rho=choice.rho, lr=choice.lr, steps=choice.steps, L_f=L_f, L_minus=L_minus)
    assert found == []
    assert choice.inexactness <= 0.5 + 1e-12


def test_gradient_descent_on_a_quadratic_meets_the_promised_inexactness():
    """h(w) = L_f/2 w^2 + rho/2 (w - 1)^2 from w = 0: the error after T steps is below epsilon times the way gone."""
    L_f, rho = 4.0, 12.01
    choice = choose(lam=0.5, xi=0.1, a=3.7, L_f=L_f)
    best, w = rho / (L_f + rho), 0.0
    for _ in range(choice.steps):
        w -= choice.lr * (L_f * w + choice.rho * (w - 1))
    assert abs(w - best) <= choice.inexactness * abs(w)
    c = contraction(choice.rho, choice.lr, L_f)
    assert inexactness(choice.steps, c) == choice.inexactness


def test_each_broken_condition_is_named():
    good = choose(lam=0.5, xi=0.1, a=3.7, L_f=4.0)
    base = {"lam": 0.5, "xi": 0.1, "a": 3.7, "L_f": 4.0, "rho": good.rho, "lr": good.lr, "steps": good.steps}
    assert "2 lambda / xi" in broken(**base | {"xi": 0.01})[0]
    assert "lr <=" in broken(**base | {"lr": 2 * good.lr})[0]
    assert "T > " in broken(**base | {"steps": 1})[0]
    assert "do not contract" in broken(**base | {"lr": 100.0})[-1]
    assert any("L_minus" in words for words in broken(**base | {"L_minus": 13.0}))
    assert any("L_f / (1 - 2 c^(T/2))" in words for words in broken(**base | {"L_f": 11.0, "steps": 4, "lr": 0.02}))
    with pytest.raises(FedfuseError, match="xi must be positive"):
        broken(**base | {"xi": 0.0})
