"""The portable fast path: composing and its gradients, a block of queries at a time, in plain PyTorch.

For one query the skip, the static map, the query-side projection and gate are a single H x H map of the heads' rows:
one small matrix product a query (`branches.query_map`). The key side goes by its factors, pass by pass: a map for every
key would want the scores turned round in memory, which costs more than the passes do. Scores of a block lie as
[batch, query, head, key], so that nothing is turned.

The way back computes a block again and differentiates it by hand: autograd would keep what every pass gives, and read
it again. Memory for scores is that of one block; blocks are of a size that a processor's cache holds, and keys that the
causal rule hides from a whole block are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dcinterp.model.compose.branches import ComposeWeights, query_map
from dcinterp.model.mask import Sight

WEIGHTS = ("w_q1", "w_q2", "w_qg", "static", "w_k1", "w_k2", "w_kg")
OF_QUERIES = WEIGHTS[:4]
FEWEST, GOOD = 16, 48
"""Queries that a block has at least, if there are so many, and those for which it may become four times as large:
matrix products of fewer rows are slow."""
PARTS, SHORT = 4, 32
"""Under the causal rule, queries are parted into so many blocks even where one could hold them, so that blocks can
leave out the keys that come after, unless they become shorter than that."""


@dataclass(frozen=True)
class Block:
    """Some queries of some batch entries, and the keys that they may see."""

    batch: slice
    rows: slice
    seen: slice

    def sizes(self) -> tuple[int, int, int]:
        """Batch entries, queries and keys."""
        batch, rows, seen = (of.stop - of.start for of in (self.batch, self.rows, self.seen))
        return batch, rows, seen


def blocks(batch: int, heads: int, queries: int, keys: int, sight: Sight, numbers: int) -> Iterator[Block]:
    """All queries, in blocks whose scores are about `numbers`: some queries of one batch entry, or of several."""
    one_query = heads * keys
    rows = min(queries, max(FEWEST, numbers // one_query, min(GOOD, 4 * numbers // one_query)))
    if sight.causal and not may_see_nothing(sight, queries, keys):
        rows = min(rows, max(SHORT, -(-queries // PARTS)))
    entries = max(1, numbers // (rows * one_query))
    for entry in range(0, batch, entries):
        for start in range(0, queries, rows):
            own = slice(start, min(start + rows, queries))
            yield Block(slice(entry, min(entry + entries, batch)), own, seen_keys(sight, own, queries, keys))


def seen_keys(sight: Sight, rows: slice, queries: int, keys: int) -> slice:
    """The keys that the causal rule leaves to some query of `rows`; all where a row may see none of them."""
    if may_see_nothing(sight, queries, keys) or not sight.causal:
        return slice(0, keys)
    past = keys - queries
    first = 0 if sight.window is None else max(0, past + rows.start + 1 - sight.window)
    return slice(first, past + rows.stop)


def may_see_nothing(sight: Sight, queries: int, keys: int) -> bool:
    """Whether some query may be left without any key; it attends evenly to all of them, hidden or not."""
    return sight.allowed is not None or (sight.causal and keys < queries)


def block_mask(sight: Sight, rows: slice, seen: slice, queries: int, keys: int, device: torch.device) -> Tensor | None:
    """`Sight.dense` of some queries and keys."""
    mask = None if sight.allowed is None else sight.allowed[:, :, rows, seen]
    if not sight.causal:
        return mask
    slots = torch.arange(keys, device=device)
    ahead = slots[:queries][rows][:, None] + keys - queries - slots[seen]
    causal = ahead >= 0 if sight.window is None else (ahead >= 0) & (ahead < sight.window)
    return causal[None, None] if mask is None else causal & mask


class Space:
    """Memory that every block uses again, so that it stays in the processor's cache."""

    def __init__(self, like: Tensor, numbers: int) -> None:
        self.like, self.numbers = like, numbers
        self.held: dict[str, Tensor] = {}

    def take(self, name: str, *size: int) -> Tensor:
        """Room for a tensor; what was there under this name is gone."""
        if name not in self.held:
            self.held[name] = self.like.new_empty(self.numbers)
        return self.held[name][: math.prod(size)].view(size)


