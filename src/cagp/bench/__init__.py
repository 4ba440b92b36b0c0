"""Benchmarks of speed, memory and quality, measured on this machine and printed as a table or as records."""
