"""ONNX files: exported from models, checked before they are read, and run as differentiable modules."""
