"""A module of PyTorch as an engine, which takes and gives tensors; and the same by torch.compile.

pip install 'pelton[torch]'
python examples/torch_tensors.py
"""

import pelton
import torch

torch.manual_seed(0)
module = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 3, padding=1),
    torch.nn.BatchNorm2d(16),
    torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(1),
    torch.nn.Flatten(),
    torch.nn.Linear(16, 10),
).eval()
x = torch.randn(4, 3, 64, 64)

with torch.no_grad():
    want = module(x)
    engine = pelton.build(module, example_inputs=(x,), level=0)
    y = torch.as_tensor(engine(x))  # the tensor is read where it is, without a copy
    print(f"{len(engine.steps)} steps for {len(module)} layers; as the module: {torch.allclose(y, want, atol=1e-5)}")

    out = torch.empty(4, 10)  # written where it is
    context = engine.context()
    context.run({engine.inputs[0].name: x}, out={engine.outputs[0].name: out})
    print(f"into a tensor of one's own: {torch.equal(out, y)}")

    compiled = torch.compile(module, backend="pelton", options={"level": 0})
    print(f"by torch.compile: {torch.allclose(compiled(x), want, atol=1e-5)}")
