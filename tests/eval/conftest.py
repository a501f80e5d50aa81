"""A pair of tiny models that agree on some tokens and not on others, and prompts for them."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from architectures.hub import read_config
from architectures.pruning.plan import plan_pruning
from architectures.pruning.prune import prune_checkpoint
from architectures.requested_shape import ArchitectureConfig
from architectures.shapes import Shape
from eval.decoding.generate import write_traces
from eval.models import load_model, load_tokenizer
from eval.pair import load_pair
from eval.prompts import Prompt
from eval.responses import DecodingSettings
from tests.eval.decoding.small_heads import noisy

GREEDY = DecodingSettings(
    max_new_tokens=24,
    temperature=0.0,
    top_p=1.0,
    batch_size=3,
    shard_size=4,
    max_prompt_len=200,
    seed=5,
    dtype="float32",
)
SAID = tuple(id_ for id_ in range(264) if id_ % 7 or id_ == 0)  # ids of a small head


@pytest.fixture(scope="session")
def target_folder(make_checkpoint):
    """As tiny_target, with its stop token as the pad token: id 0 then has an embedding like any other."""
    return make_checkpoint(seed=1, pad_token_id=2)


@pytest.fixture(scope="session")
def target(target_folder):
    return load_model(target_folder, dtype="float32", device="cpu")


def with_noise(folder, out, *, scale):
    """Write a model with noise on its weights: a draft that is right about half of the time."""
    noisy(load_model(folder, dtype="float32", device="cpu"), scale).save_pretrained(out)
    load_tokenizer(folder).save_pretrained(out)
    return out


@pytest.fixture(scope="session")
def noisy_folder(target_folder, tmp_path_factory):
    """The target's noisy copy."""
    return with_noise(target_folder, tmp_path_factory.mktemp("noisy"), scale=0.005)


@pytest.fixture(scope="session")
def pair(target_folder, noisy_folder):
    return load_pair(str(target_folder), str(noisy_folder), dtype="float32")


@pytest.fixture(scope="session")
def with_small_head(tmp_path_factory):
    """with_small_head(folder, ids): the same model with an output head that says these ids alone."""

    def cut(folder, ids=SAID):
        shape = Shape.from_config(read_config(folder))
        config = ArchitectureConfig(layers=shape.layers, method="first_last")
        out = tmp_path_factory.mktemp("small") / "draft"
        prune_checkpoint(folder, plan_pruning(shape, config).with_vocabulary(tuple(ids)), out)
        return out

    return cut


@pytest.fixture(scope="session")
def small_head_folder(with_small_head, noisy_folder):
    """The noisy draft, which cannot say every seventh id."""
    return with_small_head(noisy_folder)


@pytest.fixture(scope="session")
def noisy_draft(noisy_folder):
    return load_model(noisy_folder, dtype="float32", device="cpu")


@pytest.fixture(scope="session")
def random_draft(tiny_draft):
    return load_model(tiny_draft, dtype="float32", device="cpu")


@pytest.fixture(scope="session")
def prompts():
    """Token ids, among them id 0 and a prompt of one token."""
    generator = torch.Generator().manual_seed(3)
    lengths = (1, 2, 7, 19, 40)
    drawn = [torch.randint(3, 259, (length,), generator=generator).tolist() for length in lengths]
    return [*drawn, [0], [0, 5, 0, 0]]


@pytest.fixture(scope="session")
def target_tokenizer(target_folder):
    return load_tokenizer(target_folder)


@pytest.fixture(scope="session")
def small_pair():
    """Two models of four tokens that disagree strongly: all 256 texts of four tokens can be enumerated."""
    models = []
    for seed in (15, 16):
        config = LlamaConfig(
            vocab_size=4,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            initializer_range=0.3,
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            models.append(LlamaForCausalLM(config).eval())
    return models


@pytest.fixture(scope="session")
def translators():
    """A tiny random T5 and one with noise on its weights, which agrees with it on some tokens."""
    config = T5Config(
        vocab_size=264,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        initializer_factor=3.0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(5)
        target = T5ForConditionalGeneration(config).double().eval()  # its logits are in the hundreds
        draft = deepcopy(target)
        with torch.no_grad():
            for parameter in draft.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.02 * parameter.std().item())
    return target, draft


@pytest.fixture(scope="session")
def asked():
    """Prompts of one turn each, and a conversation of three."""
    texts = ("why", "how many", "say hello", "x", "2+2?")
    single = [Prompt(f"p.jsonl:{i}", ({"role": "user", "content": text},)) for i, text in enumerate(texts, start=1)]
    return [*single, Prompt("p.jsonl:6", ({"role": "user", "content": "first"},), ("second", "third"))]


@pytest.fixture(scope="session")
def record(asked):
    """Let a target respond to the first of the prompts."""

    def write(target, folder, *, num_prompts=6, temperature=0.0):
        settings = replace(GREEDY, temperature=temperature, shard_size=2)
        write_traces(target, asked[:num_prompts], folder, settings, name="eval")
        return folder

    return write


@pytest.fixture(scope="session")
def greedy_traces(record, target_folder, tmp_path_factory):
    """A folder of the target's greedy responses."""
    return record(target_folder, tmp_path_factory.mktemp("greedy"))


@pytest.fixture(scope="session")
def sampled_traces(record, target_folder, tmp_path_factory):
    """A folder of responses the target sampled at temperature 0.7."""
    return record(target_folder, tmp_path_factory.mktemp("sampled"), temperature=0.7)
