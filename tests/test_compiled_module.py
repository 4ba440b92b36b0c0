"""The compiled module itself: every array is checked, empty ones do no harm, threads that fail are errors."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from cagp import kernels
from cagp.engine import COMPILED, INSTRUCTION_SETS, compiled_backend
from cagp.kernel_registry import NAMES

native = compiled_backend._native
pytestmark = pytest.mark.skipif(not COMPILED.instruction_set, reason="the compiled kernels are not installed")
N, M, D, T, K = 5, 4, 3, 6, 2


def zeros(*shape: int, dtype=np.float64) -> np.ndarray:
    return np.zeros(shape, dtype)


def integers(values, *shape: int) -> np.ndarray:
    return np.broadcast_to(np.asarray(values, dtype=np.int64), shape).copy()


def arguments(n: int = N, m: int = M, d: int = D, i: int = 2, t: int = T, k: int = K) -> dict[str, dict]:
    """Arguments of every function that are right for these sizes."""
    offsets = np.linspace(0, m, i + 1).astype(np.int64)
    kind, own = {"kind": 0}, {"threads": 2, "isa": ""}
    pair = {"X": zeros(n, d), "Z": zeros(m, d)}
    blocks = {"values": zeros(m), "offsets": offsets}
    gradients = {"grad_square": zeros(d), "grad_alpha": zeros(1), "grad_X": zeros(n, d), "grad_Z": zeros(m, d)}
    near = {"X": zeros(n, d), "inverse_lengthscale": zeros(d) + 1, "neighbours": integers(min(n, 1) - 1, t, k)}
    near |= {"alpha": 1.0, "outputscale": 1.0}
    solutions = {"solution_r": zeros(t, k), "solution_c": zeros(t, k)}
    slopes = {"of_parameters": zeros(t, 2, d + 2), "of_points": zeros(t, 2, d)}
    moments = {name: zeros(t) for name in ("mean", "explained", "misfit", "rows")}
    single, nodes = np.float32, native.tree_nodes(n) if native is not None else 1
    tree = {"points": zeros(n * d + 16, dtype=single), "boxes": zeros(nodes, 2, d, dtype=single)}
    tree |= {"least": zeros(nodes, dtype=np.int32), "scale": zeros(d, dtype=single) + single(1)}
    return {
        "matrix": kind | pair | {"alpha": 1.0, "out": zeros(n, m)} | own,
        "matrix_gradient": kind | pair | {"alpha": 1.0, "grad_out": zeros(n, m)} | gradients | own,
        "block": kind | pair | {"alpha": 1.0} | blocks | {"out": zeros(n, i)} | own,
        "block_gradient": kind
        | pair
        | {"alpha": 1.0, "grad_out": zeros(n, i), "grad_values": zeros(m)}
        | blocks
        | gradients
        | own,
        "nearest": pair | {"left_out": integers(0, n), "before": integers(m, n), "rows": integers(7, n, k)} | own,
        "conditionals": kind
        | near
        | {"points": zeros(t, d), "noise": zeros(t, k) + 0.1, "residual": zeros(t, k), "targets": None}
        | {"gram": zeros(t, k, k), "cross": zeros(t, k)}
        | moments
        | solutions
        | slopes
        | own,
        "density": kind
        | near
        | {"test_rows": integers(0, t if n else 0), "targets": zeros(n), "noise": 0.1, "slopes": True}
        | {"sums": zeros(d + 4)}
        | own,
        "conditionals_gradient": solutions
        | slopes
        | {"grad_mean": zeros(t), "grad_explained": zeros(t), "grad_parameters": zeros(d + 2)}
        | {"grad_points": zeros(t, d), "grad_noise": zeros(t, k), "grad_residual": zeros(t, k)}
        | {"grad_gram": zeros(t, k, k), "grad_cross": zeros(t, k), "threads": 2},
        "tree_build": tree | {"rows": zeros(n, dtype=np.int32), "threads": 2},
        "tree_minima": {"labels": zeros(n, dtype=np.int32), "least": tree["least"], "threads": 2},
        "tree_nearest": tree
        | {"labels": np.arange(n, dtype=np.int32), "test_points": zeros(t, d, dtype=single)}
        | {"left_out": integers(0, t), "before": integers(n, t), "found": integers(7, t, k), "visited": integers(7, t)}
        | own,
    }


def call(function: str, **changes) -> None:
    getattr(native, function)(**arguments()[function] | changes)


ARRAYS = [
    (function, name)
    for function, values in arguments().items()
    for name, value in values.items()
    if isinstance(value, np.ndarray)
]


@pytest.mark.parametrize("function", arguments())
def test_right_arguments_are_accepted(function):
    call(function)


# Arrays with a size that no other array has to agree with.
FREE = {
    ("nearest", "Z"),
    ("nearest", "rows"),
    ("conditionals", "X"),
    ("density", "neighbours"),
    ("tree_minima", "labels"),
    ("tree_nearest", "found"),
}


@pytest.mark.parametrize(("function", "name"), ARRAYS)
def test_an_array_of_a_wrong_shape_is_an_error_that_names_an_array_and_its_shape(function, name):
    array = arguments()[function][name]
    wrong = [array[..., None], array[0]]
    if (function, name) not in FREE:
        wrong.append(np.concatenate([array, array[-1:]]))
        wrong += [np.concatenate([array, array[..., -1:]], axis=-1)] if array.ndim > 1 else []
    for other in wrong:
        with pytest.raises(ValueError, match=r"has shape \(|offsets must"):
            call(function, **{name: np.asarray(other)})


@pytest.mark.parametrize(("function", "name"), ARRAYS)
def test_an_array_of_another_dtype_is_never_converted(function, name):
    array = arguments()[function][name]
    others = {np.int32, np.float32, np.float64, np.int64} if function.startswith("tree") else {np.int32}
    if array.dtype == np.float64:
        others.add(np.float32)
    for other in others - {array.dtype.type}:
        with pytest.raises(TypeError, match="incompatible function arguments"):
            call(function, **{name: array.astype(other)})


@pytest.mark.parametrize(("function", "name"), [pair for pair in ARRAYS if pair[1] != "noise"])
def test_an_array_with_gaps_is_never_copied_silently(function, name):
    array = arguments()[function][name]
    spaced = np.repeat(array, 2, axis=-1)[..., ::2]
    if array.shape == (1,):
        return
    with pytest.raises(ValueError, match=f"{name} is not contiguous"):
        call(function, **{name: spaced})


def test_noise_may_be_one_number_seen_as_a_matrix():
    out = [zeros(T), zeros(T)]
    for noise, mean in zip((np.full((T, K), 0.3), np.broadcast_to(0.3, (T, K))), out, strict=True):
        call("conditionals", noise=noise, mean=mean, residual=zeros(T, K) + 1, neighbours=integers([0, 1], T, K))
    assert (out[0] == out[1]).all()
    assert (out[0] != 0).all()


@pytest.mark.parametrize("function", ["conditionals", "density"])
@pytest.mark.parametrize("row", [-2, N])
def test_neighbours_are_rows_or_minus_one(function, row):
    neighbours = arguments()[function]["neighbours"]
    neighbours[3, 1] = row
    with pytest.raises(ValueError, match=f"neighbours has the value {row}, expected -1 to {N - 1}: rows of X, or -1"):
        call(function, neighbours=neighbours)


@pytest.mark.parametrize("row", [-1, N])
def test_test_rows_are_rows(row):
    with pytest.raises(ValueError, match=f"test_rows has the value {row}, expected 0 to {N - 1}: rows of X"):
        call("density", test_rows=integers([0, 1, row, 0, 0, 0], T))


@pytest.mark.parametrize("function", ["block", "block_gradient"])
@pytest.mark.parametrize("offsets", [[0, 3, 2, M], [1, 2, M], [0, 2, 3], [0, 2, M + 1], [0]])
def test_offsets_rise_from_zero_to_the_last_row(function, offsets):
    sizes = {"out": zeros(N, len(offsets) - 1)} if function == "block" else {"grad_out": zeros(N, len(offsets) - 1)}
    with pytest.raises(ValueError, match="offsets must"):
        call(function, offsets=np.array(offsets, dtype=np.int64), **sizes)


@pytest.mark.parametrize("function", [name for name, values in arguments().items() if "isa" in values])
def test_kinds_threads_and_instruction_sets_are_checked(function):
    if "kind" in arguments()[function]:
        for kind in (-1, len(native.kernels())):
            with pytest.raises(ValueError, match=f"kind is {kind}, expected 0 to {len(native.kernels()) - 1}"):
                call(function, kind=kind)
    for threads in (0, -3):
        with pytest.raises(ValueError, match=f"threads is {threads}, expected a positive integer"):
            call(function, threads=threads)
    with pytest.raises(ValueError, match="instruction set 'abacus' is not one this machine runs"):
        call(function, isa="abacus")


@pytest.mark.parametrize("values", [{"residual": None}, {"targets": zeros(N)}])
def test_residuals_are_those_of_neighbours_or_of_rows(values):
    with pytest.raises(ValueError, match=r"residual \(of neighbours\) and targets \(of rows\): one of both"):
        call("conditionals", **values)


def test_float32_rows_take_float64_values_and_give_the_same_moments():
    rng, out = np.random.default_rng(0), []
    rows = {name: rng.normal(size=shape).astype(np.float32) for name, shape in {"X": (N, D), "points": (T, D)}.items()}
    for dtype in (np.float32, np.float64):
        found = {"mean": zeros(T), "explained": zeros(T)}
        near = {"residual": np.ones((T, K)), "neighbours": integers([0, 3], T, K)}
        call("conditionals", **{name: array.astype(dtype) for name, array in rows.items()}, **near, **found)
        out.append(found)
    assert (out[0]["explained"] > 0).all()
    for name in ("mean", "explained"):
        np.testing.assert_array_equal(out[0][name], out[1][name])


def test_gradients_come_with_what_they_are_made_of():
    with pytest.raises(ValueError, match="solution_r and solution_c: both or none"):
        call("conditionals", solution_r=None)
    with pytest.raises(ValueError, match="of_parameters needs solution_r"):
        call("conditionals", solution_r=None, solution_c=None)
    with pytest.raises(ValueError, match="of_points needs of_parameters"):
        call("conditionals", of_parameters=None)
    with pytest.raises(ValueError, match="of_parameters and grad_parameters: both or none"):
        call("conditionals_gradient", of_parameters=None)
    with pytest.raises(ValueError, match="of_points and grad_points: both or none"):
        call("conditionals_gradient", grad_points=None)
    with pytest.raises(ValueError, match="without Z the gradient of the inputs is grad_Z"):
        call("block_gradient", Z=None, **{name: value for name, value in square().items() if name != "out"})


def square() -> dict[str, np.ndarray]:
    """What changes when Z is X."""
    return {"values": zeros(N), "offsets": np.array([0, 2, N]), "grad_values": zeros(N), "grad_Z": zeros(N, D)}


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize(
    "sizes", [{"m": 0}, {"n": 0}, {"n": 0, "m": 0}, {"t": 0}, {"k": 0}, {"d": 0}, {"n": 0, "k": 0}]
)
@pytest.mark.parametrize("function", arguments())
def test_nothing_is_too_small(function, sizes, isa):
    values = arguments(**sizes)[function]
    values |= {"isa": isa} if "isa" in values else {}
    if function == "density" and sizes.get("n") == 0:  # no row can be a test point
        values |= {"neighbours": values["neighbours"][:0]}
    if function in ("nearest", "tree_nearest") and sizes.get("k") == 0:
        with pytest.raises(ValueError, match="at least one column"):
            getattr(native, function)(**values)
        return
    written = [name for name in ("out", "mean", "explained", "misfit", "grad_square", "grad_values") if name in values]
    for name in written:
        values[name][...] = 7
    getattr(native, function)(**values)
    for name in written:  # zeros, or ones of the kernel where all points coincide; none left as it was
        assert not (values[name] == 7).any()
    if "out" in written and function == "block" and sizes.get("m") == 0:
        assert (values["out"] == 0).all()
    if function == "conditionals" and sizes.get("k") == 0:
        assert (values["explained"] == 0).all()
    if function == "nearest" and sizes.get("m") == 0:
        assert (values["rows"] == -1).all()
    if function == "tree_nearest":
        assert not (values["found"] == 7).any()
        assert sizes.get("n") != 0 or (values["found"] == -1).all()


def test_a_tree_has_room_for_its_rows_and_no_more_rows_than_it_can_number():
    assert native.tree_nodes(32) == 1
    assert native.tree_nodes(33) == 3
    assert native.tree_nodes(2**31 - 1) == 2**27 - 1
    for n in (-1, 2**31):
        with pytest.raises(ValueError, match="n must be a number of rows below 2"):
            native.tree_nodes(n)
    for function in ("tree_build", "tree_minima"):
        with pytest.raises(ValueError, match="threads is 0, expected a positive integer"):
            call(function, threads=0)
    call("tree_nearest", left_out=None, before=None, visited=None)


@pytest.mark.parametrize("function", ["block", "block_gradient"])
def test_the_product_of_no_rows_with_themselves_is_empty(function):
    values = arguments(n=0, m=0)[function] | {"Z": None} | ({"grad_X": None} if function == "block_gradient" else {})
    getattr(native, function)(**values)


def test_rows_that_are_all_missing_say_nothing_even_without_training_rows():
    values = arguments(n=0)["conditionals"] | {"residual": None, "targets": zeros(0)}
    values |= {"mean": zeros(T) + 7, "rows": zeros(T) + 7}
    native.conditionals(**values)
    assert (values["mean"] == 0).all()
    assert (values["rows"] == 0).all()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the address space as Linux does")
@pytest.mark.skipif(native is None or native.sanitizer != "", reason="a sanitizer needs all of the address space")
def test_threads_that_cannot_be_started_are_an_error_and_the_process_lives_on():
    program = """
        import resource
        import numpy as np
        from cagp.engine.compiled_backend import _native

        X = np.random.default_rng(0).normal(size=(4096, 2))
        out = np.zeros((4096, 4096))
        used = 4096 * int(open("/proc/self/statm").read().split()[0])
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, limits[1]))  # room for a few stacks
        try:
            _native.matrix(0, X, X, 1.0, out, 256)
        except RuntimeError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        _native.matrix(0, X, X, 1.0, out, 2)
        print(np.allclose(out.diagonal(), 1))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    error, works = done.stdout.splitlines()
    assert error.startswith("could start only ")
    assert "of 256 threads (" in error
    assert "torch.set_num_threads(1)" in error
    assert works == "True"


# --- one list of kernels ----------------------------------------------------------------------------------------------


def test_the_compiled_kernels_are_kernels_of_the_registry_with_the_parameters_the_module_expects():
    compiled = native.kernels()
    assert set(dict(compiled)) <= set(NAMES)
    for name, has_alpha in compiled:
        made = kernels.kernel_class(name)(2)
        assert COMPILED.unsupported_reason(made, made.lengthscale[None]) is None
        assert [p for p, _ in made.named_parameters()] == ["raw_lengthscale", *(["raw_alpha"] if has_alpha else [])]
