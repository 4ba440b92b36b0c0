"""Checks for posteriors and methods of your own: what every one in this package has to satisfy.

``check_posterior(posterior, X)`` and ``check_method(method, X, y)`` raise AssertionError with the first property that
does not hold, and return nothing. They need no test framework.
"""

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.methods.base import Method
from cagp.posteriors import Posterior, Prediction
from cagp.training import Batch, Trainable

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4}
"""Differences that are round-off, relative and absolute, by the dtype of the data."""

NUM_SAMPLES = 4000
DIFFERENCE_STEP = 1e-5


# ---- posteriors ----


def check_posterior(
    posterior: Posterior,
    X: Float[Tensor, "t d"],
    *,
    exact: Posterior | None = None,
    tolerance: float | None = None,
    seed: int = 0,
) -> None:
    """Raise AssertionError unless the answers of a posterior fit together at the test points ``X``.

    Mean and variance, for all points and for each alone; covariances, symmetric and positive semi-definite; tiles;
    dtypes; gradients in the inputs, for float64; noise; samples; errors for inputs that do not fit. The answers must be
    the same when computed again, and the posterior must not change.

    Args:
        X: at least five test points, near the data and far from them, in the dtype of the training inputs.
        exact: the exact posterior with the same prior and data, e.g. of ``CholeskyGP``. If given, and if the posterior
            claims ``never_below_exact``, its covariance minus the exact one must be positive semi-definite.
        tolerance: what counts as round-off; None for ``TOLERANCE``.
        seed: of the samples and of the direction in which gradients are checked.
    """
    _require(len(X) >= 5, f"X has {len(X)} rows, expected at least five test points.")
    tolerance = TOLERANCE[X.dtype] if tolerance is None else tolerance
    trained = ", ".join(name for name, p in posterior.prior.named_parameters() if p.requires_grad)
    _require(not trained, f"the prior of the posterior can still be trained ({trained}); expected a snapshot.")
    inputs = X.clone()
    _check_kinds(posterior, X, seed)
    _check_moments(posterior, X, tolerance)
    _check_covariance(posterior, X, tolerance)
    _check_noise(posterior, X, tolerance)
    _check_samples(posterior, X, tolerance, seed)
    _check_refusals(posterior, X)
    if X.dtype == torch.float64:
        _check_input_gradients(posterior, X[:4], seed)
    _require(torch.equal(X, inputs), "asking for answers changed the test points.")
    if exact is not None and posterior.never_below_exact:
        check_never_below(posterior, exact, X, tolerance)


def check_never_below(posterior: Posterior, exact: Posterior, X: Float[Tensor, "t d"], tolerance: float = 1e-9) -> None:
    """Raise AssertionError unless the covariance of ``posterior`` minus that of ``exact`` is positive semi-definite."""
    excess = (posterior.covariance(X) - exact.covariance(X)).double()
    smallest = float(torch.linalg.eigvalsh((excess + excess.mT) / 2)[0])
    below = float((exact.variance(X) - posterior.variance(X)).max())
    for found, of in ((-smallest, "the variance of a combination of test points"), (below, "the variance")):
        words = f"the posterior says that its variance is never below the exact one, but {of} is smaller by {found:.3g}"
        _require(found <= tolerance, f"{words} (allowed: {tolerance:.0e}).")


def _check_moments(posterior: Posterior, X: Tensor, tolerance: float) -> None:
    first = posterior.predict(X)
    _same_predictions(first, posterior.predict(X), "predict gives another {} when it is called again.")
    _require(float(first.variance.min()) >= 0, f"the variance is negative: {float(first.variance.min()):.3g}.")
    _close(posterior.mean(X), first.mean, tolerance, "mean and the mean of predict differ")
    _require(torch.equal(posterior.variance(X), first.variance), "variance and the variance of predict differ.")
    alone = Prediction(*map(torch.cat, zip(*(posterior.predict(row[None]) for row in X), strict=True)))
    _same_predictions(alone, first, "the {} of a test point depends on the other test points", tolerance)
    variances = torch.cat([posterior.covariance(row[None])[0] for row in X])
    _close(variances, first.variance, tolerance, "the variance is not the covariance of a test point with itself")
    tiled = copy.copy(posterior)
    tiled.max_bytes = 4 * 8 * 2 * posterior._width  # two rows
    words = "the {} depends on max_bytes, that is, on how test points are cut into tiles"
    _same_predictions(tiled.predict(X), first, words, tolerance)


