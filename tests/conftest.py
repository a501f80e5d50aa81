"""Tiny random checkpoints with a real tokenizer: every law is tested on these, in seconds."""

import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from distill.checkpoints.checkpoint_files import VALIDATION_VARIABLE
from tests.processes import Parent, warm

if TYPE_CHECKING:
    from distill.run import Run

os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes forked from one that computed with several never compute
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

__all__ = ["warm"]

CACHE = TemporaryDirectory(prefix="widedraft-tests-")  # the user's own remembers nothing of tests
os.environ["WIDEDRAFT_CACHE"] = CACHE.name

MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w"]
SPECIAL_TOKENS = ("<|pad|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TINY_SHAPE = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,  # room for the lengths a recipe has by default
    "tie_word_embeddings": True,
    "initializer_range": 0.2,  # wide enough that the random model's choices differ from position to position
}

TINY_EXPERTS = {  # of families with experts, besides
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
}


def pytest_collection_finish() -> None:
    """What is imported stays: no collection of garbage looks through it again, and programs are forked with it."""
    little_is_timed()
    manifests_ask_once()
    if "composer" in sys.modules:
        composer_asks_once()
    gc.collect()
    gc.freeze()
    Parent.start()


def pytest_sessionfinish() -> None:
    Parent.end()


@pytest.fixture(autouse=True)
def no_trust_left_behind() -> Iterator[None]:
    """A command with --trust-checkpoints leaves that in the environment, and the next test would trust too."""
    before = os.environ.get(VALIDATION_VARIABLE)
    yield
    if before is None:
        os.environ.pop(VALIDATION_VARIABLE, None)
    else:
        os.environ[VALIDATION_VARIABLE] = before


