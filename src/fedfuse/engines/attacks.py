"""Attacks: some devices lie. What they send is replaced after their honest work, before the server sees it.

How the server tells liars is in `protocol.reply_checks`.

The paper's three attacks (section 6.4.1, after Lin et al., 2022), and four others:

    same-value     c 1, with c ~ N(0, 100^2)
    sign-flip      -|c| times what it would have sent, with c ~ N(0, 10^2)
    gaussian       N(0, 100^2 I)
    label-flip     honest work on labels that were flipped: class y becomes C - 1 - y, value y becomes -y
    little         mean - z std of what the liars would have sent (Baruch, Baruch, Goldberg: A Little Is Enough, 2019)
    inner-product  -1/2 mean of what the liars would have sent (Xie, Koyejo, Gupta: Fall of Empires, 2020)
    replacement    G + gamma (X - G): a mean with the others becomes X, a target of the liars' own
                   (Bagdasaryan et al.: How to Backdoor Federated Learning, 2020)

Draws are new for every device and round. Liars know each other, and nothing of what honest devices send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy

from fedfuse.data.federation import Federation
from fedfuse.engines.base import Engine, EngineWrapper
from fedfuse.errors import FedfuseError, check_choice
from fedfuse.protocol import tasks
from fedfuse.protocol.tasks import Order, Reply, Task
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Floats, Ints

Attack: TypeAlias = Literal[
    "same-value", "sign-flip", "gaussian", "label-flip", "little", "inner-product", "replacement"
]
Scope: TypeAlias = Literal["all", "fused"]
Lies: TypeAlias = Literal["all", "models"]
COLLUDING = ("little", "inner-product", "replacement")
# The paper's standard deviations.
SAME_VALUE_SIGMA, SIGN_FLIP_SIGMA, GAUSSIAN_SIGMA = 100.0, 10.0, 100.0
INNER_PRODUCT_RATIO = 0.5
# Larger lies, which float32 could not square and sum, would be refused by every server.
MAX_LIE = 1e15


def draw_liars(m: int, share: float, seed: int) -> Ints:
    """Return the devices that lie: ``round(share m)`` of them, drawn once per run.

    >>> len(draw_liars(10, 0.4, seed=0))
    4
    """
    if not 0 <= share <= 1:
        raise FedfuseError(f"liars must be a share from 0 to 1, got {share!r}")
    return np.sort(generator(seed, "liars").choice(m, round(share * m), replace=False)).astype(np.int64)


def flipped(federation: Federation, who: npt.ArrayLike) -> Federation:
    """Return the federation with other labels on these devices: y becomes C - 1 - y, or -y for values."""
    y = federation.y.copy()
    for i in np.asarray(who, dtype=np.int64):
        rows = slice(federation.cuts[i, 0], federation.cuts[i, 3])
        y[rows] = federation.n_classes - 1 - y[rows] if federation.goal == "classification" else -y[rows]
    return replace(federation, y=y)


@dataclass(eq=False)
class Exchange:
    """What was asked of devices in one go: how many they are, how many lie, and what liars were asked and answered."""

    devices: int
    liars: int
    asked: dict[tuple[int, int], Task]  # not answered yet, by device and round
    heard: list[tuple[Task, Reply]]  # honest replies, which the server never sees


@dataclass(frozen=True)
class Lie:
    """One upload as its liar sees it before it is sent."""

    own: Floats  # what an honest device would send
    models: int  # so many of these numbers are a model, an update or a gradient
    crowd: Floats  # what all liars of this exchange would send, where theirs is as long (liars x n)
    task: Task
    rng: np.random.Generator
    boost: float  # devices of this exchange for each liar
    z: float


class Attacks(EngineWrapper):
    """An engine in which some of the ``m`` devices lie: this share, or those of ``who``.

    With lies ``"all"`` every answer is replaced, numbers too; with ``"models"`` models, updates and gradients alone.
    What names a group (IFCA) and the bases of PACFL are honest in both. With scope ``"fused"`` the first ``shared``
    numbers of a model, which all devices share, are honest. ``"label-flip"`` needs an engine over `flipped` data, and
    changes nothing here.
    """

    def __init__(
        self,
        engine: Engine,
        attack: Attack,
        *,
        m: int,
        share: float = 0.2,
        who: Sequence[int] | npt.ArrayLike | None = None,
        lies: Lies = "all",
        scope: Scope = "all",
        shared: int = 0,
        seed: int = 0,
    ) -> None:
        for name, word, known in (("attack", attack, Attack), ("lies", lies, Lies), ("scope", scope, Scope)):
            check_choice(name, word, known)
        super().__init__(engine)
        self.attack, self.m, self.lies, self.seed = attack, m, lies, seed
        self.who = draw_liars(m, share, seed) if who is None else np.unique(np.asarray(who, dtype=np.int64))
        if self.who.size and not 0 <= self.who[0] <= self.who[-1] < m:
            raise FedfuseError(f"liars must be device numbers from 0 to {m - 1}, got {self.who.tolist()}")
        self._honest = shared if scope == "fused" else 0
        self._liars = frozenset(self.who.tolist())
        self._exchanges: list[Exchange] = []

    def described(self) -> dict[str, Any]:
        """Return the attack as JSON-ready data."""
        return {"attack": self.attack, "lies": self.lies, "who": self.who.tolist()}

    def submit(self, orders: Sequence[Order]) -> None:
        # Evaluation is no message of the method, and no liar would change these.
        honest = (tasks.PeekModel, tasks.Subspace)
        others = [o for o in orders if o.round != tasks.EVALUATION_ROUND and not isinstance(o.task, honest)]
        lying = [o for o in others if o.device in self._liars and self.attack != "label-flip"]
        self._exchanges.append(Exchange(len(orders), len(lying), {(o.device, o.round): o.task for o in lying}, []))
        self.inner.submit(orders)

    def collect(self, patience: float | None = None) -> list[Reply]:
        while True:
            arrived = super().collect(patience)
            ready = [reply for reply in arrived if not self._hold(reply)]
            lies = []
            for exchange in self._exchanges:
                # Liars that agree on what to say wait for each other, until everybody has answered.
                if not (arrived and exchange.asked and self.attack in COLLUDING):
                    lies += [self._forged(*heard, exchange) for heard in exchange.heard]
                    exchange.heard = []
            self._exchanges = [e for e in self._exchanges if e.asked or e.heard]
            if ready or lies or not arrived:
                return ready + sorted(lies, key=lambda reply: reply.device)

    def _hold(self, reply: Reply) -> bool:
        """Keep a liar's reply back; False for all others."""
        key = reply.device, reply.round
        exchange = next((e for e in self._exchanges if key in e.asked), None)
        if exchange is None:
            return False
        exchange.heard.append((exchange.asked.pop(key), reply))
        return True

    def _forged(self, task: Task, reply: Reply, exchange: Exchange) -> Reply:
        own = np.asarray(reply.values, dtype=np.float64)
        models = model_numbers(task, own.size)
        heard = sorted(exchange.heard, key=lambda each: each[1].device)
        alike = [r.values for t, r in heard if type(t) is type(task) and np.shape(r.values) == own.shape]
        # a round may be negative, a key may not
        rng = generator(self.seed, "attack", reply.round + 2, reply.device)
        lie = Lie(own, models, np.array(alike, np.float64), task, rng, exchange.devices / exchange.liars, self._z)
        # the name of a group is true: it is no number
        stop = models if self.lies == "models" or isinstance(task, tasks.Choose) else own.size
        values, part = own.copy(), slice(min(self._honest, models), stop)
        values[part] = np.clip(FORGE[self.attack](lie)[part], -MAX_LIE, MAX_LIE)
        return replace(reply, values=values.astype(np.asarray(reply.values).dtype))

    @property
    def _z(self) -> float:
        """How far from the mean a little is still not noticed, by the original's rule; 1 where liars are the most."""
        liars, honest = len(self.who), self.m - len(self.who)
        supporters = self.m // 2 + 1 - liars
        if honest <= supporters or supporters <= 0:
            return 1.0
        return float(max(scipy.special.ndtri((honest - supporters) / honest), 0.0))


