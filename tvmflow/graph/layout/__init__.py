"""The layout pass: convolutions and what stands between them go to ``NCHW{c}c``."""
