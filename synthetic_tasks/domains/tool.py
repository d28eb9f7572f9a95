"""Tools, grouped by what one can do with them (docs/tasks.md); sentence forms as for objects."""

from synthetic_tasks.domain import Domain, grouped
from synthetic_tasks.domains.object import POSSESSED, POSSESSION
from synthetic_tasks.lexicon import noun, words_of

CAPABILITIES = words_of("""
calculate: abacus, calculator, computer
clean: broom, mop, vacuum cleaner
communicate: phone, radio, telegraph, telephone
cook: oven, pan, pot
drive: car, jeep, truck
fly: glider, helicopter, plane
kill: dagger, gun, knife
paint: brush, palette, roller, spray
play: guitar, piano, violin
ride: bicycle, horse, motorcycle
swim: goggles, swim fins, swimsuit
write: biro, chalk, pen, pencil
""")

ITEMS = {word: noun(word) for members in CAPABILITIES.values() for word in members}
SCOPES = (grouped(ITEMS, CAPABILITIES),)

DOMAIN = Domain(
    name="tool",
    facts=POSSESSED,
    person_scopes=SCOPES,
    set_scopes=SCOPES,
    predicates=POSSESSION,
    copied_in_set="The",
)
