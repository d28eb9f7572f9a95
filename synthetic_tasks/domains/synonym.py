"""Adjectives in groups of one meaning, each with an opposite group; for the synonym sets the released file lacks."""

from synthetic_tasks.domain import Domain, grouped
from synthetic_tasks.domains.adjective import adjective

# One line a pair of opposite meanings; the words of one side are synonyms.
MEANINGS = """
big large | small little
heavy weighty | light weightless
healthy fit | unhealthy ill sick
fast quick | slow sluggish
happy glad | sad unhappy
rich wealthy | poor needy
clever smart | stupid foolish
brave courageous | cowardly timid
honest truthful | dishonest deceitful
clean spotless | dirty filthy
beautiful pretty | ugly hideous
strong powerful | weak feeble
"""

SIDES = [tuple(tuple(side.split()) for side in line.split("|")) for line in MEANINGS.strip().splitlines()]
OPPOSITES = {word: there for sides in SIDES for here, there in (sides, sides[::-1]) for word in here}
ITEMS = {word: adjective(word) for word in OPPOSITES}
SCOPES = (grouped(ITEMS, {side[0]: side for sides in SIDES for side in sides}),)

DOMAIN = Domain(name="synonym", facts={}, person_scopes=SCOPES, set_scopes=SCOPES)
