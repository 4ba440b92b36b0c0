"""Rules: actions that move with the hyperparameters, which training differentiates through."""

import numpy as np
import oracle
import pytest
import torch
from inference_problems import Waves, assert_close, assert_gradient_is_the_slope, wave
from inference_problems import wave_prior as make_prior

from cagp import CaGPOpt, elbo, fit


def test_a_rule_of_your_own_is_trained_through():
    X, y, row_noise, _ = wave(30)
    prior = make_prior()
    rule = Waves(torch.randn(2, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    method = CaGPOpt(prior, rule)

    def dense_loss() -> float:
        S = np.sin(oracle.array(X) @ oracle.array(rule.frequencies))
        return -oracle.elbo(prior, S, X, y, row_noise).value / 30

    assert_gradient_is_the_slope(method, dense_loss, X, y, row_noise)
    result = fit(method, X, y, num_steps=10)
    assert result.best_value < result.steps[0].loss
    actions = rule.actions(prior, X, y)
    with torch.no_grad():
        bound = elbo(prior, actions, X, y).value
        assert_close(-bound / 30, method.objective(X, y))


@pytest.mark.usefixtures("annotations_off")
def test_a_rule_that_returns_something_else_is_told_what_is_expected():
    X, y, _, _ = wave()

    class Wrong(Waves):
        def actions(self, prior, X, y, row_noise=None):
            return torch.sin(X @ self.frequencies)

    class Few(Waves):
        def actions(self, prior, X, y, row_noise=None):
            return super().actions(prior, X[:9], y[:9])

    frequencies = torch.ones(2, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"Wrong\.actions returned a Tensor, expected Actions: ComputedActions\(S\)"):
        CaGPOpt(make_prior(), Wrong(frequencies)).condition(X, y)
    with pytest.raises(ValueError, match=r"Few\.actions returned actions on 9 rows, expected 40"):
        CaGPOpt(make_prior(), Few(frequencies)).objective(X, y)


def test_wrong_uses_of_rules_are_named():
    X, y, _, _ = wave()
    prior, rule = make_prior(), Waves(torch.ones(2, 41, dtype=torch.float64))
    with pytest.raises(ValueError, match="the number of actions is 41, expected an integer from 1 to 40"):
        CaGPOpt(prior, rule).objective(X, y)
    with pytest.raises(ValueError, match="batch_size is for actions on some rows; Waves needs all of them"):
        CaGPOpt(prior, rule, batch_size=10)
    with pytest.raises(ValueError, match="num_actions needs BlockActions, whose blocks can be cut, not Waves"):
        CaGPOpt(prior, Waves(torch.ones(2, 4, dtype=torch.float64))).condition(X, y, num_actions=8)
