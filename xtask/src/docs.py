"""Writes a small language model's world into a folder: what Python says of itself.

    python3 docs.py FOLDER

The text is that of the installation that runs this, its topics of help and the docstrings of its
standard library (PSF License Agreement), read from the sources without importing them:

  text.txt         for a model from the beginning
  pairs.jsonl      functions: the signature as the prompt, the first sentence of its docstring as the
                   completion; test.jsonl has the functions whose docstrings text.txt leaves out
  model/           config.json of a Llama of 2.6 million parameters, and tokenizer.json, 2048 tokens
                   made here from the text by byte-pair encoding (Gage, 1994)
  base.toml, task.toml   recipes: the model from the beginning; adapters for the pairs
"""

import ast
import collections
import json
import pathlib
import pydoc_data.topics
import re
import sys
import sysconfig
import zlib

VOCABULARY = 2048
END = "<|endoftext|>"
# About the words of GPT-2's own pattern, which `tokenizer.json` asks for.
WORDS = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+| ?\d+| ?[^\s\w]+|_+|\s+(?!\S)|\s+")
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32",
    "vocab_size": VOCABULARY, "hidden_size": 192, "intermediate_size": 512,
    "num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 6,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0,
}
RECIPE = """# Made by `cargo xtask data docs`.
[data]
{data}
tokenizer = "{folder}/model/tokenizer.json"
context = {context}

[model]
kind = "pretrained"
folder = "{folder}/{model}"
{how}

[optimizer]
kind = "adamw"
learning_rate = {rate}
weight_decay = {decay}

[warm_up]
steps = {warmup}

[schedule]
kind = "cosine"
steps = {steps}

[train]
epochs = {epochs}
batch_size = {rows}
clip_norm = 1.0
"""


def documents():
    """Name, signature if a function, and docstring, of all that the standard library defines."""
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).parts
        if {"site-packages", "test", "tests", "idlelib", "turtledemo", "lib2to3"} & set(parts):
            continue
        try:
            tree = ast.parse(path.read_text("utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        module = ".".join(parts).removesuffix(".py").removesuffix(".__init__")
        yield from within(tree, module)


def within(node, name):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(node, kinds):
        doc = ast.get_docstring(node)
        is_function = isinstance(node, kinds[2:])
        if doc and doc.isascii():
            yield name, f"{name}({ast.unparse(node.args)})" if is_function else None, doc
        for child in ast.iter_child_nodes(node):
            own = getattr(child, "name", "")
            yield from within(child, f"{name}.{own}")


def first_sentence(doc):
    paragraph = " ".join(doc.split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s", paragraph)[0]


def letters():
    """GPT-2's letter for each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    table = {byte: chr(byte) for byte in shown}
    return table | {byte: chr(256 + index) for index, byte in enumerate(others)}


def tokenizer(text):
    """Byte pairs that are most frequent become tokens, until there are enough. Returns how many the
    text has, too."""
    letter = letters()
    counts = collections.Counter(WORDS.findall(text))
    words = {tuple(letter[byte] for byte in word.encode()): count for word, count in counts.items()}
    tokens, merges = [END, *(letter[byte] for byte in range(256))], []
    words = [[list(word), count] for word, count in words.items()]
    pairs, places = collections.Counter(), collections.defaultdict(set)
    for index, (word, count) in enumerate(words):
        for pair in zip(word, word[1:]):
            pairs[pair] += count
            places[pair].add(index)
    while len(tokens) < VOCABULARY:
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(" ".join(best))
        tokens.append("".join(best))
        for index in places.pop(best):
            word, count = words[index]
            for pair in zip(word, word[1:]):
                pairs[pair] -= count
            at = 0
            while at + 1 < len(word):
                if (word[at], word[at + 1]) == best:
                    word[at:at + 2] = ["".join(best)]
                at += 1
            for pair in zip(word, word[1:]):
                pairs[pair] += count
                places[pair].add(index)
        del pairs[best]
    added = {"id": 0, "content": END, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    made = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [added],
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: index for index, token in enumerate(tokens)}, "merges": merges},
    }
    return made, sum(count * len(word) for word, count in words)


def main():
    folder = pathlib.Path(sys.argv[1]).absolute()
    (folder / "model").mkdir(parents=True, exist_ok=True)
    topics = [text for text in pydoc_data.topics.topics.values() if text.isascii()]
    pairs, test, texts, seen = [], [], list(topics), set()
    for name, signature, doc in documents():
        if doc in seen:
            continue
        seen.add(doc)
        sentence = first_sentence(doc)
        is_pair = signature and 20 <= len(sentence) <= 160 and len(signature) <= 160
        is_held_out = is_pair and zlib.crc32(name.encode()) % 10 == 0
        if is_pair:
            prompt = f"def {signature}:\n"
            pair = {"prompt": prompt, "completion": f"    {sentence}"}
            (test if is_held_out else pairs).append(json.dumps(pair))
        if not is_held_out:
            texts.append(f"{name}\n{doc}")
    text = "\n\n\n".join(texts)
    write = lambda name, text: (folder / name).write_text(text)
    write("text.txt", text)
    write("pairs.jsonl", "\n".join(pairs) + "\n")
    write("test.jsonl", "\n".join(test) + "\n")
    write("model/config.json", json.dumps(CONFIG, indent=1))
    made, count = tokenizer(text)
    write("model/tokenizer.json", json.dumps(made))
    of_text = f'kind = "text"\nfile = "{folder}/text.txt"'
    # A tenth of the text is to test on.
    steps = 4 * (count * 9 // 10 // 256 // 16)
    write("base.toml", RECIPE.format(
        folder=folder, data=of_text, context=256, model="model", how="fresh = true", rate=2e-3,
        decay=0.1, warmup=50, steps=steps - 50, epochs=4, rows=16))
    of_pairs = (f'kind = "json-lines"\nfile = "{folder}/pairs.jsonl"\n'
                f'test = "{folder}/test.jsonl"\nformat = "completion"')
    write("task.toml", RECIPE.format(
        folder=folder, data=of_pairs, context=256, model="base",
        how="lora = { rank = 16, alpha = 32.0 }", rate=2e-3, decay=0.0, warmup=10, steps=400, epochs=3, rows=16))
    print(f"{len(text)} bytes of text, {len(pairs)} pairs to learn, {len(test)} to test")


main()
