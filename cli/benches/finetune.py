"""Training pretrained models with lowtide and with PyTorch: time, losses and memory of the same steps.

    cargo build --release
    python3 cli/benches/finetune.py target/release/lowtide FOLDER [CASE ...]

needs torch, transformers, peft, bitsandbytes, numpy and safetensors. `FOLDER` gets the models, with
random weights: nothing is downloaded. Cases, all with AdamW and on one batch of random tokens, again
and again, so that both see the same losses:

  gpt2      GPT-2 with 124 million parameters, all trained, f32, 4 rows of 64 tokens
  lora      Qwen2.5 0.5B, adapters of rank 16 at all linear layers, bf16, 1 row of 512 tokens
  qlora     the same beside weights in NF4

Each program runs alone, in turns, on two threads; lowtide has the budget of `BUDGETS`. Memory is what
the system says of the process, in MiB: the most that no file is behind (`Pss_Anon` and `Pss_Shmem` of
/proc, looked at every 50 ms; a page that is mapped twice counts once, which it does not in `Rss`), and
the most of all, which has mapped files as well. Python and its libraries have some of it before a model
is there: the column `before`.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time

THREADS, ROUNDS, STEPS = 2, 3, 6
QWEN = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 151936,
        "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}
GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0}
RANK = 16
# What lowtide may take, beside the base that is mapped.
BUDGETS = {"qlora": "400MiB"}
LORA = f"lora = {{ rank = {RANK}, alpha = {2 * RANK}.0 }}"
# Model, tokens, and what a recipe of lowtide says of it.
CASES = {
    "gpt2": (GPT2, "float32", (4, 64), 50257, "", "f32", 3e-4),
    "lora": (QWEN, "bfloat16", (1, 512), 151936, LORA, "bf16", 2e-4),
    "qlora": (QWEN, "bfloat16", (1, 512), 151936, LORA, "bf16", 2e-4),
}


def make(folder, case):
    """The model of a case as its files, and its tokens."""
    import numpy
    import torch
    import transformers

    entries, dtype, (rows, context), vocabulary, *_ = CASES[case]
    tokens = numpy.random.default_rng(1).integers(0, min(vocabulary, 65536), rows * context + 1)
    tokens.astype("<u2").tofile(folder / f"{case}.bin")
    tokens[:context + 1].astype("<u2").tofile(folder / f"{case}-test.bin")
    name = entries["model_type"]
    plain, quantized = folder / name, folder / f"{name}-nf4"
    if not plain.exists():
        torch.manual_seed(1)
        config = transformers.AutoConfig.for_model(**entries)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
        model.save_pretrained(plain)
    if case == "qlora" and not quantized.exists():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            plain, quantization_config=nf4(), dtype=torch.bfloat16, device_map="cpu")
        model.save_pretrained(quantized)
    return quantized if case == "qlora" else plain


def nf4():
    import torch
    from transformers import BitsAndBytesConfig
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                              bnb_4bit_use_double_quant=True,
                              bnb_4bit_compute_dtype=torch.bfloat16)


def torch_steps(folder, case):
    """Trains with PyTorch; prints the loss and the seconds of each step."""
    import numpy
    import torch
    import transformers

    torch.set_num_threads(THREADS)
    entries, dtype, (rows, context), _, lora, _, rate = CASES[case]
    print(json.dumps({"before": memory(os.getpid())}), flush=True)
    name = entries["model_type"] + ("-nf4" if case == "qlora" else "")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / name, dtype=getattr(torch, dtype), device_map="cpu", attn_implementation="sdpa")
    if lora:
        import peft
        options = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear",
                                  task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, options, autocast_adapter_dtype=False)
    model.train()
    tokens = numpy.fromfile(folder / f"{case}.bin", "<u2").astype("int64")
    ids = torch.tensor(numpy.stack([tokens[row * context:][:context] for row in range(rows)]))
    labels = torch.tensor(numpy.stack([tokens[row * context + 1:][:context] for row in range(rows)]))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    adam = torch.optim.AdamW(trained, lr=rate, weight_decay=0.0, fused=True)
    for _ in range(STEPS):
        start = time.perf_counter()
        logits = model(ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        loss.backward()
        adam.step()
        adam.zero_grad()
        loss = loss.item()
        print(json.dumps({"loss": loss, "seconds": time.perf_counter() - start}), flush=True)


def recipe(folder, case, model):
    _, _, (rows, context), vocabulary, lora, parameters, rate = CASES[case]
    text = f"""
