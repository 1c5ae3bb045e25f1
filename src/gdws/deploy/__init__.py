"""Run a network fast and prove that it decides the same: ONNX files, int8, engines, CUDA graphs, benchmarks."""
