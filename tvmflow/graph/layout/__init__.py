"""Layout pass: convert convolutions and the operators between them to ``NCHW{c}c``."""
