"""CaGP-Opt, which learns its actions, and CaGP-CG, whose actions a policy chooses, with their hyperparameters."""

import copy
import math
from collections.abc import Sequence
from typing import Any, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.actions import ActionRule, Actions, BlockActions
from cagp.checks import check_count
from cagp.dataset import Data
from cagp.engine import DEFAULT_MAX_BYTES
from cagp.iterative import Iteration, Lanczos, Policy, Stopping, iterate
from cagp.iterative.policies import check_policy
from cagp.losses import elbo, leave_one_out_nll, projected_nll
from cagp.methods.base import ACTION_RATE, HYPERPARAMETER_RATE, Method, RowNoise, Targets, drawn_rows, trained
from cagp.posteriors import CaGPPosterior
from cagp.prior import GP
from cagp.projection import check_actions, project
from cagp.training import Batch, Coming, ParameterGroup, StepRows, fit
from cagp.training.trainable import Inputs, Terms

DEFAULT_REBLOCK_AT = (20, 50)
GROWN_BY, GROWTH_PACE = 0.2, 0.05
"""The last doubling of the actions comes at this share of a fit's steps at the latest; each doubling before it comes
earlier by ``GROWTH_PACE``."""
REFIT_STEPS, REFIT_RATE = 10, 0.1
"""How hyperparameters are fitted again for a posterior with more actions than were trained."""

Loss = Literal["elbo", "projected", "loo"]


