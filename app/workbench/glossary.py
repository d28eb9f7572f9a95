"""One or two sentences for every term of the field that the pages use; the tooltips come from here."""

from __future__ import annotations

TERMS = {
    "head": "An attention head: one of several that work in parallel in a layer. It decides where to look (attention) "
    "and copies information from there (its values).",
    "layer": "One block of the model: attention, then an MLP. Its output is added to the residual stream.",
    "residual stream": "The running sum at every position, which all layers read from and write to.",
    "attention": "The weight that a head gives to each earlier token: one row per query token, one column per key "
    "token.",
    "query": "The token that attends: the row of an attention matrix.",
    "key": "The token that is attended to: the column of an attention matrix.",
    "composition": "DCFormer mixes the heads' attention: a head can use attention that another head computed. How much "
    "is decided token by token.",
    "stage": "Composition happens twice: `pre` mixes the scores before the softmax, `post` the weights after it.",
    "scores": "q·k / sqrt(d): what a head computes for every pair of tokens before the softmax.",
    "weights": "Scores after the softmax: positive, and each row sums to 1. After composition neither is true.",
    "softmax": "Before composition a head's attention is a softmax: positive, and each row sums to 1. After "
    "composition neither is true.",
    "branches": "Composed attention is a head's own attention plus what four branches add: the query token and the key "
    "token each have a projection, which mixes heads, and a gate, which scales a head's own attention.",
    "o_b": "The head's own attention, through the skip connection (and the static map W_b, where a model has one).",
    "o_qp": "What the query token's low-rank projection adds: attention borrowed from other heads, with weights "
    "computed from the query token.",
    "o_kp": "What the key token's low-rank projection adds: attention borrowed from other heads, with weights computed "
    "from the key token.",
    "o_qg": "What the query token's gate adds: the head's own attention, scaled up or down.",
    "o_kg": "What the key token's gate adds: the head's own attention, scaled up or down.",
    "dynamic weights": "w_1 gathers attention from heads, w_2 distributes it to heads, and w_g gates. All of them are "
    "computed from the token, so composition differs from token to token.",
    "sharing": "A head shares its attention with another head, which borrows it. At a pair of tokens, w_1 gathers "
    "attention from heads and w_2 distributes it to heads; their product says how much each head shares with each "
    "other head.",
    "composition map": "W[from, to]: the weight with which each head's attention enters each head's composed "
    "attention. It does not say how much attention there was to share.",
    "motif": "A named pattern in a composition map: mutual excitation, mutual inhibition, one-to-many, many-to-one, "
    "self-gating.",
    "edge": "One head's attention (before the softmax: its scores), used by a head, another one or itself, through one "
    "branch of the composition. L1H6 → L1H1: in layer 1, head 6 shares its attention with head 1. On the page Circuit "
    "an edge is any connection between two parts of the model.",
    "logit": "The score that a model gives to a possible next token, before scores are turned into probabilities.",
    "logit difference": "The logit of the answer minus the logit of the token that it competes with (the foil).",
    "target": "The token whose logit is explained.",
    "foil": "The token that the target competes with: what is explained is the difference between their logits.",
    "edge score": "By default the strongest edges by several quick rules are removed, each alone, and the effect is "
    "the score; the others get what a gradient predicts (RelP: one of a copy of the model that is made linear). "
    "Integrated gradients share out the effect of a whole layer instead: they add up, and do not predict removals.",
    "attribution": "Integrated gradients: an estimate of how much of the answer's logit minus that of the foil comes "
    "from each head's output. The scores of all heads of a layer sum to what the layer's heads do together.",
    "direct effect": "What a head adds to the answer by itself: its output at the last token is ablated while all "
    "other heads keep theirs, so that no later head responds to the change.",
    "logit attribution": "Direct logit attribution: the logit difference as a sum of what the embedding, each head, "
    "each MLP and the biases add to it by themselves, with the scale of the final norm held at its value. What a part "
    "does through later layers is not in its number.",
    "logit lens": "The residual stream of a layer, read by the final norm and the unembedding as if the model ended "
    "there. A layer may hold the answer in directions that these do not read.",
    "generation": "The model's own continuation: at every step the most likely next token is added to the prompt.",
    "completeness": "The attributions of a layer must sum to what the layer changes; the gap is what the numerical "
    "integral missed.",
    "baseline": "What attribution compares with: head outputs of zero, or those on a counterfactual prompt.",
    "baseline model": "A model of the same shape whose heads are not composed. The shipped transformer++ is the "
    "baseline of the shipped dcformer++: both were trained on the same documents.",
    "ablation": "Putting something else in the place of a part (its mean over other prompts, zero, its value on "
    "another prompt) and measuring what changes.",
    "patching": "Replacing a part's value with the one it has on another prompt.",
    "path patching": "A part's value of the other prompt goes to one reader alone, and all other parts read what they "
    "read before. Further edges make it a path: the reader's new value then goes on along these alone.",
    "share restored": "Where the logit difference of the patched run lies between the counterfactual (0) and the clean "
    "prompt (1). With noising the share lost is shown: 1 minus that.",
    "denoising": "Denoising runs the counterfactual and puts in values of the clean prompt: what is enough to restore "
    "the answer? Noising runs the clean prompt and puts in values of the counterfactual: what breaks it? A part whose "
    "work another one can do breaks nothing.",
    "circuit": "The edges of the model with the highest scores. From one node to a later one through the residual "
    "stream, or, within a layer, from the head that computes attention to the head that uses it.",
    "faithfulness": "f = (m of the circuit - m with no edge) / (m of the model - m with no edge), where m is the logit "
    "of the answer minus that of the counterfactual's answer: 1 is the model, 0 is none of it.",
    "counterfactual": "A prompt that differs from the example in exactly one thing, such as the name in the question, "
    "and so usually has another answer.",
    "OV circuit": "W_V W_O: what a head writes when it attends to a token, whatever made it attend there.",
    "QK pattern": "How the question selects a fact: same-person, the-other-person, same-object, ...",
    "transformation": "What is asked about the selected fact: its class, its country, its opposite, or a copy of it.",
    "shots": "Solved examples before the question (K of them), from which a model may learn the task in context.",
    "held-out": "Facts that no shipped model was trained on; the split is by a hash of the fact.",
    "held-out file": "A file that neither model of source code was trained on; chosen by a hash of what it says.",
    "arm": "One of the kinds of model that an experiment compares. *Plain* composes no heads; *DCMHA* is the "
    "composition of the paper.",
    "interval over seeds": "A 95 % interval: seeds differ in the weights at the start and in the documents. "
    "Differences are taken seed by seed, between runs that read the same documents.",
    "clustered interval": "A 95 % interval by clusters: partner tasks share their facts, so their answers repeat.",
    "task baselines": "Simple rules to compare a model with. fact-unif: the right transformation of a random fact. "
    "value-unif: one of the different possible answers, at random. ignores negation: reads the question except for its "
    "`not`. odd-one-out: never reads the question and takes the fact that differs.",
    "loss": "Minus the log-probability of the right next token, in nats, averaged over tokens: 0 is certainty.",
    "checkpoint": "The model as it was at one step of its training, saved with everything that is needed to continue "
    "from there.",
    "hook": "A named place in the forward pass where a value can be read or replaced, as in TransformerLens.",
    "diversity": "How many directions the heads' maps span together: the more directions, the more diverse the heads.",
    "perplexity": "exp of the mean negative log-probability of the answers' tokens: 1 is certainty.",
    "share link": "The address of this view with every choice in it. Opened anywhere with the same models, it shows "
    "the same numbers.",
    "replay": "Recomputes a saved result and checks that it is equal.",
}

