#!/usr/bin/env python3
"""examples/use_model.cpp in Python: reads a file of `cohort checkpoint export` of --model mlp-small, asks it two made-up pictures, prints the same."""
import json
import sys

import torch
from safetensors import safe_open

with safe_open(sys.argv[1], "pt") as file:
    about, data = file.metadata(), json.loads(file.metadata()["data"])
    assert about["model"] == "mlp-small" and data["shape"] == [1, 28, 28], f"this reads mlp-small alone, and not {about['model']}"
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 128), torch.nn.ReLU(),
                                torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    model.load_state_dict({name: file.get_tensor(name) for name in file.keys()})

picture = (torch.arange(2 * 784, dtype=torch.float64) % 256 / 255).view(2, 1, 28, 28)
if data["mean"]:
    picture = (picture - data["mean"][0]) / data["deviation"][0]
for i, scores in enumerate(model.eval()(picture.float()).detach()):
    likeliest = int(scores.argmax())
    print(f"picture {i}: {data['classes'][likeliest] if data['classes'] else likeliest}")
    print(*(f"{float(score):.9g}" for score in scores))