@final
class CaGPOpt(Method):
    """A computation-aware GP whose actions are parameters.

    Args:
        actions: the projections of the data, learned; usually from ``CaGPOpt.from_data``. Or a rule that computes them
            from the prior and the data.
        loss: "elbo" (the paper's recommendation), "projected" (the projected-data marginal likelihood) or "loo" (each
            target's density given the projections without it).
        reblock_at: steps of a fit, counted from 0, before which blocks are cut again in units of the lengthscales.
        grow_to: double the number of actions during a fit, whenever the loss is flat, until there are this many; the
            last doubling comes at ``GROWN_BY`` of all steps at the latest. None: the number stays.
        batch_size: estimate the loss of a step from this many rows; None for all rows. If the actions have a
            ``support_size``, the cost of a step does not depend on the number of rows.
    """

    def __init__(
        self,
        prior: GP,
        actions: Actions | ActionRule,
        loss: Loss = "elbo",
        max_bytes: int = DEFAULT_MAX_BYTES,
        reblock_at: Sequence[int] = (),
        grow_to: int | None = None,
        batch_size: int | None = None,
        seed: int = 0,
    ):
        super().__init__()
        if batch_size is not None:
            check_count(batch_size, "batch_size", 2**31, "a size that can be computed")
            if loss == "projected":
                raise ValueError('batch_size needs loss="elbo" or "loo"; the projected loss is no sum over rows.')
            if isinstance(actions, ActionRule):
                raise ValueError(f"batch_size is for actions on some rows; {type(actions).__name__} needs all of them.")
        if grow_to is not None:
            if not isinstance(actions, BlockActions):
                raise ValueError(f"grow_to needs BlockActions, whose blocks can be cut, not {type(actions).__name__}.")
            check_count(grow_to, "grow_to", len(actions.support), "the number of rows with weights")
        self.prior, self.actions = prior, actions
        self.loss: Loss = _checked_loss(loss)
        self.max_bytes, self.batch_size, self.seed = max_bytes, batch_size, seed
        self.reblock_at, self.grow_to = tuple(reblock_at), grow_to

    @classmethod
    def from_data(
        cls,
        prior: GP,
        X: Float[Tensor, "n d"] | Data,
        num_actions: int,
        *,
        loss: Loss = "elbo",
        max_bytes: int = DEFAULT_MAX_BYTES,
        reblock_at: Sequence[int] | None = None,
        start_actions: int | None = None,
        batch_size: int | None = None,
        seed: int = 0,
        **choices: Any,
    ) -> "CaGPOpt":
        """CaGP-Opt with ``num_actions`` blocks of the rows of ``X``.

        Args:
            reblock_at: None for ``DEFAULT_REBLOCK_AT`` with spatial blocks, never with ordered ones.
            start_actions: begin a fit with this many and let them grow; None: all from the start.
            choices: passed on to ``BlockActions.from_data``: blocks, start, support_size, generator, and lengthscale
                (by default the kernel's).
        """
        choices.setdefault("kernel", prior.kernel)
        choices.setdefault("lengthscale", prior.kernel.lengthscales((X.X if isinstance(X, Data) else X).shape[1]))
        if reblock_at is None:
            reblock_at = DEFAULT_REBLOCK_AT if choices.get("blocks", "spatial") == "spatial" else ()
        grow_to = None if start_actions is None else num_actions
        actions = BlockActions.from_data(X, num_actions if start_actions is None else start_actions, **choices)
        return cls(prior, actions, loss, max_bytes, reblock_at, grow_to, batch_size, seed)

    def terms(self, data: Data, batch: Batch) -> Terms:
        """The loss of all rows is streamed: besides data and i x i matrices it takes ``max_bytes`` of memory."""
        if self.loss == "projected":
            batch.check_all_rows("CaGPOpt with the projected loss")
        return _loss_terms(self.loss, self.prior, self._current(data), data, self.max_bytes, batch.rows)

    def _current(self, data: Data) -> Actions:
        """The actions, at the present hyperparameters where they depend on them."""
        if isinstance(self.actions, Actions):
            return self.actions
        returned = f"{type(self.actions).__name__}.actions returned"
        actions = self.actions.actions(self.prior, *data.tensors)
        if not isinstance(actions, Actions):
            raise ValueError(f"{returned} a {type(actions).__name__}, expected Actions: ComputedActions(S).")
        if actions.num_rows != data.num_rows:
            raise ValueError(f"{returned} actions on {actions.num_rows} rows, expected {data.num_rows}: all of X.")
        return actions

    def support(self, num_rows: int) -> Int[Tensor, " m"]:
        """The rows that carry weight in any action: what the posterior conditions on."""
        return self.actions.support if isinstance(self.actions, Actions) else torch.arange(num_rows)

    def rows(self, step: int, num_rows: int) -> StepRows:
        """Processes can share a loss whose data term is a sum over rows; the projected loss has none."""
        if self.batch_size is None or self.batch_size >= num_rows:
            return StepRows(divisible=self.loss != "projected")
        return StepRows(drawn_rows(self.seed, step, num_rows, self.batch_size), stochastic=True, divisible=True)

    def check(self, data: Data) -> None:
        super().check(data)
        if isinstance(self.actions, ActionRule):
            check_count(self.actions.num_actions, "the number of actions", data.num_rows, "the number of rows of X")
        else:
            check_actions(self.actions, data.X)

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        rate = self.actions.rate if isinstance(self.actions, ActionRule) else ACTION_RATE
        return {"hyperparameters": trained(self.prior, HYPERPARAMETER_RATE), "actions": trained(self.actions, rate)}

    def before_step(self, data: Data, coming: Coming) -> Batch:
        """Double the actions if that is due, or cut blocks again in units of the lengthscales learned so far."""
        actions, event, lengthscale = self.actions, None, self.prior.kernel.lengthscales(data.X.shape[1])
        if not isinstance(actions, BlockActions):
            return Batch(coming.part)
        doublings = 0 if self.grow_to is None else math.ceil(math.log2(self.grow_to / actions.num_actions))
        # At a flat loss, or when the remaining doublings need the time until ``GROWN_BY``.
        grows = doublings > 0 and (coming.flat or coming.share >= GROWN_BY - (doublings - 1) * GROWTH_PACE)
        if grows and self.grow_to is not None:
            actions.grow(data.X, min(2 * actions.num_actions, self.grow_to), lengthscale)
            event = f"cut blocks in two: {actions.num_actions} actions"
        elif coming.step in self.reblock_at and lengthscale is not None:
            actions.reblock(data.X, lengthscale)
            event = f"cut {actions.num_actions} blocks again, in units of the learned lengthscales"
        return Batch(coming.part, event=event)

    def posterior(self, data: Data, *, num_actions: int | None = None, refit_steps: int = REFIT_STEPS) -> CaGPPosterior:
        """The posterior given the data.

        Args:
            num_actions: condition with more actions than were trained: the blocks of a copy are cut further (rows keep
                their weights), and its hyperparameters, learned for fewer actions, are fitted again for a few steps.
            refit_steps: the number of these steps.
        """
        method = self if num_actions is None else self._with_more_actions(data, num_actions, refit_steps)
        with torch.no_grad():
            projection = project(method.prior, method._current(data), *data.tensors, self.max_bytes, check=False)
        return CaGPPosterior(method.prior, projection, self.max_bytes)

    def _with_more_actions(self, data: Data, num_actions: int, refit_steps: int) -> "CaGPOpt":
        if not isinstance(self.actions, BlockActions):
            found = type(self.actions).__name__
            raise ValueError(f"num_actions needs BlockActions, whose blocks can be cut, not {found}.")
        if num_actions < self.actions.num_actions:
            raise ValueError(f"num_actions is {num_actions}, expected at least the {self.actions.num_actions} trained.")
        grown = copy.deepcopy(self)
        grown.reblock_at, grown.grow_to = (), None
        assert isinstance(grown.actions, BlockActions)
        grown.actions.grow(data.X, num_actions, self.prior.kernel.lengthscales(data.X.shape[1]))
        if refit_steps:
            fit(grown, data, num_steps=refit_steps, lr={"hyperparameters": REFIT_RATE, "actions": 0.0})
        return grown

    def words(self, data: Data) -> str:
        actions, n, m = self.actions, data.num_rows, len(self.support(data.num_rows))
        share = "all" if m == n else f"{m:,} of the"
        batches = f", minibatches of {self.batch_size:,} rows" if self.rows(0, n).stochastic else ""
        is_rule = isinstance(actions, ActionRule)
        kind = type(actions).__name__ if is_rule else f"{m / actions.num_actions:.0f} in each block"
        rows = f"{actions.num_actions:,} actions on {share} {n:,} rows ({kind})"
        return f"CaGP-Opt with {rows}, loss {self.loss}{batches}"


