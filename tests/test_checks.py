"""Wrong arguments are ValueErrors that name the argument; the Cholesky says what it did; row moments have gradients."""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cagp import GP, CaGPOpt, GaussianNoise, KnownNoise, LinearMean, elbo
from cagp.actions import BlockActions, DenseActions, spatial_blocks
from cagp.dataset import Data
from cagp.kernels import RBF, Matern32, Scale
from cagp.linalg import JitterWarning, NotPositiveDefiniteError, row_moments, safe_cholesky
from cagp.losses import projected_nll
from cagp.posteriors import CaGPPosterior
from cagp.projection import project

N, D = 8, 2


def data() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(N, D, generator=g), torch.randn(N, generator=g)


def method() -> CaGPOpt:
    return CaGPOpt.from_data(GP(Matern32(D)), data()[0], 3)


def entrances():
    """Everything that takes data: name and a function of X, y, row_noise."""
    m = method()
    return {
        "objective": m.objective,
        "condition": m.condition,
        "elbo": lambda *a: elbo(m.prior, m.actions, *a),
        "projected_nll": lambda *a: projected_nll(m.prior, m.actions, *a),
        "project": lambda *a: project(m.prior, m.actions, *a),
    }


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize("entrance", entrances())
class TestTrainingData:
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("name", ["X", "y", "row_noise"])
    def test_values_that_are_not_finite(self, entrance, name, bad):
        X, y = data()
        arguments = {"X": X, "y": y, "row_noise": torch.ones(N)}
        arguments[name].view(-1)[5] = bad
        index = [2, 1] if name == "X" else [5]
        message = re.escape(f"{name} has 1 NaN or infinite values (first at index {index})")
        with pytest.raises(ValueError, match=message):
            entrances()[entrance](*arguments.values())

    @pytest.mark.parametrize("name", ["X", "y", "row_noise"])
    def test_arguments_that_are_no_tensors(self, entrance, name):
        X, y = data()
        arguments = {"X": X, "y": y, "row_noise": torch.ones(N)}
        for wrong, kind in ((arguments[name].numpy(), "ndarray"), (arguments[name].tolist(), "list")):
            arguments[name] = wrong
            with pytest.raises(ValueError, match=f"{name} is a {kind}, expected a torch tensor"):
                entrances()[entrance](*arguments.values())

    def test_shapes_that_do_not_fit(self, entrance):
        X, y = data()
        call = entrances()[entrance]
        with pytest.raises(ValueError, match=r"X has shape \(8,\), expected 2 dimensions"):
            call(X[:, 0], y)
        with pytest.raises(ValueError, match=r"X has shape \(0, 2\), expected at least one row and one column"):
            call(X[:0], y[:0])
        with pytest.raises(ValueError, match=r"X has shape \(8, 0\), expected at least one row and one column"):
            call(X[:, :0], y)
        with pytest.raises(ValueError, match=r"y has shape \(7,\), expected \(8,\): one value per row of X"):
            call(X, y[:7])
        with pytest.raises(ValueError, match=r"y has shape \(8, 1\), expected \(8,\)"):
            call(X, y[:, None])
        with pytest.raises(ValueError, match=r"row_noise has shape \(1,\), expected \(8,\)"):
            call(X, y, torch.ones(1))

    def test_dtypes_that_do_not_fit(self, entrance):
        X, y = data()
        call = entrances()[entrance]
        with pytest.raises(ValueError, match=r"y has dtype torch\.float64, X has torch\.float32"):
            call(X, y.double())
        with pytest.raises(ValueError, match=r"row_noise has dtype torch\.float64, X has torch\.float32"):
            call(X, y, torch.ones(N).double())
        with pytest.raises(ValueError, match=r"X has dtype torch\.int64, expected a floating-point one"):
            call(X.long(), y)
        with pytest.raises(ValueError, match=r"y has dtype torch\.int64, expected a floating-point one"):
            call(X, y.long())

    def test_negative_noise(self, entrance):
        X, y = data()
        row_noise = torch.ones(N)
        row_noise[:2] = torch.tensor([-0.5, -0.25])
        with pytest.raises(ValueError, match=r"row_noise has 2 negative values \(smallest -0\.5\)"):
            entrances()[entrance](X, y, row_noise)

    def test_another_number_of_columns(self, entrance):
        X, y = data()
        with pytest.raises(ValueError, match="X has 3 columns, the Matern32 kernel was made for num_dims = 2"):
            entrances()[entrance](torch.cat([X, X[:, :1]], 1), y)


