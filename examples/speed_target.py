"""Ask for a speed instead of a size: times are measured in the engines of this machine.

python examples/speed_target.py
"""

import gdws

model = gdws.models.embedded()
images = gdws.data.load("demo", "train").take(32)  # take a few hundred: the more, the better
target = gdws.Target(engine="onnxruntime", threads=1)  # "auto" also tries OpenVINO and takes the better plan

# One structure keeps this example short; the default "auto" tries all and finds a better plan.
method = gdws.Calibrated(structures="vertical")
fast = gdws.compress(model, images, gdws.Speedup(1.5), method, target=target)

plan = gdws.plan_of(fast)
print(f"asked for 1.5x, measured {1 / plan.measured.latency:.2f}x, predicted {1 / plan.measured.predicted:.2f}x")
print(f"{plan.macs:.2f} of the multiply-adds that may be replaced are left")

example = next(iter(gdws.data.load("demo", "test")))[0][:1]
runs = {
    "dense": gdws.compile(model, "onnxruntime", example=example, threads=1),
    "compressed": gdws.compile(fast, "onnxruntime", example=example, threads=1),
}
timings = gdws.bench(runs, example, warmup=10, repeats=50)
for name, timing in timings.items():
    print(f"{name}: {timing.fps:.0f} images a second in {runs[name].name}")
if timings["dense"].busy:
    print("the machine was busy: trust the ratio more than the times")
