"""The classes of kernels; ``cagp.kernels`` offers them all."""
