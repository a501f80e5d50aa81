"""Targets in fewer bits than their files: what transformers is told so that bitsandbytes packs the linear layers.

8 bits are LLM.int8 (Dettmers et al. 2022, arXiv 2208.07339), 4 bits NF4 (Dettmers et al. 2023, arXiv 2305.14314).
Embeddings, norms and the output head keep the number type of the model.
"""

import importlib.util
import logging
from typing import Any

import torch
from transformers import BitsAndBytesConfig

from architectures.errors import UserError

PACKAGE = "bitsandbytes"


def loading_arguments(bits: int, *, dtype: str, device: str) -> dict[str, Any]:
    """Arguments of from_pretrained for a model in 8 or 4 bits.

    Raises:
        UserError: If bitsandbytes is not installed.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise UserError(
            f"{bits} bits: {PACKAGE} packs the weights and is not installed. Run: pip install 'widedraft[quantised]'"
        )
    logging.getLogger(f"{PACKAGE}.autograd._functions").setLevel(logging.ERROR)  # it warns of its casts at every step
    config = (
        BitsAndBytesConfig(load_in_8bit=True)
        if bits == 8
        else BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=getattr(torch, dtype)
        )
    )
    return {"quantization_config": config, "device_map": {"": device}}
