"""Throughput over batches, threads of a CPU and several devices."""