def _check_covariance(posterior: Posterior, X: Tensor, tolerance: float) -> None:
    C = posterior.covariance(X)
    _require(torch.equal(C, C.mT), "the covariance is not symmetric.")
    eigenvalues = torch.linalg.eigvalsh(C.double())
    words = f"{eigenvalues[0]:.3g} to {eigenvalues[-1]:.3g}, expected a positive semi-definite one."
    _require(bool(eigenvalues[0] >= -tolerance * eigenvalues[-1]), f"the covariance has eigenvalues from {words}")
    excess = float((C.diagonal() - posterior.variance(X)).max())
    words = f"the diagonal of a joint covariance exceeds the variance of test points alone by up to {excess:.3g}."
    _require(excess <= tolerance, words)
    _close(posterior.covariance(X[:2], X[2:]), C[:2, 2:], tolerance, "covariance(X, Z) is not a block of the whole")
    _close(posterior.covariance(X[2:], X[:2]), C[2:, :2], tolerance, "covariance(Z, X) is not a block of the whole")


def _check_kinds(posterior: Posterior, X: Tensor, seed: int) -> None:
    draws, t = posterior.sample(X, 2, generator=torch.Generator().manual_seed(seed)), len(X)
    of_points = {"mean": posterior.mean(X)} | {f"{k} of predict": v for k, v in posterior.predict(X)._asdict().items()}
    for name, answer in (of_points | {"covariance": posterior.covariance(X), "sample": draws}).items():
        shape = {"covariance": (t, t), "sample": (2, t)}.get(name, (t,))
        _require(answer.shape == shape, f"{name} has shape {tuple(answer.shape)}, expected {shape}.")
        words = f"{name} is {answer.dtype} on {answer.device}, expected the inputs' {X.dtype} on {X.device}."
        _require((answer.dtype, answer.device) == (X.dtype, X.device), words)
        _require(bool(torch.isfinite(answer).all()), f"{name} has NaN or infinite values.")


def _check_noise(posterior: Posterior, X: Tensor, tolerance: float) -> None:
    row_noise = torch.linspace(0.1, 1, len(X), dtype=X.dtype, device=X.device)
    scale = posterior.scale(X)
    learned = posterior.prior.noise.learned(X).detach()
    expected = (learned if scale is None else scale * learned) + row_noise.double()
    plain, noisy = posterior.predict(X), posterior.predict(X, noise=True, row_noise=row_noise)
    _require(torch.equal(plain.mean, noisy.mean), "noise=True changes the mean.")
    difference = noisy.variance.double() - plain.variance
    _close(difference, expected, tolerance, "noise=True does not add learned and known noise to the variance")
    difference = posterior.covariance(X, noise=True, row_noise=row_noise).double() - posterior.covariance(X)
    _close(difference, torch.diag(expected), tolerance, "noise=True does not add noise to the covariance's diagonal")
    _raises(lambda: posterior.predict(X, row_noise=row_noise), "predict with row_noise, but without noise=True,")
    _raises(lambda: posterior.covariance(X, row_noise=row_noise), "covariance with row_noise, but without noise=True,")
    _raises(lambda: posterior.covariance(X, X, noise=True), "covariance of two sets of test points with noise=True")


def _check_samples(posterior: Posterior, X: Tensor, tolerance: float, seed: int) -> None:
    draws = [posterior.sample(X, NUM_SAMPLES, generator=torch.Generator().manual_seed(seed)) for _ in range(2)]
    _require(torch.equal(*draws), "samples with the same generator differ.")
    C = posterior.covariance(X).double()
    scale = float(C.diagonal().max()) + tolerance
    mean, covariance = draws[0].double().mean(0), draws[0].double().mT.cov()
    joint = posterior._joint_mean(X).double()
    _close(mean, joint, 5 * math.sqrt(scale / NUM_SAMPLES), "samples have a different mean")
    _close(covariance, C, 8 * scale / math.sqrt(NUM_SAMPLES), "samples have a different covariance")


