"""Measurements of cagp: speed, memory and quality on this machine, other libraries, and the paper's experiments."""
