"""Compare a compressed network with its original, image by image, with and without an attack.

    python examples/robustness_report.py

An accuracy under attack is an upper bound: a stronger attack can only lower it. Take more images and more steps.
"""

import gdws
from gdws.attacks import PGD

model = gdws.models.embedded()
fast = gdws.compress(model, gdws.data.load("demo", "train").take(32), gdws.Macs(0.5), gdws.Calibrated(structures="separable"))
test = gdws.data.load("demo", "test").take(50, 25)
networks = {"dense": model, "compressed": fast}
attacks = [PGD(steps=10, early_exit=True)]

found = gdws.compare(networks, test, attacks)

for name in networks:
    for examples in found.examples:
        right = found.under(name, examples)
        print(f"{name:12} {examples:40} {int(right.sum()):3} of {len(right)} correct")
for examples in found.examples:
    change = found.paired_change("compressed", examples)
    low, high = change.interval
    print(f"{examples}: lost {change.lost}, gained {change.gained}: {change.points:+.1f} points ({low:+.1f} to {high:+.1f})")
for trial in found.transfers:
    right = int(found.right[trial].sum())
    print(f"examples made on {trial.maker}, tried on {trial.judge}: {right} of {found.images} correct")

flags = gdws.red_flags(found, networks, test, attacks)
print("\n".join(map(str, flags)) or "no red flag was found, which does not prove robustness")
