"""Benchmarks: `make bench` prints archive, cold and cached throughput beside what plain tools reach on the same server."""
