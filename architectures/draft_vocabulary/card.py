"""README.md of a draft whose output head outputs some ids alone, and of the forms it is served in. No torch."""

from architectures.small_head.record import DraftVocabulary

CARD_NAME = "README.md"
SNIPPET = '''\
import json
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

FOLDER = Path(".")  # where this file is


class SmallHead(torch.nn.Module):
    """Logits of every id of the target: those of the rows there are, and the lowest there is for all other ids."""

    def __init__(self, weight, ids, vocab_size):
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.register_buffer("ids", ids, persistent=False)
        self.vocab_size = vocab_size

    def forward(self, hidden):
        said = torch.nn.functional.linear(hidden, self.weight)
        logits = said.new_full((*said.shape[:-1], self.vocab_size), torch.finfo(said.dtype).min)
        return logits.index_copy_(-1, self.ids, said)


def load_draft(folder, dtype="auto"):
    vocabulary = json.loads((folder / "draft_vocabulary.json").read_text())
    draft = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, ignore_mismatched_sizes=True)
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            if "{head}" in weights.keys():
                head = weights.get_tensor("{head}").to(draft.dtype)
    draft.set_output_embeddings(SmallHead(head, torch.tensor(vocabulary["ids"]), vocabulary["vocab_size"]))
    return draft.eval()


draft = load_draft(FOLDER)  # for target.generate(..., assistant_model=draft)
'''


def small_head_card(vocabulary: DraftVocabulary, head: str) -> str:
    """The card of a draft as it is trained and as widedraft decodes with it.

    Args:
        vocabulary: Of its head.
        head: Name of the head's tensor.
    """
    return f"""# A draft with a small output head

A draft model for speculative decoding. It reads every token of its target and proposes {len(vocabulary.ids):,} of the
{vocabulary.vocab_size:,} ids alone: row k of `{head}` is token `ids[k]` of `draft_vocabulary.json`. All other ids have
probability zero, which costs a proposal and never changes the target's text.

widedraft reads this folder as it is. transformers, vLLM, SGLang and llama.cpp expect a row for every id and refuse it;
make what they load:

    widedraft export THIS_FOLDER --to DIR --form whole          # any engine; the head has all rows again, so no faster
    widedraft export THIS_FOLDER --to DIR --form own-tokenizer  # vLLM with use_heterogeneous_vocab; as fast as here

With transformers alone, nothing else installed:

```python
{SNIPPET.replace("{head}", head)}```
"""


def whole_head_card(vocabulary: DraftVocabulary, *, tied_in: str | None) -> str:
    """The card of a draft whose head was grown back.

    Args:
        vocabulary: The ids that the small head outputs.
        tied_in: Engines that take its head to be the embedding; None where there are none.
    """
    warning = ""
    if tied_in is not None:
        warning = (
            f"\n**Not for {tied_in}**: there a model of this family has no head but the embedding. Take another "
            "engine, or\na draft with a whole head.\n"
        )
    return f"""# A draft with its output head grown back

A draft model for speculative decoding, an ordinary folder for transformers (`assistant_model`), vLLM (`draft_model`),
SGLang (`STANDALONE`) and llama.cpp. It was trained to propose {len(vocabulary.ids):,} of {vocabulary.vocab_size:,} ids.
The row of every other id is a mean of those, so that its logit is a mean of their logits: decoding greedily, what it
proposes is what the small head proposes.

**This form saves no time**: the head has as many rows as the target's. What a small head saves is had from the folder
that this was made from, in widedraft's own decoding, and in vLLM from `widedraft export --form own-tokenizer`. When
sampling, some probability goes to the ids that were never trained, which costs acceptance and never the target's text.
{warning}"""


def own_tokenizer_card(vocabulary: DraftVocabulary, unknown: str) -> str:
    """The card of a draft with a tokenizer of its own.

    Args:
        vocabulary: The ids of the target that it reads and says.
        unknown: Text of its unknown token.
    """
    known = len(vocabulary.ids)
    origin = "That row was trained for it (distill.unknown_inputs)."
    if vocabulary.unknown_id is None:
        origin = (
            "That row is the mean of the target's dropped ones: this draft was not trained to read it. "
            "`distill.unknown_inputs` in its recipe trains it."
        )
    return f"""# A draft with a vocabulary of its own

A draft model for vLLM's speculative decoding with `use_heterogeneous_vocab`, which maps tokens by their text
(arXiv 2502.05202). It has {known:,} of its target's {vocabulary.vocab_size:,} tokens, under the ids 0 to {known - 1},
and reads every other token as `{unknown}`, id {known}. {origin}

    vllm serve TARGET --speculative-config '{{"method": "draft_model", "model": "THIS_FOLDER", \
"num_speculative_tokens": 3, "use_heterogeneous_vocab": true}}'

vLLM drafts greedily with it; the target's text stays what it is, at any temperature. Other engines compare token ids
with the target's and refuse it: make them `widedraft export --form whole` of the folder that this was made from.
"""