def _check_refusals(posterior: Posterior, X: Tensor) -> None:
    other = torch.float32 if X.dtype == torch.float64 else torch.float64
    wrong = {"another dtype": X.to(other), "NaN": X * torch.nan, "one more column": torch.cat([X, X[:, :1]], 1)}
    for words, inputs in wrong.items():
        for name, more in (("predict", ()), ("mean", ()), ("covariance", ()), ("sample", (1,))):
            _raises(partial(getattr(posterior, name), inputs, *more), f"{name} of inputs with {words}")


def _check_input_gradients(posterior: Posterior, X: Tensor, seed: int) -> None:
    def answers(at: Tensor) -> dict[str, Tensor]:
        mean, variance = posterior.predict(at)
        joint = posterior.covariance(at)[0, 1:]
        return {"mean of predict": mean, "variance": variance, "mean": posterior.mean(at), "covariance": joint}

    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(X.shape, generator=generator, dtype=X.dtype).to(X.device)
    inputs = X.clone().requires_grad_()
    above, below = answers(X + DIFFERENCE_STEP * direction), answers(X - DIFFERENCE_STEP * direction)
    for name, value in answers(inputs).items():
        _require(value.requires_grad, f"the {name} is not differentiable in the inputs.")
        (gradient,) = torch.autograd.grad(value.sum(), inputs, retain_graph=True)
        difference = float((above[name] - below[name]).sum().detach())
        _check_slope(gradient, direction, difference, 1e-4, f"of the {name} in the inputs")


# ---- methods ----


def check_method(
    method: Trainable,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, "n *q"],
    row_noise: Float[Tensor, "n *q"] | None = None,
    *,
    gradients: bool = True,
    tolerance: float = 1e-5,
    seed: int = 0,
) -> None:
    """Raise AssertionError unless the objective of a method is a pure function with the gradient that it says.

    Evaluating the objective twice gives the same number and changes nothing, on all rows and on a minibatch; the terms
    add up; the rows of a step are a pure function of the step; gradients agree with finite differences; conditioning
    changes nothing, and later changes of the method do not change a posterior.

    Args:
        X: a few dozen rows in float64.
        gradients: False for an objective whose gradient is, on purpose, not its derivative, such as that of ``CaGPCG``
            (its actions count as constants) and ``CGGP`` (an unbiased estimate).
        tolerance: of gradients against finite differences, relative.
        seed: of the directions in which gradients are checked.
    """
    data, copies = (X, y, row_noise), [None if t is None else t.clone() for t in (X, y, row_noise)]
    checked = method.checked(*data)
    before = _snapshot(method)
    batches = {step: method.rows(step, len(X)).drawn for step in (0, 7)}
    for step, rows in batches.items():
        same = _same(rows, method.rows(step, len(X)).drawn)
        _require(same, f"rows({step}, {len(X)}) gives other rows when it is called again.")
    _check_groups(method)
    for rows in [None, *(rows for rows in batches.values() if rows is not None)]:
        of = "all rows" if rows is None else "a minibatch"
        value = _value(method, data, rows)
        _require(math.isfinite(value), f"the objective of {of} is {value}, expected a finite number.")
        total = torch.stack(list(method.terms(checked, Batch(rows)).values())).sum().item()
        _require(total == value, f"the terms of {of} add up to {total!r}, objective says {value!r}.")
        _require(_value(method, data, rows) == value, f"the objective of {of} is another number when evaluated again.")
        if gradients:
            _check_parameter_gradients(method, data, rows, tolerance, seed)
    _unchanged(before, method, "evaluating the objective")
    _require(all(isinstance(line, str) for line in method.findings(checked)), "findings is not a list of text.")
    if isinstance(method, Method):
        _check_condition(method, X, y, row_noise)
        _unchanged(before, method, "condition")
    for name, values, kept in zip(("X", "y", "row_noise"), data, copies, strict=True):
        _require(_same(values, kept), f"the method changed {name}.")


