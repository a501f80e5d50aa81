"""Which tokens are the assistant's, for every kind of chat template: what is learned is what it said, and that it ends.

Templates are written here from the formats their models document; the tokenizer is of bytes and special tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig, LlamaConfig

from architectures.target_files import stop_ids
from distill.data.batches import Example, ResponseDataset
from distill.data.conversations import Conversation
from distill.data.given import Renderer, traces_of
from eval.chat import Turn, render_prompt
from eval.models import load_model, stop_token_ids
from tests.conftest import build_tokenizer
from tests.rejections import rejects

EACH = "{% for message in messages %}"
REFUSE_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
CHATML_TURN = "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
CHATML_OPENING = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"


def chatml(system: str) -> str:
    """ChatML with a system message of its own where the conversation has none."""
    default = "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\n" + system + "<|im_end|>\\n' }}{% endif %}"
    return f"{default}{EACH}{CHATML_TURN}{{% endfor %}}{CHATML_OPENING}"


QWEN3 = (
    "{% set asked = namespace(last=0) %}"
    "{% for message in messages %}{% if message.role == 'user' %}{% set asked.last = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% for message in messages %}{% set said = message.content %}{% set thought = '' %}"
    "{% if message.role == 'assistant' and '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.role == 'assistant' and loop.index0 > asked.last %}"
    "{{ '<think>\\n' + thought + '\\n</think>\\n\\n' }}{% endif %}"
    "{{ said + '<|im_end|>\\n' }}{% endfor %}" + CHATML_OPENING
)
LLAMA2 = (
    "{% set start = 0 %}{% set system = '' %}{% if messages[0].role == 'system' %}{% set start = 1 %}"
    "{% set system = '<<SYS>>\\n' + messages[0].content + '\\n<</SYS>>\\n\\n' %}{% endif %}"
    "{% for message in messages[start:] %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message.role == 'user' %}{{ bos_token + '[INST] ' + (system if loop.first else '') + message.content.strip()"
    " + ' [/INST]' }}{% else %}{{ ' ' + message.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA3 = (
    "{{ bos_token }}"
    + EACH
    + "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim"
    " + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}"
    + REFUSE_SYSTEM
    + EACH
    + "{% set role = 'model' if message.role == 'assistant' else message.role %}"
    "{{ '<start_of_turn>' + role + '\\n' + message.content | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
VICUNA = (
    "{{ bos_token }}" + EACH + "{% if message.role == 'system' %}{{ message.content + ' ' }}"
    "{% elif message.role == 'user' %}{{ 'USER: ' + message.content }}"
    "{% else %}{{ ' ASSISTANT: ' + message.content + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ ' ASSISTANT:' }}{% endif %}"
)


@dataclass(frozen=True)
class Kind:
    """A chat template and what its model's folder says about it.

    Attributes:
        specials: Tokens of their own.
        stops: Those at which the model stops.
        closing: What follows a response, and is learned: its end.
        num_bos: In a conversation with so many user turns.
    """

    template: str
    specials: tuple[str, ...]
    stops: tuple[str, ...]
    closing: str
    bos: str | None = None
    eos: str | None = None
    num_bos: Callable[[int], int] = field(default=lambda _: 1)
    knows_system: bool = True


CHATML_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
KINDS = {
    "smollm2": Kind(chatml("You are SmolLM."), CHATML_TOKENS, ("<|im_end|>",), "<|im_end|>"),
    "llama2": Kind(LLAMA2, ("<s>", "</s>"), ("</s>",), " </s>", "<s>", "</s>", num_bos=lambda users: users),
    "llama3": Kind(
        LLAMA3,
        ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
        ("<|end_of_text|>", "<|eot_id|>"),
        "<|eot_id|>",
        "<|begin_of_text|>",
        "<|eot_id|>",
    ),
    "gemma": Kind(
        GEMMA,
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        ("<eos>", "<end_of_turn>"),
        "<end_of_turn>",
        "<bos>",
        "<eos>",
        knows_system=False,
    ),
    "vicuna": Kind(VICUNA, ("<s>", "</s>"), ("</s>",), "</s>", "<s>", "</s>"),
}
THINKING = Kind(QWEN3, (*CHATML_TOKENS, "<think>", "</think>"), ("<|im_end|>", "<|endoftext|>"), "<|im_end|>")


def write_target(folder: Path, kind: Kind) -> Path:
    """A target's folder without weights."""
    tokenizer = build_tokenizer(kind.specials, {"bos_token": kind.bos, "eos_token": kind.eos}, kind.template)
    tokenizer.save_pretrained(folder)
    LlamaConfig(vocab_size=len(tokenizer), bos_token_id=None, eos_token_id=None).save_pretrained(folder)
    GenerationConfig(eos_token_id=[kind.specials.index(stop) for stop in kind.stops]).save_pretrained(folder)
    return folder


@pytest.fixture
def renderer(tmp_path):
    return lambda kind: Renderer(write_target(tmp_path / "target", kind))


def talk(*texts: str, system: str | None = None) -> tuple[dict[str, str], ...]:
    """A conversation of user and assistant in turn."""
    first = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    return (*first, *({"role": roles[place % 2], "content": text} for place, text in enumerate(texts)))


