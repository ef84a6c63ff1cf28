"""Plots how many tokens each expert of each layer was given.

python plot_loads.py MODEL OUT.png [DATA ...]     (without data: the built-in texts)
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import dsmoe

model = dsmoe.Model(sys.argv[1])
found = dsmoe.inspect(model, sys.argv[3:] or "builtin", limit=2000)
load = found.load / found.load.mean(axis=1, keepdims=True)  # [L, E]; 1 is an even load

figure, axes = plt.subplots(figsize=(10, 1 + 0.4 * len(load)))
image = axes.imshow(load, aspect="auto", cmap="viridis", vmin=0)
axes.set(xlabel="expert", ylabel="MoE layer", yticks=range(len(load)), yticklabels=found.layers)
figure.colorbar(image, label="load, relative to the mean")
figure.savefig(sys.argv[2], bbox_inches="tight")
print(f"{sys.argv[2]}: the most loaded expert has {load.max():.2f} times the mean, the least {load.min():.2f}")
