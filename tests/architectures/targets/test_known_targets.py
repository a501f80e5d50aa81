"""The table of published targets against their published parameter counts, and when it is looked at."""

import json
from pathlib import Path

import huggingface_hub
import pytest

import widedraft
from architectures.hub import KNOWN_CONFIGS, config_at_hand, known_config, read_config
from architectures.shapes import Shape
from tests.rejections import rejects

PUBLISHED = {  # as the hub shows them beside the safetensors files
    "huggyllama/llama-7b": 6_738_415_616,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-2-7b-chat-hf": 6_738_415_616,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "mistralai/Mistral-7B-Instruct-v0.2": 7_241_732_096,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "mistralai/Mistral-7B-Instruct-v0.3": 7_248_023_552,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "models/Qwen2.5-Coder-1.5B-Instruct": 1_543_714_304 + 151_936 * 1536,  # of Qwen's page, and the untied head
    "models/SmolLM2-135M-Instruct": 134_515_008,  # of HuggingFaceTB's page
}
QWEN = "Qwen/Qwen2.5-7B-Instruct"


@pytest.fixture
def cache(monkeypatch):
    """Stands in for the hub's cache: the config.json it holds by repository and revision; and no network at all."""
    files = {}

    def try_to_load_from_cache(repo_id: str, filename: str, *, revision: str) -> str | None:
        assert filename == "config.json"
        return files.get((repo_id, revision))

    def snapshot_download(*_, **__) -> str:
        raise OSError("No network.")

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", try_to_load_from_cache)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return files


def test_parameters_are_the_published_ones():
    assert {name: Shape.from_config(config).parameters() for name, config in KNOWN_CONFIGS.items()} == PUBLISHED


def test_llama_1_was_made_for_half_the_context_of_llama_2():
    """ "LLaMA" (arXiv 2302.13971) trains on 2,048 tokens, "Llama 2" (arXiv 2307.09288, table 1) on 4,096."""
    one, two = (KNOWN_CONFIGS[name] for name in ("huggyllama/llama-7b", "meta-llama/Llama-2-7b-hf"))
    differing = {key: (one[key], two[key]) for key in one if one[key] != two[key]}
    assert differing == {"max_position_embeddings": (2048, 4096), "rms_norm_eps": (1e-6, 1e-5)}


def test_known_targets_need_no_network(cache):
    config, own = config_at_hand(QWEN, "main")
    assert not own
    assert config == known_config(QWEN, "main")


def test_a_cached_config_comes_first(cache, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}), encoding="utf-8")
    cache[QWEN, "main"] = str(tmp_path / "config.json")
    assert config_at_hand(QWEN, "main") == ({"model_type": "qwen2"}, True)


def test_another_revision_or_target_is_asked_for_on_the_hub(cache):
    for name, revision in ((QWEN, "v1"), ("owner/name", "main")):
        with rejects(name, revision):
            config_at_hand(name, revision)


def test_a_local_folder_of_a_known_name_is_read(cache, tiny_target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("Qwen").mkdir()
    Path(QWEN).symlink_to(tiny_target)
    assert config_at_hand(QWEN, "main") == (read_config(tiny_target), True)


def test_shapes_of_a_known_target_need_no_network(cache, capsys):
    assert widedraft.main(["recipes", "--shapes", QWEN]) == 0
    told = capsys.readouterr().out
    assert f"{PUBLISHED[QWEN] / 1e6:.1f}M" in told
    assert told.splitlines()[-1].startswith(f"not checked: {QWEN}:")