@pytest.mark.usefixtures("annotations_off")
class TestNewInputs:
    @pytest.fixture
    def posterior(self) -> CaGPPosterior:
        return method().condition(*data())

    @pytest.fixture(params=["mean", "variance", "predict", "covariance", "sample"])
    def ask(self, posterior, request):
        function = getattr(posterior, request.param)
        return (lambda X: function(X, 2)) if request.param == "sample" else function

    def test_wrong_new_inputs(self, ask):
        X = data()[0]
        with pytest.raises(ValueError, match="X has 1 columns, the training inputs had 2"):
            ask(X[:, :1])
        with pytest.raises(ValueError, match=r"X has dtype torch\.float64, the training inputs has torch\.float32"):
            ask(X.double())
        with pytest.raises(ValueError, match=r"X has shape \(2,\), expected 2 dimensions"):
            ask(X[0])
        with pytest.raises(ValueError, match="X has 16 NaN or infinite values"):
            ask(X * math.nan)
        with pytest.raises(ValueError, match="X is a ndarray, expected a torch tensor"):
            ask(X.numpy())

    def test_checked_data_answer_like_their_inputs_and_must_fit_the_model(self, posterior):
        X, y = data()
        for one, other in zip(posterior.predict(Data(X, y)), posterior.predict(X), strict=True):
            assert torch.equal(one, other)
        with pytest.raises(ValueError, match="X has 1 columns, the training inputs had 2"):
            posterior.predict(Data(X[:, :1], y))
        with pytest.raises(ValueError, match=r"X has dtype torch\.float64, the training inputs has torch\.float32"):
            posterior.predict(Data(X.double(), y.double()))

    def test_wrong_second_inputs(self, posterior):
        X = data()[0]
        with pytest.raises(ValueError, match="Z has 1 columns, the training inputs had 2"):
            posterior.covariance(X, X[:, :1])
        with pytest.raises(ValueError, match="Z has 1 NaN or infinite values"):
            posterior.covariance(X, torch.tensor([[0.0, math.inf]]))

    def test_wrong_row_noise(self, posterior):
        X = data()[0]
        for ask in (posterior.predict, posterior.variance, posterior.covariance):
            with pytest.raises(ValueError, match=r"row_noise has shape \(7,\), expected \(8,\)"):
                ask(X, noise=True, row_noise=torch.ones(7))
            with pytest.raises(ValueError, match="row_noise has 8 negative values"):
                ask(X, noise=True, row_noise=-torch.ones(N))


@pytest.mark.usefixtures("annotations_off")
class TestConstruction:
    @pytest.mark.parametrize("noise", [0.0, -0.1, 1e-6, math.nan])
    def test_a_noise_variance_at_or_below_its_floor(self, noise):
        with pytest.raises(ValueError, match=r"noise is .*, expected finite values above 1e-06"):
            GaussianNoise(noise)

    @pytest.mark.parametrize("floor", [-1.0, math.nan, math.inf])
    def test_an_impossible_noise_floor(self, floor):
        with pytest.raises(ValueError, match=r"noise_floor is .*, expected a finite number, zero or above"):
            GaussianNoise(0.1, noise_floor=floor)

    def test_inputs_and_actions_that_are_not_finite(self):
        bad = torch.tensor([[1.0], [math.nan]])
        for build in (DenseActions, lambda S: BlockActions.from_data(S, 1), lambda X: spatial_blocks(X, 1)):
            with pytest.raises(ValueError, match=r"[SX] has 1 NaN or infinite values"):
                build(bad)

    def test_whole_numbers_of_numpy_are_whole_numbers(self):
        assert BlockActions.from_data(data()[0], np.int64(3)).num_actions == 3

    def test_a_mean_function_made_for_other_columns(self):
        X, y = data()
        m = CaGPOpt(GP(Matern32(D), LinearMean(3)), BlockActions.from_data(X, 2))
        with pytest.raises(ValueError, match="columns"):
            m.objective(X, y)


