"""M1 to M4 of the protocol: by which ways the words of a question do their work in the DCMHA models.

    python experiments/pairing_routes/routes.py

reads the models of the runs (so the runs must be there, not only their table), adds those that are missing to
routes.csv of this folder, and prints the verdicts, which are also at the end of the experiment's page
(more-routes.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, einsum

from dcinterp.bridge.protocol import Bridge
from dcinterp.evidence.arm_circuits import DOCUMENTS
from dcinterp.evidence.pooled_edges import group_of, pair_shares, share_cells, shares_of
from dcinterp.evidence.questions.pairing import CHANGES, questions
from dcinterp.evidence.script import run_script
from dcinterp.evidence.sign_verdict import least_models, sign_verdict
from dcinterp.evidence.trained_models import RunsTable, accuracy_by_part, open_trained, print_measured, trained_models
from dcinterp.evidence.verdict_words import SUPPORTED, error_of, marked
from dcinterp.mechanism.circuit_pairs import Pair, batches, read_pairs
from dcinterp.mechanism.head_maps import branch_map
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import Experiment

HERE = Path(__file__).parent
TABLE, TEXT_FILE, ARM = "routes.csv", "more-routes.md", "DCMHA"
LAYER = "L1 post"
TAP = "blocks.1.attn.post.hook_"
POST, PRE, QUERY = (f"L0 -> L1 {way}" for way in ("post weights", "pre weights", "query"))
BETWEEN, OWN = f"{LAYER}, between heads", f"{LAYER}, a head's own"
MAP_BETWEEN, MAP_OWN, MAP = "map between heads", "map of a head's own", "map of the query"
CLAIM = (
    "in these models, where they learnt the task, the relation acts by the dynamic weights after the softmax, and "
    "mostly by choosing with which other heads' values a pattern is used"
)
NEEDED = ("M1", "M2", "M3")
HYPOTHESES: dict[str, tuple[str, str, str | float]] = {
    "M1": ("relation", POST, 0.5),
    "M2": ("relation", MAP_BETWEEN, MAP_OWN),
    "M3": ("fact", BETWEEN, OWN),
    "M4": ("half", QUERY, POST),
}
"""{hypothesis: (what the other prompt differs in, the way whose share is larger, the other way or a number)}."""

TEXT = """## By which ways the words of a question do their work

Each hypothesis is that in {arm} models the share of one way minus that of another, or minus a half, is above zero, on
`{part}`. Intervals are at {level:.2%}, as they are {count}, and a sign test must agree at that level, so that one model
of ten with the other sign leaves it open; with fewer than {least} models nothing is concluded.

    python experiments/pairing_routes/routes.py{options}

{lines}

That *{claim}* is claimed only if {needed} are all supported: **{made}**. Three quarters of the entries of a map of four
heads are between heads, so "mostly" is no preference for them.

*{between}* are the edges by which one head's pattern is used with another's values, through the query's or the key's
projections; *{own}* all by which a head's pattern is used with its own: the skip, the gates and the diagonals of the
projections. They get their patterns from the other prompt. *{map_between}* and *{map_own}* are the other way round: the
patterns stay, and of the map over heads that the query's weights make in layer 1 after the softmax the entries between
heads, or the diagonal and the gate, get the numbers of the other prompt; *{map}* is both. There are three times as many
entries between heads as on the diagonal. The means of these shares over models [least, largest]:

{table}
"""


def parts_of(edge: str) -> tuple[str, ...]:
    """The groups of an edge: what it is, and in layer 1's composition after the softmax whether it is between heads."""
    group = group_of(edge)
    if not group.startswith(f"{LAYER} "):
        return (group,)
    source, target = edge.split(" -> ")
    return group, OWN if source == target.split()[0] else BETWEEN


@torch.no_grad()
def map_shares(bridge: Bridge, pairs: Sequence[Pair]) -> dict[str, float]:
    """The shares of a change's effect that layer 1's map over heads has when its entries are the other prompt's.

    The attention that is mapped stays that of the prompt. Prompts are of one length.
    """
    (batch,) = batches(pairs, len(pairs))
    weights = [f"{TAP}w_{name}" for name in ("q1", "q2", "qg")]
    logits, cache = bridge.run_with_cache(batch.ids, names_filter=weights)
    others, other = bridge.run_with_cache(batch.other, names_filter=weights)
    own_map, own_gate, its_map, its_gate = (
        made for of in (cache, other) for made in (branch_map([of[each] for each in weights[:2]], 1), of[weights[2]])
    )
    same = torch.eye(own_map.shape[-1], dtype=torch.bool)
    swapped = {
        MAP_BETWEEN: (own_map.where(same, its_map), own_gate),
        MAP_OWN: (its_map.where(same, own_map), its_gate),
        MAP: (its_map, its_gate),
    }
    before, after = (batch.metric(each[:, -1]).mean() for each in (logits, others))
    shares = {}
    for name, (mixed, gate) in swapped.items():
        now = batch.metric(_mapped(bridge, batch.ids, mixed, gate)[:, -1]).mean()
        shares[name] = round(float((before - now) / (before - after)), 5)
    return shares


