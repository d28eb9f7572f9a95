"""The glossary of axes: one word per axis, the same word in every einsum, annotation and dataframe.

| axis      | meaning                                                                  |
|-----------|--------------------------------------------------------------------------|
| batch     | example in a batch                                                        |
| pos       | token position                                                            |
| query     | position that attends (the paper's t)                                     |
| key       | position attended to (the paper's s)                                      |
| head      | attention head                                                            |
| kv_head   | head of keys and values, shared by heads / kv_heads consecutive heads     |
| head_from | head that computed the attention                                          |
| head_to   | head that uses it, with its own values                                    |
| d_head    | width of a head                                                           |
| d_model   | width of the residual stream                                              |
| rank      | rank index of a dynamic low-rank projection                               |
| layer     | decoder layer                                                             |

The aliases below are jaxtyping annotations; the tests switch their checking on.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

Attention = Float[Tensor, "batch head query key"]
"""One matrix of scores or weights per head, before or after composition."""

Mask = Bool[Tensor, "#batch 1 query key"]
"""True where a query may look at a key."""

PerHead = Float[Tensor, "batch head pos d_head"]
"""Queries, keys or values, head-major."""

SharedHeads = Float[Tensor, "batch kv_head pos d_head"]
"""Keys or values, head-major: as many heads as there are, or fewer that groups of query heads share."""

ZByPosition = Float[Tensor, "batch pos head d_head"]
"""What heads have read, position-major, as the hooks show it."""

Residual = Float[Tensor, "batch pos d_model"]
TokenIds = Int[Tensor, "batch pos"]

LowRank = Float[Tensor, "batch pos rank head"]
"""w_1 (gathers from heads) or w_2 (shares to heads) at every position."""

Gate = Float[Tensor, "batch pos head"]
HeadMap = Float[Tensor, "head_from head_to"]