@final
class CaGPCG(Method):
    """A computation-aware GP whose actions a policy chooses at the current hyperparameters.

    The paper's actions are the CG residuals, orthonormalised. These are the Lanczos vectors started at y - m, and are
    computed as such (the default policy): when the mean has converged, they still find what is left of the variance.

    The gradient takes the actions as constants. They are computed at every evaluation of the objective, which is
    therefore a function of parameters and data alone; docs/iterative.md has what else was tried.

    Args:
        num_actions: i, the budget.
        loss: as of ``CaGPOpt``; with "loo", the actions still depend on the target.
        relative_residual: stop adding actions when ‖(y - m) - K̂v‖ is this share of ‖y - m‖: faster, but a looser
            bound. The paper stops at 1e-4. Zero: use the whole budget.
        max_bytes: k(X, X) is kept during the iterations if it takes no more than this. Otherwise it is evaluated again
            for every product, and this is the limit for temporaries.
        policy: chooses the actions: any policy of ``cagp.iterative``, or one of your own; None for ``Lanczos()``.

    Time per evaluation O(n² i) with k(X, X) kept, O(n² (d + 1) i) without; memory O(n i), and n² if k(X, X) is kept.
    """

    def __init__(
        self,
        prior: GP,
        num_actions: int,
        loss: Loss = "elbo",
        relative_residual: float = 0.0,
        max_bytes: int = DEFAULT_MAX_BYTES,
        policy: Policy | None = None,
    ):
        super().__init__()
        self.prior, self.num_actions = prior, num_actions
        self.loss: Loss = _checked_loss(loss)
        self.relative_residual, self.max_bytes = relative_residual, max_bytes
        self.policy = Lanczos() if policy is None else policy
        check_policy(self.policy)

    @classmethod
    def from_data(cls, prior: GP, X: Float[Tensor, "n d"], num_actions: int, **choices) -> "CaGPCG":
        """CaGP-CG for the rows of ``X``, called like the other methods; ``choices`` go to the class."""
        check_count(num_actions, "num_actions", X.shape[0], "the number of rows of X")
        return cls(prior, num_actions, **choices)

    def iteration(self, X: Inputs | Data, y: Targets | None = None, row_noise: RowNoise = None) -> Iteration:
        """The iterations at the current hyperparameters, with their actions and status."""
        return self._iteration(self.checked(X, y, row_noise))

    def _iteration(self, data: Data) -> Iteration:
        X, y, row_noise = data
        stopping = Stopping(self.num_actions, relative_residual=self.relative_residual)
        options = {"reorthogonalise": True, "max_bytes": self.max_bytes, "check": False}
        return iterate(self.prior, X, y, self.policy, stopping, row_noise, **options)

    def check(self, data: Data) -> None:
        super().check(data)
        check_count(self.num_actions, "num_actions", data.num_rows, "the number of rows of X")

    def terms(self, data: Data, batch: Batch) -> Terms:
        batch.check_all_rows("CaGPCG")
        found = self._iteration(data)
        actions = found.actions if self.policy.orthogonal else found.orthonormal_actions
        return _loss_terms(self.loss, self.prior, actions, data, self.max_bytes)

    @torch.no_grad()
    def posterior(self, data: Data) -> CaGPPosterior:
        return self._iteration(data).posterior()

    def words(self, data: Data) -> str:
        n = data.num_rows
        kept = "kept in memory" if 8 * n * n <= self.max_bytes else "evaluated again for every product"
        tolerance = f" or a residual of {self.relative_residual:g}" if self.relative_residual > 0 else ""
        name = "CaGP-CG" if isinstance(self.policy, Lanczos) else f"CaGP ({type(self.policy).__name__})"
        return f"{name} with {self.num_actions:,} actions{tolerance} on {n:,} rows, loss {self.loss}, k(X, X) {kept}"


def _checked_loss(loss: Loss) -> Loss:
    if loss not in ("elbo", "projected", "loo"):
        raise ValueError(f'loss is {loss!r}, expected "elbo", "projected" or "loo".')
    return loss


def _loss_terms(
    loss: Loss, prior: GP, actions: Actions, data: Data, max_bytes: int, rows: Int[Tensor, " b"] | None = None
) -> Terms:
    """Terms per row whose sum is the loss of these actions, estimated from ``rows``; "projected" uses the support."""
    if loss == "elbo":
        bound = elbo(prior, actions, *data.tensors, max_bytes, rows=rows, check=False)
        terms = {"negative_log_likelihood": -bound.expected_log_likelihood, "kl": bound.kl}
    elif loss == "loo":
        terms = {"loo_nll": leave_one_out_nll(prior, actions, *data.tensors, max_bytes, rows=rows, check=False)}
    else:
        terms = {"projected_nll": projected_nll(prior, actions, *data.tensors, max_bytes, check=False)}
    return {name: term / data.num_rows for name, term in terms.items()}
