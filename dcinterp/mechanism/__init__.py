"""What analyses share: prompts, branches, head maps, path gradients, interventions, statistics."""
