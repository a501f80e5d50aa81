"""The named tasks, as data: which rows, which of their fields, and what of them a target is asked.

Figures of a task compare with those of the same name and version alone. Whoever changes what a row becomes (template,
fields, form, max_characters, pieces) raises the version.
"""

from collections.abc import Mapping
from difflib import get_close_matches

from eval.tasks.online import ONLINE_TASKS
from eval.tasks.task import PARQUET, HubRows, Task

ASK_FOR_SQL = (
    "Could you translate the following question into SQL. Please only generate SQL, don't include explanation in the "
    "answer."
)

TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="gsm8k",
            version=1,
            template=("{question}",),
            fields={"question": ("question",)},
            answer=("answer",),
            hub=HubRows(name="openai/gsm8k", config="main", split="test"),
            licence="MIT",
            source="Cobbe et al. 2021, arXiv 2110.14168",
        ),
        Task(
            name="hellaswag",
            version=1,
            form="text",
            template=("{context}",),
            fields={"context": ("ctx", "prompt")},
            hub=HubRows(name="Rowan/hellaswag", split="validation"),
            licence="MIT",
            source="Zellers et al. 2019, arXiv 1905.07830; `prompt` as in the prompt file of arXiv 2402.01528",
        ),
        Task(
            name="spec_bench",
            version=1,
            form="turns",
            template=("{turns}",),
            fields={"turns": ("turns",)},
            category=("category",),
            hub=HubRows(
                name="json",
                data_files="https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl",
                split="train",
            ),
            licence="Apache-2.0; five of its six parts are drawn from data sets with licences of their own",
            source="Xia et al. 2024, arXiv 2401.07851; 480 rows, those of MT-Bench first",
        ),
        Task(
            name="mt_bench",
            version=1,
            form="turns",
            template=("{turns}",),
            fields={"turns": ("turns", "prompt")},
            category=("category",),
            hub=HubRows(name="HuggingFaceH4/mt_bench_prompts", split="train"),
            licence="Apache-2.0",
            source="Zheng et al. 2023, arXiv 2306.05685; `turns` as in FastChat, `prompt` as on the hub",
        ),
        Task(
            name="humaneval",
            version=1,
            form="text",
            template=("{prompt}",),
            fields={"prompt": ("prompt",)},
            answer=("canonical_solution",),
            hub=HubRows(name="openai/openai_humaneval", split="test"),
            licence="MIT",
            source="Chen et al. 2021, arXiv 2107.03374",
        ),
        Task(
            name="spider",
            version=1,
            template=(ASK_FOR_SQL + " {question}",),
            fields={"question": ("question",)},
            answer=("query",),
            hub=HubRows(name="xlangai/spider", split="validation"),
            licence="CC BY-SA 4.0",
            source="Yu et al. 2018, arXiv 1809.08887; asked as in arXiv 2310.07177",
        ),
        Task(
            name="piqa",
            version=1,
            template=("{goal}",),
            fields={"goal": ("goal", "query")},
            hub=HubRows(name="baber/piqa", split="validation"),
            licence="AFL-3.0",
            source="Bisk et al. 2019, arXiv 1911.11641; `query` as in llm-foundry",
        ),
        Task(
            name="csn_python",
            version=1,
            template=("Please generate code based on the following doc:\n{doc}",),
            fields={"doc": ("func_documentation_string", "docstring")},
            answer=("func_code_string", "code"),
            hub=HubRows(name="code-search-net/code_search_net", data_dir="python", split="test", revision=PARQUET),
            licence="each function that of its repository",
            source="Husain et al. 2019, arXiv 1909.09436; asked as in arXiv 2310.07177",
        ),
        Task(
            name="alpaca",
            version=1,
            template=("{instruction}", "{input}"),
            fields={"instruction": ("instruction",), "input": ("input",)},
            optional=frozenset({"input"}),
            answer=("output",),
            hub=HubRows(name="tatsu-lab/alpaca", split="train"),
            licence="CC BY-NC 4.0",
            source="Taori et al. 2023, Stanford Alpaca, on the hub",
        ),
        Task(
            name="finance_alpaca",
            version=1,
            template=("{instruction}", "{input}"),
            fields={"instruction": ("instruction",), "input": ("input",)},
            optional=frozenset({"input"}),
            answer=("output",),
            hub=HubRows(name="gbharti/finance-alpaca", split="train"),
            licence="MIT; much of it is from Stanford Alpaca, CC BY-NC 4.0",
            source="Bharti 2023, on the hub",
        ),
        Task(
            name="cnn_dailymail",
            version=1,
            template=("summarize: {article}",),
            fields={"article": ("article",)},
            answer=("highlights",),
            hub=HubRows(name="abisee/cnn_dailymail", config="3.0.0", split="test"),
            licence="Apache-2.0",
            source="See et al. 2017, arXiv 1704.04368; asked as T5 is, arXiv 1910.10683",
        ),
        Task(
            name="xsum",
            version=1,
            template=("summarize: {document}",),
            fields={"document": ("document",)},
            answer=("summary",),
            hub=HubRows(name="EdinburghNLP/xsum", split="test", revision=PARQUET),
            licence="none stated; articles of the BBC",
            source="Narayan et al. 2018, arXiv 1808.08745; asked as T5 is, arXiv 1910.10683",
        ),
        Task(
            name="c4",
            version=1,
            form="text",
            template=("{text}",),
            fields={"text": ("text",)},
            max_characters=512,
            hub=HubRows(name="allenai/c4", config="en", split="train", streaming=True),
            licence="ODC-BY; pages of the web, under Common Crawl's terms of use",
            source="Raffel et al. 2020, arXiv 1910.10683",
        ),
        Task(
            name="starcoder",
            version=1,
            form="text",
            template=("{content}",),
            fields={"content": ("content",)},
            max_characters=512,
            hub=HubRows(name="bigcode/starcoderdata", data_dir="python", split="train", streaming=True),
            licence="each file that of its repository; gated",
            source="Li et al. 2023, arXiv 2305.06161",
        ),
        Task(
            name="arena",
            version=1,
            form="conversation",
            template=("{conversation}",),
            fields={"conversation": ("conversation", "conversation_a")},
            category=("topic", "language"),
            hub=HubRows(name="lmsys/chatbot_arena_conversations", split="train"),
            licence="prompts CC BY 4.0, answers CC BY-NC 4.0; gated",
            source="Zheng et al. 2023, arXiv 2306.05685",
        ),
        Task(
            name="lmsys_chat",
            version=1,
            form="conversation",
            template=("{conversation}",),
            fields={"conversation": ("conversation",)},
            category=("language",),
            hub=HubRows(name="lmsys/lmsys-chat-1m", split="train", streaming=True),
            licence="its own agreement, on the hub; gated",
            source="Zheng et al. 2023, arXiv 2309.11998",
        ),
        *ONLINE_TASKS,
    )
}


def named_task(name: str) -> str:
    """The name itself if it is one of a task."""
    if name not in TASKS:
        near = get_close_matches(name, TASKS, n=1)
        hint = f"Did you mean {near[0]}?" if near else "`widedraft recipes --tasks` lists them."
        raise ValueError(f"must be a named task, got {name!r}. {hint}")
    return name
