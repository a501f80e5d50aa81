"""Runs in vLLM's own environment, without this project; eval.engines.external_generate is at the other end.

The first line of its input holds arguments of `LLM`; each further line holds prompts of token ids, their seeds and
sampling settings. One line comes out for each.
"""

import json
import os
import sys

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")  # GiB
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what vLLM prints goes to the error output

    import vllm  # pyright: ignore[reportMissingImports]  # of its own environment

    settings = json.loads(sys.stdin.readline())
    llm = vllm.LLM(**settings, generation_config="vllm")  # no sampling settings of the checkpoint
    print(json.dumps({"version": vllm.__version__}), file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        prompts = [{"prompt_token_ids": ids} for ids in request["prompts"]]
        params = [vllm.SamplingParams(**request["sampling"], seed=seed) for seed in request["seeds"]]
        outputs = [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]
        responses = [[list(output.token_ids), output.finish_reason == "stop"] for output in outputs]
        print(json.dumps({"responses": responses}), file=replies, flush=True)


if __name__ == "__main__":
    main()
