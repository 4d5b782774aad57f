"""Writes tiny models of the transformers package as cases: a model with random weights as its
`save_pretrained` writes it, batches, and the logits, losses and gradients of ten AdamW steps.

    python transformers_suite.py OUT [--ops NAME ...] [--sample]

OUT gets a folder `NAME.DTYPE` with `config.json` and `model.safetensors` for each model, and its run
in `NAME.jsonl` and `NAME.bin`, in the form of `opinfo.py`: a line for each type. A line's `arguments`
are the batches, one a step; its `outputs` the logits and the loss of each step and the buffers after
the last; its `gradients` those of the parameters at the first and the last step, by their names in
the file. Nothing is downloaded: configurations and weights are made here.
"""

import pathlib
import sys
import warnings

sys.dont_write_bytecode = True  # Not beside the sources.
import opinfo  # First: it chooses the instructions.
import safetensors.torch
import torch
import transformers
from opinfo import DTYPES, TOLERANCES, Writer, differs, seed_all
from torch.overrides import TorchFunctionMode

STEPS = 10
ADAMW = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
# Of f64: what sums in another order leave.
F64_TOLERANCES = (1e-10, 1e-12)
LABEL_IGNORED = -100


class Wide(TorchFunctionMode):
    """f64 where the models ask for f32.

    They compute norms, softmax, angles and losses in f32 to be more precise than a half type. In f64
    that would make all results those of f32.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        widen = lambda x: torch.float64 if x is torch.float32 else x
        kwargs = {key: widen(value) for key, value in (kwargs or {}).items()}
        return function(*map(widen, args), **kwargs)


def tokens(generator, shape, vocabulary):
    # 0 pads, 1 starts a sequence and 2 ends it.
    return torch.randint(3, vocabulary, shape, generator=generator)


def padded(x, mask, value):
    return torch.where(mask.bool(), x, torch.full_like(x, value))


def mask_of(lens, width):
    return (torch.arange(width)[None] < torch.tensor(lens)[:, None]).long()


def text(config, generator, small):
    """A causal model's batch: one sequence is shorter than the others."""
    mask = mask_of([7, 5] if small else [11, 8, 11], 7 if small else 11)
    ids = padded(tokens(generator, mask.shape, config.vocab_size), mask, 0)
    return {"input_ids": ids, "attention_mask": mask, "labels": padded(ids, mask, LABEL_IGNORED)}


def masked_text(config, generator, small):
    """A batch of two segments a sequence, with one token in three to be guessed."""
    batch = text(config, generator, small)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    is_asked = (torch.rand(ids.shape, generator=generator) < 0.3) & mask.bool()
    is_asked[0, 1] = True
    labels = torch.where(is_asked, ids, torch.full_like(ids, LABEL_IGNORED))
    types = (torch.arange(ids.shape[1])[None] >= 4).long().expand(ids.shape).contiguous()
    ids = torch.where(is_asked, torch.full_like(ids, 3), ids)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types, "labels": labels}


def classified_text(config, generator, small):
    batch = masked_text(config, generator, small)
    labels = torch.randint(0, config.num_labels, batch["labels"].shape[:1], generator=generator)
    return batch | {"labels": labels}


def pairs(config, generator, small):
    """Sequences with others that follow from them."""
    sources = mask_of([9, 6] if small else [12, 7, 12], 9 if small else 12)
    targets = mask_of([6, 6] if small else [7, 9, 4], 6 if small else 9)
    ids = padded(tokens(generator, sources.shape, config.vocab_size), sources, 0)
    labels = padded(tokens(generator, targets.shape, config.vocab_size), targets, LABEL_IGNORED)
    return {"input_ids": ids, "attention_mask": sources, "labels": labels}


def images(size):
    def batch(config, generator, small):
        pixels = torch.randn((2 if small else 4, 3, *size), generator=generator, dtype=torch.float64)
        labels = torch.randint(0, config.num_labels, (len(pixels),), generator=generator)
        return {"pixel_values": pixels, "labels": labels}

    return batch


def model(name, config, batch, sample=None, shifts={}, **forward):
    """A model: its class, configuration and batches; what is smaller in the sample; what is added to
    parameters; arguments of its forward."""
    return {"class": name, "config": config, "batch": batch, "sample": sample, "shifts": shifts,
            "forward": forward}


