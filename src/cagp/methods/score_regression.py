"""Classes as a regression on scores: hyperparameters that give left-out labels the highest probability.

The functions f_c have known prior means m_c, the log odds of the classes or those of trees, and share one kernel. The
score of a row, s_c = d log p(y | f) / df_c at f = m, says in which direction its label pulls each function. What is
left of f is learned by a Gaussian regression on Δ s_c with noise variance σ² / weight, the same for all functions:

    f_c(x) = m_c(x) + Δ k(x, N) C⁻¹ s_c        C = k(N, N) + diag(σ² / weight)
    variance of each: k(x, x) - k(x, N) C⁻¹ k(N, x)

With Δ = σ² = 1/w these are Newton's sites of precision w at the prior mean. Here the step Δ, the noise σ² and the
kernel are learned together: they minimise -log ∫ p(y_r | f) q(f) df with q(f) the prediction of row r from its nearest
others. One factorisation serves all functions, and nothing is iterated to convergence.
"""

from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.dataset import Data
from cagp.engine import local_moments
from cagp.likelihoods import ClassLikelihood
from cagp.local_inference import local_weights
from cagp.methods.base import trained
from cagp.methods.cagp_local import CaGPLocal
from cagp.parameters import Positive, named_values
from cagp.prior import GP, GaussianNoise
from cagp.training import Batch, Coming, ParameterGroup, StepRows, Trainable
from cagp.training.trainable import Terms

Functions = Float[Tensor, "n q"]
Values = Float[Tensor, " n"]

PRIOR_STD = 1.0
"""Logarithms of hyperparameters have a normal prior about their start, with this standard deviation. It keeps the
left-out loss of a hundred rows from being fitted by chance, and fades with thousands."""


