"""Networks from ONNX files, as modules whose convolutions can be replaced."""
