"""One sentence for every term of the field that the pages use; the tooltips come from here."""

from __future__ import annotations

TERMS = {
    "head": "An attention head: one of several parallel readers of a layer. It decides where to look (attention) and "
    "copies something from there (its values).",
    "layer": "One block of the model: attention, then an MLP; its output is added to the residual stream.",
    "residual stream": "The running sum at every position that all layers read from and write to.",
    "attention": "The weight with which a head reads each earlier token: one row per query token, one column per key.",
    "query": "The token that looks (the row of an attention matrix).",
    "key": "The token that is looked at (the column of an attention matrix).",
    "composition": "DCFormer mixes the heads' attention: a head can use attention that another head computed, "
    "token by token.",
    "stage": "Composition happens twice: `pre` mixes the scores before the softmax, `post` the weights after it.",
    "scores": "q·k / sqrt(d): what a head computes for every pair of tokens before the softmax.",
    "weights": "Scores after the softmax: positive, adding up to 1 over the keys. After composition they are neither.",
    "softmax": "Before composition a head's attention is a softmax: positive, adding up to 1. After it, it is neither.",
    "branches": "Composed attention = own attention + what projections and gates add. The query token and the key "
    "token each have a projection (mixes heads) and a gate (scales a head).",
    "o_b": "The head's own attention, through the skip connection (and the static map W_b, where a model has one).",
    "o_qp": "What the query token's low-rank projection adds: attention lent by other heads, by the query's choice.",
    "o_kp": "What the key token's low-rank projection adds: attention lent by other heads, by the key's choice.",
    "o_qg": "What the query token's gate adds: the head's own attention, scaled up or down.",
    "o_kg": "What the key token's gate adds: the head's own attention, scaled up or down.",
    "dynamic weights": "w_1 gathers attention from heads, w_2 shares it to heads, w_g gates; all are computed from the "
    "token, so composition differs from token to token.",
    "lending": "At this pair of tokens, w_1 gathers attention from heads and w_2 shares it to heads. The product tells "
    "which head lends how much to which.",
    "composition map": "W[from, to]: by how much each head's attention enters each head's composed attention. It does "
    "not say how much attention there was to lend.",
    "motif": "A shape in a composition map with a name: mutual excitation, mutual inhibition, one-to-many, "
    "many-to-one, self-gating.",
    "edge": "One head's attention used by another head's values, through one branch of the composition.",
    "logit": "The score that a model gives to a possible next token, before scores are turned into probabilities.",
    "target": "The token whose logit is explained.",
    "foil": "The token that the target competes with: what is explained is the difference of their logits.",
    "attribution": "Integrated gradients: how much of the answer's logit (against the strongest wrong token) comes "
    "from each head's output. All heads of a layer add up to what the layer does.",
    "completeness": "Attributions of a layer must add up to what the layer changes; the gap is what the integral "
    "missed.",
    "baseline": "What attribution compares with: head outputs of zero, or those of a counterfactual prompt.",
    "ablation": "Removing a part (to zero, its mean, or its counterfactual value) and measuring what changes.",
    "patching": "Replacing a part's value by the one it has on another prompt.",
    "counterfactual": "A twin prompt that differs in exactly one thing, so that its answer is another one.",
    "OV circuit": "W_V W_O: what a head writes when it reads a token, whatever made it look there.",
    "QK pattern": "How the question selects a fact: same-person, the-other-person, same-object, ...",
    "transformation": "What is asked about the selected fact: its class, its country, its opposite, or a copy of it.",
    "shots": "Solved examples before the question (K of them), from which a model may learn the task in context.",
    "held-out": "Facts that no shipped model was trained on; the split is by a hash of the fact.",
    "clustered interval": "95 % interval from a bootstrap over whole clusters (partner tasks share their facts).",
    "fact-unif": "A reader without understanding: the right transformation, applied to a random fact.",
    "loss": "Minus the log-probability of the right next token, in nats, averaged over tokens: 0 is certainty.",
    "checkpoint": "A model in the middle of its training, saved with all that training needs to go on from there.",
    "hook": "A named place in the forward pass where a value can be read or replaced, as in TransformerLens.",
    "diversity": "How many directions the heads' maps span together: fewer shared directions, more diverse heads.",
    "perplexity": "exp of the mean negative log-probability of the answers' tokens: 1 is certainty.",
    "share link": "The address of this view with every choice in it; opened anywhere with the same models, it shows "
    "the same numbers.",
    "replay": "Recomputes a saved result and asserts that it is equal.",
}


def tip(*terms: str) -> str:
    """The tooltip of one or more terms.

    Raises:
        KeyError: a term that is not in the glossary, so that none is used without its sentence.
    """
    if len(terms) == 1:
        return TERMS[terms[0]]
    return "\n\n".join(f"**{term}**: {TERMS[term]}" for term in terms)
