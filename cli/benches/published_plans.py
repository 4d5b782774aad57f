"""The least memory in which published models can be fine-tuned, by plans: no weights, no device.

    cargo build --release
    python3 cli/benches/published_plans.py target/release/lowtide [MODEL ...]

asks `lowtide plan MODEL --least` for each model, method and length, at a batch of one row, and prints
two tables in Markdown: the least GiB, and beside figures that others have published the least that
the same batch takes here. How long plans take is printed for each model: of the whole command, on one
thread. Methods:

  full    every parameter, in bf16, by AdamW with states in f32
  8-bit   the same with states in 8 bits
  LoRA    adapters of rank 16, in f32, at all linear layers, beside weights in bf16
  QLoRA   the same beside weights in NF4 with scales in 8 bits; tables, norms and outputs in bf16
"""

import json
import subprocess
import sys
import time

MODELS = [
    "openai-community/gpt2",
    "HuggingFaceTB/SmolLM2-135M",
    "google/gemma-3-270m",
    "EleutherAI/pythia-410m",
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen3-0.6B",
    "google/gemma-3-1b-pt",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "meta-llama/Llama-3.2-1B",
    "Qwen/Qwen3-1.7B",
    "google/gemma-2-2b",
    "meta-llama/Llama-3.2-3B",
    "Qwen/Qwen3-4B",
    "mistralai/Mistral-7B-v0.3",
    "Qwen/Qwen2.5-7B",
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-2-13b-hf",
    "EleutherAI/gpt-neox-20b",
    "Qwen/Qwen3-32B",
    "meta-llama/Llama-3.1-70B",
]
METHODS = {
    "full": "--base bf16",
    "8-bit": "--base bf16 --set train.states=8bit",
    "LoRA": "--base bf16 --lora 16",
    "QLoRA": "--base nf4 --lora 16",
}
TABLE = ["full", "LoRA", "QLoRA"]
LENGTHS = [512, 2048, 8192]
# The numbers are those of any NVIDIA device: which one it is changes times only.
DEVICE = "--device h100:80GiB"

# Whose, model, method, rows, tokens of a row, and what was published.
PUBLISHED = [
    ("torchtune, 1 x RTX 4090", "meta-llama/Llama-3.1-8B", "8-bit", 2, 2048, "18.9 GiB"),
    ("torchtune, 1 x A6000", "meta-llama/Llama-3.1-8B", "8-bit", 2, 2048, "37.4 GiB"),
    ("torchtune, 1 x RTX 4090", "meta-llama/Llama-3.1-8B", "LoRA", 2, 2048, "16.2 GiB"),
    ("torchtune, 1 x A6000", "meta-llama/Llama-3.1-8B", "LoRA", 2, 2048, "30.3 GiB"),
    ("torchtune, 1 x RTX 4090", "meta-llama/Llama-3.1-8B", "QLoRA", 2, 2048, "7.4 GiB"),
    ("torchtune, 1 x A100", "meta-llama/Llama-3.2-3B", "8-bit", 2, 4096, "17.6 GiB"),
    ("torchtune, 1 x A100", "meta-llama/Llama-3.2-3B", "LoRA", 2, 4096, "8.5 GiB"),
    ("torchtune, 1 x A100", "meta-llama/Llama-3.2-3B", "QLoRA", 2, 4096, "4.6 GiB"),
    ("Unsloth, minimum of 3B", "meta-llama/Llama-3.2-3B", "LoRA", 1, 2048, "8 GB"),
    ("Unsloth, minimum of 3B", "meta-llama/Llama-3.2-3B", "QLoRA", 1, 2048, "3.5 GB"),
    ("Unsloth, minimum of 7B", "mistralai/Mistral-7B-v0.3", "LoRA", 1, 2048, "19 GB"),
    ("Unsloth, minimum of 7B", "mistralai/Mistral-7B-v0.3", "QLoRA", 1, 2048, "5 GB"),
    ("Unsloth, minimum of 8B", "meta-llama/Llama-3.1-8B", "LoRA", 1, 2048, "22 GB"),
    ("Unsloth, minimum of 8B", "meta-llama/Llama-3.1-8B", "QLoRA", 1, 2048, "6 GB"),
    ("Unsloth, minimum of 32B", "Qwen/Qwen3-32B", "LoRA", 1, 2048, "76 GB"),
    ("Unsloth, minimum of 32B", "Qwen/Qwen3-32B", "QLoRA", 1, 2048, "26 GB"),
    ("Unsloth, minimum of 70B", "meta-llama/Llama-3.1-70B", "LoRA", 1, 2048, "164 GB"),
    ("Unsloth, minimum of 70B", "meta-llama/Llama-3.1-70B", "QLoRA", 1, 2048, "41 GB"),
]


def plan(lowtide, model, method, rows, tokens):
    """The plan in the least budget, and the seconds that it took; no plan for too many positions."""
    arguments = f"plan {model} --least --json --batch {rows} --seq {tokens} {METHODS[method]} {DEVICE}"
    begin = time.perf_counter()
    done = subprocess.run([lowtide, *arguments.split()], capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    if done.returncode == 1 and "positions" in done.stderr + done.stdout:
        return None, seconds
    assert done.returncode == 0, done
    return json.loads(done.stdout), seconds


def gib(found):
    return f"{found['budget_bytes'] / 2**30:.2f}" if found else "-"


def row(*cells):
    print("|", " | ".join(cells), "|", flush=True)


def main(lowtide, *models):
    lengths = [f"{method} {tokens}" for method in TABLE for tokens in LENGTHS]
    row("model", *lengths, "slowest plan")
    row("---", *["---:"] * len(lengths), "---:")
    for model in models or MODELS:
        plans = [plan(lowtide, model, method, 1, tokens) for method in TABLE for tokens in LENGTHS]
        slowest = max(seconds for _, seconds in plans)
        row(model.split("/")[1], *[gib(found) for found, _ in plans], f"{slowest:.1f} s")
    if models:
        return
    print()
    row("published by", "model", "method", "batch", "published", "least here", "how")
    row("---", "---", "---", "---", "---:", "---:", "---")
    for who, model, method, rows, tokens, published in PUBLISHED:
        found, _ = plan(lowtide, model, method, rows, tokens)
        recomputed = f"{found['recomputed_blocks']} blocks recomputed"
        if found["blocks_at_once"] > 1:
            recomputed += f", {found['blocks_at_once']} at once"
        fused = ", update fused" if found["fused_update"] else ""
        how = f"parts of {found['micro_batch']}, {recomputed}{fused}"
        batch = f"{rows} x {tokens}"
        row(who, model.split("/")[1], method, batch, published, f"{gib(found)} GiB", how)


if __name__ == "__main__":
    main(*sys.argv[1:])
