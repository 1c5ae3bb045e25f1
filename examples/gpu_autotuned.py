"""Large batches in float16 on a GPU: a plan for tensor cores, run with autotuned kernels as a CUDA graph.

    python examples/gpu_autotuned.py

Needs an NVIDIA GPU. Building the fast network takes minutes, because kernels are timed one by one; what was found is cached.
"""

import torch

import gdws

if not torch.cuda.is_available():
    raise SystemExit("this example needs a CUDA device")

BATCH = 256
model = gdws.models.embedded().cuda()
images = gdws.data.load("demo", "train").take(300)
example = torch.rand(BATCH, 3, 32, 32)

# A plan for tensor cores takes plain convolutions only, in ranks that fill the tiles of their kernels.
target = gdws.Target("cuda", "float16", batch=BATCH)
fast = gdws.compress(model, images, gdws.Macs(0.5), target=target)

runs = {
    f"{name}, {engine}": gdws.compile(network, engine, example=example, precision="float16")
    for name, network, engine in [("dense", model, "cuda"), ("dense", model, "autotuned"), ("compressed", fast, "autotuned")]
}
on_gpu = {name: run.module for name, run in runs.items()}  # takes float16 images that are on the GPU already
for name, timing in gdws.bench(on_gpu, example, warmup=10, repeats=100).items():
    print(f"{name:24} {timing.fps:10.0f} images a second")
