"""The workloads of tokens.rs with PyTorch's DataLoader and the packages tiktoken and tokenizers:

    cargo bench -p lowtide-data --bench tokens
    python3 data/benches/tokens.py [R50K_BASE.TIKTOKEN]

`token_rows` takes an epoch of shuffled rows of 1024 tokens from a numpy memmap of 16-bit tokens;
`get_batch` is nanoGPT's way, which draws rows without a DataLoader. `tokenize` encodes the licence
32 times over. The package tiktoken has no vocabulary inside: without the file of GPT-2's, which the
crate tiktoken-rs has in its assets, its line is left out. Figures are the median of the rounds and
the best one. PyTorch has one thread: with more, summing these batches is slower, many times so on
a machine that is busy.
"""

import base64
import os
import statistics
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import tiktoken
import tokenizers
import torch
from torch.utils.data import DataLoader, Dataset

CONTEXT, BATCH_SIZE, ROWS, ROUNDS = 1024, 32, 1 << 13, 7
LICENCE = os.path.join(os.path.dirname(__file__), "..", "..", "LICENSE-APACHE")
REPEATS, VOCABULARY_LEN = 32, 1000
# Of r50k_base, as published with tiktoken.
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""


class Rows(Dataset):
    def __init__(self, path):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")

    def __len__(self):
        return (len(self.tokens) - 1) // CONTEXT

    def __getitem__(self, index):
        start = index * CONTEXT
        return torch.from_numpy(self.tokens[start : start + CONTEXT + 1].astype(np.int64))


def rates(run, count):
    """Millions a second: the median of the rounds, and the best."""
    run()
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return count / statistics.median(seconds) / 1e6, count / min(seconds) / 1e6


def token_rows(folder):
    path = os.path.join(folder, "tokens.bin")
    numbers = np.arange(ROWS * CONTEXT + 1, dtype=np.uint32) * np.uint32(2_654_435_761)
    (numbers >> 16).astype(np.uint16).tofile(path)

    def report(name, run):
        median, best = rates(run, ROWS * CONTEXT)
        print(f"token_rows/{name}: {median:.1f} million tokens/s, best {best:.1f}")

    def get_batch():
        for _ in range(ROWS // BATCH_SIZE):
            data = np.memmap(path, dtype=np.uint16, mode="r")
            starts = torch.randint(len(data) - CONTEXT, (BATCH_SIZE,))
            rows = [torch.from_numpy(data[i : i + CONTEXT + 1].astype(np.int64)) for i in starts]
            torch.stack(rows).sum()

    report("get_batch", get_batch)
    for workers in (0, 2):
        loader = DataLoader(
            Rows(path),
            batch_size=BATCH_SIZE,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )

        def epoch():
            for batch in loader:
                batch.sum()

        report(f"dataloader_workers_{workers}", epoch)


def tokenize(vocabulary):
    with open(LICENCE) as file:
        licence = file.read()
    text = licence * REPEATS

    def report(name, encode):
        count = len(encode())
        median, best = rates(encode, len(text.encode()))
        print(f"tokenize/{name}: {median:.2f} MB/s, best {best:.2f}, {count} tokens")

    if vocabulary:
        with open(vocabulary, "rb") as file:
            pairs = [line.split() for line in file.read().splitlines() if line]
        ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
        end = {"<|endoftext|>": 50256}
        gpt2 = tiktoken.Encoding(
            "gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=end
        )
        report("tiktoken_gpt2", lambda: gpt2.encode_ordinary(text))
    level = tokenizers.pre_tokenizers.ByteLevel
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = level(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY_LEN, initial_alphabet=level.alphabet(), show_progress=False
    )
    trained.train_from_iterator([licence], trainer)
    report("tokenizer_json", lambda: trained.encode(text, add_special_tokens=False).ids)


print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
print(f"numpy {np.__version__}, tiktoken {tiktoken.__version__}, tokenizers {tokenizers.__version__}")
with tempfile.TemporaryDirectory() as temporary:
    token_rows(temporary)
tokenize(sys.argv[1] if len(sys.argv) > 1 else None)
