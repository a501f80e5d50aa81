"""Imports what vLLM needs on a Hopper GPU, where there is none: run by test_pack.py under torch 2.11.

Prints JSON: how vLLM would run plain decoding and a draft, and every file of vLLM that was opened.
"""

import importlib
import json
import sys
from pathlib import Path

import vllm.platforms
from vllm.platforms.cuda import NonNvmlCudaPlatform
from vllm.platforms.interface import DeviceCapability

from benchmarks.gpu.vllm_steps import FULL, PLAIN, Case, config_folder

MODULES = [
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.engine.core",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.v1.spec_decode.draft_model",
    "vllm.v1.spec_decode.ngram_proposer",
    "vllm.v1.sample.rejection_sampler",
    "vllm.v1.sample.ops.topk_topp_sampler",
    "vllm.v1.core.sched.async_scheduler",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.metrics.reader",
    "vllm.model_executor.model_loader.dummy_loader",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.qwen2",
    "vllm.compilation.backends",
    "vllm.compilation.cuda_graph",
    "vllm.device_allocator.cumem",
]


class Hopper(NonNvmlCudaPlatform):
    """An H100 that is not there."""

    @classmethod
    def get_device_capability(cls, device_id=0):
        return DeviceCapability(9, 0)

    @classmethod
    def get_device_name(cls, device_id=0):
        return "NVIDIA H100"

    @classmethod
    def get_device_total_memory(cls, device_id=0):
        return 80 * 2**30

    @classmethod
    def is_fully_connected(cls, physical_device_ids):
        return False


def main(work: Path) -> None:
    vllm.platforms._current_platform = Hopper()
    from vllm.engine.arg_utils import EngineArgs

    place = type("Setting", (), {"work": work})
    found = {}
    for case in (Case(PLAIN, 0), Case("wide-796m", 3)):
        draft = {"method": "draft_model", "num_speculative_tokens": case.k}
        if case.draft != PLAIN:
            draft["model"] = config_folder(case.draft, FULL.drafts[case.draft], place)
        config = EngineArgs(
            model=config_folder("target", FULL.target, place),
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=FULL.max_model_len,
            kv_cache_memory_bytes=2**30,
            speculative_config=None if case.draft == PLAIN else draft,
        ).create_engine_config()
        found[case.draft] = config.compilation_config.cudagraph_mode.name
    for module in MODULES:
        importlib.import_module(module)
    maps = Path("/proc/self/maps").read_text().splitlines()
    files = {line.split()[-1] for line in maps if ".so" in line}
    files |= {module.__file__ for module in sys.modules.values() if getattr(module, "__file__", None)}
    print(json.dumps({"cudagraph_mode": found, "files": sorted(file for file in files if "/vllm/" in file)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