# --- positive parameters ----------------------------------------------------------------------------------------------


@given(st.floats(1e-12, 1e12), st.sampled_from([0.0, 1e-6]))
def test_a_positive_parameter_reads_as_it_was_set(value, floor):
    noise = GaussianNoise(value + 2 * floor, noise_floor=floor)
    assert math.isclose(noise.noise.item(), value + 2 * floor, rel_tol=1e-11)
    noise.noise = value + 3 * floor
    assert math.isclose(noise.noise.item(), value + 3 * floor, rel_tol=1e-11)


def test_setting_a_parameter_keeps_the_one_an_optimiser_holds():
    kernel = Scale(RBF(2))
    held = dict(kernel.named_parameters())
    kernel.outputscale = 3.0
    kernel.kernel.lengthscale = torch.tensor([0.5, 4.0])
    assert all(held[name] is parameter for name, parameter in kernel.named_parameters())
    assert torch.allclose(kernel.kernel.lengthscale, torch.tensor([0.5, 4.0]).double(), rtol=1e-14)
    assert set(held) == {"raw_outputscale", "kernel.raw_lengthscale"}


# --- Cholesky ---------------------------------------------------------------------------------------------------------


def spd(n: int, eigenvalues: Tensor) -> Tensor:
    Q = torch.linalg.qr(torch.randn(n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)).Q
    return (Q * eigenvalues) @ Q.T


def test_a_positive_definite_matrix_gets_its_factor_and_no_warning():
    A = spd(6, torch.logspace(-8, 3, 6, dtype=torch.float64))
    L = safe_cholesky(A)
    assert bool((L.tril() == L).all())
    assert torch.allclose(L @ L.T, A, rtol=0, atol=1e-12 * float(A.abs().max()))


@pytest.mark.parametrize(("lowest", "jitter"), [(-3e-12, "1e-11"), (-3e-9, "1e-08"), (-3e-7, "1e-06")])
def test_an_almost_definite_matrix_gets_the_jitter_that_the_warning_states(lowest, jitter):
    scale = torch.tensor([1e-3, 1.0, 1e4], dtype=torch.float64)  # relative to each diagonal element
    correlation = torch.ones(3, 3, dtype=torch.float64) * (1 - lowest / 2)
    correlation.fill_diagonal_(1 + lowest / 2)
    A = scale[:, None] * correlation * scale
    with pytest.warns(JitterWarning, match=f"SᵀK̂S is not positive definite to working precision: added {jitter} times"):
        L = safe_cholesky(A, "SᵀK̂S")
    jittered = correlation + float(jitter) * torch.diag(correlation.diagonal())
    assert torch.allclose((L @ L.T) / scale / scale[:, None], jittered, rtol=0, atol=1e-14)


def test_the_gradient_goes_through_the_jitter():
    correlation = torch.full((3, 3), 1 + 1e-9, dtype=torch.float64).fill_diagonal_(1.0)  # indefinite by 1e-9
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    with pytest.warns(JitterWarning, match="added 1e-08 times its diagonal"):
        L = safe_cholesky(scale[:, None] * correlation * scale)
    (gradient,) = torch.autograd.grad(2 * L.diagonal().log().sum(), scale)
    assert torch.allclose(gradient, 2 / scale.detach(), rtol=1e-5)  # log|A| = 2 Σ log scale + a constant


@pytest.mark.parametrize(
    ("A", "found"),
    [
        ([[1.0, 2.0], [2.0, 1.0]], "its diagonal runs from 1 to 1"),
        ([[1.0, 0.0], [0.0, -3.0]], "its diagonal runs from -3 to 1"),
        ([[0.0, 0.0], [0.0, 0.0]], "its diagonal runs from 0 to 0"),
        ([[1.0, math.nan], [math.nan, 1.0]], "2 of its values are NaN or infinite"),
        ([[math.inf, 0.0], [0.0, 1.0]], "1 of its values are NaN or infinite"),
    ],
    ids=["indefinite", "negative", "zero", "nan", "infinite"],
)
def test_an_indefinite_matrix_is_an_error_that_lists_probable_causes(A, found):
    with pytest.raises(NotPositiveDefiniteError) as caught:
        safe_cholesky(torch.tensor(A, dtype=torch.float64), "SᵀK̂S")
    message = str(caught.value)
    assert message.startswith("SᵀK̂S (2 x 2) is not positive definite, not even with 1e-06 times its diagonal added")
    assert found in message
    for cause in ("linearly dependent", "noise too small", "standardise", "kernel of your own", "learning rate"):
        assert cause in message
    assert isinstance(caught.value, ValueError)


