"""Attention between two sequences: the explicit sums, the laws at rest and with a memory, packing, decoding."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import laws
import pytest
import torch
from law_signals import gradients, prepared, rows, same, through
from torch import Tensor
from torch.utils import _pytree as pytree

import statewise as sw
from statewise.errors import ConfigError, InputError
from statewise.export.step import refusal
from statewise.mixers.base import Mixer
from statewise.mixers.cross_attention import CrossAttention, LinearCrossAttention, MemoryReader

D = torch.float64
CONFIGS = {
    "softmax": sw.CrossAttentionConfig(n_heads=2),
    "softmax, grouped, wide memory": sw.CrossAttentionConfig(n_heads=4, n_kv_heads=2, d_head=3, d_memory=5, bias=True),
    "elu": sw.LinearCrossAttentionConfig(n_heads=2, bias=True),
    "identity": sw.LinearCrossAttentionConfig(n_heads=2, feature_map="identity", normalize=False, d_memory=5),
    "taylor, multi-key": sw.LinearCrossAttentionConfig(
        n_heads=4, feature_map="taylor", taylor_order=4, d_feature=2, head_pattern="multi_key", n_groups=2
    ),
    "elu, multi-query": sw.LinearCrossAttentionConfig(n_heads=4, head_pattern="multi_query"),
}


def build(name: str) -> Any:
    torch.manual_seed(0)
    mixer = prepared(CONFIGS[name].build(8))
    assert isinstance(mixer, MemoryReader)
    return mixer


def signals(mixer: Any, batch: int = 3, length: int = 7, n_keys: int = 11) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, length, 8, dtype=D), torch.randn(batch, n_keys, mixer.d_memory, dtype=D)


def by_hand(mixer: Any, x: Tensor, memory: Tensor) -> Tensor:
    """One row, query by query and key by key: sum_s w(q_t, k_s) v_s / sum_s w(q_t, k_s) for each head."""
    n = mixer.n_heads
    if isinstance(mixer, CrossAttention):
        counts, width, values = (n, mixer.n_kv_heads, mixer.n_kv_heads), mixer.d_head, mixer.d_head
    else:
        counts, width, values = mixer.heads, mixer.d_feature, mixer.d_head
    q = mixer.in_proj(x).reshape(len(x), counts[0], width)
    k, v = mixer.memory_proj(memory).split([counts[1] * width, counts[2] * values], -1)
    k, v = k.reshape(-1, counts[1], width), v.reshape(-1, counts[2], values)

    def weight(one: Tensor, other: Tensor) -> Tensor:
        if isinstance(mixer, CrossAttention):
            return (one @ other / mixer.d_head**0.5).exp()
        if mixer.config.feature_map == "taylor":
            s = one @ other / width**0.5
            return 1 + s + s**2 / 2 + s**3 / 6 + s**4 / 24
        if mixer.config.feature_map == "elu":
            return torch.where(one > 0, one + 1, one.exp()) @ torch.where(other > 0, other + 1, other.exp())
        return one @ other

    outputs = []
    for t, h in itertools.product(range(len(x)), range(n)):
        qh, kh, vh = (h * count // n for count in counts)
        total, weights = torch.zeros(values, dtype=D), torch.zeros((), dtype=D)
        for s in range(len(memory)):
            w = weight(q[t, qh], k[s, kh])
            total, weights = total + w * v[s, vh], weights + w
        is_plain = isinstance(mixer, LinearCrossAttention) and not mixer.config.normalize
        outputs.append(total if is_plain or not len(memory) else total / weights)
    return mixer.out_proj(torch.stack(outputs).reshape(len(x), -1))


@pytest.mark.parametrize("name", CONFIGS)
def test_equal_to_the_explicit_sums(name: str) -> None:
    """Outputs and all gradients, those of the memory too; rows of several lengths with NaN behind them."""
    mixer = build(name)
    x, memory = signals(mixer)
    lengths, memory_lengths = torch.tensor([7, 3, 5]), torch.tensor([4, 11, 0])
    x, memory = x.requires_grad_(), memory.requires_grad_()
    y, _ = mixer(x, mixer.read(memory))
    expected = torch.stack([by_hand(mixer, x[b], memory[b]) for b in range(3)])
    same(y, expected, 1e-10, "whole rows")
    same(gradients(mixer, y, (x, memory)), gradients(mixer, expected, (x, memory)), 1e-9, "gradients")
    padded_x, padded = x.detach().clone(), memory.detach().clone()
    for b in range(3):
        padded_x[b, lengths[b] :], padded[b, memory_lengths[b] :] = torch.nan, torch.nan
    inputs = (padded_x.requires_grad_(), padded.requires_grad_())
    y, _ = mixer(padded_x, mixer.read(padded, lengths=memory_lengths), lengths=lengths)
    ours = torch.cat([y[b, : lengths[b]] for b in range(3)])
    theirs = torch.cat([by_hand(mixer, padded_x[b, : lengths[b]], padded[b, : memory_lengths[b]]) for b in range(3)])
    same(ours, theirs, 1e-10, "padded rows")
    same(gradients(mixer, ours, inputs), gradients(mixer, theirs, inputs), 1e-9, "gradients of padded rows")


@pytest.mark.parametrize("name", CONFIGS)
def test_laws(name: str) -> None:
    """With the empty memory that a state at rest has."""
    laws.check_mixer_laws(build(name), length=9)


@pytest.mark.parametrize("name", CONFIGS)
def test_with_a_memory_a_sequence_is_cut_anywhere(name: str) -> None:
    mixer = build(name)
    x, memory = signals(mixer)
    memory.requires_grad_()
    state = mixer.read(memory, lengths=torch.tensor([4, 11, 2]))
    whole = mixer(x, state)[0]
    expected = gradients(mixer, whole, memory)
    for pieces in (x.split(1, 1), x.split(3, 1), (x[:, :0], x)):
        state = mixer.read(memory, lengths=torch.tensor([4, 11, 2]))
        y = through(mixer, pieces, state)
        same(y, whole, 1e-12, "pieces")
        same(gradients(mixer, y, memory), expected, 1e-10, "gradients of the memory")
    with torch.no_grad():
        kept = pytree.tree_map(torch.clone, state)
        mixer(x, state)
        same(state, kept, 0.0, "the state after a call")
        index = [2, 0]
        same(mixer(x[index], rows(state, index))[0], whole[index], 1e-12, "rows of a state")


@pytest.mark.parametrize("name", CONFIGS)
def test_packed_documents_have_packed_memories(name: str) -> None:
    """The i-th document of a row sees the i-th of its memory, in one call and in pieces; one more is refused."""
    mixer = build(name)
    x, memory = signals(mixer, batch=2, length=9, n_keys=11)
    begins, ends = [[0, 4, 5], [0, 6]], [9, 9]
    read, last = [[0, 3, 10], [0, 2]], [11, 8]
    starts, memory_starts = torch.zeros(2, 9, dtype=torch.bool), torch.zeros(2, 11, dtype=torch.bool)
    for b in range(2):
        starts[b, begins[b]] = True
        memory_starts[b, read[b]] = True
    state = mixer.read(memory, lengths=torch.tensor(last), starts=memory_starts)
    y, after = mixer(x, state, starts=starts)
    ys, piece_state = [], state
    for piece, begun in zip(x.split(2, 1), starts.split(2, 1)):
        piece_y, piece_state = mixer(piece, piece_state, starts=begun)
        ys.append(piece_y)
    same(torch.cat(ys, 1), y, 1e-12, "in pieces")
    for b in range(2):
        for (t0, t1), (s0, s1) in zip(
            itertools.pairwise([*begins[b], ends[b]]), itertools.pairwise([*read[b], last[b]])
        ):
            same(y[b, t0:t1], by_hand(mixer, x[b, t0:t1], memory[b, s0:s1]), 1e-10, "a document")
    one_more = torch.ones(2, 1, dtype=torch.bool)
    for call, words in (
        (lambda: mixer(x[:, :1], after, starts=one_more), "has 4 documents in row 0 of x, and 3 in its memory"),
        (
            lambda: mixer(x, mixer.read(memory), starts=starts),
            "3 documents in row 0 of x, and 1 in its memory.*starts of",
        ),
    ):
        with pytest.raises(InputError, match=words):
            call()


@pytest.mark.parametrize("name", CONFIGS)
def test_the_first_step_begins_a_document_whether_starts_say_so_or_not(name: str) -> None:
    """Of x and of the memory, in one call and in pieces of which the first ones have no starts, or no steps."""
    mixer = build(name)
    x, memory = signals(mixer, batch=2, length=6, n_keys=8)
    halves = [mixer(x[:, i : i + 3], mixer.read(memory[:, s : s + 4]))[0] for i, s in ((0, 0), (3, 4))]
    for in_x, in_memory in itertools.product((False, True), repeat=2):
        starts, memory_starts = torch.zeros(2, 6, dtype=torch.bool), torch.zeros(2, 8, dtype=torch.bool)
        starts[:, 3], memory_starts[:, 4] = True, True
        starts[0, 0], memory_starts[0, 0] = in_x, in_memory  # the other row has none
        state = mixer.read(memory, starts=memory_starts)
        same(mixer(x, state, starts=starts)[0], torch.cat(halves, 1), 1e-12, f"{in_x}, {in_memory}")
        for sizes in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 4]):
            cut, ys = state, []
            for piece, begun in zip(x.split(sizes, 1), starts.split(sizes, 1)):
                y, cut = mixer(piece, cut, starts=begun)
                ys.append(y)
            same(torch.cat(ys, 1), torch.cat(halves, 1), 1e-12, f"{in_x}, {in_memory}, in pieces of {sizes}")
        late = mixer(x, state, lengths=torch.tensor([6, 0]), starts=starts)[1]  # a row that has yet to begin
        y = mixer(x[1:], rows(late, [1]), starts=starts[1:])[0]
        same(y, torch.cat(halves, 1)[1:], 1e-12, "a row that begins at its second call")
        alone = mixer(x[:, :3], state)[0]
        same(alone, halves[0], 1e-12, "one document of x, and two of the memory")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_row_with_more_documents_than_its_memory_is_refused(name: str) -> None:
    """Whatever the other rows have. A row whose memory is empty sees nothing, as at rest."""
    mixer = build(name)
    x, memory = signals(mixer, batch=2, length=6, n_keys=8)
    starts, memory_starts = torch.zeros(2, 6, dtype=torch.bool), torch.zeros(2, 8, dtype=torch.bool)
    starts[:, [0, 3]], memory_starts[0, [0, 4]], memory_starts[1, 0] = True, True, True
    state = mixer.read(memory, starts=memory_starts)
    words = "has 2 documents in row 1 of x, and 1 in its memory"
    with pytest.raises(InputError, match=words) as error:
        mixer(x, state, starts=starts)
    assert "\n" not in str(error.value)
    _, after = mixer(x[:, :3], state, starts=starts[:, :3])
    with pytest.raises(InputError, match=words):
        mixer(x[:, 3:], after, starts=starts[:, 3:])
    mixer(x, state, starts=starts, lengths=torch.tensor([6, 3]))  # the start in the padding is none
    empty = mixer.read(memory, starts=memory_starts, lengths=torch.tensor([8, 0]))
    same(mixer(x, empty, starts=starts)[0][1], mixer(x)[0][1], 1e-12, "an empty memory")
    starts[:, 5] = True
    with pytest.raises(InputError, match="has 3 documents in row 0 of x, and 2 in its memory"):
        mixer(x, empty, starts=starts)


@pytest.mark.parametrize("name", ["softmax", "elu"])
def test_a_cross_attention_inside_another_layer_reads_the_memory(name: str) -> None:
    """Beside one that is a layer itself, two deep, and in the layer of Zamba2; equal to the layers called by hand."""
    torch.manual_seed(0)
    cross, attention = CONFIGS[name], sw.AttentionConfig(n_heads=2)
    twice = sw.ParallelMixersConfig(first=sw.ParallelMixersConfig(first=cross, second=attention), second=cross)
    shared = sw.SharedTransformerConfig(
        mixer=cross, attention=sw.AttentionConfig(n_heads=2, d_head=8), mlp=sw.MLPConfig(gated=True)
    )
    decoder = sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=(twice, shared, cross)).build().double().eval()
    memory, tokens, lengths = torch.randn(2, 6, 8, dtype=D), torch.randint(9, (2, 5)), torch.tensor([6, 4])
    state = sw.with_memory(decoder, memory, lengths=lengths)
    both, one, own = state.layers
    for mixer, of in (
        (decoder.blocks[0].mixer.first.first, both.first.first),
        (decoder.blocks[0].mixer.second, both.second),
        (decoder.blocks[1].mixer.mixer, one.mixer),
        (decoder.blocks[2].mixer, own),
    ):
        same(of, mixer.read(memory, lengths=lengths), 0.0, "what a layer read")
    expected = decoder(tokens, state)[0]
    for mixer in (decoder.blocks[0].mixer.first.first, decoder.blocks[0].mixer.second, decoder.blocks[1].mixer.mixer):
        with torch.no_grad():
            mixer.out_proj.weight.neg_()
        assert not torch.allclose(decoder(tokens, state)[0], expected, rtol=1e-4)
        with torch.no_grad():
            mixer.out_proj.weight.neg_()
    nested = sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=(twice,)).build()
    sw.with_memory(nested, memory.float())
    assert "reads a memory" in str(refusal(nested))
    nested.blocks[0].mixer.with_memory = partial(Mixer.with_memory, nested.blocks[0].mixer)  # a mixer that forgot it
    with pytest.raises(InputError, match="ParallelMixers has a part that reads a memory; it needs with_memory of its"):
        sw.with_memory(nested, memory.float())


@pytest.mark.parametrize("name", ["softmax", "elu"])
def test_an_encoder_and_a_decoder_write_token_by_token(name: str) -> None:
    torch.manual_seed(0)
    attention = sw.AttentionConfig(n_heads=2)
    both = sw.AttentionConfig(n_heads=2, bidirectional=True)
    encoder = (
        sw.SequenceRegressorConfig(d_output=1, vocab_size=9, d_model=8, layers=(both,), pooling=None).build().eval()
    )
    decoder = (
        sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=(attention, CONFIGS[name], attention)).build().eval()
    )
    tokens, lengths = torch.randint(9, (2, 6)), torch.tensor([6, 4])
    memory, _ = encoder.features(tokens, lengths=lengths)
    state = sw.with_memory(decoder, memory, lengths=lengths)
    written = torch.randint(9, (2, 5))
    logits, _ = decoder(written, state)
    logits.square().sum().backward()
    assert encoder.embedding.weight.grad is not None
    with torch.no_grad():
        state, steps = sw.with_memory(decoder, memory, lengths=lengths), []
        for token in written.split(1, 1):
            step, state = decoder(token, state)
            steps.append(step)
        same(torch.cat(steps, 1), logits, 1e-5, "token by token")
        prompt = written[:, :1]
        state = sw.with_memory(decoder, memory, lengths=lengths)
        generated = [t.ids for t in sw.generate(decoder, prompt, max_new_tokens=20, temperature=0.0, state=state)]
        wanted, last = [], prompt
        for _ in range(20):
            last = decoder(torch.cat([prompt, *(w[:, None] for w in wanted)], 1), state)[0][:, -1].argmax(-1)
            wanted.append(last)
        assert torch.equal(torch.stack([torch.as_tensor(ids) for ids in generated]), torch.stack(wanted))


def test_what_does_not_fit_is_refused() -> None:
    mixer = build("softmax, grouped, wide memory")
    x, memory = signals(mixer)
    for call, words in (
        (lambda: mixer.read(memory[..., :4]), r"CrossAttention\.read needs memory of shape \(batch, length, 5\)"),
        (
            lambda: mixer.read(memory.float()),
            r"read needs memory in the dtype of its parameters, torch.float64, .* use memory\.to\(torch\.float64\), or",
        ),
        (lambda: mixer.read(memory, lengths=torch.tensor([1, 2, 12])), "0..11"),
        (lambda: mixer(x, mixer.read(memory[:2])), "needs state.keys of shape"),
        (lambda: mixer(x, mixer.read(memory)._replace(document=torch.zeros(3, 2).long())), "of one length"),
        (lambda: mixer(x, build("elu").read(torch.randn(3, 4, 8, dtype=D))), "CrossAttentionState"),
        (lambda: sw.with_memory(sw.S4DConfig().build(4), memory), "got S4D"),
        (
            lambda: sw.with_memory(
                sw.LanguageModelConfig(vocab_size=3, d_model=4, layers=(sw.CrossAttentionConfig(n_heads=2),)).build(),
                [[1.0]],  # type: ignore[arg-type]
            ),
            r"needs memory as a tensor \(batch, n_keys, d_memory\), got list",
        ),
        (
            lambda: sw.with_memory(
                sw.LanguageModelConfig(vocab_size=3, d_model=4, layers=(sw.S4DConfig(),)).build(), memory
            ),
            "no layer of this model reads a memory",
        ),
    ):
        with pytest.raises(InputError, match=words):
            call()
    for config, options in (
        (sw.CrossAttentionConfig, {"n_heads": 4, "n_kv_heads": 3}),
        (sw.CrossAttentionConfig, {"n_heads": 3}),
        (sw.LinearCrossAttentionConfig, {"n_heads": 3}),
        (sw.LinearCrossAttentionConfig, {"n_heads": 4, "head_pattern": "multi_key", "n_groups": 3}),
    ):
        with pytest.raises(ConfigError, match=r"n_heads=3|n_groups=3|n_kv_heads=3"):
            config(**options).build(8)


def test_dropout_autocast_and_narrow_modules() -> None:
    torch.manual_seed(0)
    mixer = sw.CrossAttentionConfig(n_heads=2, dropout=0.5).build(8)
    x, memory = torch.randn(2, 5, 8), torch.randn(2, 6, 8)
    exact = mixer.eval()(x, mixer.read(memory))[0]
    drawn = torch.stack([mixer.train()(x, mixer.read(memory))[0] for _ in range(2000)])
    assert not torch.equal(drawn[0], drawn[1])
    torch.testing.assert_close(drawn.mean(0), exact, atol=0.05, rtol=0)
    for config in (sw.CrossAttentionConfig(n_heads=2), sw.LinearCrossAttentionConfig(n_heads=2)):
        layer = config.build(8)
        exact, state = layer(x, layer.read(memory))
        with torch.autocast("cpu", torch.bfloat16):
            y, state = layer(x, layer.read(memory))
        assert state[0].dtype == torch.float32
        torch.testing.assert_close(y.float(), exact, atol=0.03 * exact.abs().max().item(), rtol=0)
        narrow = layer.to(torch.bfloat16)
        y, state = narrow(x.bfloat16(), narrow.read(memory.bfloat16()))
        assert (y.dtype, state[0].dtype) == (torch.bfloat16, torch.float32)
