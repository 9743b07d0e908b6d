# %%
import torch
torch.manual_seed(1)
layer = torch.nn.Linear(32, 32)
with torch.autocast("cpu", dtype=torch.bfloat16):
    out = layer(torch.randn(4, 32))
out.dtype
# %%
from torch.amp import GradScaler
scaler = GradScaler("cpu", enabled=False)
loss = layer(torch.ones(2, 32)).pow(2).mean()
scaler.scale(loss).backward()
layer.weight.grad.shape
# %%
traced = torch.jit.trace(layer, torch.ones(1, 32))
torch.allclose(traced(torch.ones(1, 32)), layer(torch.ones(1, 32)))
# %%
compiled = torch.compile(layer, backend="eager")
torch.allclose(compiled(torch.ones(1, 32)), layer(torch.ones(1, 32)))