[data]
kind = "token-file"
files = ["{folder / case}.bin"]
test = ["{folder / case}-test.bin"]
vocabulary = {vocabulary}
context = {context}
workers = 0
[model]
kind = "pretrained"
folder = "{model}"
{lora}
[optimizer]
kind = "adamw"
learning_rate = {rate}
weight_decay = 0.0
[train]
epochs = {STEPS}
batch_size = {rows}
parameters = "{parameters}"
"""
    (folder / f"{case}.toml").write_text(text)


def memory(pid):
    """Memory of a process now that no file is behind, and all that it has, in MiB."""
    fields = {}
    for line in open(f"/proc/{pid}/smaps_rollup"):
        name, _, value = line.partition(":")
        if name.startswith("Pss"):
            fields[name] = int(value.split()[0]) / 1024
    return [fields["Pss_Anon"] + fields["Pss_Shmem"], fields["Pss"]]


def run(command):
    """Runs a command; its output, and the most of each kind of memory."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    most, over = [0.0, 0.0], threading.Event()

    def watch():
        while not over.wait(0.05):
            try:
                now = memory(process.pid)
            except (OSError, KeyError):
                return
            most[:] = map(max, most, now)

    watcher = threading.Thread(target=watch)
    watcher.start()
    out = process.communicate()[0]
    over.set()
    watcher.join()
    if process.returncode != 0:
        sys.exit(f"{command} failed")
    return out, most


def lowtide(binary, folder, case):
    out = folder / f"run-{case}"
    subprocess.run(["rm", "-rf", out], check=True)
    options = ["--threads", str(THREADS), "--quiet", "--json"]
    if case in BUDGETS:
        options += ["--budget", BUDGETS[case]]
    text, most = run([binary, "train", str(folder / f"{case}.toml"), "--out", str(out), *options])
    lines = [json.loads(line) for line in open(out / "metrics.jsonl")]
    steps = [line for line in lines if "loss" in line and "seconds" in line]
    summary = json.loads(text)
    exact = summary["predicted_peak_bytes"] == summary["measured_peak_bytes"]
    return steps, most, [0.0, 0.0], f"{summary['measured_peak_bytes'] / 2**20:.1f}" + (
        "" if exact else " (NOT as planned)")


def peer(folder, case):
    text, most = run([sys.executable, __file__, "--torch", str(folder), case])
    lines = [json.loads(line) for line in text.splitlines()]
    return lines[1:], most, lines[0]["before"], ""


def main():
    binary, folder, *cases = sys.argv[1:]
    folder = pathlib.Path(folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    cases = cases or list(CASES)
    for case in cases:
        model = make(folder, case)
        recipe(folder, case, model)
    print("case   program   ms a step   tokens/s   no file   before   in memory   planned"
          "   losses")
    for case in cases:
        rows, context = CASES[case][2]
        rounds = []
        for _ in range(ROUNDS):
            rounds.append([lowtide(binary, folder, case), peer(folder, case)])
        for index, program in enumerate(["lowtide", "PyTorch"]):
            # The first step of a process makes what others find.
            times = [step["seconds"] for one in rounds for step in one[index][0][1:]]
            seconds = statistics.median(times)
            most = [max(one[index][1][at] for one in rounds) for at in range(2)]
            _, _, before, planned = rounds[0][index]
            losses = " ".join(f"{step['loss']:.4f}" for step in rounds[0][index][0])
            print(f"{case:6} {program:8} {seconds * 1e3:10.0f} {rows * context / seconds:10.1f} "
                  f"{most[0]:11.0f} {before[0]:8.0f} {most[1]:11.0f} {planned:>9}   {losses}",
                  flush=True)


if sys.argv[1] == "--torch":
    torch_steps(pathlib.Path(sys.argv[2]), sys.argv[3])
else:
    main()
