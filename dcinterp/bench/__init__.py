"""Benchmarks: each compares ways of doing the same thing in one process and reports ratios of medians."""