ROPE = {"rope_type": "default", "rope_theta": 10000.0}
GPT2 = {"vocab_size": 64, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {"vocab_size": 80, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
         "rope_parameters": ROPE, "pad_token_id": 0}
QWEN3 = LLAMA | {"head_dim": 12, "rope_parameters": ROPE | {"rope_theta": 1000000.0}}
BERT = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 40, "max_position_embeddings": 16, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0}
T5 = {"vocab_size": 64, "d_model": 16, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4,
      "dropout_rate": 0.0, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10,
      "decoder_start_token_id": 0, "pad_token_id": 0}
VIT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
       "image_size": 16, "patch_size": 4, "num_labels": 7, "hidden_dropout_prob": 0.0,
       "attention_probs_dropout_prob": 0.0}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2], "num_labels": 7}
SMALL_GPT2 = {"vocab_size": 20, "n_positions": 8, "n_embd": 8, "n_head": 2, "n_layer": 1}
SMALL_LLAMA = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 4,
               "num_hidden_layers": 1}
# A channel of the stem that is on at every place shifts only the mean, which the next normalization
# takes away: its bias has a gradient of 0 but for rounding, of which AdamW makes whole steps.
OFF_IN_PLACES = {"resnet.embedder.embedder.normalization.bias": -1.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 16}

MODELS = {
    "gpt2": model("GPT2LMHeadModel", GPT2, text, SMALL_GPT2),
    "gpt2-by-layer": model("GPT2LMHeadModel", GPT2 | {"scale_attn_by_inverse_layer_idx": True,
                           "n_inner": 24, "activation_function": "relu"}, text),
    "llama": model("LlamaForCausalLM", LLAMA, text, SMALL_LLAMA),
    "llama-biases-tied": model("LlamaForCausalLM", LLAMA | {"attention_bias": True, "mlp_bias": True,
                               "tie_word_embeddings": True, "num_key_value_heads": 1}, text),
    "llama-3.1": model("LlamaForCausalLM", LLAMA | {"rope_parameters": LLAMA3}, text),
    "qwen3": model("Qwen3ForCausalLM", QWEN3, text),
    "qwen3-windows": model("Qwen3ForCausalLM", QWEN3 | {"use_sliding_window": True, "sliding_window": 4,
                           "max_window_layers": 1, "tie_word_embeddings": True}, text),
    "bert": model("BertForMaskedLM", BERT, masked_text),
    "bert-classes": model("BertForSequenceClassification", BERT | {"num_labels": 5}, classified_text),
    "t5": model("T5ForConditionalGeneration", T5 | {"tie_word_embeddings": True}, pairs),
    "t5-1.1": model("T5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-gelu",
                    "tie_word_embeddings": False}, pairs),
    "vit": model("ViTForImageClassification", VIT, images((16, 16))),
    "vit-larger-images": model("ViTForImageClassification", VIT, images((24, 20)),
                               interpolate_pos_encoding=True),
    "resnet-basic": model("ResNetForImageClassification", RESNET | {"layer_type": "basic"},
                          images((32, 32)), shifts=OFF_IN_PLACES),
    "resnet-bottleneck": model("ResNetForImageClassification", RESNET | {"layer_type": "bottleneck",
                               "hidden_sizes": [16, 32]}, images((32, 32)), shifts=OFF_IN_PLACES),
}


def made(entry, small):
    """The model in f32, with every parameter at random: fresh ones are 0 and 1 in places, which
    hides mistakes."""
    architecture = getattr(transformers, entry["class"])
    given = entry["config"] | (entry["sample"] if small else {})
    net = architecture(architecture.config_class(**given, attn_implementation="eager"))
    generator = torch.Generator().manual_seed(opinfo.SEED)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() < 2:
                parameter += 0.1 * noise + entry["shifts"].get(name, 0.0)
            else:
                parameter.copy_(noise / parameter[0].numel() ** 0.5)
    return net.train()


def widened(entry, small, weights):
    """The same model with the same weights in f64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        net = made(entry, small)
    finally:
        torch.set_default_dtype(before)
    net.double().load_state_dict(weights)
    return net


def in_file(net, folder):
    """The name that `save_pretrained` gave each parameter and buffer, by the module's name."""
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    own = net.state_dict()
    names = {key: key for key in own if key in stored}
    for key in own.keys() - names.keys():
        same = [name for name, value in stored.items()
                if name not in own and value.shape == own[key].shape and torch.equal(value, own[key])]
        if same:
            names[key] = same[0]
    return names


