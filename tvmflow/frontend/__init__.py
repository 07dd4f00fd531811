"""Import of ONNX models: read a model, give it static shapes, convert it to Relax (`load`)."""
