"""The methods in words."""

METHODS = {
    "exact": "an exact Gaussian process (Cholesky factorisation)",
    "opt": "CaGP-Opt, a computation-aware Gaussian process with learned actions",
    "cg": "CaGP-CG, a computation-aware Gaussian process with the actions of conjugate gradients",
    "local": "CaGP-Local, which predicts each test point from its nearest rows",
    "hybrid": "the hybrid of CaGP-Local and shared actions",
    "sgpr": "SGPR, a Gaussian process with inducing points",
    "svgp": "SVGP, a variational Gaussian process with inducing points",
    "cggp": "an exact Gaussian process with solves by conjugate gradients",
}
