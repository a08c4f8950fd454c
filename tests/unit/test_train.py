"""Training a head: what it sees at each depth, its loss, its batches, and that a run goes on where it was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from mtplx.errors import ModelError
from mtplx.model.native.shape import NativeShape, Rope
from mtplx.train.base import Base
from mtplx.train.batches import Batch, Batches, make_batch
from mtplx.train.head import DraftHead
from mtplx.train.loss import soft_cross_entropy
from mtplx.train.measure import measure_acceptance
from mtplx.train.run import count_vocabulary
from mtplx.train.shards import Passage, read_shard, write_shard
from mtplx.train.trainer import Recipe, Trainer, unroll

HIDDEN, VOCAB = 32, 50


def tiny_shape(has_qkv_bias: bool = False, has_qk_norm: bool = False) -> NativeShape:
    return NativeShape(
        num_layers=2,
        hidden=HIDDEN,
        intermediate=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab=VOCAB,
        norm_eps=1e-5,
        rope=Rope("default", 10000.0),
        window=None,
        is_tied=True,
        has_qkv_bias=has_qkv_bias,
        has_qk_norm=has_qk_norm,
    )


def random_passage(length: int, seed: int, answer_start: int = 2) -> Passage:
    random = np.random.default_rng(seed)
    hidden = random.standard_normal((length, HIDDEN)).astype(np.float16)
    return Passage(random.integers(0, VOCAB, length).astype(np.int32), hidden, answer_start)


def random_base(seed: int = 3) -> Base:
    embedding_VH = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(seed))
    return Base(tiny_shape(), embedding_VH, embedding_VH)


def drafted(head: DraftHead, batch: Batch, base: Base, slot: int, depth: int) -> Tensor:
    """The state [H] of the slot at that depth, made as a runner does it: slots of the model's states, then its own."""
    before = [batch.before[0, index] for index in range(slot - depth + 1)]
    embedded_BLH = base.embedding[batch.tokens]
    while True:
        state_BLH = head(torch.stack(before)[None], embedded_BLH[:, : len(before)], head.begin())
        last: Tensor = state_BLH[0, -1]
        if len(before) == slot + 1:
            return last
        before.append(last)


@pytest.mark.parametrize("shape", [tiny_shape(), tiny_shape(has_qkv_bias=True, has_qk_norm=True)])
@pytest.mark.parametrize("num_blocks", [1, 2])
def test_every_depth_sees_what_it_will_see_when_it_drafts(shape: NativeShape, num_blocks: int) -> None:
    torch.manual_seed(1)
    head, base = DraftHead(shape, num_blocks, 32), random_base()
    batch = make_batch([random_passage(9, seed=4)])
    with torch.no_grad():
        states = unroll(head, batch, base.embedding, 4)
        for depth, state_BLH in enumerate(states):
            for slot in range(depth, 8):
                expected = drafted(head, batch, base, slot, depth)
                torch.testing.assert_close(state_BLH[0, slot], expected, rtol=1e-4, atol=1e-5)


def test_padding_changes_no_real_slot() -> None:
    torch.manual_seed(1)
    head, base = DraftHead(tiny_shape(), 1, 32), random_base()
    short, long = random_passage(6, seed=4), random_passage(12, seed=5)
    with torch.no_grad():
        alone = unroll(head, make_batch([short]), base.embedding, 3)
        padded = unroll(head, make_batch([short, long]), base.embedding, 3)
    for depth in range(3):
        torch.testing.assert_close(padded[depth][0, depth:5], alone[depth][0, depth:5], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [1, 255, 600])
def test_loss_and_gradient_are_those_of_plain_cross_entropy(count: int) -> None:
    generator = torch.Generator().manual_seed(2)
    output_RH = torch.randn(VOCAB, HIDDEN, generator=generator)
    state, target = (torch.randn(count, HIDDEN, generator=generator) for _ in range(2))
    state.requires_grad_()
    plain = torch.nn.functional.cross_entropy(state @ output_RH.T / 0.7, (target @ output_RH.T / 0.7).softmax(-1))
    (expected,) = torch.autograd.grad(plain * 2, state)
    loss = soft_cross_entropy(state, target, output_RH)
    (found,) = torch.autograd.grad(loss * 2, state)
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)


def test_a_batch_is_laid_out_as_its_docstring_draws_it() -> None:
    short, long = random_passage(3, seed=1, answer_start=3), random_passage(4, seed=2)
    batch = make_batch([short, long])
    assert batch.tokens.tolist() == [[*short.token_ids[1:3].tolist(), 0], long.token_ids[1:4].tolist()]
    assert batch.counts.tolist() == [[False, True, False], [True, True, True]]
    assert np.array_equal(batch.before[1].numpy(), long.hidden[:3].astype(np.float32))
    assert np.array_equal(batch.target[0, :2].numpy(), short.hidden[1:3].astype(np.float32))


def test_a_round_has_every_passage_once_and_follows_from_its_index() -> None:
    passages = [random_passage(3 + index % 7, seed=index) for index in range(23)]
    batches = Batches(passages, 4, seed=9)

    def first_tokens(round_: int) -> list[int]:
        found = [batches[round_ * len(batches) + place] for place in range(len(batches))]
        return [token for batch in found for token in batch.tokens[:, 0].tolist()]

    once, again = first_tokens(0), first_tokens(1)
    assert sorted(once) == sorted(again) == sorted(int(passage.token_ids[1]) for passage in passages)
    assert once != again
    assert torch.equal(Batches(passages, 4, seed=9)[7].before, batches[7].before)


