"""How throughput grows with the batch, with a CPU's threads and with several devices."""
