"""Every class of mistake a recipe can hold, by its exact message."""

from pathlib import Path

import pytest

from distill.recipe.recipe import load_recipe

BASE = """\
run_name: demo
target: {path: somewhere}
architecture: {layers: 2, method: first_last}
data: {self_written_prompts: 100}
"""


# One line appended to BASE (its line 5) -> the one mistake it makes.
IN_FILE = {
    "unknown key, near": ("distil: {}", "r.yaml:5: distil is not a key of a recipe. Did you mean distill?"),
    "unknown key of another section": (
        "distill: {lr: 1}",
        "r.yaml:5: distill.lr is not a key of a recipe. Did you mean distill.optimizer.lr?",
    ),
    "unknown key, nothing near": (
        "export: {quantise: 4}",
        "r.yaml:5: export.quantise is not a key of a recipe. export holds dtype, checkpoint, engines, tensor_parallel.",
    ),
    "unknown key at the top, nothing near": (
        "callbacks: {}",
        (
            "r.yaml:5: callbacks is not a key of a recipe. A recipe holds run_name, run_dir, seed, variables, target, "
            "architecture, data, generate, distill, text, eval, export. Free values belong in variables."
        ),
    ),
    "unknown argument of a logger": (
        "distill: {loggers: {tensorboard: {logdir: x}}}",
        (
            "r.yaml:5: distill.loggers.tensorboard.logdir is not a key of a recipe. "
            "Did you mean distill.loggers.tensorboard.log_dir?"
        ),
    ),
    "text for a number": (
        "distill: {optimizer: {lr: fast}}",
        "r.yaml:5: distill.optimizer.lr must be a number > 0, got 'fast'.",
    ),
    "quoted number": (
        "seed: '3'",
        "r.yaml:5: seed must be a whole number >= 0 and < 4294967296, got '3'. Remove the quotes.",
    ),
    "fraction for a whole number": (
        "eval: {num_prompts: 1.5}",
        "r.yaml:5: eval.num_prompts must be a whole number >= 1 and <= 1000000, got 1.5.",
    ),
    "truth value for a number": (
        "eval: {num_prompts: yes}",
        "r.yaml:5: eval.num_prompts must be a whole number >= 1 and <= 1000000, got true.",
    ),
    "number for text": ("run_dir: 7", "r.yaml:5: run_dir must be text that is not empty, got 7. Put it in quotes."),
    "number for a name": (
        "export: {dtype: 16}",
        "r.yaml:5: export.dtype must be float32 or bfloat16 or float16, got 16.",
    ),
    "number for text or null": (
        "eval: {tasks: [{path: 7}]}",
        "r.yaml:5: eval.tasks[0].path must be text that is not empty or null, got 7. Put it in quotes.",
    ),
    "number for a truth value": (
        "distill: {eval_first: 1}",
        "r.yaml:5: distill.eval_first must be true or false, got 1.",
    ),
    "value for a section": (
        "export: float32",
        "r.yaml:5: export must be a section (dtype, checkpoint, engines, tensor_parallel), got 'float32'.",
    ),
    "empty section": (
        "export:",
        (
            "r.yaml:5: export must be a section (dtype, checkpoint, engines, tensor_parallel), got null. "
            "Remove the line, or write keys below it."
        ),
    ),
    "section for a list": (
        "eval: {temperatures: 1.0}",
        "r.yaml:5: eval.temperatures must be a list of at least one, each a number >= 0 and <= 1000000, got 1.0.",
    ),
    "out of range": ("seed: -1", "r.yaml:5: seed must be a whole number >= 0 and < 4294967296, got -1."),
    "out of range, inside a list": (
        "eval: {temperatures: [0, -1]}",
        "r.yaml:5: eval.temperatures[1] must be a number >= 0 and <= 1000000, got -1.",
    ),
    "not finite": ("distill: {temperature: .inf}", "r.yaml:5: distill.temperature must be a number > 0, got Infinity."),
    "list too short": (
        "distill: {optimizer: {betas: [0.9]}}",
        "r.yaml:5: distill.optimizer.betas must be a list of 2, each a number >= 0 and < 1, got [0.9].",
    ),
    "unknown choice": (
        "export: {dtype: fp16}",
        "r.yaml:5: export.dtype must be float32 or bfloat16 or float16, got 'fp16'.",
    ),
    "neither of two types": (
        "distill: {device_train_microbatch_size: big}",
        "r.yaml:5: distill.device_train_microbatch_size must be a whole number >= 1 or auto, got 'big'.",
    ),
    "section for neither of two types": (
        "distill: {device_train_microbatch_size: {a: 1}}",
        'r.yaml:5: distill.device_train_microbatch_size must be a whole number >= 1 or auto, got {"a": 1}.',
    ),
    "long value": (
        f"export: {'x' * 200}",
        f"r.yaml:5: export must be a section (dtype, checkpoint, engines, tensor_parallel), got '{'x' * 79}....",
    ),
    "bad time": (
        "distill: {max_duration: 200}",
        "r.yaml:5: distill.max_duration must be a Composer time such as 1ep, 200ba or 1_000_000tok, got 200.",
    ),
    "fraction of a duration that has none": (
        "distill: {max_duration: 0.5dur}",
        "r.yaml:5: distill.max_duration must be a Composer time such as 1ep, 200ba or 1_000_000tok, got '0.5dur'.",
    ),
    "missing mark": ("seed: ???", "r.yaml:5: seed must be given, got ???."),
    "interpolation of nothing, near": (
        "seed: ${distill.max_duratio}",
        (
            "r.yaml:5: seed must be text whose ${...} can be filled in, got '${distill.max_duratio}': "
            "Interpolation key 'distill.max_duratio' not found. Did you mean ${distill.max_duration}?"
        ),
    ),
    "interpolation of nothing": (
        "seed: ${variables.x}",
        (
            "r.yaml:5: seed must be text whose ${...} can be filled in, got '${variables.x}': "
            "Interpolation key 'variables.x' not found. Free values belong in variables."
        ),
    ),
    "interpolation cut short": (
        "run_dir: ${run_name",
        (
            "r.yaml:5: run_dir must be text with a whole ${key}, got '${run_name'. "
            "Close the brace, or write \\${ to mean the signs."
        ),
    ),
    "interpolation of a wrong value": (
        "seed: ${run_name}",
        "r.yaml:5: seed must be a whole number >= 0 and < 4294967296, got 'demo' (from ${run_name}).",
    ),
    "interpolation of a wrong value inside a section": (
        "export: {dtype: '${variables}'}",
        "r.yaml:5: export.dtype must be float32 or bfloat16 or float16, got {} (from ${variables}).",
    ),
    "the same key twice": ("run_name: other", "r.yaml:5: run_name must stand once, got lines 1 and 5. Keep one."),
    "key that is no text": (
        "variables: {1: a}",
        "r.yaml:5: variables must have plain text as keys, got `1`. Quote it.",
    ),
    "YAML tag": (
        "seed: !!python/int 3",
        "r.yaml:5: seed must be a plain value, got the YAML tag tag:yaml.org,2002:python/int. Remove the tag.",
    ),
    "section that holds itself": (
        "variables: &v {a: *v}",
        "r.yaml:5: variables.a must not hold itself, got an alias of a section around it. Write the values out.",
    ),
    "temperature twice": (
        "eval: {temperatures: [1, 1.0]}",
        "r.yaml:5: eval.temperatures must name each value once, got [1.0, 1.0].",
    ),
    "prompts from two places": (
        "eval: {tasks: [{path: a, name: b}]}",
        "r.yaml:5: eval.tasks[0].name must be left out beside path, got 'b' and 'a'. Keep one.",
    ),
    "prompts from nowhere": (
        "eval: {tasks: [{}]}",
        (
            "r.yaml:5: eval.tasks[0].name must be given, or path, or task. "
            "Prompts come from a file, a data set or a named task."
        ),
    ),
    "task of no name": (
        "eval: {tasks: [{task: gsm8}]}",
        "r.yaml:5: eval.tasks[0].task must be a named task, got 'gsm8'. Did you mean gsm8k?",
    ),
    "task from two places": (
        "eval: {tasks: [{task: gsm8k, path: a, name: b}]}",
        "r.yaml:5: eval.tasks[0].name must be left out beside path, got 'b' and 'a'. Keep one.",
    ),
    "configuration of a task's file": (
        "eval: {tasks: [{task: gsm8k, path: a, config: main}]}",
        (
            "r.yaml:5: eval.tasks[0].config must be left out beside path, got 'main'. "
            "A file has no configurations or splits."
        ),
    ),
    "split of a file": (
        "eval: {tasks: [{path: a, split: test}]}",
        (
            "r.yaml:5: eval.tasks[0].split must be left out beside path, got 'test'. "
            "A file has no configurations or splits."
        ),
    ),
    "micro-batch above the batch": (
        "distill: {device_train_microbatch_size: 9}",
        "r.yaml:5: distill.device_train_microbatch_size must be at most distill.global_train_batch_size, got 9 and 8.",
    ),
    "automatic micro-batch of a sharded model": (
        "distill: {parallelism: fsdp2}",
        (
            "r.yaml:5: distill.parallelism must be ddp when distill.device_train_microbatch_size is auto, got fsdp2. "
            "Give a number."
        ),
    ),
    "warm-up on another clock": (
        "distill: {max_duration: 5ba, scheduler: {t_warmup: 5tok}}",
        (
            "r.yaml:5: distill.scheduler must have t_warmup in ep or ba or dur when distill.max_duration is 5ba, "
            "got 5tok. A schedule needs one clock; dur always fits."
        ),
    ),
    "end of a constant": (
        "distill: {scheduler: {name: constant_with_warmup, alpha_f: 0.5}}",
        (
            "r.yaml:5: distill.scheduler.alpha_f must be left out when distill.scheduler.name is constant_with_warmup, "
            "got 0.5. A constant learning rate ends at lr."
        ),
    ),
}


