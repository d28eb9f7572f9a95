"""Common objects in ten classes (docs/tasks.md)."""

from synthetic_tasks.domain import Domain, grouped
from synthetic_tasks.lexicon import Predicate, noun, words_of

CLASSES = words_of("""
animal: cat, cow, deer, dog, donkey, duck, elephant, fox, goat, goose, gorilla, horse, lion, monkey, mouse, pig, \
rabbit, sheep, squirrel, tiger, wolf
clothing: T-shirt, costume, jacket, jeans, jersey, pants, shirt, shoes, sweater, trousers, underwear, uniform
drink: beer, cocktail, coffee, juice, soda, tea, vodka, whiskey, wine
food: bread, burger, cake, hamburger, meat, pizza, spaghetti, steak
fruit: apple, apricot, banana, blackberries, blueberries, cherries, durian, grapes, kiwi, lemon, lime, mango, orange, \
papaya, peach, pear, pineapple, plum, strawberries, watermelon
insect: bee, beetle, mosquito
musical instrument: guitar, piano, violin
sport: baseball, basketball, football
vehicle: bus, car, jeep, motorcycle, taxi
weapon: cannon, grenade, gun, handgun, pistol, revolver, rifle, shotgun
""")

POSSESSION = (
    Predicate("has", "does not have", 15, 20),
    Predicate("possesses", "does not possess", 33, 26),
    Predicate("owns", "does not own", 24, 26),
)
POSSESSED = {"person-first": "{person} has {item.stated}", "item-first": "{item.opening} {person}'s"}

ITEMS = {word: noun(word) for members in CLASSES.values() for word in members}
SCOPES = (grouped(ITEMS, CLASSES),)

DOMAIN = Domain(
    name="object",
    facts=POSSESSED,
    person_scopes=SCOPES,
    set_scopes=SCOPES,
    predicates=POSSESSION,
    copied_in_set="The",
)
