"""Benchmarks: measured on the machine at hand, printed as a table or as records."""