class Stage:
    """Compose of one stage on blocks, and the gradients of its weights.

    Scores are given to it as [batch, query, head, key]. Inside, heads are parted into their groups.
    """

    def __init__(self, w: ComposeWeights, like: Tensor, *, grads: bool) -> None:
        wide, (batch, _, queries, _) = like.dtype, like.shape
        self.w, self.skip, self.groups = w, w.skip, w.groups
        with torch.set_grad_enabled(grads):
            self.leaves = {
                name: x.detach().to(wide).requires_grad_(grads)
                for name in OF_QUERIES
                if (x := getattr(w, name)) is not None
            }
            made = query_map(replace(w, **self.leaves))
            self.graph = None if made is None else made.expand(batch, queries, -1, -1)
        self.maps = None if self.graph is None else self.graph.detach()
        # Of w_k1 all ranks, of w_k2 all ranks, and w_kg, to lie beside the scores: [batch, 1, group, head, key] each.
        sides = [x.detach().to(wide).unflatten(-1, (w.groups, -1)) for x in (w.w_k1, w.w_k2) if x is not None]
        self.ranks = sides[0].shape[2] if sides else 0
        if w.w_kg is not None:
            sides.append(w.w_kg.detach().to(wide).unflatten(-1, (w.groups, -1)).unsqueeze(2))
        self.of_keys = torch.cat(sides, 2).permute(2, 0, 3, 4, 1).unsqueeze(2).contiguous() if sides else None
        self.d_maps = None if self.maps is None or not grads else like.new_empty(self.maps.shape)
        self.d_keys = None if self.of_keys is None or not grads else torch.zeros_like(self.of_keys)

    def compose(self, a: Tensor, block: Block, out: Tensor, spare: Tensor) -> list[Tensor]:
        """Writes Compose(A) to `out`; returns what each rank of the key side has gathered from A."""
        if self.maps is not None:
            torch.bmm(self.maps[block.batch, block.rows].flatten(0, 1), a.flatten(0, 1), out=out.flatten(0, 1))
        elif self.skip:
            out.copy_(a)
        else:
            out.zero_()
        if self.of_keys is None:
            return []
        a, out, spare = (x.unflatten(2, (self.groups, -1)) for x in (a, out, spare))
        weights = self.of_keys[:, block.batch, ..., block.seen].unbind(0)
        gathered = []
        for w1, w2 in zip(weights[: self.ranks], weights[self.ranks : 2 * self.ranks], strict=True):
            gathered.append(torch.mul(a, w1, out=spare).sum(3, keepdim=True))
            out.addcmul_(gathered[-1], w2)
        for gate in weights[2 * self.ranks :]:
            out.addcmul_(a, gate)
        return gathered

    def back(self, a: Tensor, gathered: list[Tensor], grad: Tensor, block: Block, out: Tensor, spare: Tensor) -> None:
        """Writes the gradient of A to `out`, from that of Compose(A), and adds to those of the weights."""
        if self.maps is not None:
            assert self.d_maps is not None
            by_query, maps = grad.flatten(0, 1), self.maps[block.batch, block.rows].flatten(0, 1)
            torch.bmm(maps.mT, by_query, out=out.flatten(0, 1))
            d_maps = torch.bmm(by_query, a.flatten(0, 1).mT)
            self.d_maps[block.batch, block.rows] = d_maps.unflatten(0, a.shape[:2])
        elif self.skip:
            out.copy_(grad)
        else:
            out.zero_()
        if self.of_keys is None:
            return
        assert self.d_keys is not None
        a, grad, out, spare = (x.unflatten(2, (self.groups, -1)) for x in (a, grad, out, spare))
        weights = self.of_keys[:, block.batch, ..., block.seen].unbind(0)
        d_keys = torch.empty_like(self.d_keys[:, block.batch, ..., block.seen], memory_format=torch.contiguous_format)
        sums = d_keys.unbind(0)
        for rank, found in enumerate(gathered):
            w1, w2, d_w1, d_w2 = (of[i] for of in (weights, sums) for i in (rank, self.ranks + rank))
            shared = torch.mul(grad, w2, out=spare).sum(3, keepdim=True)
            out.addcmul_(shared, w1)
            torch.sum(torch.mul(a, shared, out=spare), 1, keepdim=True, out=d_w1)
            torch.sum(torch.mul(grad, found, out=spare), 1, keepdim=True, out=d_w2)
        for gate, d_gate in zip(weights[2 * self.ranks :], sums[2 * self.ranks :], strict=True):
            out.addcmul_(grad, gate)
            torch.sum(torch.mul(a, grad, out=spare), 1, keepdim=True, out=d_gate)
        self.d_keys[:, block.batch, ..., block.seen] += d_keys

    def gradients(self) -> dict[str, Tensor]:
        """Of the weights that exist, in the layouts of `ComposeWeights`."""
        found: dict[str, Tensor] = {}
        if self.graph is not None:
            made = torch.autograd.grad(self.graph, list(self.leaves.values()), self.d_maps)
            found |= dict(zip(self.leaves, made, strict=True))
        if self.d_keys is not None:
            # [rank, batch, 1, group, head, key] as [batch, key, rank, head]
            sums = self.d_keys.squeeze(2).permute(1, 4, 0, 2, 3).flatten(3)
            if self.w.w_k1 is not None:
                found["w_k1"], found["w_k2"] = sums[:, :, : self.ranks], sums[:, :, self.ranks : 2 * self.ranks]
            if self.w.w_kg is not None:
                found["w_kg"] = sums[:, :, -1]
        return found


