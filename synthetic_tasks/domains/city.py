"""Cities by country (docs/tasks.md). `German` and `Washington, D.C` are spelt as the released file has them."""

from synthetic_tasks.domain import Domain, grouped
from synthetic_tasks.lexicon import Item, Predicate, words_of

COUNTRIES = words_of("""
Australia: Brisbane, Canberra, Sydney
Brazil: Brasília, Rio de Janeiro, Sao Paulo
Canada: Ottawa, Toronto, Vancouver
China: Beijing, Guangzhou, Shanghai
France: Lyon, Marseille, Paris
German: Berlin, Hamburg, Munich
India: Bangalore, Mumbai, New Delhi
Italy: Florence, Milan, Rome, Venice
Japan: Kyoto, Osaka, Tokyo
Russia: Moscow, Novosibirsk, Saint Petersburg
South Korea: Busan, Incheon, Seoul
Spain: Barcelona, Madrid, Valencia
Switzerland: Bern, Geneva, Zurich
Thailand: Bangkok, Chiang Mai, Pattaya
the United Kingdom: Birmingham, London, Manchester
the United States: Los Angeles; New York; Washington, D.C
""")

ITEMS = {word: Item(word, stated=word, opening=word, listed=word) for members in COUNTRIES.values() for word in members}
SCOPES = (grouped(ITEMS, COUNTRIES),)

DOMAIN = Domain(
    name="city",
    facts={"person-first": "{person} likes {item.stated}", "item-first": "{item.opening} attracts {person}"},
    person_scopes=SCOPES,
    set_scopes=SCOPES,
    predicates=(
        Predicate("wants to visit", "does not want to visit", 15, 6),
        Predicate("wants to go to", "does not want to go to", 15, 19),
        Predicate("longs for", "does not long for", 7, 17),
        Predicate("yearns for", "does not yearn for", 11, 6),
    ),
)