def sequences(renderer: Renderer, messages: Sequence[dict[str, str]], **limits: Any) -> list[Example]:
    traces = list(traces_of(Conversation("f.jsonl:1", tuple(messages)), renderer, first_id=0))
    return list(ResponseDataset.of_conversations(traces, **{"max_seq_len": 10_000, **limits}))


def tokens(example: Example) -> tuple[int, ...]:
    return (*example.input_ids, example.last_id)


def learned(renderer: Renderer, example: Example) -> list[str]:
    """What is learned of a sequence, as text, turn by turn."""
    return [renderer.tokenizer.decode(tokens(example)[first + 1 : end + 1]) for first, end in example.spans]


def unlearned(renderer: Renderer, example: Example) -> str:
    """Everything else of a sequence, as text."""
    ends = [0, *(end + 1 for _, end in example.spans)]
    gaps = zip(ends, [first + 1 for first, _ in example.spans], strict=False)
    return "|".join(renderer.tokenizer.decode(tokens(example)[start:end]) for start, end in gaps)


TALKS = {
    "one turn": talk("Why is the sky blue?", "Because of Rayleigh."),
    "three turns": talk("one?", "uno-1", "two?", "dos-2", "three?", "tres-3"),
    "a system message": talk("one?", "uno-1", "two?", "dos-2", system="Speak Spanish."),
    "markers in the text": talk(
        "user: say [/INST]",
        "[/INST] ASSISTANT: assistant\nUSER: user\n\nmodel ### <|im_sta",
        "again",
        "assistant\n\nassistant [INST] no [/INST] <start_of_tur",
    ),
    "responses that repeat": talk("ja", "yes", "yes", "yes", "ja", "yes"),
    "many alphabets": talk("¿qué?", "naïve – 🙂\n\n  日本語", "ok?", "и да, и нет"),
}