class Blockwise:
    """One call: what all blocks read, in the layouts and the type that they compute with."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        pre: ComposeWeights | None,
        post: ComposeWeights | None,
        sight: Sight,
        numbers: int,
        *,
        grads: bool,
    ) -> None:
        # Processors compute with half precisions by widening every number; others have units for them.
        self.dtype = q.dtype
        wide = torch.promote_types(q.dtype, torch.float32) if q.device.type == "cpu" else q.dtype
        self.q, self.k, self.v = (x.detach().to(wide).contiguous() for x in (q, k, v))
        self.k_turned, self.v_turned = self.k.mT.contiguous(), self.v.mT.contiguous() if grads else None
        self.scale, self.sight = q.shape[-1] ** -0.5, sight
        self.batch, self.heads, self.queries, self.keys = *q.shape[:3], k.shape[2]
        self.pre, self.post = (None if w is None else Stage(w, self.q, grads=grads) for w in (pre, post))
        self.blocks = list(blocks(self.batch, self.heads, self.queries, self.keys, sight, numbers))
        self.caps: dict[tuple[int, int, int], Tensor] = {}
        self.space = Space(self.q, max(math.prod(block.sizes()) for block in self.blocks) * self.heads)

    def forward(self) -> Tensor:
        """[batch, head, query, d_head], in the type of q."""
        out = torch.empty_like(self.q, dtype=self.dtype)
        for block in self.blocks:
            pattern = self._way_there(block)[-1]
            found = torch.bmm(self._by_head(pattern), self.v[block.batch, :, block.seen].flatten(0, 1))
            out[block.batch, :, block.rows] = found.view_as(out[block.batch, :, block.rows])
        return out

    def backward(self, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v; those of the weights are the stages' `gradients` then."""
        d_out = d_out.to(self.q.dtype)
        d_q, d_k, d_v = torch.empty_like(self.q), torch.zeros_like(self.k), torch.zeros_like(self.v)
        for block in self.blocks:
            self._way_back(block, d_out, d_q, d_k, d_v)
        return d_q, d_k, d_v

    def _way_there(self, block: Block) -> tuple[Tensor, list[Tensor], Tensor, list[Tensor], Tensor]:
        """Scores, what the first stage gathered, the softmax's weights, what the second gathered, and the pattern."""
        scores = self._product("scores", self._queries(block), self.k_turned[block.batch, ..., block.seen], block)
        weights, spare = self._take("weights", block), self._take("spare", block)
        before = self._compose(self.pre, scores, block, weights, spare)
        if self.pre is None:
            weights.copy_(scores)
        self._hide(weights, block)
        torch.softmax(weights, -1, out=weights)
        pattern = self._take("pattern", block) if self.post is not None else weights
        after = self._compose(self.post, weights, block, pattern, spare)
        return scores, before, weights, after, pattern

    def _way_back(self, block: Block, d_out: Tensor, d_q: Tensor, d_k: Tensor, d_v: Tensor) -> None:
        scores, before, weights, after, pattern = self._way_there(block)
        batch, _, seen = block.sizes()
        spare = self._take("spare", block)
        above = self._by_shared_head(d_out[block.batch, :, block.rows])
        d_v[block.batch, :, block.seen] += torch.bmm(self._by_head(pattern).mT, above).view(
            batch, -1, seen, d_v.shape[-1]
        )
        assert self.v_turned is not None
        grad = self._product("grad", above, self.v_turned[block.batch, ..., block.seen], block)
        if self.post is not None:
            self.post.back(weights, after, grad, block, d_weights := self._take("back", block), spare)
            grad = d_weights
        # The pattern has served.
        slopes = self._take("pattern", block)
        torch.ops.aten._softmax_backward_data.out(grad, weights, -1, weights.dtype, grad_input=slopes)
        self._hide_slopes(slopes, block)
        if self.pre is not None:
            self.pre.back(scores, before, slopes, block, d_scores := self._take("grad", block), spare)
            slopes = d_scores
        by_head = self._by_head(slopes)
        found = torch.bmm(by_head, self.k[block.batch, :, block.seen].flatten(0, 1)).mul_(self.scale)
        d_q[block.batch, :, block.rows] = found.view_as(d_q[block.batch, :, block.rows])
        d_k[block.batch, :, block.seen] += torch.bmm(by_head.mT, self._queries(block)).view(
            batch, -1, seen, d_k.shape[-1]
        )

    def _compose(self, stage: Stage | None, a: Tensor, block: Block, out: Tensor, spare: Tensor) -> list[Tensor]:
        return [] if stage is None else stage.compose(a, block, out, spare)

    def _queries(self, block: Block) -> Tensor:
        """Those of the block, scaled: [batch * kv_head, query, d_head]."""
        return self._by_shared_head(self.q[block.batch, :, block.rows] * self.scale)

    def _by_shared_head(self, x: Tensor) -> Tensor:
        """[batch, head, query, n] with the rows of heads that share keys joined: [batch * kv_head, rows, n]."""
        return x.reshape(x.shape[0] * self.k.shape[1], -1, x.shape[-1])

    def _by_head(self, a: Tensor) -> Tensor:
        """The same of [batch, query, head, key]; a view for one batch entry and unshared keys."""
        return (
            self._by_shared_head(a.transpose(1, 2))
            if self.heads != self.k.shape[1] or a.shape[0] > 1
            else a[0].transpose(0, 1)
        )

    def _product(self, name: str, rows: Tensor, columns: Tensor, block: Block) -> Tensor:
        """[batch * kv_head, rows, d_head] @ [batch, kv_head, d_head, key] as [batch, query, head, key]."""
        batch, queries, seen = block.sizes()
        made = self.space.take(name, *rows.shape[:2], seen)
        torch.bmm(rows, columns.flatten(0, 1), out=made)
        turned = made.view(batch, self.heads, queries, seen).transpose(1, 2)
        return turned if batch == 1 else turned.contiguous()

    def _take(self, name: str, block: Block) -> Tensor:
        batch, queries, seen = block.sizes()
        return self.space.take(name, batch, queries, self.heads, seen)

    def _told(self, block: Block) -> slice:
        """The keys of the block that some of its queries may not see."""
        first = block.seen.start
        if self.sight.causal and self.sight.window is None and self.sight.allowed is None:
            # All queries of the block see the keys before its first one.
            first = max(first, min(block.seen.stop, self.keys - self.queries + block.rows.start))
        return slice(first, block.seen.stop)

    def _mask(self, block: Block) -> Tensor | None:
        """Who sees whom of `_told`, [batch, query, 1, key]."""
        mask = block_mask(self.sight, block.rows, self._told(block), self.queries, self.keys, self.q.device)
        return mask if mask is None else (mask if mask.shape[0] == 1 else mask[block.batch]).transpose(1, 2)

    def _hide(self, scores: Tensor, block: Block) -> None:
        """What `mask_scores` does, by the lower of two numbers: several times faster than filling."""
        told = self._told(block)
        cap = self._cap(block, told, scores)
        if cap is not None:
            hidden = scores[..., told.start - block.seen.start :]
            torch.minimum(hidden, cap, out=hidden)

    def _cap(self, block: Block, told: slice, like: Tensor) -> Tensor | None:
        # The causal rule looks the same from many blocks; a mask does not.
        same = (block.rows.start - told.start, block.sizes()[1], told.stop - told.start)
        if self.sight.allowed is None and same in self.caps:
            return self.caps[same]
        if (mask := self._mask(block)) is None:
            return None
        cap = torch.full(mask.shape, math.inf, dtype=like.dtype, device=like.device)
        self.caps[same] = cap.masked_fill_(~mask, torch.finfo(like.dtype).min)
        return cap

    def _hide_slopes(self, slopes: Tensor, block: Block) -> None:
        """Hidden scores have no slope: their weights are zero, but for queries that see nothing."""
        if may_see_nothing(self.sight, self.queries, self.keys) and (mask := self._mask(block)) is not None:
            slopes[..., self._told(block).start - block.seen.start :].mul_(mask)
