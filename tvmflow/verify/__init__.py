"""Results compared with a reference: ONNX Runtime, or ONNX's evaluator for custom operators."""