@pytest.mark.parametrize(("line", "message"), IN_FILE.values(), ids=IN_FILE)
def test_mistake_in_the_file(mistakes, line, message):
    assert mistakes(BASE + line + "\n") == [message]


# A word of the command line -> the one mistake it makes.
ON_COMMAND_LINE = {
    "no value": (
        "seed",
        "command line: seed: seed must be key=value, with a key such as distill.optimizer.lr or data.prompts[0].path.",
    ),
    "no key": (
        "=3",
        "command line: =3: =3 must be key=value, with a key such as distill.optimizer.lr or data.prompts[0].path.",
    ),
    "hole in the key": (
        "distill..lr=3",
        (
            "command line: distill..lr=3: distill..lr=3 must be key=value, with a key such as distill.optimizer.lr or "
            "data.prompts[0].path."
        ),
    ),
    "unknown key": (
        "distill.optimizer.rl=1",
        (
            "command line: distill.optimizer.rl=1: distill.optimizer.rl is not a key of a recipe. "
            "Did you mean distill.optimizer.lr?"
        ),
    ),
    "unknown section": (
        "distil.loss=x",
        "command line: distil.loss=x: distil is not a key of a recipe. Did you mean distill?",
    ),
    "wrong type": (
        "distill.optimizer.lr=fast",
        "command line: distill.optimizer.lr=fast: distill.optimizer.lr must be a number > 0, got 'fast'.",
    ),
    "wrong type over a good value of the file": (
        "architecture.layers=two",
        (
            "command line: architecture.layers=two: architecture.layers must be a whole number > 0, "
            "or a share of the target's size as 0.5x, got 'two'."
        ),
    ),
    "unknown shape": (
        "architecture={shape: wide-797m}",
        (
            "command line: architecture={shape: wide-797m}: architecture.shape must be a named shape, got 'wide-797m'. "
            "Did you mean wide-796m?"
        ),
    ),
    "shape like no other": (
        "architecture={shape: 7}",
        (
            "command line: architecture={shape: 7}: architecture.shape must be deep-1.3b or llama-13b or llama-65b or "
            "llama-7b or sheared-2.7b or wide-1.3b or wide-290m or wide-290m-true or wide-543m or wide-543m-true or "
            "wide-796m or wide-796m-true or wide-829m or null, got 7."
        ),
    ),
    "two shapes": (
        "architecture.shape=wide-796m",
        "r.yaml:3: architecture must hold one of them, got shape=wide-796m and layers=2. Keep one.",
    ),
    "not YAML": (
        "eval.temperatures=[0",
        (
            "command line: eval.temperatures=[0: eval.temperatures must have a YAML value, got '[0': "
            "expected ',' or ']', but got '<stream end>'. Quote it for the shell."
        ),
    ),
    "interpolation cut short": (
        "run_dir=${run_name",
        (
            "command line: run_dir=${run_name: run_dir must be text with a whole ${key}, got '${run_name'. "
            "Close the brace, or write \\${ to mean the signs."
        ),
    ),
    "no such item": (
        "data.prompts[3].path=x",
        (
            "command line: data.prompts[3].path=x: data.prompts[3].path must name a place that exists: "
            "list index out of range."
        ),
    ),
    "cross-field": (
        "data.top_p=0.5",
        (
            "command line: data.top_p=0.5: data.top_p must be 1 when data.temperature is 0, got 0.5. "
            "Greedy answers do not sample."
        ),
    ),
    "room for prompts": (
        "data.max_new_tokens=1024",
        (
            "command line: data.max_new_tokens=1024: data.max_new_tokens must be < data.max_seq_len, "
            "got 1024 and 1024. The prompt needs room too."
        ),
    ),
}