def test_shards_come_back_as_they_were_and_damage_is_told(tmp_path: Path) -> None:
    passages = [random_passage(length, seed=length, answer_start=length // 2) for length in (5, 9, 2)]
    path = tmp_path / "text.safetensors"
    write_shard(path, passages)
    for found, passage in zip(read_shard(path), passages, strict=True):
        assert found.answer_start == passage.answer_start
        assert np.array_equal(found.token_ids, passage.token_ids)
        assert np.array_equal(found.hidden, passage.hidden)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ModelError):
        read_shard(path)


def make_trainer(passages: Sequence[Passage]) -> Trainer:
    torch.manual_seed(6)
    recipe = Recipe(depths=2, regression_rounds=1.0, first_depth_rounds=1.0, batch_passages=4, regression_rate=1e-2)
    head = DraftHead(tiny_shape(), 1, 64)
    return Trainer(head, random_base(), torch.arange(0, VOCAB, 2), passages, recipe)


def test_a_run_taken_up_again_ends_as_one_that_was_never_stopped(tmp_path: Path) -> None:
    passages = [random_passage(4 + index % 5, seed=index) for index in range(20)]
    whole, first = make_trainer(passages), make_trainer(passages)
    for _ in range(whole.num_steps):
        whole.step()
    for _ in range(7):
        first.step()
    first.save(tmp_path / "checkpoint.pt")
    second = make_trainer(passages)
    second.load(tmp_path / "checkpoint.pt")
    assert (second.num_done, second.phase) == (7, "cross-entropy")
    while second.num_done < second.num_steps:
        second.step()
    for (name, one), two in zip(whole.head.named_parameters(), second.head.parameters(), strict=True):
        assert torch.equal(one, two), name


def test_what_can_be_learned_is_learned() -> None:
    """The state that follows is the state before, rolled: a head can find that."""
    random = np.random.default_rng(8)
    passages = []
    for _ in range(16):
        first = random.standard_normal(HIDDEN)
        hidden = np.stack([np.roll(first, shift) for shift in range(12)]).astype(np.float16)
        passages.append(Passage(random.integers(0, VOCAB, 12).astype(np.int32), hidden, 2))
    torch.manual_seed(6)
    recipe = Recipe(depths=2, regression_rounds=60, all_depths_rounds=20, first_depth_rounds=0, regression_rate=5e-3)
    base, ids = random_base(), torch.arange(VOCAB)
    trainer = Trainer(DraftHead(tiny_shape(), 1, 64), base, ids, passages, recipe)
    before = measure_acceptance(trainer.head, base, ids, passages, 1)
    while trainer.num_done < trainer.num_steps:
        trainer.step()
    after = measure_acceptance(trainer.head, base, ids, passages, 1)
    assert before.by_depth[0] < 0.2
    assert after.by_depth[0] > 0.6


class ScriptedHead(DraftHead):
    """At each depth it gives the true states, but for the slots where it is told to be wrong."""

    def __init__(self, target_BLH: Tensor, wrong_slots: Sequence[Sequence[int]]) -> None:
        super().__init__(tiny_shape(), 1, 64)
        self._target_BLH = target_BLH
        self._wrong = wrong_slots
        self._depth = 0

    def forward(self, hidden_BLH: Tensor, embedded_BLH: Tensor, memory: list[list[object]]) -> Tensor:  # type: ignore[override]
        state_BLH = self._target_BLH.clone()
        for slot in self._wrong[self._depth]:
            state_BLH[0, slot - 1] *= -1
        self._depth += 1
        return state_BLH


def test_acceptance_counts_a_depth_only_where_the_guesses_before_it_were_right() -> None:
    """Tokens 0 to 6; the answer begins with token 3, so slots 2 to 5 guess its tokens 3 to 6 and slot 6 what follows.

    depth 0 is wrong at slot 3:  4 of 5.   depth 1 is asked at slots 3, 5, 6 (after 2, 4, 5), wrong at 6:  2 of 3.
    """
    base = random_base()
    random = np.random.default_rng(11)
    hidden = random.standard_normal((7, HIDDEN)).astype(np.float16)
    likeliest = (torch.tensor(hidden).bfloat16() @ base.output.bfloat16().T).argmax(-1)
    token_ids = np.array([1, 2, *likeliest[1:6].tolist()], dtype=np.int32)  # goes on greedily from token 2 on
    passage = Passage(token_ids, hidden, 3)
    head = ScriptedHead(make_batch([passage]).target, [[3], [6]])
    found = measure_acceptance(head, base, torch.arange(VOCAB), [passage], 2)
    assert found.by_depth == (4 / 5, 2 / 3)
    assert found.tokens_per_step == pytest.approx(1 + 4 / 5 + 4 / 5 * 2 / 3)


def test_the_vocabulary_is_what_answers_hold_most_often_in_ascending_order() -> None:
    passages = [
        Passage(np.array(ids, dtype=np.int32), np.zeros((0, 1), np.float16), 2)
        for ids in ([1, 1, 7, 7, 3], [1, 1, 9, 3, 7])
    ]
    assert count_vocabulary(passages, 12, 2).tolist() == [3, 7]
    assert count_vocabulary(passages, 12, 4).tolist() == [0, 3, 7, 9]
