"""Which backend runs, kernels of other classes and dtypes, and what is refused."""

import pytest
import torch
from engine_problems import (
    BACKENDS,
    DTYPES,
    TOLERANCE,
    WEIGHTS,
    Inputs,
    OtherPrecision,
    assert_normwise_close,
    needs_native,
    own_kernel,
    textbook_matrix,
)
from torch import Tensor

from cagp.engine import (
    COMPILED,
    INSTRUCTION_SETS,
    TORCH,
    BlockWeights,
    CompiledBackend,
    backend_for,
    choose_backend,
    kernel_product,
)
from cagp.kernels import RBF, Constant, Linear, Matern12, Matern32, Scale


@needs_native
def test_the_backend_in_words_says_what_runs_and_why():
    X = torch.zeros(3, 2)
    best = INSTRUCTION_SETS[-1]
    assert backend_for(Scale(Matern32(2)) + Linear(2), X) == f"native ({best})"
    assert backend_for(Constant(2.0) * RBF(2), X) == f"native ({best})"
    assert backend_for(RBF(2) * RBF(2), X) == "torch tiles (Product is not compiled)"
    assert backend_for(RBF(2) + own_kernel(), X) == "torch tiles (Cauchy is not compiled)"
    assert backend_for(RBF(2), X.half()) == "torch tiles (the data are float16)"
    assert backend_for(Linear(2) + Constant(), X) == "explicit features"


@needs_native
def test_asking_for_compiled_kernels_where_there_are_none_is_an_error():
    X = torch.zeros(3, 2)
    with pytest.raises(ValueError, match="backend is native, but Product is not compiled; use backend=None"):
        kernel_product(RBF(2) * RBF(2), X, X, backend=COMPILED)
    with pytest.raises(ValueError, match="backend is native, but the compiled kernels are not installed"):
        kernel_product(RBF(2), X, X, backend=CompiledBackend(None))


def test_one_function_chooses_and_the_first_backend_that_applies_is_taken(monkeypatch):
    X = torch.zeros(3, 2)
    assert choose_backend(RBF(2) * RBF(2), X) is TORCH
    assert choose_backend(RBF(2), X.half()) is TORCH
    assert choose_backend(RBF(2), X, TORCH) is TORCH
    if COMPILED.instruction_set:
        assert choose_backend(Scale(RBF(2)), X) is choose_backend(None, X) is COMPILED
    monkeypatch.setattr("cagp.engine.BACKENDS", (CompiledBackend(None), TORCH))
    assert choose_backend(RBF(2), X) is choose_backend(None, X) is TORCH
    assert backend_for(RBF(2), X) == "torch tiles (the compiled kernels are not installed)"


@needs_native
@pytest.mark.parametrize("kind", WEIGHTS)
def test_a_backend_scales_the_kernels_it_says_it_can_compute(kind):
    inputs = Inputs("Matern32", 9, 8, 3, torch.float64)
    scaled, W = Scale(inputs.kernel, 2.0), inputs.weights(kind)
    assert COMPILED.unsupported_reason(scaled, inputs.X) is None
    out = COMPILED.product(scaled, inputs.X, inputs.Z, W, 2**20, 0.0)
    assert_normwise_close(out, 2 * inputs.dense_product(kind), 1e-13)


class Subclass(RBF):
    """Not the RBF kernel any more."""

    def profile(self, r: Tensor) -> Tensor:
        return torch.cos(r) * torch.exp(-r)


def test_a_subclass_of_a_compiled_kernel_runs_its_own_formula():
    inputs = Inputs("RBF", 5, 6, 2, torch.float64)
    kernel = Subclass(2, inputs.kernel.lengthscale)
    r = -torch.log(textbook_matrix(Matern12(2, inputs.kernel.lengthscale), inputs.X, inputs.Z))
    expected = (torch.cos(r) * torch.exp(-r)).detach()
    assert_normwise_close(kernel_product(kernel, inputs.X, inputs.Z).detach(), expected, 1e-13)


