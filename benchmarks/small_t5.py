"""A small T5 trained from scratch on plain text, as a target where none can be had: minutes of one core.

    python benchmarks/small_t5.py --text train.txt --out runs/small-t5/target --prompts runs/small-t5/prompts.jsonl

Prefix language modelling (Raffel et al. 2020, arXiv 1910.10683, sec. 3.2.1): the encoder reads some tokens of the text,
the decoder says those that follow. Windows of the last tenth of the text are not trained on: their beginnings are the
prompts that are written, one a line, for a recipe to prune, distil and score this target with.

Shape suffixes used in this file:
    B = windows, S = tokens that the encoder reads, D = tokens that the decoder says
"""

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from architectures.files.atomic import write_text

PAD, EOS = "<pad>", "</s>"
HELD_OUT = 10  # one part of so many


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of the target")
    parser.add_argument("--prompts", type=Path, required=True, help="file of prompts that were not trained on")
    parser.add_argument("--num-prompts", type=int, default=300)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, nargs=2, default=[2, 6], metavar=("ENCODER", "DECODER"))
    parser.add_argument("--window", type=int, nargs=2, default=[32, 24], metavar=("S", "D"))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=17)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    text = "\n".join(path.read_text(encoding="utf-8") for path in options.text)
    tokenizer = trained_tokenizer(text, options.vocab)
    ids_T = torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    border = len(ids_T) - len(ids_T) // HELD_OUT
    model = new_model(tokenizer, options)
    train(model, ids_T[:border], options)
    nats = held_out_nats(model, ids_T[border:], options)
    print(f"{model.num_parameters():,} parameters; {nats:.3f} nats a token of text that was not trained on")
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    write_text("".join(rows_of(ids_T[border:], tokenizer, options)), options.prompts)


def trained_tokenizer(text: str, size: int) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of so many tokens, the first of which pads and the second of which ends."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learner = trainers.BpeTrainer(vocab_size=size, special_tokens=[PAD, EOS], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(text.splitlines(keepends=True), learner)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS)


def new_model(tokenizer: PreTrainedTokenizerFast, options: argparse.Namespace) -> T5ForConditionalGeneration:
    """A random T5 with the tokenizer's vocabulary, heads of 32 and a feed-forward four times as wide."""
    encoder, decoder = options.layers
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=options.width,
        d_kv=32,
        d_ff=4 * options.width,
        num_heads=options.width // 32,
        num_layers=encoder,
        num_decoder_layers=decoder,
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config)


def windows(ids_T: Tensor, starts_B: Tensor, options: argparse.Namespace) -> dict[str, Tensor]:
    """prompt_BS, and said_BD behind it, from some places of a text on; as the model's forward pass takes them."""
    prompt, said = options.window
    ids_BT = ids_T[starts_B[:, None] + torch.arange(prompt + said)]
    return {"input_ids": ids_BT[:, :prompt], "labels": ids_BT[:, prompt:].contiguous()}


def train(model: T5ForConditionalGeneration, ids_T: Tensor, options: argparse.Namespace) -> None:
    """Train; the learning rate rises over the first twentieth of the steps and falls to 0 over the rest."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, fused=True)
    for step in range(1, options.steps + 1):
        share = step / options.steps
        optimizer.param_groups[0]["lr"] = options.lr * min(share * 20, 1 - share)
        starts_B = torch.randint(len(ids_T) - sum(options.window), (options.batch,))
        loss = model(**windows(ids_T, starts_B, options)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} of {options.steps}: {loss.item():.3f} nats a token", flush=True)


@torch.inference_mode()
def held_out_nats(model: T5ForConditionalGeneration, ids_T: Tensor, options: argparse.Namespace) -> float:
    """Mean loss over windows that stand side by side, in nats a token."""
    starts_B = torch.arange(0, len(ids_T) - sum(options.window), sum(options.window))[:64]
    return model.eval()(**windows(ids_T, starts_B, options)).loss.item()


def rows_of(ids_T: Tensor, tokenizer: PreTrainedTokenizerFast, options: argparse.Namespace) -> list[str]:
    """Prompts of different lengths, one JSON line each, at equal distances."""
    longest = options.window[0]
    starts = torch.linspace(0, len(ids_T) - longest - 1, options.num_prompts).long().tolist()
    lengths = [longest // 2 + index % (longest // 2) for index in range(options.num_prompts)]
    texts = [tokenizer.decode(ids_T[start : start + length]) for start, length in zip(starts, lengths, strict=True)]
    return [json.dumps({"prompt": text}) + "\n" for text in texts]


if __name__ == "__main__":
    main()
