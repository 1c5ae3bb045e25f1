"""ONNX files: made of models, checked before they are read, run as modules through which gradients pass."""