@final
class ScoreRegression(Trainable):
    """The hyperparameters of functions that classify, learned by predicting the label of each row from other rows.

    Args:
        local: how rows are drawn and their neighbours found; its prior has zero mean and ``GaussianNoise``.
        offset: m_c at each row.
        weight: of each row in the log likelihood; None for one each.
        step: where Δ starts.
    """

    step: Positive = Positive()
    offset: Tensor
    weight: Tensor

    def __init__(
        self,
        local: CaGPLocal,
        likelihood: ClassLikelihood,
        offset: Functions,
        weight: Values | None = None,
        step: float = 5.0,
    ):
        super().__init__()
        if not isinstance(local.prior.noise, GaussianNoise) or local.shared is not None:
            raise ValueError("local has another noise than GaussianNoise, or shared actions; make it without both.")
        self.local, self.likelihood, self.step = local, likelihood, step
        weight = torch.ones(len(offset)) if weight is None else weight
        constants = {"offset": offset.double().contiguous(), "weight": weight.double()}
        constants |= {f"start_{name}": parameter.detach().clone() for name, parameter in self._learned().items()}
        for name, values in constants.items():  # no part of a checkpoint: nothing changes them
            self.register_buffer(name, values, persistent=False)

    @property
    def prior(self) -> GP:
        """Kernel and noise of the functions without their prior means."""
        return self.local.prior

    def _learned(self) -> dict[str, Tensor]:
        parts = {**dict(self.local.prior.named_parameters()), "step": self.get_parameter("raw_step")}
        return {name.replace(".", "_"): p for name, p in parts.items() if p.requires_grad}

    def check(self, data: Data) -> None:
        """Raise ValueError unless there is a column of zeros and ones for each function."""
        y = data.y
        if data.row_noise is not None:
            raise ValueError("row_noise is given, but labels have no noise of their own; pass weights instead.")
        if y.shape != self.offset.shape:
            raise ValueError(f"y has shape {tuple(y.shape)}, expected {tuple(self.offset.shape)}, that of the offset.")
        if not bool(((y == 0) | (y == 1)).all()):
            raise ValueError("y has values other than 0 and 1; code the class of each row by zeros and ones.")

    def targets(self, y: Functions) -> Functions:
        """Δ s_c of all rows: what the regression is on."""
        return self.step.detach() * self.likelihood.score(y.double(), self.offset)

    def row_noise(self) -> Values:
        """The noise variance σ² / weight of each row."""
        return self._noise().detach() / self.weight

    def _noise(self) -> Tensor:
        noise = self.prior.noise
        assert isinstance(noise, GaussianNoise)
        return noise.noise

    def terms(self, data: Data, batch: Batch) -> Terms:
        """The weighted mean of -log ∫ p(y_r | f) q(f) df over the batch, and "log_prior" of the hyperparameters."""
        k = self.local.num_neighbours
        tile = max(1, self.local.max_bytes // (8 * 8 * k * (k + 8 + 4 * self.offset.shape[1])))
        total, weight = torch.zeros(2, dtype=torch.float64, device=data.X.device)
        for rows, near in self.local.tiles(data, batch, tile):
            total, weight = total + self._loss(data.X, data.y, rows, near), weight + self.weight[rows].sum()
        away = [(p - getattr(self, f"start_{name}")).square().sum() for name, p in self._learned().items()]
        return {
            "left_out_log_loss": total / weight,
            "log_prior": torch.stack(away).sum() / (2 * PRIOR_STD**2 * data.num_rows),
        }

    def _loss(self, X: Tensor, y: Tensor, rows: Tensor, near: Tensor) -> Tensor:
        """The loss of some rows, summed; two sweeps, however many functions there are.

        The first sweep gives the weights of the neighbours, and with them all means, the loss L, and its slopes g_c in
        the means and h in the variance. Σ_c g_c mean_c is the mean of the single target Σ_c g_c s_c. With g and h held
        fixed, the second sweep differentiates that mean and the variance in the hyperparameters, which is ∂L.
        """
        own, flat = X[rows], near.clamp_min(0)
        noise = self._noise() / self.weight[flat]
        scores = self.likelihood.score(y[flat].double(), self.offset[flat])  # (t, k, q)
        weights, variance = local_weights(self.prior, X, noise.detach(), own, near)
        mean = self.step.detach() * (weights[:, None, :] @ scores)[:, 0] + self.offset[rows]
        with torch.enable_grad():
            mean, variance = mean.requires_grad_(True), variance.requires_grad_(True)
            loss = self.weight[rows] @ self.likelihood.row_loss(y[rows].double(), mean, variance)
            of_mean, of_variance = torch.autograd.grad(loss, (mean, variance))
        single = (scores @ of_mean[:, :, None])[:, :, 0]
        found = local_moments(self.prior.kernel, own, X, near, noise, single)
        left = self.prior.kernel.diag(own.double()) - found.explained
        change = self.step * found.mean.sum() + of_variance @ left
        return loss.detach() + change - change.detach()

    def rows(self, step: int, num_rows: int) -> StepRows:
        return self.local.rows(step, num_rows)._replace(divisible=False)

    def before_step(self, data: Data, coming: Coming) -> Batch:
        return self.local.before_step(data, coming)

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        return {"hyperparameters": trained(self, lr=0.1)}

    def hyperparameters(self) -> dict[str, Any]:
        return {**named_values(self.prior), "step": self.step.item()}

    def findings(self, data: Data, input_names: tuple[str, ...] | None = None) -> list[str]:
        rest = self.offset.shape[1]
        functions = "one function" if rest == 1 else f"{rest} functions with one kernel"
        found = self.local.findings(data.with_targets(self.targets(data.y)[:, 0]), input_names)
        step, noise = self.step.item(), self._noise().item()
        return [
            f"{type(self.likelihood).__name__} likelihood of {functions}, learned by left-out labels: each label "
            f"counts as a step of {step:.3g} along its score, with noise variance {noise:.3g}.",
            *found,
        ]