@pytest.mark.parametrize(("word", "message"), ON_COMMAND_LINE.values(), ids=ON_COMMAND_LINE)
def test_mistake_on_the_command_line(mistakes, word, message):
    text = BASE.replace("{self_written_prompts: 100}", "{prompts: [{path: a.jsonl}]}")
    assert mistakes(text, word) == [message]


def test_given_answers_are_no_answers_to_self_written_prompts(mistakes):
    text = BASE.replace("{self_written_prompts: 100}", "{prompts: [{path: a.jsonl}], answers: given}")
    (line,) = mistakes(text, "data.self_written_prompts=3")
    assert line.endswith(
        "data.self_written_prompts must be left out when data.answers is given, got 3. Such prompts bring no answer."
    )


def test_given_answers_are_not_taken_from_runs(mistakes):
    text = BASE.replace("{self_written_prompts: 100}", "{prompts: [{path: a.jsonl}], answers: given}")
    (line,) = mistakes(text, "data.answers_from=[runs/a/data]")
    assert line.endswith(
        "data.answers_from must be left out when data.answers is given, got ['runs/a/data']. The rows bring answers."
    )


def test_given_answers_come_from_rows(mistakes):
    (line,) = mistakes(BASE.replace("{self_written_prompts: 100}", "{answers: given}"))
    assert line.endswith(
        "data.answers must be written when data.prompts is empty, got given. Name the rows that bring answers."
    )


