"""The prefix cache: full blocks found by the tokens up to their end, shared without copying; ints and digests only.

A block's key is a digest of its tokens and of the key before it, and the first one's of the model and of whose tokens
they are. So equal keys mean equal tokens from the beginning on, and what the model has written there is the same.

    tokens   |S S S S|A A A A|B B .      block size 4: keys k0 = H(salt, SSSS), k1 = H(k0, AAAA); the third is not full
    other    |S S S S|C C C C|C          finds k0, takes over that block, computes from position 4 on
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256

from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.state import Sequence


@dataclass(frozen=True, slots=True)
class PrefixStatus:
    """What there is to share now, and what sharing has done since the start."""

    is_on: bool
    num_blocks: int = 0  # that can be found, whether somebody holds them or not
    num_hits: int = 0  # times that a sequence took over blocks
    num_queried_tokens: int = 0  # of the sequences that were admitted,
    num_saved_tokens: int = 0  # and those that needn't be computed
    num_evictions: int = 0  # blocks whose place was needed


@dataclass(slots=True)
class _Entry:
    key: bytes
    is_primed: bool  # all of its slots of the draft head's cache are built


class PrefixCache:
    """Knows the full blocks of one allocator by their content; part of the sequence table, which alone calls it.

    A block is published when the model has computed all of it and its tokens are prompt or emitted, never drafts. Its
    entries are never written again, but for the slots of a draft head that aren't built yet: whoever builds them writes
    the same. It stays until its place is needed, the ends of long prefixes before their beginnings.

    With `is_on` False only the choices of one request share, and of nothing but their own prompt.

    Invariants, which `check` asserts: each key has one block, each published block one key, and the allocator keeps
    exactly the published ones.
    """

    def __init__(self, blocks: BlockAllocator, salt: bytes = b"", *, is_on: bool = True) -> None:
        self._blocks = blocks
        self._root = sha256(salt).digest()
        self._is_on = is_on
        self._block_of: dict[bytes, int] = {}
        self._entries: dict[int, _Entry] = {}
        self._num_hits = 0
        self._num_queried_tokens = 0
        self._num_saved_tokens = 0
        self._num_evictions = 0
        blocks.on_evict = self._evicted

    def status(self) -> PrefixStatus:
        return PrefixStatus(
            self._is_on,
            len(self._block_of),
            self._num_hits,
            self._num_queried_tokens,
            self._num_saved_tokens,
            self._num_evictions,
        )

    def find(self, sequence: Sequence, first: int = 0) -> list[int]:
        """The published blocks of a sequence's tokens from its block number `first` on, as far as there is no gap.

        Never the block of its last token: somebody wants the logits there, and they aren't kept.
        """
        found: list[int] = []
        if not self._block_of or not sequence.reads_prefix or not self._takes_part(sequence):
            return found
        for index in range(first, (len(sequence.token_ids) - 1) // self._blocks.block_size):
            block_id = self._block_of.get(self._key(sequence, index))
            if block_id is None:
                break
            found.append(block_id)
        return found

    def num_held(self, sequence: Sequence, released: Mapping[int, int] | None = None) -> int:
        """How many of the blocks that it would find are held by somebody, so that sharing them takes no free one.

        `released` says for some blocks how many of their holders are about to let go.
        """
        released = released or {}
        return sum(self._blocks.num_holds(block_id) > released.get(block_id, 0) for block_id in self.find(sequence))

    def query(self, sequence: Sequence) -> None:
        """Shares what there is with a sequence that is being admitted, and counts that it was looked for."""
        if self._is_on and sequence.reads_prefix:
            self._num_queried_tokens += len(sequence.token_ids)
        self.share(sequence)

    def share(self, sequence: Sequence) -> None:
        """Lets a sequence go on behind the published blocks that come next in it; what it had in their place is freed.

        So prompts that begin alike are computed once even if they run at the same time: a step's chunk is everybody's.
        """
        size = self._blocks.block_size
        first = sequence.num_computed // size
        found = self.find(sequence, first)
        if not found:
            return
        end = first + len(found)
        self._blocks.hold(found)
        self._blocks.free(reversed(sequence.block_ids[first:end]))
        sequence.block_ids[first:end] = found
        self._num_hits += 1
        self._num_saved_tokens += end * size - sequence.num_computed
        sequence.num_saved += end * size - sequence.num_computed
        if sequence.num_cached == sequence.num_computed and not sequence.num_preempted:
            sequence.num_cached = end * size
        sequence.num_computed = end * size
        sequence.num_published = end
        sequence.num_primed = min(sequence.num_primed, first * size)
        self.catch_up(sequence)

    def without_twins(self, line: Iterable[Sequence]) -> list[Sequence]:
        """The sequences of a line of prompts, but of several that come to the same block next only the first.

        The others take that block over when it is computed, and lose nothing by waiting: where the first is cancelled,
        the next step is theirs. Nobody is waited for in vain: who reads no prefix leads as well.
        """
        keys: set[bytes] = set()
        leading = []
        for sequence in line:
            key = self._next_key(sequence)
            if key is None or key not in keys or not sequence.reads_prefix:
                leading.append(sequence)
            if key is not None:
                keys.add(key)
        return leading

    def publish(self, sequence: Sequence) -> None:
        """Makes what a sequence has filled since the last time findable. Of two equal blocks the first stays."""
        if not self._takes_part(sequence):
            return
        size = self._blocks.block_size
        num_full = min(sequence.num_computed, len(sequence.token_ids)) // size
        for index in range(sequence.num_published, num_full):
            key, block_id = self._key(sequence, index), sequence.block_ids[index]
            if key not in self._block_of:
                assert block_id not in self._entries, f"block {block_id} was written over"
                self._block_of[key] = block_id
                self._entries[block_id] = _Entry(key, is_primed=sequence.num_primed >= (index + 1) * size)
                self._blocks.keep(block_id)
        sequence.num_published = max(sequence.num_published, num_full)

    def built(self, sequence: Sequence, start: int) -> None:
        """Hears that the draft head's slots of a sequence are built from position `start` up to its `num_primed`."""
        size = self._blocks.block_size
        for index in range(start // size, min(sequence.num_primed // size, sequence.num_published)):
            entry = self._entries.get(sequence.block_ids[index])
            if entry is not None:
                entry.is_primed = True

    def catch_up(self, sequence: Sequence) -> None:
        """Raises a sequence's `num_primed` over what others have built in the blocks that it shares with them."""
        size = self._blocks.block_size
        while sequence.num_primed < sequence.num_published * size:
            index = sequence.num_primed // size
            entry = self._entries.get(sequence.block_ids[index])
            if entry is None or not entry.is_primed:
                return
            sequence.num_primed = (index + 1) * size

    def forget(self, block_ids: Iterable[int]) -> None:
        """Makes these blocks unfindable, those of them that were published; who holds one goes on with it."""
        for block_id in block_ids:
            entry = self._entries.pop(block_id, None)
            if entry is not None:
                del self._block_of[entry.key]
                self._blocks.discard(block_id)

    def check(self) -> None:
        """Asserts the invariants."""
        by_entry = {entry.key: block_id for block_id, entry in self._entries.items()}
        assert by_entry == self._block_of, "keys and blocks are not one to one"
        assert self._blocks.worth_keeping() == sorted(self._entries), "a block is kept that can't be found, or not kept"

    def _next_key(self, sequence: Sequence) -> bytes | None:
        """The key of the block that a sequence computes next, if others could take it over or it theirs."""
        index = sequence.num_computed // self._blocks.block_size
        is_whole = index < (len(sequence.token_ids) - 1) // self._blocks.block_size
        return self._key(sequence, index) if is_whole and self._takes_part(sequence) else None

    def _takes_part(self, sequence: Sequence) -> bool:
        return self._is_on or sequence.request is not None

    def _salt(self, sequence: Sequence) -> bytes:
        """What tells those apart that share nothing."""
        return sequence.cache_salt if self._is_on else f"request {sequence.request}".encode()

    def _key(self, sequence: Sequence, index: int) -> bytes:
        """The key of a sequence's full block; computed once, since tokens only ever get more."""
        keys, size = sequence.prefix_keys, self._blocks.block_size
        while len(keys) <= index:
            token_ids = sequence.token_ids[len(keys) * size : (len(keys) + 1) * size]
            assert len(token_ids) == size, "only full blocks have keys"
            before = keys[-1] if keys else sha256(self._root + self._salt(sequence)).digest()
            keys.append(sha256(before + array("q", token_ids).tobytes()).digest())
        return keys[index]

    def _evicted(self, block_id: int) -> None:
        self._num_evictions += 1
        del self._block_of[self._entries.pop(block_id).key]
