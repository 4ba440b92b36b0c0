"""The methods that a user can choose, and their options. Nothing here imports torch: help and errors come at once."""

# pyright: reportGeneralTypeIssues=false
# (``trained_by`` implements the abstract ``train``, which pyright does not see.)

from dataclasses import dataclass
from typing import ClassVar, final

from cagp import limits
from cagp.recipes.base import Recipe, trained_by
from cagp.recipes.options import EFFORT, LOCAL_SCALE, N_ACTIONS, N_INDUCING, N_NEIGHBORS, OBJECTIVE, SHARDS


@final
@dataclass(frozen=True)
@trained_by("cagp.recipes.auto")
class Auto(Recipe):
    """The model that suits the table."""

    n_actions: int | str = N_ACTIONS.field()
    n_neighbors: int | str = N_NEIGHBORS.field()
    local_scale: float | str | None = LOCAL_SCALE.field()
    objective: str = OBJECTIVE.field()
    effort: str = EFFORT.field()

    name: ClassVar[str] = "auto"
    words: ClassVar[str] = "the model that predicts held-out training rows best"
    summary: ClassVar[str] = (
        f"exact up to {limits.EXACT_ROWS:,} rows; beyond, the model that predicts held-out training rows best"
    )
    chooses_mean: ClassVar[bool] = True
    shares_rows: ClassVar[bool] = True
    takes_chunks: ClassVar[bool] = True


@final
@dataclass(frozen=True)
@trained_by("cagp.recipes.exact")
class Exact(Recipe):
    """All rows, by Cholesky factorisation."""

    name: ClassVar[str] = "exact"
    words: ClassVar[str] = "an exact Gaussian process (Cholesky factorisation)"
    summary: ClassVar[str] = "all rows, by Cholesky factorisation: a few thousand rows"
    takes_likelihoods: ClassVar[bool] = True


@final
@dataclass(frozen=True)
@trained_by("cagp.recipes.opt")
class Opt(Recipe):
    """Learned actions, shared by all test points."""

    n_actions: int | str = N_ACTIONS.field()
    n_neighbors: int | str = N_NEIGHBORS.field()

    name: ClassVar[str] = "opt"
    words: ClassVar[str] = "CaGP-Opt, a computation-aware Gaussian process with learned actions"
    summary: ClassVar[str] = "learned actions (CaGP-Opt)"
    fast_dtype: ClassVar[bool] = True
    shares_rows: ClassVar[bool] = True
    takes_likelihoods: ClassVar[bool] = True


@final
@dataclass(frozen=True)
@trained_by("cagp.recipes.cg")
class ConjugateGradients(Recipe):
    """The actions of conjugate gradients."""

    n_actions: int | str = N_ACTIONS.field()

    name: ClassVar[str] = "cg"
    words: ClassVar[str] = "CaGP-CG, a computation-aware Gaussian process with the actions of conjugate gradients"
    summary: ClassVar[str] = "the actions of conjugate gradients (CaGP-CG): time O(n²)"
    fast_dtype: ClassVar[bool] = True
    takes_likelihoods: ClassVar[bool] = True


@final
@dataclass(frozen=True)
@trained_by("cagp.recipes.local")
class Local(Recipe):
    """The nearest rows of each test point."""

    n_neighbors: int | str = N_NEIGHBORS.field()
    local_scale: float | str | None = LOCAL_SCALE.field()
    objective: str = OBJECTIVE.field()
    shards: bool = SHARDS.field()

    name: ClassVar[str] = "local"
    words: ClassVar[str] = "CaGP-Local, which predicts each test point from its nearest rows"
    summary: ClassVar[str] = "the nearest rows of each test point: any number of rows"
    shares_rows: ClassVar[bool] = True
    takes_likelihoods: ClassVar[bool] = True
    takes_chunks: ClassVar[bool] = True


@final
@dataclass(frozen=True)
@trained_by("cagp.recipes.local")
class Hybrid(Recipe):
    """The nearest rows of each test point, and actions that all test points share."""

    n_actions: int | str = N_ACTIONS.field()
    n_neighbors: int | str = N_NEIGHBORS.field()
    local_scale: float | str | None = LOCAL_SCALE.field()
    objective: str = OBJECTIVE.field()

    name: ClassVar[str] = "hybrid"
    words: ClassVar[str] = "the hybrid of CaGP-Local and shared actions"
    summary: ClassVar[str] = "nearest rows, and actions that all test points share"
    shares_rows: ClassVar[bool] = True
    takes_likelihoods: ClassVar[bool] = True


@final
@dataclass(frozen=True)
@trained_by("cagp.recipes.inducing")
class SGPRRecipe(Recipe):
    """Inducing points with the best Gaussian in closed form."""

    n_inducing: int = N_INDUCING.field()

    name: ClassVar[str] = "sgpr"
    words: ClassVar[str] = "SGPR, a Gaussian process seen through inducing points"
    summary: ClassVar[str] = "inducing points (SGPR)"
    fast_dtype: ClassVar[bool] = True


@final
@dataclass(frozen=True)
@trained_by("cagp.recipes.inducing")
class SVGPRecipe(Recipe):
    """Inducing points with a learned Gaussian."""

    n_inducing: int = N_INDUCING.field()

    name: ClassVar[str] = "svgp"
    words: ClassVar[str] = "SVGP, a variational Gaussian process with inducing points"
    summary: ClassVar[str] = "inducing points, trained on minibatches (SVGP)"
    fast_dtype: ClassVar[bool] = True
    shares_rows: ClassVar[bool] = True


@final
@dataclass(frozen=True)
@trained_by("cagp.recipes.cg")
class CGGPRecipe(Recipe):
    """All rows, by preconditioned conjugate gradients, in float64."""

    name: ClassVar[str] = "cggp"
    words: ClassVar[str] = "an exact Gaussian process with solves by conjugate gradients"
    summary: ClassVar[str] = "all rows, by conjugate gradients (CGGP): time O(n²)"


RECIPES: dict[str, type[Recipe]] = {
    recipe.name: recipe
    for recipe in (Auto, Exact, Opt, ConjugateGradients, Local, Hybrid, SGPRRecipe, SVGPRecipe, CGGPRecipe)
}