def test_given_answers_allow_what_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = "{prompts: [{path: a.jsonl}], answers: given, max_seq_len: 64, max_new_tokens: 32, temperature: 0.5}"
    Path("r.yaml").write_text(BASE.replace("{self_written_prompts: 100}", data))
    recipe = load_recipe("r.yaml", ["data.batch_size=9", "data.top_p=0.9"])
    assert (recipe.data.batch_size, recipe.data.longest_answer) == (9, 63)
    assert load_recipe("r.yaml", ["data.answers=written"]).data.longest_answer == 32


BAD_TIMES = {
    "max_duration": ["0ba", "-1ba", "1.5ep", "1", "ba", "0.5dur", "10sec", "1iter", "1__0ba", "01ba", "1 ba", "10BA"],
    "eval_interval": ["0dur", "0.0dur", "1.5dur", "-0.1dur", "0ba", "1h"],
    "save_interval": ["never", "0ep"],
    "console_log_interval": ["0.5dur", "100tok", "10sp"],
}


@pytest.mark.parametrize(("key", "time"), [(key, time) for key, times in BAD_TIMES.items() for time in times])
def test_refused_times(mistakes, key, time):
    (line,) = mistakes(BASE, f"distill.{key}={time}")
    assert f"distill.{key} must be a Composer time such as " in line