FAVOURS_AFTER = "An edge can hardly be worth much before the model knows anything, so this comparison favours *after*."
"""Beside every curve of edges over training."""
SIZE_ALONE = "A large branch may not matter for the answer."
"""Beside every curve of the sizes of branches."""

FORMER_TERMS = {
    "lending": "sharing",
    "loan": "sharing",
    "lender": "sharing",
    "taker": "sharing",
    "lead": "logit difference",
    "twin": "counterfactual",
    "twin model": "baseline model",
    "polarity-blind": "task baselines",
}
"""{term that version 0.1 used: the term now}, so that a link or a habit still finds it."""


def tip(*terms: str) -> str:
    """The tooltip of one or more terms.

    Raises:
        KeyError: a term that is not in the glossary, so that none is used without its sentence.
    """
    if len(terms) == 1:
        return TERMS[terms[0]]
    return "\n\n".join(f"**{term}**: {TERMS[term]}" for term in terms)


def find_terms(text: str) -> dict[str, str]:
    """The terms that have a text in their name, in their sentence or in a name that they had before, by name."""
    wanted = text.lower()
    former: dict[str, list[str]] = {}
    for old, new in FORMER_TERMS.items():
        former.setdefault(new, []).append(old)
    return {
        term: TERMS[term]
        for term in sorted(TERMS, key=str.lower)
        if wanted in " ".join([term, TERMS[term], *former.get(term, [])]).lower()
    }
