"""Make the embedded robust CNN smaller, see what that costs, save it and load it again.

python examples/quick_start.py
"""

import tempfile

import gdws

model = gdws.models.embedded()
images = gdws.data.load("demo", "train").take(32)  # take a few hundred: the more, the better
test = gdws.data.load("demo", "test").take(100)

fast = gdws.compress(model, images, gdws.Macs(0.5))

example = next(iter(test))[0][:1]
before, after = gdws.network_cost(model, example), gdws.network_cost(fast, example)
print(f"{before.macs / 1e6:.1f} -> {after.macs / 1e6:.1f} M multiply-adds, {before.size_mb:.2f} -> {after.size_mb:.2f} MB")
for layer in gdws.plan_of(fast).layers:
    if layer.structure != "dense":
        print(f"{layer.name:16} {layer.structure:10} {layer.macs / layer.dense_macs:.2f} of its multiply-adds")
for name, network in {"dense": model, "compressed": fast}.items():
    print(f"{name}: {gdws.evaluate(network, test).natural_percent:.1f} % of {len(test)} test images correct")

with tempfile.TemporaryDirectory() as folder:
    gdws.save(fast, f"{folder}/fast")
    loaded = gdws.load(f"{folder}/fast", model)
    print(f"loaded again: {gdws.agreement(fast, loaded, example):.0f} % of the predictions agree")
