"""Names that programs import from ``onnxruntime.capi``: errors and providers."""