class OtherFeatures(Linear):
    """A linear kernel whose features have another dtype than the inputs."""

    def features(self, X: Tensor) -> Tensor:
        return super().features(X).to(torch.float32 if X.dtype == torch.float64 else torch.float64)


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_kernel_that_returns_another_dtype_is_cast_to_that_of_the_inputs(dtype, kind):
    other = torch.float32 if dtype == torch.float64 else torch.float64
    inputs = Inputs("Matern32", 9, 8, 3, dtype)
    expected = inputs.dense_product(kind)
    inputs.kernel = OtherPrecision(other, inputs.kernel.lengthscale.detach())
    assert inputs.kernel.diag(inputs.X).dtype == dtype
    for kernel in (inputs.kernel, Scale(inputs.kernel), inputs.kernel * Constant()):
        out = kernel_product(kernel, inputs.X, inputs.Z, inputs.weights(kind))
        assert out.dtype == dtype
        assert_normwise_close(out, expected, TOLERANCE[torch.float32])
    inputs.kernel = OtherFeatures(3)
    assert inputs.product(kind).dtype == dtype


@pytest.mark.usefixtures("annotations_off")
class TestErrors:
    X = torch.zeros(4, 2)

    def test_inputs_with_different_numbers_of_columns(self):
        with pytest.raises(
            ValueError, match=r"X has shape \(4, 2\) and Z \(4, 3\), expected two matrices with equally"
        ):
            kernel_product(RBF(2), self.X, torch.zeros(4, 3))

    def test_inputs_that_are_no_matrices(self):
        with pytest.raises(ValueError, match=r"X has shape \(4,\)"):
            kernel_product(RBF(1), torch.zeros(4), self.X)

    def test_a_kernel_made_for_other_columns(self):
        with pytest.raises(ValueError, match="X has 2 columns, the Matern32 kernel was made for num_dims = 3"):
            kernel_product(Scale(Matern32(3)) + Constant(), self.X, self.X)
        with pytest.raises(ValueError, match="X has 2 columns, the Linear kernel was made for num_dims = 1"):
            kernel_product(RBF(2) + Linear(1), self.X, self.X)

    def test_weights_of_another_length(self):
        with pytest.raises(ValueError, match="W has 3 rows, expected 4"):
            kernel_product(RBF(2), self.X, self.X, torch.zeros(3, 1))
        with pytest.raises(ValueError, match="W has 3 rows, expected 4"):
            kernel_product(RBF(2), self.X, self.X, BlockWeights(torch.zeros(3), torch.tensor([0, 3])))

    def test_mixed_precision(self):
        with pytest.raises(ValueError, match=r"Z has dtype torch\.float64, X has torch\.float32"):
            kernel_product(RBF(2), self.X, self.X.double())
        with pytest.raises(ValueError, match=r"W has dtype torch\.float64, X has torch\.float32"):
            kernel_product(RBF(2), self.X, self.X, torch.zeros(4, 1).double())

    @pytest.mark.parametrize("offsets", [[0, 2, 3], [1, 4], [0, 3, 2, 4]], ids=str)
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_offsets_that_are_no_partition_of_the_rows(self, backend, offsets):
        W = BlockWeights(torch.ones(4), torch.tensor(offsets))
        with pytest.raises(ValueError, match="offsets must"):
            kernel_product(RBF(2), self.X, self.X, W, backend=backend)

    def test_an_unknown_backend(self):
        with pytest.raises(ValueError, match=r"backend is 'torch', expected a Backend such as cagp\.engine\.TORCH"):
            kernel_product(RBF(2), self.X, self.X, backend="torch")

    def test_lengthscales_of_the_wrong_number(self):
        with pytest.raises(ValueError, match="lengthscale has 3 values, expected 1 or num_dims = 2"):
            RBF(2, [1.0, 2.0, 3.0])

    @pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
    def test_parameters_that_are_not_positive(self, value):
        with pytest.raises(ValueError, match=r"lengthscale is .* expected finite values above 0"):
            RBF(1, value)
        kernel = Scale(RBF(1))
        with pytest.raises(ValueError, match=r"outputscale is .* expected finite values above 0"):
            kernel.outputscale = value
