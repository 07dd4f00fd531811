"""Creation of searches by the names that users choose."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .._versions import install_command
from ..errors import TvmflowError
from .search import GridSearch, NeighbourhoodSearch, RandomSearch, Search
from .tasks import Task

if TYPE_CHECKING:
    from tvm.s_tir.meta_schedule.cost_model import XGBModel

#: Names of the searches, as for ``--search``.
SEARCHES = ("evolutionary", "random", "grid", "neighbourhood")


def check_search(kind: str) -> None:
    """Reject a search that does not exist, or lacks a package, before minutes of work.

    Raises `TvmflowError` with the available searches or the missing package.
    """
    if kind not in SEARCHES:
        raise TvmflowError(
            f"The search {kind!r} is not known; expected one of {', '.join(SEARCHES)}.",
            remedy="Choose one of them with `search`.",
        )
    if kind == "evolutionary":
        try:
            import xgboost  # noqa: F401
        except ImportError as error:
            raise TvmflowError(
                "The evolutionary search needs the package xgboost, which is not installed.",
                remedy=f"{install_command('tuning')}, or choose `search=random`.",
            ) from error


def searches(kind: str, seed: int, trials: int) -> Callable[[Task], Search]:
    """Return the function that creates the search of a task."""
    models: dict[str, XGBModel] = {}

    def make(task: Task) -> Search:
        if kind == "grid":
            return GridSearch(task, seed, trials)
        if kind == "neighbourhood":
            return NeighbourhoodSearch(task, seed)
        if kind == "random" or not task.is_tunable:
            return RandomSearch(task, seed)
        # Imported here, as MetaSchedule takes a second to import.
        from .evolution import EvolutionarySearch, cost_model

        # Tasks of a family share a model.
        model = models.setdefault(task.family.NAME, cost_model(seed))
        return EvolutionarySearch(task, seed, model)

    return make
