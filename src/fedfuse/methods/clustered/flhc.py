"""FL+HC: FedAvg, then groups by hierarchical clustering of the devices' models, then FedAvg within each.

C. Briggs, Z. Fan, P. Andras: Federated Learning with Hierarchical Clustering of Local Updates to Improve Training on
Non-IID Data (IJCNN 2020).

    server: FedAvg for ``before`` rounds
    device: every device takes T local steps from w once; sends its model
    server: agglomerates the models, complete linkage of L2 distances, until the next merge is above the threshold
    then, in every round: FedAvg within each group

The original gives the threshold as a distance; here it is a share of the highest merge, which has no unit, and
validation rows may choose it. Devices that do not answer when all are asked are taken to be at w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy

from fedfuse.core.partitions import canonical
from fedfuse.methods.method import FederationInfo, Outcome, Residuals
from fedfuse.methods.one_model.fedavg import Averaging, GroupModels
from fedfuse.methods.parameters import Auto, Searchable, number
from fedfuse.utils.typing import Floats, Ints


@dataclass
class HierarchyState(GroupModels):
    """Models and groups, and the rounds so far."""

    age: int = 0


@dataclass(frozen=True)
class FLHC(Averaging, Searchable):
    """FedAvg within groups of devices whose models lie near each other.

    Parameters
    ----------
    threshold
        Share of the highest merge beyond which groups stay apart; ``"auto"`` chooses on validation rows.
    before
        Rounds of FedAvg before devices are grouped.
    """

    name: ClassVar[str] = "fl-hc"
    threshold: float | Auto = number("auto", least=0, tried=(0.1, 0.2, 0.3, 0.5, 0.7, 0.9))
    before: int = number(10, least=0)

    @property
    def min_trial_rounds(self) -> int:  # type: ignore[override]
        """Enough to train the groups for a while."""
        return self.before + 6

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> HierarchyState:
        one = self._state(info, np.zeros(info.m, np.int64))
        return HierarchyState(info, one.models, one.labels)

    def devices(self, state: Any, drawn: Ints) -> Ints:
        return np.arange(state.info.m) if state.age == self.before else drawn

    def update(self, state: Any, devices: Ints, values: list[Floats]) -> Residuals | None:
        state.age += 1
        if state.age == self.before + 1 and values:
            self._group(state, devices, np.stack(values))
        found = super().update(state, devices, values)
        return found if state.age > self.before + 1 else None  # what rests before is not at its end

    def _group(self, state: Any, devices: Ints, models: Floats) -> None:
        each = np.repeat(state.models, state.info.m, axis=0)
        each[devices] = models
        if len(each) > 1:
            merges = scipy.cluster.hierarchy.linkage(each.astype(np.float64), "complete")
            cut = self.setting * merges[-1, 2]
            state.labels = canonical(scipy.cluster.hierarchy.fcluster(merges, cut, criterion="distance"))
            state.models = np.repeat(state.models, int(state.labels.max()) + 1, axis=0)