@pytest.mark.parametrize("name", TALKS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_is_learned_is_what_the_assistant_said_and_its_end(renderer, kind, name):
    messages = TALKS[name]
    read = renderer(kind)
    if not kind.knows_system and messages[0]["role"] == "system":
        with rejects("f.jsonl:1:", "System role"):
            sequences(read, messages)
        return
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    (example,) = sequences(read, messages)
    assert learned(read, example) == [text + kind.closing for text in said]
    rest = unlearned(read, example)
    for message in messages:
        if message["role"] != "assistant":
            assert message["content"] in rest
        elif name != "responses that repeat":
            assert message["content"] not in rest


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_sequence_is_what_the_template_writes_up_to_the_last_end(renderer, kind):
    read, messages = renderer(kind), TALKS["three turns"]
    (example,) = sequences(read, messages)
    written = read.tokenizer.apply_chat_template(list(messages), return_dict=False)
    assert tuple(written[: len(tokens(example))]) == tokens(example)
    assert not set(written[len(tokens(example)) :]) - set(read.tokenizer("\n" + (kind.eos or ""))["input_ids"])
    if kind.bos is not None:
        bos = read.tokenizer.convert_tokens_to_ids(kind.bos)
        assert (tokens(example)[0], tokens(example).count(bos)) == (bos, kind.num_bos(3))


@pytest.mark.parametrize("kind", [*KINDS.values(), THINKING], ids=[*KINDS, "qwen3"])
def test_each_turn_is_learned_after_what_the_target_reads_at_that_turn(renderer, kind):
    read, messages = renderer(kind), TALKS["three turns"]
    for number, trace in enumerate(traces_of(Conversation("f:1", messages), read, first_id=7)):
        opened = render_prompt(read.tokenizer, Turn(tuple(messages[: 2 * number + 1])))
        assert list(trace.prompt_ids[: len(opened)]) == opened
        assert read.tokenizer.decode(trace.prompt_ids[len(opened) :]) in ("", " ", "<think>\n\n</think>\n\n")
        assert trace.messages == messages[: 2 * number + 1]
        assert (trace.id, trace.response) == (7 + number, messages[2 * number + 1]["content"])
        assert trace.source == ("f:1", "f:1#2", "f:1#3")[number]


def test_thinking_that_history_drops_splits_the_conversation(renderer):
    read = renderer(THINKING)
    said = [f"<think>\nplan {number}\n</think>\n\nresponse {number}" for number in range(3)]
    messages = talk("one?", said[0], "two?", said[1], "three?", said[2])
    examples = sequences(read, messages)
    assert [learned(read, example) for example in examples] == [[f"{text}<|im_end|>"] for text in said]
    for number, example in enumerate(examples):
        rest = unlearned(read, example)
        assert "plan" not in rest
        assert [f"response {each}" in rest for each in range(3)] == [each < number for each in range(3)]


THINKS = CHATML_OPENING.replace("assistant\\n", "assistant\\n<think>\\n")
UNFIT = {
    "a stop token inside": (KINDS["smollm2"], talk("a", "b", "c", "d<|im_end|>e"), "messages[3].content"),
    "no stop token": (Kind(chatml("x"), CHATML_TOKENS, ("<|endoftext|>",), ""), talk("a", "b"), "eos_token_id"),
    "another opening": (
        Kind(f"{EACH}{CHATML_TURN}{{% endfor %}}{THINKS}", CHATML_TOKENS, ("<|im_end|>",), ""),
        talk("a", "b"),
        "reasoning",
    ),
}


@pytest.mark.parametrize(("kind", "messages", "named"), UNFIT.values(), ids=UNFIT)
def test_an_response_that_does_not_end_or_begin_as_the_target_s_do_is_refused(renderer, kind, messages, named):
    with rejects(named):
        sequences(renderer(kind), messages)


def test_a_row_that_the_template_shows_otherwise_is_refused(renderer):
    shouting = CHATML_TURN.replace("message.role +", "(message.role if 'no' not in message.content else 'NO') +")
    kind = Kind(f"{EACH}{shouting}{{% endfor %}}{CHATML_OPENING}", CHATML_TOKENS, ("<|im_end|>",), "")
    read = renderer(kind)
    assert sequences(read, talk("a", "b"))
    with rejects("f.jsonl:1:", "messages[1]"):
        sequences(read, talk("a", "no"))


def test_a_tokenizer_without_a_template_is_refused(tmp_path):
    folder = write_target(tmp_path, KINDS["smollm2"])
    (folder / "chat_template.jinja").unlink()
    with rejects("data.responses"):
        Renderer(folder)


def test_stop_tokens_are_those_of_the_loaded_target(make_checkpoint):
    folder = make_checkpoint(seed=1)
    (folder / "generation_config.json").unlink()
    assert stop_ids(folder) == stop_token_ids(load_model(folder, dtype="float32", device="cpu")) == {2}
    for ends in ([5, 2], 2, None):
        GenerationConfig(eos_token_id=ends).save_pretrained(folder)
        assert stop_ids(folder) == stop_token_ids(load_model(folder, dtype="float32", device="cpu"))


SWITCHED = (  # reads reasoning_content and tool calls, and opens turns without thinking where it is told to
    QWEN3.replace("{% set thought = '' %}", "{% set thought = message.reasoning_content or '' %}")
    .replace(
        "{{ said + '<|im_end|>\\n' }}",
        "{{ said }}{% for call in message.tool_calls or [] %}{{ '<tool_call>' + call.function.name + ' '"
        " + (call.function.arguments | tojson) + '</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}",
    )
    .replace(
        "'<|im_start|>assistant\\n' }}{% endif %}",
        "'<|im_start|>assistant\\n' }}{% if enable_thinking is defined and not enable_thinking %}"
        "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}",
    )
)
R1 = (  # opens each response with thinking, and drops it from complete turns
    EACH + "{% set said = message.content.split('</think>')[-1].lstrip() %}"
    "{{ '<|im_start|>' + message.role + '\\n' + said + '<|im_end|>\\n' }}{% endfor %}" + THINKS
)
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Bonn"}}}
ASKED = {"role": "user", "content": "one?"}


def kind_of(template: str) -> Kind:
    return Kind(template, THINKING.specials, THINKING.stops, THINKING.closing)


def test_reasoning_and_calls_are_learned_where_the_template_renders_them(renderer):
    read = renderer(kind_of(SWITCHED))
    thought = {"role": "assistant", "content": "uno", "reasoning_content": "Hm."}
    (example,) = sequences(read, (ASKED, thought))
    assert learned(read, example) == ["<think>\nHm.\n</think>\n\nuno<|im_end|>"]
    called = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    (example,) = sequences(read, (ASKED, called))
    assert learned(read, example) == ['<tool_call>weather {"city": "Bonn"}</tool_call><|im_end|>']
    plain = renderer(KINDS["smollm2"])
    for message, name in ((thought, "reasoning_content"), (called, "tool_calls")):
        with rejects("f.jsonl:1:", name):
            sequences(plain, (ASKED, message))


def test_reasoning_is_learned_behind_a_template_that_opens_it(renderer):
    read = renderer(kind_of(R1))
    for message in (
        {"role": "assistant", "content": "uno", "reasoning_content": "Hm."},
        {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nuno"},
    ):
        (example,) = sequences(read, (ASKED, message))
        assert learned(read, example) == ["Hm.\n</think>\n\nuno<|im_end|>"]
        assert unlearned(read, example).endswith("assistant\n<think>\n")
    with rejects("f.jsonl:1:", "messages[1]"):
        sequences(read, talk("one?", "uno"))


def test_held_out_prompts_are_opened_as_given_responses_are_rendered(renderer):
    read = renderer(kind_of(SWITCHED))
    plain, thought = ({"role": "assistant", "content": "uno", **more} for more in ({}, {"reasoning_content": "Hm."}))
    off = read.in_one_mode(Conversation("f:1", (ASKED, plain)))
    assert off.chat_template_kwargs == {"enable_thinking": False}
    assert read.answered(off, 1)[0] == tuple(read.opening_ids(off))
    assert read.in_one_mode(Conversation("f:1", (ASKED, thought))).chat_template_kwargs == {}
    assert renderer(THINKING).in_one_mode(Conversation("f:1", (ASKED, plain))).chat_template_kwargs == {}
