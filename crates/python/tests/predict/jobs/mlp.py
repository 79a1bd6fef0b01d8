"""A plain network on synthetic rows, with Adam and float32."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4096)
args = parser.parse_args()

rows = TensorDataset(torch.randn(5 * args.batch_size, 512), torch.randint(0, 100, (5 * args.batch_size,)))
loader = DataLoader(rows, batch_size=args.batch_size, shuffle=True, pin_memory=True)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(
    nn.Linear(512, 4096), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4096, 100)
).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
for epoch in range(2):
    total = correct = 0
    for inputs, labels in loader:
        inputs, labels = inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        total += labels.size(0)
        correct += (outputs.argmax(1) == labels).sum().item()
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {correct / total:.3f}")
