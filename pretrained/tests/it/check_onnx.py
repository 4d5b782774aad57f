"""Runs ONNX files in onnxruntime, and says where they give other logits than transformers.

    python check_onnx.py JOBS.json

A job has a `folder` of transformers' and the `file` made of it, and the `tolerance` that logits may be
off by, relative to the largest. Prints what was compared; exits with 1 at the first difference.
"""

import json
import pathlib
import sys
import warnings

import numpy as np
import onnx
import onnxruntime
import torch
import transformers


def inputs(config, shape, random):
    """Numbers that a model of this configuration reads, by their names; `shape` is that of tokens."""
    if hasattr(config, "num_channels"):
        # A ViT has images of one size.
        size = getattr(config, "image_size", 32 + shape[1])
        return {"pixel_values": torch.randn(shape[0], config.num_channels, size, size, generator=random)}
    ids = torch.randint(1, config.vocab_size, shape, generator=random)
    if config.model_type != "bert":
        return {"input_ids": ids}
    # The last row ends with padding.
    lens = torch.full((shape[0], 1), shape[1]) - torch.arange(shape[0])[:, None]
    mask = (torch.arange(shape[1])[None] < lens).long()
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % config.type_vocab_size}


def check(job):
    name = pathlib.Path(job["file"]).parent.name
    onnx.checker.check_model(job["file"], full_check=True)
    config = transformers.AutoConfig.from_pretrained(job["folder"])
    kind = getattr(transformers, config.architectures[0])
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    net = kind.from_pretrained(job["folder"], **options).eval()
    session = onnxruntime.InferenceSession(job["file"], providers=["CPUExecutionProvider"])
    random = torch.manual_seed(3)
    for shape in ((1, 5), (2, 9)):
        given = inputs(config, shape, random)
        with torch.no_grad():
            expected = net(**given).logits.numpy()
        half = "float16" in session.get_outputs()[0].type
        fed = {key: (x.half() if half and x.is_floating_point() else x).numpy() for key, x in given.items()}
        assert {it.name for it in session.get_inputs()} == set(fed)
        [found] = session.run(["logits"], fed)
        assert found.shape == expected.shape, found.shape
        error = np.abs(found - expected).max() / np.abs(expected).max()
        print(f"{name} in onnxruntime, {shape[0]} x {shape[1]}: off by {error:.1e}")
        assert error < job["tolerance"], name


def main():
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for job in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        check(job)


if __name__ == "__main__":
    main()
