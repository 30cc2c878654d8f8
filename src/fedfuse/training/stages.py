"""The stages of a run: which methods follow each other, and how many rounds each may take.

Most methods are one stage. FPFC may be followed by a refit of its groups, open settings are searched for first, and
networks have rules of their own where convex models are solved exactly. All stages together stay within the rounds of
the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedfuse.grouping.fusion_path import FusionPath
from fedfuse.grouping.fusion_tree import FusionTree
from fedfuse.grouping.lambda_path import N_LAMBDAS, LambdaPath, path_limit
from fedfuse.grouping.network_path import NetworkFusionPath
from fedfuse.grouping.network_tree import NetworkFusionTree, NetworkRefit
from fedfuse.grouping.personal import personal_stage
from fedfuse.grouping.refit import Oracle, Refit
from fedfuse.methods.fpfc import FPFC, BaseFPFC
from fedfuse.methods.method import Method, Outcome
from fedfuse.methods.mixins import TakesSingleReplies
from fedfuse.methods.parameters import Searchable
from fedfuse.models.model import Model
from fedfuse.tuning.grid_search import GridSearch

# Rounds of a run where none are given: networks train for fewer, a search comes on top.
DEFAULT_ROUNDS, DEFAULT_NETWORK_ROUNDS, DEFAULT_SEARCH_ROUNDS = 500, 60, 1000
# Share of the rounds that is left for what follows a stage.
REFIT_RATIO, TRAINING_RATIO, PERSONAL_RATIO = 1 / 3, 1 / 2, 1 / 8
# Rounds that are kept back for the last layers of networks; in shorter runs none are kept back: groups come first.
NETWORK_PERSONAL_ROUNDS, MIN_PERSONAL_RUN, MIN_PERSONAL_NETWORK_RUN = 2, 160, 20


@dataclass(frozen=True)
class Stage:
    """One stage of a run: a method, and its maximum number of rounds (None: all that are left)."""

    name: str
    method: Method[Any]
    max_rounds: int | None = None

    def given(self, previous: Outcome | None, *, single_replies: bool = False) -> Method[Any]:
        """Return the rule of the stage, with the settings that the stage before has chosen."""
        method = self.method
        if previous is not None and not isinstance(method, GridSearch):
            method = replace(method, **previous.settings)
        if single_replies and isinstance(method, TakesSingleReplies):
            rule: Method[Any] = method.single_reply_rule()
            return rule
        return method


def stages_of(method: Method[Any], model: Model[Any], rounds: int) -> tuple[Stage, ...]:
    """Return the stages of a run, in order, within so many rounds."""
    if isinstance(method, FusionTree):
        tree: Method[Any] = method if model.convex else NetworkFusionTree(**_common(method))
        return _with_personal(Stage(method.name, tree), method, model, rounds)
    if isinstance(method, Oracle) and not model.convex:
        return (Stage(method.name, NetworkRefit(work=method.work, start=method.start, true_groups=True)),)
    if isinstance(method, LambdaPath):
        return _with_refit(Stage("lambda path", method), method.inner, model, rounds)
    if isinstance(method, BaseFPFC):
        return _fpfc_stages(method, model, rounds)
    if _is_searched(method):
        search = method if isinstance(method, GridSearch) else GridSearch(inner=method)
        limit = rounds - 1 if search.trial else max(1, rounds - int(TRAINING_RATIO * rounds))
        return Stage("grid search", replace(search, limit=limit), limit), Stage(search.inner.name, search.inner)
    return (Stage(method.name, method),)


def _fpfc_stages(method: BaseFPFC, model: Model[Any], rounds: int) -> tuple[Stage, ...]:
    if method.lam == "auto":
        assert isinstance(method, FPFC)
        kind = FusionPath if model.convex else NetworkFusionPath
        return _with_personal(Stage(method.name, kind(inner=method, **_common(method))), method, model, rounds)
    if not method.has_lambda:
        limit = path_limit(method.lam, len(method.grid) or N_LAMBDAS + 1, rounds)  # type: ignore[arg-type]
        how: dict[str, Any] = {"strategy": method.lam, "grid": method.grid, "limit": limit}
        path = LambdaPath(inner=replace(method, lam=0.0), **how)
        return _with_refit(Stage("lambda path", path), method, model, rounds)
    return _with_refit(Stage(method.name, replace(method, refit=False)), method, model, rounds)


def _with_refit(stage: Stage, fpfc: BaseFPFC, model: Model[Any], rounds: int) -> tuple[Stage, ...]:
    if not fpfc.refit:
        return (stage,)
    refit: Method[Any] = Refit(robust=fpfc.robust) if model.convex else NetworkRefit(**_common(fpfc))
    return replace(stage, max_rounds=max(1, rounds - int(REFIT_RATIO * rounds))), Stage("refit", refit)


def _with_personal(stage: Stage, method: FusionTree | FPFC, model: Model[Any], rounds: int) -> tuple[Stage, ...]:
    personal = personal_stage(model, method.robust) if method.personal else None
    if personal is None:
        return (stage,)
    kept = int(PERSONAL_RATIO * rounds) if model.convex else NETWORK_PERSONAL_ROUNDS
    shortest = MIN_PERSONAL_RUN if model.convex else MIN_PERSONAL_NETWORK_RUN
    limit = rounds - kept if rounds >= shortest else None
    return replace(stage, max_rounds=limit), Stage("personal", personal)


def _common(method: Any) -> dict[str, Any]:
    return {name: getattr(method, name) for name in ("work", "start", "rows", "robust")}


def default_rounds(method: Method[Any], model: Model[Any]) -> int:
    """Return the maximum number of rounds where none is given."""
    searched = _is_searched(method)
    if not model.convex:
        return DEFAULT_NETWORK_ROUNDS * (3 if searched else 1)
    return DEFAULT_ROUNDS + (DEFAULT_SEARCH_ROUNDS if searched else 0)


def _is_searched(method: Method[Any]) -> bool:
    return isinstance(method, GridSearch) or (isinstance(method, Searchable) and method.has_open_settings)


def stage_totals(history: Iterable[Mapping[str, Any]], cost_floats: int) -> tuple[dict[str, Any], ...]:
    """Return name, rounds and floats of each stage in a history, in the order in which they began."""
    totals: dict[str, list[int]] = {}
    sent = 0
    for row in history:
        total = totals.setdefault(str(row["stage"]), [0, 0])
        total[0] += 1
        total[1] += int(row["cost_floats"]) - sent
        sent = int(row["cost_floats"])
    if totals:  # what was sent after the last round belongs to the last stage
        totals[list(totals)[-1]][1] += cost_floats - sent
    return tuple({"name": name, "rounds": rounds, "floats": floats} for name, (rounds, floats) in totals.items())
