"""FedEM: every device's rows come from a mixture of the same few models, with weights of its own.

O. Marfoq, G. Neglia, A. Bellet, L. Kameni, R. Vidal: Federated Multi-Task Learning under a Mixture of Distributions
(NeurIPS 2021).

    server: sends all components theta_1 … theta_L to each active device
    device: q_s(c) ~ pi_ic exp(-loss of row s under theta_c);  pi_ic <- mean over its rows of q_s(c)
            theta_c <- T local steps on the mean of q_s(c) loss_s(theta_c), for every c; sends all theta_c
    server: theta_c <- sum_i n_i theta_c,i / sum_i n_i over the active devices

A device uses the mean of the components' outputs, weighted by pi_i: for linear regression that is the mean of the
components; softmax regression uses this mean of parameters too, and a network its heaviest component, as a device has
one model here. The server keeps pi_i for the device, which is L numbers more each way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedfuse.methods.method import FederationInfo, Method, Outcome, Residuals, moved
from fedfuse.methods.mixins import AdmissionDialogue, AdmissionResult, AdmitsNewcomers, RunSummary
from fedfuse.methods.parameters import Auto, Searchable, number
from fedfuse.models.model import Model
from fedfuse.protocol.tasks import MixtureTrain, Task
from fedfuse.utils.typing import Floats, Ints

ADMISSION_ROUNDS = 10


@dataclass
class MixtureState:
    """The components, and every device's weights of them."""

    info: FederationInfo
    components: Floats
    weights: Floats


@dataclass(frozen=True)
class FedEM(Method[MixtureState], Searchable, AdmitsNewcomers):
    """A mixture of a few models for every device.

    Parameters
    ----------
    n_models
        Number of components L; ``"auto"`` chooses on validation rows.
    """

    name: ClassVar[str] = "fedem"
    finds_groups: ClassVar[bool] = False
    needs_steps: ClassVar[bool] = True
    n_models: int | Auto = number("auto", least=1, whole=True, tried=(1, 2, 3, 4, 6))

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> MixtureState:
        start, count = "normal" if self.start == "auto" and info.model.convex else self.start, int(self.setting)
        components = np.stack([info.initial(start, number) for number in range(count)]).astype(info.dtype)
        return MixtureState(info, components, np.full((info.m, count), 1 / count, info.dtype))

    def tasks(self, state: MixtureState, devices: Ints, k: int) -> list[Task]:
        work = self.work.at(k)
        return [MixtureTrain(work, state.components, pi, self.rows) for pi in state.weights[devices]]

    def update(self, state: MixtureState, devices: Ints, values: list[Floats]) -> Residuals | None:
        if not values:
            return None
        old, (count, d) = state.components, state.components.shape
        replies = np.stack(values)
        mean = np.average(replies[:, :-count], axis=0, weights=self.weigh(state.info, devices))
        state.components = mean.reshape(count, d).astype(old.dtype)
        state.weights[devices] = replies[:, -count:] / replies[:, -count:].sum(axis=1, keepdims=True)
        return moved(old, state.components)

    def outcome(self, state: MixtureState) -> Outcome:
        kept = {"all": state.components, "weights": state.weights}
        models = np.stack([mixed(state.info.model, state.components, pi) for pi in state.weights])
        return Outcome(models, np.zeros(state.info.m, np.int64), kept=kept)

    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        """Find one's weights of the components, which stay as they are."""
        components = known.kept["all"]
        pi = np.full(len(components), 1 / len(components), info.dtype)
        for _ in range(ADMISSION_ROUNDS):
            answer = yield MixtureTrain(replace(self.work.at(0), steps=1), components, pi, self.rows)
            pi = answer[-len(components) :]
        return AdmissionResult(mixed(info.model, components, pi))


def mixed(model: Model[Any], components: Floats, weights: Floats) -> Floats:
    """Return the one model that stands for a mixture."""
    mean = weights @ components if model.convex else components[int(weights.argmax())]
    return np.asarray(mean, components.dtype)
