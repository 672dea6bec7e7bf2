"""Embeds tokens with a saved program, in a process of its own that cannot import triton.

    python embed.py PROGRAM TOKENS OUT DEVICE

PROGRAM is a TorchScript file (.pt) or a torch.export program (.pt2). Neither `model.py` nor any tokenizer is needed:
what is served is torch, flashtri and one file. Writes the embeddings and the times to OUT.
"""

import sys
import time


def hide_triton() -> None:
    """Importing it raises from now on, and whoever asks first is told that there is none, as torch.cuda does."""
    sys.modules["triton"] = None


def main() -> None:
    hide_triton()
    import torch

    import flashtri  # noqa: F401 (registers torch.ops.flashtri)

    program, tokens, out, device = sys.argv[1:]
    batch = {name: tensor.to(device) for name, tensor in torch.load(tokens).items()}
    inputs = batch["input_ids"], batch["attention_mask"]
    torch.ones(1, device=device).add(1)  # the device's own start-up is not the model's

    start = time.perf_counter()
    if program.endswith(".pt2"):
        from torch.export.passes import move_to_device_pass

        model = move_to_device_pass(torch.export.load(program), device).module()
    else:
        model = torch.jit.load(program, map_location=device)
    times = {"load": time.perf_counter() - start}
    # Without its optimiser TorchScript starts no profiler and no fuser: nothing is compiled in this process.
    with torch.inference_mode(), torch.jit.optimized_execution(False):
        for call in ("first call", "second call"):
            start = time.perf_counter()
            embeddings = model(*inputs).cpu()
            times[call] = time.perf_counter() - start

    assert sys.modules["triton"] is None
    torch.save({"embeddings": embeddings, "times": times}, out)


if __name__ == "__main__":
    main()
