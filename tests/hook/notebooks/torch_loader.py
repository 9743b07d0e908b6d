# %%
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(256, 8)
data = TensorDataset(x, (x.sum(dim=1) > 0).long())
# %%
loader = DataLoader(data, batch_size=64, num_workers=2, shuffle=False)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(3):
    total = 0.0
    for inputs, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(epoch, round(total / len(loader), 3))
# %%
print(torch.cuda.is_available(), (model(x).argmax(1) == data.tensors[1]).float().mean().item() > 0.9)
