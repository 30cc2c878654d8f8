"""IFCA: a given number of models, and every device takes the one that suits it best.

A. Ghosh, J. Chung, D. Yin, K. Ramchandran: An Efficient Framework for Clustered Federated Learning (NeurIPS 2020).

    server: sends all L models theta_1 … theta_L to each active device
    device: c_i = argmin_j f_i(theta_j) on its training rows; sends c_i (one-hot) and
            gradient averaging (option I):  grad f_i(theta_{c_i})
            model averaging (option II):    T local steps from theta_{c_i}
    server: option I:   theta_j <- theta_j - gamma / |A| sum_{i in A, c_i = j} g_i       (A: all active devices)
            option II:  theta_j <- the mean of its members' models; a group without members stays as it is

Of a model with shared weights (the original's section 6) only the heads are L; the rest is one for all, and averaged
over all active devices in every round. With a temperature, estimates are soft: a device works on every model, with
weights softmax(-f_i(theta_j) / temperature); published code takes the other sign, which favours the worst model.

The L models begin at L draws of N(0, 1) (networks: L draws of their own). Much depends on them, and the authors'
experiments on synthetic data keep the best of ten starts: with ``restarts=10`` ten are tried on training rows, each for
some rounds of the run, and validation rows choose (`tuning.grid_search`). At the end every device chooses once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fedfuse.core.partitions import canonical
from fedfuse.errors import FedfuseError
from fedfuse.methods.method import FederationInfo, Method, Outcome, Residuals, moved
from fedfuse.methods.mixins import AdmissionDialogue, AdmissionResult, AdmitsNewcomers, RunSummary, WorksAtHome
from fedfuse.methods.one_model.fedavg import averaged
from fedfuse.methods.parameters import Auto, Searchable, choice, number
from fedfuse.models.model import Start
from fedfuse.protocol.local_work import value
from fedfuse.protocol.tasks import Choose, Losses, Task
from fedfuse.utils.typing import Floats, Ints

Average = Literal["gradient", "model"]


@dataclass
class IFCAState:
    """The shared part, L heads, the head that each device chose last, and the step size of the round."""

    info: FederationInfo
    shared: Floats
    heads: Floats
    choice: Ints
    rate: float = 0.0


@dataclass(frozen=True)
class IFCA(Method[IFCAState], Searchable, WorksAtHome, AdmitsNewcomers):
    """Iterative federated clustering.

    Parameters
    ----------
    n_models
        Number of groups L; ``"auto"`` chooses among a few on validation rows.
    average
        ``"gradient"``: one step for each exchange. ``"model"``: as many as ``work`` says.
    temperature
        0 for hard estimates of the group, more for soft ones.
    restarts
        Starts to choose from on validation rows.
    first_draw
        Which of the starts; by default the first, or with ``restarts`` the one chosen.
    """

    name: ClassVar[str] = "ifca"
    n_models: int | Auto = number("auto", least=1, whole=True, tried=(1, 2, 3, 4, 6, 8, 12))
    average: Average = choice("model", Average)
    temperature: float = number(0.0, least=0)
    restarts: int = number(1, least=1)
    first_draw: int | None = number(None, least=0, whole=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start == "zero" and self.n_models != 1:
            raise FedfuseError("ifca needs models that differ at the start: use start='normal', got 'zero'")

    @property
    def has_open_settings(self) -> bool:
        return super().has_open_settings or (self.restarts > 1 and self.first_draw is None)

    def candidates(self, state: IFCAState) -> list[dict[str, Any]]:
        counts = super().candidates(state) if self.n_models == "auto" else [{"n_models": self.n_models}]
        if self.restarts == 1 or self.first_draw is not None:
            return counts
        return [{**count, "first_draw": draw} for count in counts for draw in range(self.restarts)]

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> IFCAState:
        count = 1 if self.n_models == "auto" else int(self.n_models)
        start: Start = "normal" if self.start == "auto" and info.model.convex else self.start
        first = (self.first_draw or 0) * count
        models = np.stack([info.initial(start, first + draw) for draw in range(count)]).astype(info.dtype)
        fused = info.model.fused
        # one trunk for all, as a device would have it
        return IFCAState(info, models[0, : fused.start], models[:, fused], np.zeros(info.m, np.int64))

    def tasks(self, state: IFCAState, devices: Ints, k: int) -> list[Task]:
        work = self.work.at(k)
        state.rate = float(value(work.lr, 0))
        local = None if self.average == "gradient" else work
        return [Choose(state.shared, state.heads, local, self.temperature, self.rows)] * len(devices)

    def update(self, state: IFCAState, devices: Ints, values: list[Floats]) -> Residuals | None:
        if not values:
            return None
        old, count, d = self._all(state), len(state.heads), state.info.d
        replies = np.stack(values)
        weights = replies[:, -count:]
        state.choice[devices] = weights.argmax(axis=1)
        answers = replies[:, :-count].reshape(len(devices), -1, d)  # one each, or with soft estimates one per model
        if self.average == "gradient":
            self._descend(state, weights, answers)
        else:
            self._mean(state, self.weigh(state.info, devices), weights, answers)
        return moved(old, self._all(state))

    def _descend(self, state: IFCAState, weights: Floats, gradients: Floats) -> None:
        """Option I: the divisor is the number of all active devices, whatever group they are of."""
        rate, cut = state.rate / len(gradients), state.info.model.fused.start
        per_head = np.einsum("ij,ijd->jd", weights, np.broadcast_to(gradients, (*weights.shape, state.info.d)))
        state.heads = (state.heads - rate * per_head[:, cut:]).astype(state.info.dtype)
        state.shared = (state.shared - rate * per_head[:, :cut].sum(axis=0)).astype(state.info.dtype)

    def _mean(self, state: IFCAState, rows: Floats, weights: Floats, models: Floats) -> None:
        """Option II, weighted by rows as in the original's experiments on images."""
        cut, count = state.info.model.fused.start, len(state.heads)
        every = np.broadcast_to(models, (*weights.shape, state.info.d)).reshape(-1, state.info.d)
        weight = (rows[:, None] * weights).ravel()
        group = np.tile(np.arange(count), len(rows))
        state.heads = averaged(state.heads, group, every[:, cut:], weight)
        one = np.zeros(len(group), np.int64)
        state.shared = averaged(state.shared[None], one, every[:, :cut], weight)[0]

    def _all(self, state: IFCAState) -> Floats:
        """Return the L models, whole."""
        shared = np.tile(state.shared, (len(state.heads), 1))
        return np.hstack([shared, state.heads])

    def at_home(self, state: IFCAState) -> list[Task]:
        return [Losses(self._all(state), self.rows)] * state.info.m

    def in_use(self, state: IFCAState, found: Outcome, seen: list[Floats]) -> Outcome:
        choice = np.stack(seen).argmin(axis=1)
        return found._replace(models=self._all(state)[choice], labels=canonical(choice))

    def outcome(self, state: IFCAState) -> Outcome:
        models = self._all(state)
        return Outcome(models[state.choice], canonical(state.choice), kept={"all": models})

    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        """Take the model with the least loss on the newcomer's training rows, as it is."""
        models = known.kept["all"]
        losses = yield Losses(models, self.rows)
        model = models[int(np.argmin(losses))]
        same = np.flatnonzero((known.models == model).all(axis=1))
        return AdmissionResult(model, int(known.labels[same[0]]) if same.size else None)
