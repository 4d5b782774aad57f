"""Reads GGUF files as other programs do, and says where they find something else.

    python check_gguf.py JOBS.json

A job has a `kind` and the `file` to be read. "model": logits of transformers with the weights of the
file, and of llama.cpp with the whole of it, are those of the `folder`; sequences have at most `len`
tokens. "blocks": matrices are what the gguf package makes of those in `plain`. "tokenizer": the
`texts` have the tokens that the folder's tokenizer gives them. llama.cpp is judged by where the
package llama-cpp-py-sync is. Prints what was compared; exits with 1 at the first difference.
"""

import json
import pathlib
import sys
import warnings

import gguf
import numpy as np
import torch
import transformers

# Its other models have no reader of GGUF files there.
SUPPORTED = {"llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "gpt2"}
try:
    from llama_cpp_py_sync._cffi_bindings import get_ffi, get_lib

    lib, ffi = get_lib(), get_ffi()
except (ImportError, RuntimeError, OSError) as error:
    lib, missing = None, error


def opened(file):
    model = lib.llama_model_load_from_file(file.encode(), lib.llama_model_default_params())
    assert model != ffi.NULL, f"llama.cpp does not take {file}"
    return model, lib.llama_model_get_vocab(model)


def logits_of_llama_cpp(file, ids):
    model, vocabulary = opened(file)
    options = lib.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = 64
    options.n_threads = options.n_threads_batch = 1
    # Keys and values in f32, and attention in steps: the fused one computes in f16.
    options.type_k = options.type_v = options.flash_attn_type = 0
    context = lib.llama_init_from_model(model, options)
    batch = lib.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for at, token in enumerate(ids):
        batch.token[at], batch.pos[at], batch.logits[at] = token, at, 1
        batch.n_seq_id[at], batch.seq_id[at][0] = 1, 0
    assert lib.llama_decode(context, batch) == 0
    count = len(ids) * lib.llama_vocab_n_tokens(vocabulary)
    found = np.frombuffer(ffi.buffer(lib.llama_get_logits(context), 4 * count), np.float32).copy()
    lib.llama_free(context)
    lib.llama_model_free(model)
    return found.reshape(len(ids), -1)


class GgmlGelu(torch.nn.Module):
    """ggml's, which is a table of all numbers in f16."""

    def forward(self, x):
        table = torch.nn.functional.gelu(x.half().float(), approximate="tanh").half().float()
        return torch.where(x <= -10, 0, torch.where(x >= 10, x, table))


def with_gelu_of_ggml(net):
    for module in net.modules():
        for name in ("act", "act_fn"):
            if "gelu" in type(getattr(module, name, None)).__name__.lower():
                setattr(module, name, GgmlGelu())
    return net


def check_near(found, expected, tolerance, what):
    error = np.abs(found - expected).max() / np.abs(expected).max()
    print(f"{what}: off by {error:.1e}")
    assert error < tolerance, what


def check_model(job):
    folder, file = job["folder"], pathlib.Path(job["file"])
    load = transformers.AutoModelForCausalLM.from_pretrained
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    net = load(folder, **options).eval()
    ids = torch.randint(1, net.config.vocab_size, (1, job["len"]), generator=torch.manual_seed(3))
    with torch.no_grad():
        expected = net(ids).logits[0].numpy()
        assert len(gguf.GGUFReader(file).tensors) > 0
        if net.config.model_type in SUPPORTED:
            again = load(file.parent, gguf_file=file.name, config=net.config, **options).eval()
            found = again(ids).logits[0].numpy()
            check_near(found, expected, 1e-5, f"{file.stem} in transformers")
        if lib is not None:
            expected = with_gelu_of_ggml(net)(ids).logits[0].numpy()
            found = logits_of_llama_cpp(str(file), ids[0].tolist())
            check_near(found, expected, 1e-4, f"{file.stem} in llama.cpp")


def check_blocks(job):
    plain = {tensor.name: tensor for tensor in gguf.GGUFReader(job["plain"]).tensors}
    count = 0
    for tensor in gguf.GGUFReader(job["file"]).tensors:
        kind = tensor.tensor_type
        expected = gguf.quants.quantize(plain[tensor.name].data, kind)
        assert tensor.data.tobytes() == expected.tobytes(), tensor.name
        count += kind not in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
    assert count > 0
    print(f"{job['file']}: {count} matrices have the bytes of the gguf package")


def tokens_of_llama_cpp(file, text):
    model, vocabulary = opened(file)
    text = text.encode()
    room = ffi.new("llama_token[]", len(text) + 8)
    count = lib.llama_tokenize(vocabulary, text, len(text), room, len(room), True, True)
    found = list(room[0:count])
    lib.llama_model_free(model)
    return found


def check_tokenizer(job):
    file = pathlib.Path(job["file"])
    load = transformers.AutoTokenizer.from_pretrained
    own, of_file = load(job["folder"]), load(file.parent, gguf_file=file.name)
    assert of_file.chat_template == own.chat_template, "the template of chats"
    for text in job["texts"]:
        expected = own(text).input_ids
        assert of_file(text).input_ids == expected, f"transformers: {text!r}"
        if lib is not None:
            found = tokens_of_llama_cpp(str(file), text)
            assert found == expected, f"llama.cpp: {text!r}: {found}, not {expected}"
    print(f"{file.stem}: {len(job['texts'])} texts have the tokens of the folder")


def main():
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if lib is None:
        print(f"without llama.cpp: {missing}")
    kinds = {"model": check_model, "blocks": check_blocks, "tokenizer": check_tokenizer}
    for job in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        kinds[job["kind"]](job)


if __name__ == "__main__":
    main()