def test_linearly_dependent_actions_are_announced():
    X, y = (t.double() for t in data())
    S = torch.eye(N, 3, dtype=torch.float64)
    S[:, 2] = S[:, 0] + S[:, 1]
    with pytest.raises((JitterWarning, NotPositiveDefiniteError), match=r"SᵀK̂S .*is not positive definite"):
        project(GP(Matern32(D)), DenseActions(S), X, y)


# --- moments of rows --------------------------------------------------------------------------------------------------


def moments_problem(n: int, i: int) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(i)
    KS, root, weights = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((n, i), (i, i), (i,)))
    chol = torch.linalg.cholesky(root @ root.T + torch.eye(i).double())
    return KS.requires_grad_(), chol.requires_grad_(), weights.requires_grad_()


@pytest.mark.parametrize(("n", "i"), [(1, 1), (5, 3), (3, 5), (2049, 2), (5000, 7)])
def test_row_moments_are_the_dense_formulas(n, i):
    KS, chol, weights = moments_problem(n, i)
    mean, explained = row_moments(KS, chol, weights)
    inverse = torch.linalg.inv(chol @ chol.T)
    assert torch.allclose(mean, KS @ weights, rtol=1e-12)
    assert torch.allclose(explained, torch.einsum("ri,ij,rj->r", KS, inverse, KS), rtol=1e-10)


@pytest.mark.parametrize(("n", "i"), [(1, 1), (5, 3), (3, 5)])
def test_gradients_of_row_moments_are_finite_differences(n, i):
    assert torch.autograd.gradcheck(row_moments, moments_problem(n, i), atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("n", [4_500])
def test_gradients_of_row_moments_over_several_tiles_are_those_of_the_dense_formulas(n):
    inputs = moments_problem(n, 4)
    KS, chol, weights = inputs
    incoming = torch.randn(2, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    actual = torch.autograd.grad(row_moments(*inputs), inputs, incoming.unbind())
    explained = torch.linalg.solve_triangular(chol, KS.T, upper=False).square().sum(0)
    expected = torch.autograd.grad((KS @ weights, explained), inputs, incoming.unbind())
    for a, e in zip(actual, expected, strict=True):
        assert torch.allclose(a, e, rtol=1e-10, atol=1e-10 * float(e.abs().max()))


def test_row_moments_of_float32_rows_are_computed_in_float64():
    KS, chol, weights = (t.detach() for t in moments_problem(50, 6))
    rows = KS.float()
    mean, explained = row_moments(rows, chol, weights)
    assert mean.dtype == explained.dtype == torch.float64
    same_mean, same_explained = row_moments(rows.double(), chol, weights)
    assert torch.equal(mean, same_mean)
    assert torch.equal(explained, same_explained)


def test_only_the_gradients_of_row_moments_asked_for_are_returned():
    KS, chol, weights = moments_problem(6, 3)
    whole = torch.autograd.grad(sum(m.sum() for m in row_moments(KS, chol, weights)), (KS, chol, weights))
    parts = row_moments(KS.detach(), chol, weights)
    alone = torch.autograd.grad(sum(m.sum() for m in parts), (chol, weights))
    assert torch.allclose(alone[0], whole[1])
    assert torch.allclose(alone[1], whole[2])


def test_known_noise_that_is_zero_is_an_error():
    X, y = data()
    m = CaGPOpt(GP(Matern32(D), noise=KnownNoise()), BlockActions.from_data(X, 2))
    row_noise = torch.ones(N)
    row_noise[3] = 0
    with pytest.raises(ValueError, match="row_noise has zeros, KnownNoise needs positive variances"):
        m.objective(X, y, row_noise)
