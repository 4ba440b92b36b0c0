"""The tables of the paper by name, and data generated like the paper's."""

from cagp_bench.data.paper_tables import PAPER_TABLES, fetch
from cagp_bench.data.synthetic import draw_targets, gap_data, matern32_prior, uniform_data

__all__ = ["PAPER_TABLES", "draw_targets", "fetch", "gap_data", "matern32_prior", "uniform_data"]
