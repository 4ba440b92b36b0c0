"""Dense float64 formulas of the paper, in numpy. Of the package they read parameter values and nothing else.

D is the diagonal of the noise covariance, S (n, i) the actions as a matrix, K̂ = K + diag(D).
"""

import math
from typing import NamedTuple

import numpy as np


class Gaussian(NamedTuple):
    """A multivariate normal distribution."""

    mean: np.ndarray
    covariance: np.ndarray

    @property
    def variance(self) -> np.ndarray:
        """The diagonal of the covariance."""
        return np.diag(self.covariance)


class Prediction(NamedTuple):
    """Mean and variance of each row on its own."""

    mean: np.ndarray
    variance: np.ndarray


def array(value) -> np.ndarray:
    """A tensor, array or number as float64."""
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value, dtype=np.float64)


# --- the prior --------------------------------------------------------------------------------------------------------


def _scaled_distance(kernel, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """r[a, b] = sqrt(sum_k ((X[a, k] - Z[b, k]) / l_k)²), by explicit differences."""
    lengthscale = array(kernel.lengthscale)
    squared = np.zeros((len(X), len(Z)))
    for k in range(X.shape[1]):
        squared += ((X[:, None, k] - Z[None, :, k]) / lengthscale[k]) ** 2
    return np.sqrt(squared)


def _angle(kernel, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """The angle between places on the sphere by the haversine formula; degrees are origin + unit * x."""
    origin, unit = array(kernel.origin), array(kernel.unit)
    (lon, lat), (other_lon, other_lat) = (np.radians(origin + unit * points).T for points in (X, Z))
    haversine = (
        np.sin((lat[:, None] - other_lat) / 2) ** 2
        + np.cos(lat)[:, None] * np.cos(other_lat) * np.sin((lon[:, None] - other_lon) / 2) ** 2
    )
    return 2 * np.arcsin(np.sqrt(np.clip(haversine, 0, 1)))


def kernel_matrix(kernel, X, Z) -> np.ndarray:
    """k(X, Z) by the textbook formula of each kernel (Rasmussen and Williams, chapter 4)."""
    X, Z = array(X), array(Z)
    name = type(kernel).__name__
    if name == "Scale":
        return array(kernel.outputscale) * kernel_matrix(kernel.kernel, X, Z)
    if name == "Sum":
        return sum(kernel_matrix(part, X, Z) for part in kernel.parts)
    if name == "Product":
        return math.prod(kernel_matrix(part, X, Z) for part in kernel.parts)
    if name == "Constant":
        return np.full((len(X), len(Z)), float(array(kernel.variance)))
    if name == "Linear":
        variance = array(kernel.variance)
        return sum(variance[k] * np.outer(X[:, k], Z[:, k]) for k in range(X.shape[1]))
    if name == "ActiveDims":
        return kernel_matrix(kernel.kernel, X[:, list(kernel.columns)], Z[:, list(kernel.columns)])
    if name in ("Periodic", "Cosine"):
        period = array(kernel.period) / array(kernel.unit)
        cycles = [(X[:, None, k] - Z[None, :, k]) / period[k] for k in range(X.shape[1])]
        if name == "Cosine":
            return math.prod(np.cos(2 * np.pi * turn) for turn in cycles)
        lengthscale = array(kernel.lengthscale)
        return np.exp(-2 * sum(np.sin(np.pi * turn) ** 2 / lengthscale[k] ** 2 for k, turn in enumerate(cycles)))
    if name == "GreatCircle":
        s = (
            math.sqrt(2 * kernel.smoothness)
            * 2
            * np.sin(_angle(kernel, X, Z) / 2)
            / np.radians(array(kernel.lengthscale))
        )
        return {0.5: 1.0, 1.5: 1 + s, 2.5: 1 + s + s**2 / 3}[kernel.smoothness] * np.exp(-s)
    r = _scaled_distance(kernel, X, Z)
    if name == "RBF":
        return np.exp(-(r**2) / 2)
    if name == "Matern12":
        return np.exp(-r)
    if name == "Matern32":
        return (1 + math.sqrt(3) * r) * np.exp(-math.sqrt(3) * r)
    if name == "Matern52":
        return (1 + math.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-math.sqrt(5) * r)
    if name == "RationalQuadratic":
        alpha = float(array(kernel.alpha))
        return (1 + r**2 / (2 * alpha)) ** -alpha
    raise NotImplementedError(f"no textbook formula for {name}")


def mean_vector(mean, X) -> np.ndarray:
    """m(X)."""
    X = array(X)
    name = type(mean).__name__
    if name == "ZeroMean":
        return np.zeros(len(X))
    if name == "ConstantMean":
        return np.full(len(X), float(array(mean.constant)))
    if name == "LinearMean":
        return X @ array(mean.slope) + float(array(mean.constant))
    raise NotImplementedError(f"no formula for {name}")


def noise_vector(noise, num_rows: int, row_noise=None) -> np.ndarray:
    """D."""
    name = type(noise).__name__
    known = np.zeros(num_rows) if row_noise is None else array(row_noise)
    if name == "GaussianNoise":
        return float(array(noise.noise)) + known
    if name == "KnownNoise":
        return known
    raise NotImplementedError(f"no formula for {name}")


def action_matrix(actions) -> np.ndarray:
    """S (n, i) entry by entry, as the actions store it: any scale of its columns is as good."""
    if type(actions).__name__ == "DenseActions":
        return array(actions.S)
    S = np.zeros((actions.num_rows, actions.num_actions))
    offsets, support, values = actions.offsets.tolist(), actions.support.tolist(), array(actions.values)
    rank = {row: position for position, row in enumerate(sorted(support))}
    for j in range(actions.num_actions):
        for r in range(offsets[j], offsets[j + 1]):
            S[support[r], j] = values[rank[support[r]]]
    return S


class _Terms(NamedTuple):
    K: np.ndarray
    D: np.ndarray
    residual: np.ndarray  # y - m(X)


def _terms(prior, X, y, row_noise) -> _Terms:
    X = array(X)
    D = noise_vector(prior.noise, len(X), row_noise)
    return _Terms(kernel_matrix(prior.kernel, X, X), D, array(y) - mean_vector(prior.mean, X))


# --- posteriors -------------------------------------------------------------------------------------------------------


def exact_posterior(prior, X, y, Z, row_noise=None) -> Gaussian:
    """f(Z) given y: the exact GP."""
    t = _terms(prior, X, y, row_noise)
    cross = kernel_matrix(prior.kernel, Z, X)
    solved = np.linalg.solve(t.K + np.diag(t.D), np.column_stack([t.residual, cross.T]))
    return Gaussian(
        mean_vector(prior.mean, Z) + cross @ solved[:, 0],
        kernel_matrix(prior.kernel, Z, Z) - cross @ solved[:, 1:],
    )


def cagp_posterior(prior, S, X, y, Z, row_noise=None) -> Gaussian:
    """The computation-aware posterior, its approximate precision matrix C = S (SᵀK̂S)⁻¹ Sᵀ written out (n, n)."""
    t = _terms(prior, X, y, row_noise)
    S = _orthonormal(S)
    C = S @ np.linalg.solve(S.T @ (t.K + np.diag(t.D)) @ S, S.T)
    cross = kernel_matrix(prior.kernel, Z, X)
    return Gaussian(
        mean_vector(prior.mean, Z) + cross @ C @ t.residual,
        kernel_matrix(prior.kernel, Z, Z) - cross @ C @ cross.T,
    )


def modified_likelihood_posterior(prior, S, X, y, Z, row_noise=None) -> Gaussian:
    """Lemma S1: f(Z) given ỹ = S'ᵀy under ỹ | f ~ Normal(S'ᵀf(X), S'ᵀDS'), S' orthonormal.

    Conditions the joint of f(Z) and f(X) on a linear observation by the gain form of Gaussian conditioning.
    """
    S = _orthonormal(S)
    both = np.concatenate([array(Z), array(X)])
    t, num_new = len(both), len(array(Z))
    joint = Gaussian(mean_vector(prior.mean, both), kernel_matrix(prior.kernel, both, both))
    observe = np.zeros((S.shape[1], t))
    observe[:, num_new:] = S.T
    noise = S.T @ np.diag(noise_vector(prior.noise, len(array(X)), row_noise)) @ S
    innovation = observe @ joint.covariance @ observe.T + noise
    gain = np.linalg.solve(innovation, observe @ joint.covariance).T
    mean = joint.mean + gain @ (S.T @ array(y) - observe @ joint.mean)
    remain = np.eye(t) - gain @ observe
    covariance = remain @ joint.covariance @ remain.T + gain @ noise @ gain.T
    return Gaussian(mean[:num_new], covariance[:num_new, :num_new])


def spanning(*parts: np.ndarray) -> np.ndarray:
    """Orthonormal columns with the span of all parts together, which may depend on each other."""
    U, singular, _ = np.linalg.svd(np.concatenate(parts, axis=1), full_matrices=False)
    return U[:, singular > 1e-10 * singular[0]]


def question_actions(num_rows: int, neighbours, S=None) -> np.ndarray:
    """S_x = [S, E_N] of one question: the actions that all questions share, and unit vectors at its own rows."""
    rows = [row for row in np.asarray(neighbours).tolist() if row >= 0]
    units = np.eye(num_rows)[:, rows]
    return spanning(units) if S is None else spanning(array(S), units)


def local_posterior(prior, X, y, Z, neighbours, S=None, row_noise=None) -> Prediction:
    """The computation-aware posterior of each row of ``Z`` from actions of its own."""
    X, Z = array(X), array(Z)
    answers = [
        cagp_posterior(prior, question_actions(len(X), rows, S), X, y, z[None], row_noise)
        if S is not None or (np.asarray(rows) >= 0).any()
        else Gaussian(mean_vector(prior.mean, z[None]), kernel_matrix(prior.kernel, z[None], z[None]))
        for z, rows in zip(Z, np.asarray(neighbours), strict=True)
    ]
    return Prediction(np.array([a.mean[0] for a in answers]), np.array([a.variance[0] for a in answers]))


def log_predictive_densities(y, prediction: Prediction, noise: np.ndarray) -> np.ndarray:
    """log Normal(y; mean, variance + noise) of each row."""
    variance = prediction.variance + noise
    return -0.5 * ((array(y) - prediction.mean) ** 2 / variance + np.log(2 * math.pi * variance))


# --- losses -----------------------------------------------------------------------------------------------------------


def log_marginal_likelihood(prior, X, y, row_noise=None) -> float:
    """log p(y) of the exact GP."""
    t = _terms(prior, X, y, row_noise)
    return log_density(t.residual, Gaussian(np.zeros(len(t.residual)), t.K + np.diag(t.D)))


def log_density(value: np.ndarray, p: Gaussian) -> float:
    """log Normal(value; mean, covariance)."""
    sign, log_det = np.linalg.slogdet(p.covariance)
    assert sign > 0
    error = value - p.mean
    return float(-0.5 * (error @ np.linalg.solve(p.covariance, error) + log_det + len(error) * math.log(2 * math.pi)))


class ElboTerms(NamedTuple):
    """E_q[log p(y | f)] and KL(q ‖ p)."""

    expected_log_likelihood: float
    kl: float

    @property
    def value(self) -> float:
        """The evidence lower bound."""
        return self.expected_log_likelihood - self.kl


def elbo(prior, S, X, y, row_noise=None) -> ElboTerms:
    """E_q[log p(y | f)] - KL(q ‖ p) with q the CaGP posterior at the training inputs, both as dense Gaussians."""
    t = _terms(prior, X, y, row_noise)
    q = cagp_posterior(prior, S, X, y, X, row_noise)
    error = array(y) - q.mean
    expected = -0.5 * ((error**2 + q.variance) / t.D + np.log(2 * math.pi * t.D)).sum()
    return ElboTerms(float(expected), whitened_kl(t.K, t.D, t.residual, _orthonormal(S)))


def whitened_kl(K: np.ndarray, D: np.ndarray, residual: np.ndarray, S: np.ndarray) -> float:
    """KL(q ‖ p) in coordinates w of f = m + R w, RRᵀ = K, where p is standard normal: K may be singular.

    Given ỹ = Sᵀ(y - m) = SᵀR w + noise, q is the Bayesian linear regression of ỹ on w.
    """
    eigenvalues, vectors = np.linalg.eigh(K)
    R = vectors * np.sqrt(np.clip(eigenvalues, 0, None))
    A = S.T @ R
    precision = np.eye(len(K)) + A.T @ np.linalg.solve(S.T @ np.diag(D) @ S, A)
    covariance = np.linalg.inv(precision)
    mean = covariance @ A.T @ np.linalg.solve(S.T @ np.diag(D) @ S, S.T @ residual)
    _, log_det = np.linalg.slogdet(covariance)
    return float(0.5 * (np.trace(covariance) + mean @ mean - len(K) - log_det))


def projected_nll(prior, S, X, y, row_noise=None) -> float:
    """-log Normal(S'ᵀy; S'ᵀm, S'ᵀK̂S') with S' the orthonormalised S."""
    t = _terms(prior, X, y, row_noise)
    S = _orthonormal(S)
    p = Gaussian(S.T @ mean_vector(prior.mean, X), S.T @ (t.K + np.diag(t.D)) @ S)
    return -log_density(S.T @ array(y), p)


# --- inducing points --------------------------------------------------------------------------------------------------


def inducing_posterior(prior, Z, q: Gaussian, new) -> Gaussian:
    """f(new) = ∫ p(f(new) | u) q(u) du for q(u), u = f(Z)."""
    Kuu = kernel_matrix(prior.kernel, Z, Z)
    gain = np.linalg.solve(Kuu, kernel_matrix(prior.kernel, Z, new)).T
    return Gaussian(
        mean_vector(prior.mean, new) + gain @ (q.mean - mean_vector(prior.mean, Z)),
        kernel_matrix(prior.kernel, new, new) - gain @ (Kuu - q.covariance) @ gain.T,
    )


def inducing_kernel(prior, Z, A, B) -> np.ndarray:
    """Q(A, B) = k(A, Z) k(Z, Z)⁻¹ k(Z, B), the covariance that inducing points at Z explain."""
    Kuu = kernel_matrix(prior.kernel, Z, Z)
    return kernel_matrix(prior.kernel, A, Z) @ np.linalg.solve(Kuu, kernel_matrix(prior.kernel, Z, B))


def best_inducing_values(prior, Z, X, y, row_noise=None) -> Gaussian:
    """The q(u) that maximises the bound: u given y under y ~ Normal(m + Kfu Kuu⁻¹ (u - m(Z)), D) (Titsias, eq. 10)."""
    t = _terms(prior, X, y, row_noise)
    Kuu, Kuf = kernel_matrix(prior.kernel, Z, Z), kernel_matrix(prior.kernel, Z, X)
    precision = Kuu + Kuf @ np.diag(1 / t.D) @ Kuf.T
    return Gaussian(
        mean_vector(prior.mean, Z) + Kuu @ np.linalg.solve(precision, Kuf @ (t.residual / t.D)),
        Kuu @ np.linalg.solve(precision, Kuu),
    )


def collapsed_bound(prior, Z, X, y, row_noise=None) -> float:
    """log Normal(y; m, Q + D) - ½ tr(D⁻¹(K - Q)), Q = Kfu Kuu⁻¹ Kuf, written out (n, n) (Titsias, eq. 9)."""
    t = _terms(prior, X, y, row_noise)
    Kuf = kernel_matrix(prior.kernel, Z, X)
    Q = Kuf.T @ np.linalg.solve(kernel_matrix(prior.kernel, Z, Z), Kuf)
    trace = (np.diag(t.K - Q) / t.D).sum()
    return log_density(t.residual, Gaussian(np.zeros(len(t.D)), Q + np.diag(t.D))) - 0.5 * float(trace)


def uncollapsed_bound(prior, Z, q: Gaussian, X, y, row_noise=None) -> ElboTerms:
    """E_q[log p(y | f)] - KL(q(u) ‖ p(u)) for any q(u)."""
    t = _terms(prior, X, y, row_noise)
    f = inducing_posterior(prior, Z, q, X)
    expected = -0.5 * (((array(y) - f.mean) ** 2 + f.variance) / t.D + np.log(2 * math.pi * t.D)).sum()
    Kuu, error = kernel_matrix(prior.kernel, Z, Z), q.mean - mean_vector(prior.mean, Z)
    trace = np.trace(np.linalg.solve(Kuu, q.covariance)) + error @ np.linalg.solve(Kuu, error)
    log_dets = np.linalg.slogdet(Kuu)[1] - np.linalg.slogdet(q.covariance)[1]
    return ElboTerms(float(expected), float(0.5 * (trace - len(Kuu) + log_dets)))


# --- information and worst cases --------------------------------------------------------------------------------------


def entropy(covariance: np.ndarray) -> float:
    """The entropy of a multivariate normal distribution, in nats."""
    sign, log_det = np.linalg.slogdet(covariance)
    assert sign > 0
    return float(0.5 * (log_det + len(covariance) * math.log(2 * math.pi * math.e)))


def mutual_information(prior, S, X, row_noise=None) -> float:
    """I(f(X); Sᵀy) = H(Sᵀy) - H(Sᵀy | f(X))."""
    X = array(X)
    t = _terms(prior, X, np.zeros(len(X)), row_noise)
    S = _orthonormal(S)
    return entropy(S.T @ (t.K + np.diag(t.D)) @ S) - entropy(S.T @ np.diag(t.D) @ S)


def noisy_gram(prior, points) -> np.ndarray:
    """The Gram matrix of k(x, z) + noise · [x = z] over distinct points."""
    points = array(points)
    return kernel_matrix(prior.kernel, points, points) + float(array(prior.noise.noise)) * np.eye(len(points))


def _orthonormal(S) -> np.ndarray:
    """Orthonormal columns with the span of S, whatever their scale."""
    S = array(S)
    largest = np.abs(S).max(0)
    S = S / largest
    return np.linalg.qr(S)[0]
