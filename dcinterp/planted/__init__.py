"""Models with hand-made weights, so that the heads, branches and edges behind each answer are known.

    planted = plant("share-by-kp", noise=0.02, seed=3)     # or read_plant("share-by-kp noise=0.02 seed=3")
    example = planted.examples(1)[0]
    planted.truth(example).edges            # [layer, branch, head_from, head_to]: +1, -1, or 0 for no effect

A circuit is one file in `circuits`. See docs/analyses/planted.md.
"""

from dcinterp.planted.circuit import Edge, PlantedExample, Truth
from dcinterp.planted.circuits import circuits
from dcinterp.planted.models import Knobs, PlantedModel, plant, read_plant
from dcinterp.planted.words import tokenizer

__all__ = ["Edge", "Knobs", "PlantedExample", "PlantedModel", "Truth", "circuits", "plant", "read_plant", "tokenizer"]
