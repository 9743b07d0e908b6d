"""Trains a small convolutional network on digits that it draws itself, on the GPU it is given or else on the CPU.

In several processes (`carrel run examples/mnist_torch --tasks-per-node 2`) they share each batch out among them, so that the
result is that of one process, but for rounding.
"""

import argparse
import json
import os
from pathlib import Path

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader

SIZE = 16
# The seven segments of a digit of 9 x 5: top, upper left, upper right, middle, lower left, lower right, bottom.
SEGMENTS = [
    ((0, 1), (0, 5)),
    ((0, 5), (0, 1)),
    ((0, 5), (4, 5)),
    ((4, 5), (0, 5)),
    ((4, 9), (0, 1)),
    ((4, 9), (4, 5)),
    ((8, 9), (0, 5)),
]
LIT = ["1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111", "1010010", "1111111", "1111011"]


def draw(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noisy images of digits at random places, and the digits."""
    glyphs = torch.zeros(10, 9, 5)
    for digit, lit in enumerate(LIT):
        for on, ((top, bottom), (left, right)) in zip(lit, SEGMENTS, strict=True):
            if on == "1":
                glyphs[digit, top:bottom, left:right] = 1.0
    digits = torch.randint(10, (count,), generator=generator)
    rows = torch.randint(SIZE - 9, (count,), generator=generator)
    columns = torch.randint(SIZE - 5, (count,), generator=generator)
    images = 0.2 * torch.randn(count, 1, SIZE, SIZE, generator=generator)
    for index in range(count):
        row, column = int(rows[index]), int(columns[index])
        images[index, 0, row : row + 9, column : column + 5] += glyphs[digits[index]]
    return images, digits


def main() -> None:
    """Train, report after each epoch, and keep the model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=0.004)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    rank, processes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(options.seed)
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else torch.device("cpu")
    if processes > 1:
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    print(f"device {torch.cuda.get_device_name(device) if device.type == 'cuda' else 'cpu'}", flush=True)
    images, digits = draw(options.samples, torch.Generator().manual_seed(options.seed))
    held_out = max(1, options.samples // 5)
    images, digits = images.to(device), digits.to(device)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.AdaptiveMaxPool2d(3),
        nn.Flatten(), nn.Linear(288, 10),
    ).to(device)  # fmt: skip
    trained = nn.parallel.DistributedDataParallel(model) if processes > 1 else model
    optimizer = torch.optim.Adam(model.parameters(), lr=options.learning_rate)
    # Shuffled alike in every process: they were all given the same seed.
    batches = DataLoader(range(held_out, options.samples), batch_size=50, shuffle=True, collate_fn=torch.tensor)
    history = []
    for epoch in range(1, options.epochs + 1):
        model.train()
        for batch in batches:
            mine = batch[rank::processes]
            # DistributedDataParallel takes the mean over processes, whose shares of a batch need not be equal.
            loss = nn.functional.cross_entropy(trained(images[mine]), digits[mine], reduction="sum") * processes / len(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            scores = model(images[:held_out])
            loss_value = float(nn.functional.cross_entropy(scores, digits[:held_out]))
            accuracy = float((scores.argmax(1) == digits[:held_out]).float().mean())
        history.append({"epoch": epoch, "loss": loss_value, "accuracy": accuracy})
        if rank == 0:
            print(f"epoch {epoch}/{options.epochs}  loss {loss_value:.4f}  accuracy {accuracy:.4f}", flush=True)

    if processes > 1:
        distributed.barrier()
        distributed.destroy_process_group()
    if rank > 0:
        return
    outputs = Path("outputs")
    (outputs / "model").mkdir(parents=True, exist_ok=True)
    torch.save(model.cpu().state_dict(), outputs / "model" / "weights.pt")
    record = {"parameters": vars(options), "device": device.type, "history": history}
    (outputs / "metrics.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
