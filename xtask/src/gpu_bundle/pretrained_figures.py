"""Fine-tuning on the device by lowtide and by PyTorch with transformers and peft, as lines of JSON.

pretrained_figures.py LOWTIDE|torch FOLDER [--small]

LOWTIDE is its command. The models are made in FOLDER from their configurations, with random weights,
where they are not there yet: GPT-2 with 124 million parameters, all trained, in bf16 by autocast; and
Qwen2.5 0.5B with adapters of rank 16, in bf16, for lowtide also beside weights in NF4 and int8. Each
trains by AdamW on one batch, again and again, so that both have the same losses.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import time

from torch_figures import figure, refused, said

try:
    import numpy
    import peft
    import torch
    import transformers
except ImportError as error:
    refused("pretrained", error)
    sys.exit()

STEPS = 12
# The first steps load kernels.
WARM_UP = 2
GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 151936,
    "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
}  # fmt: skip
SMALL = {
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 64},
    "qwen2": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
              "num_attention_heads": 2, "vocab_size": 64},
}  # fmt: skip
RANK = 16
LORA = f"lora = {{ rank = {RANK}, alpha = {2 * RANK}.0 }}\n"
# Configuration, type of the parameters, rows of a batch, what a recipe says, learning rate.
CASES = {
    "gpt2_124m_pretrained_bf16": (GPT2, "f32", 8, "", 3e-4),
    "qwen2_lora": (QWEN, "bf16", 4, LORA, 2e-4),
    "qwen2_lora_nf4": (QWEN, "bf16", 4, LORA + 'base = "nf4"\n', 2e-4),
    "qwen2_lora_int8": (QWEN, "bf16", 4, LORA + 'base = "int8"\n', 2e-4),
}
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def make(folder, config, dtype):
    """The folder of a model."""
    path = folder / config.model_type
    if not path.exists():
        torch.manual_seed(1)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=TYPES[dtype])
        model.save_pretrained(path)
    return path


def tell(name, seconds, losses):
    figure(f"{name}_step", "seconds", statistics.median(seconds[WARM_UP:]))
    said(f"{name}_losses", " ".join(f"{loss:.4f}" for loss in losses[:8]))


def by_lowtide(command, folder, name, model, tokens):
    _, dtype, rows, more, rate = CASES[name]
    context, vocabulary = (len(tokens) - 1) // rows, model.vocab_size
    files = {part: folder / f"{name}-{part}.bin" for part in ("train", "test")}
    tokens.tofile(files["train"])
    tokens[: context + 1].tofile(files["test"])
    recipe = folder / f"{name}.toml"
    recipe.write_text(f"""
[data]
kind = "token-file"
files = ["{files['train']}"]
test = ["{files['test']}"]
vocabulary = {vocabulary}
context = {context}
workers = 0
[model]
kind = "pretrained"
folder = "{make(folder, model, dtype)}"
{more}
[optimizer]
kind = "adamw"
learning_rate = {rate}
weight_decay = 0.0
[train]
epochs = {STEPS}
batch_size = {rows}
parameters = "{dtype}"
precision = "{'bf16' if dtype == 'f32' else 'f32'}"
""")
    out = folder / f"run-{name}"
    arguments = ["train", recipe, "--device", "cuda", "--quiet", "--json", "--out", out]
    run = subprocess.run([command, *arguments], capture_output=True, text=True)
    if run.returncode != 0:
        return refused(name, run.stderr)
    summary = json.loads(run.stdout)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "batch" in line]
    tell(name, [step["seconds"] for step in steps], [step["loss"] for step in steps])
    predicted, measured = summary["predicted_peak_bytes"], summary["measured_peak_bytes"]
    figure(f"{name}_peak", "bytes", measured)
    if predicted != measured:
        refused(f"{name}_predicted_peak", f"{predicted} bytes, not {measured}")


def by_torch(folder, name, model, tokens):
    _, dtype, rows, more, rate = CASES[name]
    path = make(folder, model, dtype)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    module = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=TYPES[dtype], device_map="cuda", attn_implementation="sdpa"
    )
    if more:
        options = peft.LoraConfig(
            r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        module = peft.get_peft_model(module, options, autocast_adapter_dtype=False)
    module.train()
    of_device = torch.tensor(tokens.astype("int64"), device="cuda")
    inputs, labels = of_device[:-1].view(rows, -1), of_device[1:]
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    adam = torch.optim.AdamW(trained, lr=rate, weight_decay=0.0, fused=True)
    seconds, losses = [], []
    for _ in range(STEPS):
        started = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == "f32"):
            logits = module(inputs, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels)
        loss.backward()
        adam.step()
        adam.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - started)
    tell(name, seconds, losses)
    figure(f"{name}_peak", "bytes", torch.cuda.max_memory_reserved())
    figure(f"{name}_peak_allocated", "bytes", torch.cuda.max_memory_allocated())


def main():
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    is_small = "--small" in sys.argv
    if program == "torch" and not torch.cuda.is_available():
        return refused("device", "PyTorch finds no CUDA device")
    said("transformers", f"transformers {transformers.__version__}, peft {peft.__version__}")
    for name, (entries, _, rows, more, _) in CASES.items():
        entries = {**entries, **(SMALL[entries["model_type"]] if is_small else {})}
        model = transformers.AutoConfig.for_model(**entries)
        context = 32 if is_small else 1024
        # A batch's rows follow each other; each has the first token of the next as its last label.
        drawn = numpy.random.default_rng(1).integers(0, min(model.vocab_size, 65536), rows * context + 1)
        tokens = drawn.astype("<u2")
        if program != "torch":
            by_lowtide(program, folder, name, model, tokens)
        elif "base" not in more:
            by_torch(folder, name, model, tokens)


if __name__ == "__main__":
    main()
