"""Items, names and articles: the words every domain is made of (docs/tasks.md)."""

from dataclasses import dataclass

MALE_NAMES: tuple[str, ...] = tuple(
    "Anthony Brian Charles Christopher Daniel David Donald Edward George James Jason Jeff John Joseph Kenneth "
    "Kevin Mark Michael Paul Richard Robert Ronald Steven Thomas William".split()
)
FEMALE_NAMES: tuple[str, ...] = tuple(
    "Barbara Betty Carol Deborah Donna Dorothy Elizabeth Helen Jennifer Karen Kimberly Laura Linda Lisa Margaret "
    "Maria Mary Michelle Nancy Patricia Ruth Sandra Sarah Sharon Susan".split()
)
NAMES: tuple[str, ...] = tuple(sorted(MALE_NAMES + FEMALE_NAMES))


@dataclass(frozen=True, slots=True)
class Item:
    """One thing a fact can be about, in the three forms the released texts need.

    word:   bare, as in questions and answers ("lime")
    stated: inside a person-first fact or a set ("a lime", "in 2014")
    opening: at the head of an item-first fact ("The lime is", "In 2014")
    listed: inside a set ("a lime", "2014")
    """

    word: str
    stated: str
    opening: str
    listed: str


@dataclass(frozen=True, slots=True)
class Predicate:
    """One paraphrase of what a person does with an item: its two forms and how often the released rows use them.

    The weights are the released row counts (docs/tasks.md): most of them are compatible with a uniform
    draw, `does not want to go to` is not.
    """

    positive: str
    negative: str
    positive_weight: float = 1.0
    negative_weight: float = 1.0


AN = frozenset("abacus apple apricot elephant orange oven".split())  # not "uniform"
NO_ARTICLE = frozenset(
    "beer|blackberries|blueberries|bread|cake|chalk|cherries|coffee|goggles|grapes|jeans|juice|meat|pants|pizza|"
    "sheep|shoes|soda|spaghetti|spray|strawberries|swim fins|T-shirt|tea|trousers|underwear|vodka|whiskey|wine".split(
        "|"
    )
)
PLURAL = frozenset(
    "blackberries|blueberries|cherries|goggles|grapes|jeans|pants|sheep|shoes|strawberries|swim fins|trousers".split(
        "|"
    )
)

# The two nouns of the released file that follow no rule.
IRREGULAR = {
    "pencil": ("pencils", "The pencil is"),  # plural after "has" and in sets, singular elsewhere
    "T-shirt": ("T-shirt", "T-shirt is"),  # never an article
}


def noun(word: str) -> Item:
    """A common noun with its article and verb, as the released file writes it (quirks included)."""
    if word in IRREGULAR:
        stated, opening = IRREGULAR[word]
    else:
        article = "" if word in NO_ARTICLE else "an " if word in AN else "a "
        stated = article + word
        opening = f"The {word} {'are' if word in PLURAL else 'is'}"
    return Item(word, stated=stated, opening=opening, listed=stated)


def words_of(table: str) -> dict[str, tuple[str, ...]]:
    """Read a table of `group: member, member` lines (members may contain spaces; `;` separates those with commas)."""
    groups: dict[str, tuple[str, ...]] = {}
    for line in table.strip().splitlines():
        group, members = line.split(":")
        separator = ";" if ";" in members else ","
        groups[group.strip()] = tuple(member.strip() for member in members.split(separator))
    return groups
