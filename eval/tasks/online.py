"""Tasks as "Online Speculative Decoding" (arXiv 2310.07177) asks them, where those of eval.prompts.table differ."""

from eval.tasks.task import PARQUET, HubRows, Task

AS_THERE = "asked as in arXiv 2310.07177"

ONLINE_TASKS = (
    Task(
        name="finance_alpaca_osd",
        version=1,
        template=("{instruction}",),
        fields={"instruction": ("instruction",)},
        answer=("output",),
        hub=HubRows(name="gbharti/finance-alpaca", split="train"),
        licence="MIT; much of it is from Stanford Alpaca, CC BY-NC 4.0",
        source=f"Bharti 2023, on the hub; {AS_THERE}: without a row's input",
    ),
    Task(
        name="starcoder_osd",
        version=1,
        form="text",
        template=("{content}",),
        fields={"content": ("content",)},
        pieces=(100, 150),
        hub=HubRows(name="bigcode/starcoderdata", data_dir="assembly", split="train", streaming=True),
        licence="each file that of its repository; gated",
        source=f"Li et al. 2023, arXiv 2305.06161; {AS_THERE}, which counts pieces by StarCoder's tokenizer",
    ),
    Task(
        name="cnn_dailymail_osd",
        version=1,
        template=("{article}",),
        fields={"article": ("article",)},
        answer=("highlights",),
        hub=HubRows(name="abisee/cnn_dailymail", config="3.0.0", split="test"),
        licence="Apache-2.0",
        source=f"See et al. 2017, arXiv 1704.04368; {AS_THERE}: without a prefix",
    ),
    Task(
        name="xsum_osd",
        version=1,
        template=("{document}",),
        fields={"document": ("document",)},
        answer=("summary",),
        hub=HubRows(name="EdinburghNLP/xsum", split="test", revision=PARQUET),
        licence="none stated; articles of the BBC",
        source=f"Narayan et al. 2018, arXiv 1808.08745; {AS_THERE}: without a prefix",
    ),
)