NAMED_TOKENS = {"pad_token": "<|pad|>", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


def build_tokenizer(
    special: tuple[str, ...] = SPECIAL_TOKENS, named: Mapping[str, Any] = NAMED_TOKENS, template: str = CHAT_TEMPLATE
) -> Any:
    """A byte-level tokenizer: special tokens, then the 256 bytes. Any text round-trips."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*special, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **named)


def edit_json(file: Path, **entries: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))


def stopped_by_many(folder: Path) -> Path:
    """The same checkpoint; its responses end at different lengths, as many tokens stop it."""
    edit_json(folder / "generation_config.json", eos_token_id=[2, *range(100, 264, 9)])
    return folder


@pytest.fixture
def _empty_heap() -> None:
    """What earlier tests of this process have freed goes back, or what a test asks for would need no new memory."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A test runs on the processor, whatever GPUs there are, and with `pytest -m gpu` on a GPU.

    What chooses its device itself, also in processes a test starts, finds a GPU in the second case alone.
    """
    if request.param == "cuda":
        return require_gpu()
    hide_gpus(monkeypatch)
    return "cpu"


@pytest.fixture
def gpu() -> str:
    """For what only a GPU has: NCCL, memory that runs out. Tests that ask for it are marked gpu."""
    return require_gpu()


def require_gpu() -> str:
    """Skips the test where there is none."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return "cuda"


def hide_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is seen from now on, here and in processes that are started."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    if "composer" in sys.modules:  # it keeps the functions it imported from torch.cuda
        from composer.utils import collect_env

        monkeypatch.setattr(collect_env, "cuda_available", lambda: False)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_gpus(monkeypatch)


@pytest.fixture(scope="session")
def trainings_begin_at_once() -> None:
    """Composer is imported by those who ask for this."""
    composer_asks_once()


def composer_asks_once() -> None:
    """Its own commit and the processor, for each checkpoint, which takes longer than a tiny one."""
    from composer.utils import collect_env

    if not hasattr(collect_env.get_composer_commit_hash, "cache_info"):
        collect_env.get_composer_commit_hash = cache(collect_env.get_composer_commit_hash)
    collect_env.get_composer_commit_hash()
    collect_env.get_cpu_model()


def manifests_ask_once() -> None:
    """Commit and versions of packages are in each manifest, and stay what they are while tests run."""
    from architectures import manifest

    for name in ("git_commit", "package_version", "processor_name"):
        setattr(manifest, name, cache(getattr(manifest, name)))
    manifest.git_commit()
    manifest.processor_name()


def little_is_timed() -> None:
    """Times of tiny models never settle and say nothing: few repetitions before them."""
    from eval import latency

    latency.WARM_UP_LIMIT = 2


@pytest.fixture
def training_here(monkeypatch: pytest.MonkeyPatch, trainings_begin_at_once: None) -> None:
    """Commands train in this process: starting another costs more than a tiny training itself."""
    train_here(monkeypatch)


def train_here(patch: pytest.MonkeyPatch) -> None:
    from distill import pipeline, train

    def run_training(run: "Run", *options: str) -> None:
        assert train.main([*run.training_words, *options]) == 0

    patch.setattr(pipeline, "run_training", run_training)
    patch.setattr(train, "restore_signals", lambda: None)


@pytest.fixture
def pictures_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports have empty pictures: drawing them takes a fifth of a tiny run."""
    from eval import report

    monkeypatch.setattr(report, "image", lambda title, *_, **__: report.Image(title, ""))


@pytest.fixture
def processor_only(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """A context in which no GPU is seen: what a GPU did is compared with what the processor does."""

    @contextmanager
    def hidden() -> Iterator[None]:
        with monkeypatch.context() as patch:
            hide_gpus(patch)
            yield

    return hidden


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write a random Hugging Face checkpoint and return its folder; keyword arguments override its config."""

    def make(*, seed: int = 0, model_type: str = "llama", dtype: str = "float32", **overrides: Any) -> Path:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        tokenizer = build_tokenizer()
        ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        sizes = {**TINY_SHAPE, **TINY_EXPERTS.get(model_type, {})}
        config = AutoConfig.for_model(model_type, **{**sizes, **ids, **overrides})
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
        folder = tmp_path_factory.mktemp(model_type)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def make_translator(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write a random encoder-decoder checkpoint and return its folder; keyword arguments override its config."""

    def make(*, seed: int = 0, tied: bool = True, gated: bool = False, **overrides: Any) -> Path:
        import torch
        from transformers import T5Config, T5ForConditionalGeneration

        ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 0}
        sizes = {"vocab_size": 264, "d_model": 32, "d_kv": 16, "d_ff": 48, "num_heads": 4, "num_layers": 3}
        kind = {"feed_forward_proj": "gated-gelu" if gated else "relu", "relative_attention_num_buckets": 8}
        config = T5Config(**{**ids, **sizes, **kind, "num_decoder_layers": 4, **overrides}, tie_word_embeddings=tied)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = T5ForConditionalGeneration(config)
            if not tied:
                model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight))
            for name, parameter in model.named_parameters():  # fresh norms are all 1, and the same in every block
                if "norm" in name:
                    parameter.data += 0.2 * torch.randn_like(parameter)
        folder = tmp_path_factory.mktemp("t5")
        model.save_pretrained(folder)
        build_tokenizer().save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def tiny_target(make_checkpoint: Callable[..., Path]) -> Path:
    """A 4-layer random LLaMA with grouped-query attention and tied embeddings, float32."""
    return make_checkpoint(seed=1)


@pytest.fixture(scope="session")
def tokenizer(tiny_target: Path) -> Any:
    """One token per byte."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_target)


@pytest.fixture(scope="session")
def tiny_draft(make_checkpoint: Callable[..., Path]) -> Path:
    """A 2-layer random LLaMA that shares the target's tokenizer."""
    return make_checkpoint(seed=2, num_hidden_layers=2)


@pytest.fixture(scope="session")
def with_merges() -> Callable[..., Path]:
    """with_merges(folder) gives its tokenizer five merges, for ids that had no token: llama.cpp loads none without."""

    def add(folder: Path, merges: Sequence[str] = MERGES) -> Path:
        file = folder / "tokenizer.json"
        tokenizer = json.loads(file.read_text())
        vocabulary = tokenizer["model"]["vocab"]
        vocabulary |= {merge.replace(" ", ""): len(vocabulary) + i for i, merge in enumerate(merges)}
        tokenizer["model"]["merges"] = [merge.split(" ") for merge in merges]
        file.write_text(json.dumps(tokenizer))
        return folder

    return add