def steps(net, batches, forward):
    """Logits and losses of all steps, gradients of the first and the last, buffers after it."""
    optimizer = torch.optim.AdamW(net.parameters(), **ADAMW)
    outputs, gradients = [], []
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        found = net(**batch, **forward)
        found.loss.backward()
        outputs.append({"logits": found.logits.detach().clone(), "loss": found.loss.detach().clone()})
        if step in (0, STEPS - 1):
            parameters = net.named_parameters()
            grads = {key: value.grad.clone() for key, value in parameters if value.grad is not None}
            gradients.append(grads)
        else:
            gradients.append({})
        optimizer.step()
    buffers = {key: value.clone() for key, value in net.named_buffers() if key in net.state_dict()}
    outputs.append({"buffers": buffers} if buffers else {})
    return outputs, gradients


def named(writer, value, names):
    """Tensors of a tree, with the names of the file."""
    if isinstance(value, dict):
        return {names.get(key, key): named(writer, item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [named(writer, item, names) for item in value]
    return writer.value(value)


def leaves(value):
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def in_type(batch, dtype):
    return {key: x.to(dtype) if x.is_floating_point() else x for key, x in batch.items()}


def write_model(writer, folder, name, small):
    entry = MODELS[name]
    seed_all(name)
    net = made(entry, small)
    weights = {key: value.clone() for key, value in net.state_dict().items()}
    generator = torch.Generator().manual_seed(opinfo.SEED + 1)
    # Numbers of f32, so that both types have the same batches.
    batches = [entry["batch"](net.config, generator, small) for _ in range(STEPS)]
    batches = [in_type(batch, torch.float32) for batch in batches]
    with Wide():
        wide = widened(entry, small, weights)
        save(wide, folder / f"{name}.f64")
        wide_names = in_file(wide, folder / f"{name}.f64")
        truth = steps(wide, [in_type(batch, torch.float64) for batch in batches], entry["forward"])
    save(net, folder / f"{name}.f32")
    names = in_file(net, folder / f"{name}.f32")
    assert names == wide_names, f"{name}: the names depend on the type"
    runs = {"f64": truth, "f32": steps(net, batches, entry["forward"])}
    for dtype, (outputs, gradients) in runs.items():
        rtol, atol = F64_TOLERANCES if dtype == "f64" else TOLERANCES[dtype]
        parameters = {key: key for key, _ in net.named_parameters()}
        unknown = [key for grads in gradients for key in grads if key not in names]
        assert not unknown, f"{name}: {unknown} are not in the file"
        case = {
            "op": name, "kind": "sample", "dtype": dtype, "rtol": rtol, "atol": atol, "training": True,
            "options": {"folder": f"{name}.{dtype}", "optimizer": ADAMW, "forward": entry["forward"]},
            "arguments": named(writer, [in_type(batch, DTYPES[dtype]) for batch in batches], {}),
            "outputs": named(writer, outputs, names), "gradients": named(writer, gradients, names),
        }
        if dtype == "f32":
            pairs = zip(leaves([outputs, gradients]), leaves(list(truth)))
            if any(differs(found, exact, rtol, atol) for found, exact in pairs):
                case["truth"] = {"outputs": named(writer, truth[0], names),
                                 "gradients": named(writer, truth[1], names)}
        writer.case(case)


def save(net, folder):
    net.save_pretrained(folder)
    # Only what the cases are loaded from.
    for file in folder.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            file.unlink()


def main():
    parser = opinfo.argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--ops", nargs="*")
    parser.add_argument("--sample", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, entry in MODELS.items():
        if (options.ops and name not in options.ops) or (options.sample and not entry["sample"]):
            continue
        writer = Writer(options.out, name)
        write_model(writer, options.out, name, options.sample)
        writer.close()
    versions = f"transformers {transformers.__version__}, PyTorch {torch.__version__}, seed {opinfo.SEED}"
    (options.out / "versions.txt").write_text(versions + "\n")


if __name__ == "__main__":
    main()
