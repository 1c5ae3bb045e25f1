"""Run a network fast and verify that it gives the same results: ONNX files, int8, engines, CUDA graphs, benchmarks."""