def _mapped(
    bridge: Bridge,
    ids: Tensor,
    mixed: Float[Tensor, "batch query head_from head_to"],
    gate: Float[Tensor, "batch query head"],
) -> Float[Tensor, "batch query vocab"]:
    """Logits with the query's map and gate of layer 1 after the softmax replaced, applied to this run's attention."""
    kept = {}

    def keep(attention: Tensor, hook: Any) -> None:
        kept["in"] = attention

    hooks = [
        (f"{TAP}in", keep),
        (f"{TAP}o_qp", lambda branch, hook: einsum("bfts,btfh->bhts", kept["in"], mixed)),
        (f"{TAP}o_qg", lambda branch, hook: kept["in"] * gate.transpose(1, 2)[..., None]),
    ]
    return bridge.run_with_hooks(ids, fwd_hooks=hooks)


def measure(experiment: Experiment, arm: str, model: Path) -> list[dict[str, Any]]:
    """A row for every change and group; of a model that has not learnt it or is not asked, one with its accuracy."""
    bridge, source = open_trained(experiment, arm, model)
    part = source.puzzle.PARTS[0]
    accuracy = accuracy_by_part(bridge, source, [part])
    if accuracy[part] < experiment.solved_at:
        return [accuracy]
    pairs = {change: read_pairs(bridge, asked)[0] for change, asked in questions(source, DOCUMENTS).items()}
    rows = pair_shares(bridge, pairs, groups_of=parts_of)
    for change in CHANGES if rows else ():
        rows += [{"change": change, "group": name, "share": x} for name, x in map_shares(bridge, pairs[change]).items()]
    return [accuracy | {"part": part} | row for row in rows] or [accuracy]


def verdict(name: str, rows: pd.DataFrame, experiment: Experiment) -> str:
    """A hypothesis with what became of it, as a line of Markdown."""
    change, way, other = HYPOTHESES[name]
    shares = shares_of(rows, ARM, experiment.solved_part, change)
    trained, error = rows["seed"].nunique(), error_of(len(HYPOTHESES))
    found = sign_verdict(shares, way, other, trained=trained, seeds=len(experiment.seeds), error=error)
    less = f"*{other}*" if isinstance(other, str) else "one half"
    return f"- **{name}** (another *{change}*: *{way}* minus {less}): {found}"


def summary(rows: pd.DataFrame, experiment: Experiment, options: str = "") -> str:
    """The verdicts, and the shares that they are about, as Markdown.

    options: of the command that makes it again.
    """
    part = experiment.solved_part
    verdicts = {name: verdict(name, rows, experiment) for name in HYPOTHESES}
    error, ways = error_of(len(HYPOTHESES)), (POST, PRE, QUERY, BETWEEN, OWN, MAP_BETWEEN, MAP_OWN, MAP)
    shares = {change: shares_of(rows, ARM, part, change) for change in CHANGES}
    columns = [share_cells(each, ways) for each in shares.values()]
    return TEXT.format(
        arm=ARM,
        part=part,
        level=1 - error,
        count=len(HYPOTHESES),
        least=least_models(error),
        options=options,
        lines="\n".join(verdicts.values()),
        claim=CLAIM,
        needed=f"{', '.join(NEEDED[:-1])} and {NEEDED[-1]}",
        made="made" if all(marked(SUPPORTED) in verdicts[name] for name in NEEDED) else "not made",
        between=BETWEEN,
        own=OWN,
        map_between=MAP_BETWEEN,
        map_own=MAP_OWN,
        map=MAP,
        table=markdown_table(
            ["way", *(f"another {change}" for change in CHANGES)],
            [list(row) for row in zip(ways, *columns, strict=True)],
        ),
    )


def main(table: RunsTable = None) -> None:
    """Measure the models that are missing, and print the verdicts."""
    print_measured(trained_models(HERE, HERE, table), TABLE, TEXT_FILE, measure, summary, [ARM])


if __name__ == "__main__":
    run_script(main)