def known_attack(engine: Any) -> Attacks | None:
    """Return the liars of an engine, also where another engine is around them."""
    while engine is not None and not isinstance(engine, Attacks):
        engine = getattr(engine, "inner", None)
    return engine


def model_numbers(task: Task, size: int) -> int:
    """Return how many numbers of an answer are a model, an update or a gradient; they come first."""
    match task:
        case tasks.Train(score=score):
            return size - (score is not None)
        case tasks.Gradient(also=also):
            return size - len(also)
        case tasks.Choose(heads=heads):
            return size - len(heads)
        case tasks.MixtureTrain(components=components):
            return size - len(components)
        case tasks.MetaTrain() | tasks.TrainPair() | tasks.EnvelopeTrain() | tasks.FitLocally():
            return size
    return 0


def _replacement(lie: Lie) -> Floats:
    """Aim at minus what the liars would have sent; a mean over all devices of the exchange gets there."""
    aim: Floats = -lie.crowd.mean(axis=0)
    values: Floats = lie.own.copy()
    step = isinstance(lie.task, tasks.Gradient) or (isinstance(lie.task, tasks.Train) and lie.task.send == "update")
    given = lie.task.start if isinstance(lie.task, (tasks.Train, tasks.MetaTrain)) else None
    origin = given if given is not None and len(given) == lie.models and not step else np.zeros(lie.models)
    values[: lie.models] = origin + lie.boost * (aim[: lie.models] - origin)
    return values


# What a liar sends in place of its honest answer.
FORGE: dict[str, Callable[[Lie], Floats]] = {
    "same-value": lambda lie: np.full(lie.own.size, lie.rng.normal(0, SAME_VALUE_SIGMA)),
    "sign-flip": lambda lie: np.asarray(-abs(lie.rng.normal(0, SIGN_FLIP_SIGMA)) * lie.own),
    "gaussian": lambda lie: lie.rng.normal(0, GAUSSIAN_SIGMA, lie.own.size),
    "little": lambda lie: np.asarray(lie.crowd.mean(axis=0) - lie.z * lie.crowd.std(axis=0)),
    "inner-product": lambda lie: np.asarray(-INNER_PRODUCT_RATIO * lie.crowd.mean(axis=0)),
    "replacement": _replacement,
}
