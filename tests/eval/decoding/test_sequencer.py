"""What a sequencer says after some tokens is what the model says when it reads the whole text at once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.decoding.kv_cache import (
    RowCache,
    RowSequencer,
    TextSequencer,
    TranslationSequencer,
    open_sequencer,
    takes_rows,
)
from eval.models import load_model
from tests.families import DECODER_ONLY
from tests.rejections import rejects

VOCAB = 264
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
BY_ROWS = {
    "llama": {},
    "mistral": {"sliding_window": 6},
    "qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2},
    "qwen3": {},
    "gemma2": {"sliding_window": 6},
    "gemma3_text": {"sliding_window": 6},
    "phi3": {"sliding_window": 6, "pad_token_id": 0},
    "smollm3": {"use_sliding_window": True, "sliding_window": 6},
    "olmo2": {},
    "granite": {"attention_multiplier": 0.3, "logits_scaling": 3.0},
    "olmo3": {"sliding_window": 6},
    "exaone4": {"sliding_window": 6},
    "seed_oss": {},
    "glm4": {},
    "ministral3": {},
    "gpt_neox": {},
    "gpt2": {},
    "gpt_bigcode": {},
}
ONE_BY_ONE = {"opt": {"ffn_dim": 128, "word_embed_proj_dim": 64}, "bloom": {}, "qwen3_moe": {}}
GO_ON = {
    **ONE_BY_ONE,
    "gpt_neo": {"num_layers": 4, "attention_types": [[["global", "local"], 2]]},  # positions have embeddings
    **{family: {"sliding_window": 6} for family in ("mistral", "gemma3_text", "cohere2")},
}


@pytest.fixture(scope="module")
def model_of(make_checkpoint):
    """A tiny model of a family."""

    def load(model_type, **overrides):
        return load_model(make_checkpoint(seed=4, model_type=model_type, **overrides), dtype="float32", device="cpu")

    return load


def texts(*lengths):
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(3, 259, (length,), generator=generator).tolist() for length in lengths]


def whole(model, ids):
    """Logits after every token of one text, read at once and without a cache."""
    with torch.inference_mode():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


def fed(sequencer, rows, starts, *, left):
    """Feed the rows' tokens from their starts on, filled to one width; returns the logits of each row's real tokens."""
    width = max(map(len, rows))
    filled = [row + [0] * (width - len(row)) if left else [0] * (width - len(row)) + row for row in rows]
    spans = [(start, len(row)) for start, row in zip(starts, rows, strict=True)]
    with torch.inference_mode():
        logits = sequencer.feed(torch.tensor(filled), spans, whole=left)
    return [logits[i, : len(row)] if left else logits[i] for i, row in enumerate(rows)]


def test_every_family_is_read_in_one_of_the_two_ways():
    assert {name: family.by_rows for name, family in DECODER_ONLY.items()} == {
        name: name in BY_ROWS for name in (*BY_ROWS, *ONE_BY_ONE)
    }


@pytest.mark.parametrize("family", BY_ROWS)
def test_rows_of_different_lengths_read_as_each_alone(model_of, family):
    """Prompts at once, several tokens at once, and back again: no row feels the others, or what it forgot."""
    model = model_of(family, **BY_ROWS[family])
    long, short, one = texts(20, 13, 9)
    wrong = texts(4)[0]
    sequencer = open_sequencer(model, [long, short, one], capacity=24, vocab_size=VOCAB)
    expected = [whole(model, text) for text in (long, short, one)]
    for row, logits in enumerate(fed(sequencer, [long[:11], short[:4], []], [0, 0, 0], left=False)[:2]):
        torch.testing.assert_close(logits[0], expected[row][[10, 3][row]], **CLOSE)
    fed(sequencer, [wrong, wrong[:1], wrong[:2]], [11, 4, 0], left=True)  # to be forgotten
    pieces = [long[11:15], short[4:6], one[:3]]
    for row, logits in enumerate(fed(sequencer, pieces, [11, 4, 0], left=True)):
        start = [11, 4, 0][row]
        torch.testing.assert_close(logits, expected[row][start : start + len(logits)], **CLOSE)
    sequencer.keep([2, 0])
    for row, logits in enumerate(fed(sequencer, [one[3:], long[15:]], [3, 15], left=True)):
        torch.testing.assert_close(logits, expected[[2, 0][row]][[3, 15][row] :], **CLOSE)


@pytest.mark.parametrize("family", ONE_BY_ONE)
def test_other_families_read_one_text(model_of, family):
    model = model_of(family, **ONE_BY_ONE[family])
    [text] = texts(14)
    sequencer = open_sequencer(model, [text], capacity=20, vocab_size=VOCAB)
    assert isinstance(sequencer, TextSequencer)
    expected = whole(model, text)
    torch.testing.assert_close(fed(sequencer, [text[:8]], [0], left=False)[0][0], expected[7], **CLOSE)
    fed(sequencer, texts(5), [8], left=True)
    torch.testing.assert_close(fed(sequencer, [text[8:]], [8], left=True)[0], expected[8:], **CLOSE)
    with rejects(family, 2, error=ValueError):
        open_sequencer(model, [text, text], capacity=20, vocab_size=VOCAB)


@pytest.mark.parametrize("family", GO_ON)
def test_rows_that_only_go_on_read_as_each_alone(model_of, family):
    """Of any decoder-only family, though its layers forget what left a window of 6."""
    model = model_of(family, **GO_ON[family])
    rows = texts(20, 13, 11)
    expected = [whole(model, text) for text in rows]
    sequencer = open_sequencer(model, rows, capacity=24, vocab_size=VOCAB, goes_back=False)
    assert isinstance(sequencer, TextSequencer)
    fed(sequencer, [rows[0][:11], rows[1][:4], []], [0, 0, 0], left=False)
    starts = [11, 4, 0]
    for count in (2, 1, 1):
        pieces = [text[start : start + count] for text, start in zip(rows, starts, strict=True)]
        logits = fed(sequencer, pieces, starts, left=False)
        starts = [start + count for start in starts]
        for row, start in enumerate(starts):
            torch.testing.assert_close(logits[row][0], expected[row][start - 1], **CLOSE)
    sequencer.keep([2, 0])
    for row, logits in zip((2, 0), fed(sequencer, [rows[2][4:9], rows[0][15:]], [4, 15], left=False), strict=True):
        torch.testing.assert_close(logits[0], expected[row][[19, 0, 8][row]], **CLOSE)


@pytest.mark.parametrize(("capacity", "kind"), [(6, RowSequencer), (7, TextSequencer)])
def test_what_a_window_forgets_is_not_kept_where_nothing_goes_back(model_of, capacity, kind):
    model = model_of("mistral", sliding_window=6)
    assert isinstance(open_sequencer(model, [[5]], capacity=capacity, vocab_size=VOCAB, goes_back=False), kind)
    assert isinstance(open_sequencer(model, [[5]], capacity=capacity, vocab_size=VOCAB), RowSequencer)


def test_recurrent_state_is_restored_where_tokens_go_back(model_of):
    model = model_of("lfm2", layer_types=["conv", "full_attention"] * 2)
    assert not takes_rows(model)
    [ids] = texts(20)
    expected = whole(model, ids)
    sequencer = open_sequencer(model, [ids], capacity=20, vocab_size=VOCAB)
    for start, end in ((0, 9), (9, 13), (11, 14), (14, 16), (10, 12), (3, 20)):
        [logits] = fed(sequencer, [ids[start:end]], [start], left=True)
        torch.testing.assert_close(logits, expected[start:end], **CLOSE)


def test_taking_tokens_back_leaves_cross_attention_whole(translators):
    translator, _ = translators
    prompt, output = texts(9, 12)
    sequencer = open_sequencer(translator, [prompt], capacity=20, vocab_size=VOCAB)
    assert isinstance(sequencer, TranslationSequencer)
    with torch.inference_mode():
        expected = translator(
            input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([output]), use_cache=False
        ).logits[0]
    torch.testing.assert_close(fed(sequencer, [output[:5]], [0], left=False)[0][0], expected[4], **CLOSE)
    fed(sequencer, texts(4), [5], left=True)
    torch.testing.assert_close(fed(sequencer, [output[5:]], [5], left=True)[0], expected[5:], **CLOSE)


def test_ids_behind_the_shared_vocabulary_are_not_spoken_of(model_of):
    for family in ("llama", "bloom"):
        sequencer = open_sequencer(model_of(family), [[5, 6]], capacity=4, vocab_size=260)
        assert fed(sequencer, [[5, 6]], [0], left=True)[0].shape == (2, 260)


def test_rows_take_an_eighth_more_room_than_they_fill_and_none_beyond_their_limit(model_of):
    sequencer, sizes = open_sequencer(model_of("llama"), [[5], [6]], capacity=150, vocab_size=VOCAB), []
    for position in range(150):
        fed(sequencer, [[5], [6]], [position, 0], left=False)
        size = sequencer.cache.keys[0].shape[2] - 1  # a slot takes filling
        assert position + 1 <= size <= min(150, (position + 1) * 9 // 8)
        sizes.append(size)
    assert sum(set(sizes)) < 10 * 150  # slots moved in all, by a cache that grew 150 times 11,325


def numbers(names, positions_BT, *, seed):
    """Keys of one head and two dimensions that say their row and position; noise where there is only filling."""
    rows_BT = torch.tensor(names)[:, None].expand_as(positions_BT)
    told_BTD = torch.stack([rows_BT, positions_BT], dim=-1).float()
    noise_BTD = torch.rand(told_BTD.shape, generator=torch.Generator().manual_seed(seed)) - 2
    return told_BTD.where(positions_BT[:, :, None] >= 0, noise_BTD)[:, None]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_every_row_finds_what_it_wrote(data):
    """Steps forward and back by any number of tokens, of rows that each have their own."""
    names = list(range(data.draw(st.integers(1, 4))))
    cache, lengths = RowCache(data.draw(st.integers(0, 9))), [0] * len(names)
    for step in range(data.draw(st.integers(1, 6))):
        starts = [data.draw(st.integers(0, length)) for length in lengths]
        counts = [data.draw(st.integers(0, 40)) for _ in starts]
        spans = list(zip(starts, counts, strict=True))
        positions = torch.tensor([[start + t if t < count else -1 for t in range(41)] for start, count in spans])
        lengths = [start + count for start, count in spans]
        width = max(1, *lengths)
        if width > cache.capacity:
            cache.widen(width + data.draw(st.integers(0, 9)))
        cache.write_at(positions.where(positions >= 0, cache.capacity), width=width)
        keys_BHTD = numbers(names, positions, seed=step)
        for layer in (0, 1):
            kept, values = cache.update(keys_BHTD + layer, -keys_BHTD - layer, layer)
            assert values.equal(-kept)
            assert kept.shape[2] == width
            assert cache.keys[layer].shape[2] == cache.capacity + 1
            for row, length in enumerate(lengths):
                expected = torch.stack([torch.full((length,), names[row]), torch.arange(length)], dim=-1)
                assert kept[row, 0, :length].equal(expected + float(layer))
        places = data.draw(st.permutations(range(len(names))))[: data.draw(st.integers(1, len(names)))]
        cache.keep(places)
        names, lengths = [names[place] for place in places], [lengths[place] for place in places]