def _check_groups(method: Trainable) -> None:
    groups = method.parameter_groups()
    listed = [parameter for group in groups.values() for parameter in group.parameters]
    names, own = {id(p) for p in listed}, {id(p) for p in method.parameters()}
    _require(len(names) == len(listed), "parameter_groups names a parameter twice.")
    _require(names <= own, "parameter_groups names a parameter that is not the method's own.")
    _require(all(p.requires_grad for p in listed), "parameter_groups names a parameter with requires_grad=False.")
    for name, (_, lr) in groups.items():
        _require(0 < lr < math.inf, f"the learning rate of {name!r} is {lr}, expected a positive number.")


def _check_parameter_gradients(
    method: Trainable, data: Sequence[Any], rows: Tensor | None, tolerance: float, seed: int
) -> None:
    names = {id(p): name for name, p in method.named_parameters()}
    parameters = [p for group in method.parameter_groups().values() for p in group.parameters]
    gradients = torch.autograd.grad(method.objective(*data, rows=rows), parameters, allow_unused=True)
    generator = torch.Generator().manual_seed(seed)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter)
        kept, values = parameter.data, []
        try:
            for sign in (1, -1):
                parameter.data = kept + sign * DIFFERENCE_STEP * direction
                values.append(_value(method, data, rows))
        finally:
            parameter.data = kept
        _check_slope(gradient, direction, values[0] - values[1], tolerance, f"in {names[id(parameter)]!r}")


def _check_condition(method: Method, X: Tensor, y: Tensor, row_noise: Tensor | None) -> None:
    points = X[:3] + 0.1 * (X[3:4] - X[:3])
    first, again = (method.condition(X, y, row_noise).predict(points) for _ in range(2))
    _same_predictions(first, again, "condition gives a posterior with another {} when it is called again.")
    twin = copy.deepcopy(method)
    posterior, ones = twin.condition(X, y, row_noise), torch.ones_like(points[:, 0])
    before = posterior.predict(points, noise=True, row_noise=ones)
    with torch.no_grad():
        for tensor in (*twin.parameters(), *twin.buffers()):
            if tensor.is_floating_point():
                tensor += 0.1
    after = posterior.predict(points, noise=True, row_noise=ones)
    _same_predictions(before, after, "the {} of a posterior changes with the method; expected a snapshot.")


def _value(method: Trainable, data: Sequence[Any], rows: Tensor | None) -> float:
    with torch.no_grad():
        return float(method.objective(*data, rows=rows))


def _snapshot(method: Trainable) -> dict[str, Any]:
    """Every tensor of a method by value, and its plain attributes."""
    tensors = {name: value.detach().clone() for name, value in method.state_dict().items()}
    plain = {
        f"{name}.{key}".lstrip("."): value
        for name, part in method.named_modules()
        for key, value in vars(part).items()
        if value is None or isinstance(value, int | float | str | tuple)
    }
    return tensors | plain


def _unchanged(before: dict[str, Any], method: Trainable, what: str) -> None:
    after = _snapshot(method)
    changed = [name for name in before | after if not _same(before.get(name, ...), after.get(name, ...))]
    _require(not changed, f"{what} changed {', '.join(changed)} of the method; expected it to change nothing.")


# ---- what both use ----


def _check_slope(gradient: Tensor | None, direction: Tensor, difference: float, tolerance: float, of: str) -> None:
    """Compare a gradient with what changed over two steps along a direction."""
    slope = difference / (2 * DIFFERENCE_STEP)
    along = 0.0 if gradient is None else float((gradient * direction).sum())
    words = f"the gradient {of} is {along:.8g} along a direction, finite differences say {slope:.8g}."
    _require(abs(along - slope) <= tolerance * (abs(slope) + 1e-3), words)


def _same_predictions(first: Prediction, second: Prediction, words: str, tolerance: float = 0.0) -> None:
    for name, a, b in zip(Prediction._fields, first, second, strict=True):
        _close(a, b, tolerance, words.format(name))


def _same(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b


def _require(holds: bool, words: str) -> None:
    if not holds:
        raise AssertionError(words)


def _close(actual: Tensor, expected: Tensor, tolerance: float, words: str) -> None:
    a, b = actual.double(), expected.double()
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=lambda details: f"{words}. {details}")


def _raises(call: Callable[[], Any], what: str) -> None:
    try:
        call()
    except ValueError:
        return
    raise AssertionError(f"{what} returned a value, expected a ValueError.")
