"""Models with hand-made weights, so that the heads, branches and edges behind each answer are known.

    planted = plant("share-by-kp", noise=0.02, seed=3)     # or read_plant("share-by-kp noise=0.02 seed=3")
    example = planted.examples(1)[0]
    planted.truth(example).edges            # [layer, branch, head_from, head_to]: +1, -1, or 0 for no effect
    planted.truth(example).names()          # {"L1H6 -> L1H1 (post kp)": +1, ...}, before the softmax too

A circuit is one file in `circuits`. See docs/analyses/planted.md.
"""

from dcinterp.planted.circuit import Edge, PlantedExample, Traits, Truth
from dcinterp.planted.circuits import circuits, together
from dcinterp.planted.models import Knobs, PlantedModel, plant, read_plant
from dcinterp.planted.words import tokenizer

__all__ = ["Edge", "Knobs", "PlantedExample", "PlantedModel", "Traits", "Truth", "circuits", "plant", "read_plant"]
__all__ += ["together", "tokenizer"]
