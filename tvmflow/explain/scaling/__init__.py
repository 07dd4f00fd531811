"""Throughput over batches, a CPU's threads and several devices."""
