"""Rows of public datasets and clients become the messages that a chat template renders; nothing of them is dropped."""

import json

import pytest

from distill.data.conversations import load_conversations, parse_conversation
from eval.chat import PINNED_DATE, RowError, RowErrors, Turn, chat_text, end_of_turn, render_prompt, template_hash
from eval.prompts import load_prompts, parse_row, rendered
from eval.tasks import PromptSource
from tests.conftest import build_tokenizer
from tests.rejections import rejects

TOOL = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}}}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Bonn"}}}
AS_TEXT = json.dumps(CALL["function"])
TOOLS = """{% if tools %}{% for tool in tools %}[{{ tool.function.name }}]{% endfor %}{% endif %}"""
TURN = """{{ '<|im_start|>' + message.role + '\n' }}{{ message.content }}"""
CALL_TEXT = "({{ call.function.name }} {{ call.function.arguments | tojson }})"
CALLS = "{% for call in message.tool_calls or [] %}" + CALL_TEXT + "{% endfor %}"
END = """{{ '<|im_end|>\n' }}"""
OPENING = """{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
PLAIN = "{% for message in messages %}" + TURN + END + "{% endfor %}" + OPENING
WITH_TOOLS = TOOLS + "{% for message in messages %}" + TURN + CALLS + END + "{% endfor %}" + OPENING
DATED = "{{ strftime_now('%Y-%m-%d') }}" + PLAIN
SWITCHED = PLAIN + "{% if enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}{% endif %}"


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def tool(text, **more):
    return {"role": "tool", "content": text, **more}


def tokenizer_of(template):
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


SHAREGPT = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
ANSWERED = [user("a"), assistant("b")]
CALLED = [user("a"), assistant("", tool_calls=[CALL]), tool("sunny"), assistant("b")]
CONVERSATIONS = {
    "ShareGPT": ({"conversations": SHAREGPT}, ANSWERED),
    "ShareGPT with system": (
        {"conversations": [{"from": "system", "value": "s"}, *SHAREGPT]},
        [system("s"), *ANSWERED],
    ),
    "ShareGPT with roles": ({"conversations": ANSWERED}, ANSWERED),
    "ShareGPT with a call": (
        {
            "conversations": [
                {"from": "human", "value": "a"},
                {"from": "function_call", "value": AS_TEXT},
                {"from": "observation", "value": "sunny"},
                {"from": "gpt", "value": "b"},
            ]
        },
        CALLED,
    ),
    "OpenAI with a call": (
        {
            "messages": [
                user("a"),
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}],
                },
                tool("sunny"),
                assistant("b"),
            ]
        },
        CALLED,
    ),
    "content parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, assistant("b")]},
        ANSWERED,
    ),
    "developer": ({"messages": [{"role": "developer", "content": "s"}, *ANSWERED]}, None),
    "an empty system message": ({"messages": [system(""), *ANSWERED]}, ANSWERED),
    "reasoning": (
        {"messages": [user("a"), assistant("b", reasoning="r")]},
        [user("a"), assistant("b", reasoning_content="r")],
    ),
    "Alpaca": (
        {"instruction": "a", "input": "", "output": "b", "system": "s", "history": [["x", "y"]]},
        [system("s"), user("x"), assistant("y"), *ANSWERED],
    ),
    "OpenOrca": ({"system_prompt": "s", "question": "a", "response": "b"}, [system("s"), *ANSWERED]),
    "CodeFeedback, MetaMathQA": ({"query": "a", "answer": "b"}, ANSWERED),
    "Magicoder": ({"lang": "python", "problem": "a", "solution": "b"}, ANSWERED),
    "TRL": ({"prompt": [user("a")], "completion": [assistant("b")]}, ANSWERED),
    "a preference": ({"prompt": "a", "chosen": "b", "rejected": "c"}, ANSWERED),
    "a preference of conversations": ({"chosen": ANSWERED, "rejected": [user("a"), assistant("c")]}, ANSWERED),
    "a preference that repeats its prompt": (
        {"prompt": [user("a")], "chosen": ANSWERED, "rejected": ANSWERED},
        ANSWERED,
    ),
    "a preference with a system column": (
        {"system": "s", "prompt": "a ", "chosen": ANSWERED, "rejected": ANSWERED},
        [system("s"), *ANSWERED],
    ),
    "messages and a response column": ({"messages": [user("a")], "response": "b"}, ANSWERED),
    "nulls of a table": (
        {
            "conversations": [
                {"role": None, "content": None, "from": "human", "value": "a"},
                {"role": None, "content": None, "from": "gpt", "value": "b", "tool_calls": None},
            ]
        },
        ANSWERED,
    ),
    "a request of OpenAI's batch files": ({"custom_id": "1", "body": {"model": "m", "messages": ANSWERED}}, ANSWERED),
}


@pytest.mark.parametrize(("row", "messages"), CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_a_row_is_read_as_its_conversation(row, messages):
    conversation = parse_conversation(row, "f:1")
    expected = messages or row["messages"]
    assert list(conversation.messages) == expected
    prompt = parse_row(row, "f:1")
    assert [each["content"].strip() for each in prompt.messages] == [each["content"] for each in expected[:-1]]


def test_tools_are_read_from_a_list_or_its_json():
    for tools in ([TOOL], json.dumps([TOOL]), [TOOL["function"]]):
        row = {"messages": ANSWERED, "tools": tools}
        assert parse_row(row, "f:1").tools == parse_conversation(row, "f:1").tools == (TOOL,)
    assert parse_row({"prompt": "a", "tools": None}, "f:1").tools == ()


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [user(None)]}, "messages[0].content"),
        ({"messages": [user("a"), assistant(None, tool_calls=[{}])]}, "messages[1].tool_calls[0]"),
        ({"messages": [system("s"), user("a")], "system": "t"}, "system"),
        ({"prompt": "a", "history": ["x"]}, "history[0]"),
        ({"prompt": "a", "history": 5}, "history"),
        ({"messages": [system("")], "system": "s"}, "messages"),
        ({"chosen": "Human: a", "rejected": "b"}, "chosen"),
        ({"prompt": "a", "tools": "weather"}, "tools"),
    ],
)
def test_a_malformed_row_is_named(row, named):
    with rejects("f:1:", named, error=RowError):
        parse_row(row, "f:1")


def test_malformed_rows_are_counted_by_kind_and_can_be_skipped(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": "a"}, {"prompt": ""}, {"prompt": 7}, {"messages": [user(None)]}, {"prompt": "b"}]
    path.write_text("\n".join([*map(json.dumps, rows), "{"]))
    source = PromptSource(path=str(path))
    with rejects(f"{path}:2:", f"{path}:3:", f"{path}:4:", f"{path}:6:"):
        load_prompts([source])
    errors = RowErrors(skip=True)
    prompts = load_prompts([source], errors=errors)
    assert [prompt.messages[0]["content"] for prompt in prompts] == ["a", "b"]
    assert sorted(errors.counts.values()) == [1, 1, 2]


@pytest.mark.parametrize("suffix", ["csv", "arrow", "parquet"])
def test_rows_of_tables(tmp_path, suffix):
    from datasets import Dataset

    path = tmp_path / f"rows.{suffix}"
    table = Dataset.from_list([{"prompt": "a", "response": "x"}, {"prompt": "b", "response": "y"}])
    if suffix == "arrow":
        table.save_to_disk(tmp_path / "saved")
        [saved] = (tmp_path / "saved").glob("*.arrow")
        saved.rename(path)
    else:
        getattr(table, f"to_{suffix}")(str(path))
    loaded = load_conversations([PromptSource(path=str(path))])
    assert [[each["content"] for each in one.messages] for one in loaded] == [["a", "x"], ["b", "y"]]


@pytest.mark.parametrize(
    ("turn", "feature"),
    [
        (Turn((user("a"),), (TOOL,)), "tools"),
        (Turn((user("a"), assistant("", tool_calls=[CALL]))), "tool_calls"),
    ],
)
def test_what_a_template_does_not_render_is_rejected(turn, feature):
    with rejects(feature, error=RowError):
        chat_text(tokenizer_of(PLAIN), turn, add_generation_prompt=False)
    text = chat_text(tokenizer_of(WITH_TOOLS), turn, add_generation_prompt=False)
    assert "weather" in text


def test_tools_need_a_template():
    with rejects("tools", error=RowError):
        render_prompt(tokenizer_of(None), Turn((user("a"),), (TOOL,)))


def test_nulls_of_a_table_are_no_arguments():
    call = {"function": {"name": "f", "arguments": {"city": "Bonn", "date": None}}}
    prompt = parse_row({"messages": [user("a"), assistant(None, tool_calls=[call]), tool("x")]}, "f:1")
    assert prompt.messages[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Bonn"}


def test_a_turn_may_end_with_several_special_tokens():
    tokenizer = tokenizer_of(PLAIN.replace("<|im_end|>", "<|im_end|><|pad|>"))
    end, pad = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|pad|>"])
    assert end_of_turn(tokenizer, frozenset()) == end
    assert end_of_turn(tokenizer, {pad}) is end_of_turn(tokenizer, {end}) is None


def test_every_prompt_that_a_template_rejects_is_named_at_once():
    alternating = "{% if messages | length > 1 %}{{ raise_exception('one message only') }}{% endif %}" + PLAIN
    prompts = [parse_row({"messages": [user("a")] * count}, f"f:{count}") for count in (1, 2, 3)]
    with rejects("f:2:", "f:3:"):
        rendered(tokenizer_of(alternating), prompts)
    errors = RowErrors(skip=True)
    assert [prompt.source for prompt, _ in rendered(tokenizer_of(alternating), prompts, errors)] == ["f:1"]
    assert list(errors.counts.values()) == [2]


def test_arguments_of_the_template_alternate_over_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": text}) for text in "abc"))
    kwargs = [{"enable_thinking": False}, {}]
    prompts = load_prompts([PromptSource(path=str(path))], chat_template_kwargs=kwargs)
    tokenizer = tokenizer_of(SWITCHED)
    texts = [tokenizer.decode(render_prompt(tokenizer, prompt)) for prompt in prompts]
    assert [text.endswith("<think></think>") for text in texts] == [True, False, True]


def test_a_template_gets_the_same_date_every_day():
    tokenizer = tokenizer_of(DATED)
    assert chat_text(tokenizer, Turn((user("a"),)), add_generation_prompt=True).startswith(f"{PINNED_DATE:%Y-%m-%d}")
    assert template_hash(tokenizer) != template_hash(tokenizer_of(PLAIN))


def test_a_developer_message_is_a_system_message_to_a_template_that_does_not_know_the_role():
    turn = Turn(({"role": "developer", "content": "s"}, user("a")))
    assert "system\ns" in chat_text(tokenizer_of(PLAIN), turn, add_generation_prompt=True)
    knows = PLAIN + "{# developer #}"
    assert "developer\ns" in chat_text(tokenizer_of(knows), turn, add_generation_prompt=True)
