"""Benchmarks: named workloads, each against a floor measured in the same minute. See docs/benchmarks.md."""
