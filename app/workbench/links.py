"""Inputs whose values are the address of the page, so that a link brings somebody else to the same view.

The address bar holds what differs from the defaults; a share link (`share_link`) holds every value, so that it stays
right when a default changes. Where a link asks for a value that does not exist here, a sentence says so and the default
takes its place. Parameters keep the names of version 0.1, and a value that was renamed since is translated
(`FORMER_WORDS`).

    layer = links.choose("Layer", range(3), key="layer", default=1)
    query = links.choose("Token", range(20), key="query", default=19, means=lambda at: tuple(tokens[: at + 1]))

Choices are kept when one goes to another page, example, text or model, and comes back; but an input that stands at its
default follows the default of what is looked at now, and a choice that would mean something else there (`means`) gives
way to the default, which the page says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote, urlencode

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from dcinterp.mechanism.branches import FORMER_PARTS
from workbench.markdown import escape

T = TypeVar("T")
Values = dict[str, list[str]]

FORMER_WORDS: dict[str, dict[str, str]] = {
    "circuit": {"lend-by-kp": "share-by-kp", "lend-by-qp": "share-by-qp"},
    "part": FORMER_PARTS,
    "show": {"lent": "shared"},
    "twin": {"asked": "question"},
}
"""{parameter: {a value that links of version 0.1 hold: what it is called now}}, of the values that were renamed."""

FORMER_KEYS: dict[str, dict[str, str]] = {
    "Edges": {"method": "edge_rule"},
    "Experiments": {"seed": "run_seed"},
    "Glossary": {"search": "term"},
    "Interventions": {"part": "units"},
    "Logits by part": {"steps": "generated"},
    "Planted circuits": {"question": "planted_example", "seed": "roles_seed"},
    "Tasks": {"by": "group_by"},
}
"""{page: {a parameter of older links: what it is called now}}: one name once stood for inputs of several pages."""


class PageEnd(Exception):
    """The page ends here; what surrounds it is still to be drawn."""


def end_page() -> NoReturn:
    """End a page early. After `st.stop` nothing could be drawn any more: no share link, no notices, no running work."""
    raise PageEnd


@dataclass
class Address:
    """What one session knows about its links."""

    page: str = ""
    written: Values | None = None
    before: list[Values] = field(default_factory=list)
    """Addresses that were written over, and that the browser may still name: it has not named `written` yet."""
    asked: Values = field(default_factory=dict)
    arrived: bool = False
    """Whether no run on this page has come to its end yet."""
    following: bool = False
    """Whether this run follows a link, so that inputs take what it asks for, or their default."""
    current: Values = field(default_factory=dict)
    defaults: Values = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    """The value of every input when it was drawn last, on any page."""
    followed: dict[str, Any] = field(default_factory=dict)
    """The default that it had then."""
    meant: dict[str, Any] = field(default_factory=dict)
    """What the value meant then, where the input says that."""
    units: set[str] = field(default_factory=set)
    """Inputs that do not follow their default in this run, because another part of the same choice was chosen."""
    reset: list[str] = field(default_factory=list)
    """Labels of the inputs whose choice gave way to the default in this run."""
    said: tuple[list[str], Values] = field(default_factory=lambda: ([], {}))
    """Those that were said last, and the view for which they were."""
    suggested: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    always: set[str] = field(default_factory=set)
    """Inputs that the address names even at their default, because version 0.1 did not have them (`older`)."""
    older: dict[str, bool] = field(default_factory=dict)
    figures: dict[str, list[Any]] = field(default_factory=dict)
    """What is shown on the page, for its export."""
    places: list[Any] = field(default_factory=list)
    """Where the share link is to be written once the page has drawn all of its inputs."""


def address() -> Address:
    """That of this session."""
    return st.session_state.setdefault("_address", Address())


SINCE_0_2 = {
    "kind": "mean",
    "contrast": "facts",
    "new_kind": "mean",
    "against": "mean",
    "two_words": "same",
    "reference": "",
}
"""Inputs that version 0.1 did not have, with their defaults: links between pages name them, so that none is `older`."""


def begin(page: str) -> None:
    """Before anything is drawn: find out whether this run follows a link (or Back), or comes from a click."""
    here = address()
    former = FORMER_KEYS.get(page, {})
    given = {former.get(key, key): st.query_params.get_all(key) for key in st.query_params}
    same_page = page == here.page
    if same_page and here.written is not None and given in here.before and not _is_back():
        # A click that overtook the new address: the browser did not have it yet.
        given = here.written
    else:
        here.before = []
    here.following = given != here.written if same_page or here.written is None else bool(given)
    here.asked = given if here.following else {}
    if not here.following:
        # Else a run after this one, if something interrupts it, would take the address for a link without values.
        here.written = given
    here.arrived = here.arrived or not same_page
    here.page, here.current, here.defaults, here.wrong, here.places = page, {}, {}, [], []
    here.units, here.reset, here.figures = set(), [], {}


def _is_back() -> bool:
    """Whether the browser went back or forward; True as well where this Streamlit does not say."""
    return getattr(get_script_run_ctx(), "is_history_navigation", True)


def end() -> None:
    """After the page: write what differs from the defaults into the address bar, as one step of the history."""
    here = address()
    here.arrived = False
    shown = {key: value for key, value in here.current.items() if value != here.defaults[key]}
    if shown:
        shown |= {key: here.current[key] for key in here.always if key in here.current}
    given = here.asked if here.following else here.written or {}
    named = {key: value for key, value in given.items() if key in here.current or key not in SINCE_0_2}
    if named.items() >= shown.items() and named.items() <= here.current.items():
        # The address names this view, perhaps with its defaults as a share link does: no further step of the history.
        here.written = given
    else:
        # An interruption ends the first line before anything is sent, and then nothing was written.
        st.query_params.from_dict({key: value if len(value) != 1 else value[0] for key, value in shown.items()})
        here.before, here.written = [*here.before, given], shown
    for place in here.places:
        place.code(share_link(), language=None, wrap_lines=True)


def share_here() -> None:
    """Show the share link at this place; it is filled in when the page is complete."""
    address().places.append(st.empty())


def share_link() -> str:
    """The address of this view with every value of its inputs."""
    url = (st.context.url or "http://localhost:8501/").split("?")[0]
    return f"{url}?{urlencode(address().current, doseq=True, quote_via=quote)}"


def notices() -> None:
    """Say which values of a link could not be used, and which choices gave way to their default."""
    here = address()
    for sentence in here.wrong:
        st.warning(escape(sentence), icon=":material/link_off:")
    # It is said for as long as this view stands: work that ends, or a changed theme, draws the page anew.
    if here.reset or here.said[1] != here.current:
        here.said = here.reset, here.current
    if names := ", ".join(dict.fromkeys(here.said[0])):
        st.caption(f":material/restart_alt: Back at the default, as the last choice means nothing here: {names}.")


def asked_for(key: str) -> str | None:
    """What the link that is being followed gives for `key`, if it does."""
    values = address().asked.get(key)
    return current_word(key, values[0]) if values else None


def at_most(key: str, most: int) -> None:
    """Before it is drawn: a larger number in the link that is being followed stands for `most`."""
    if (asked := asked_for(key) or "").isdigit() and int(asked) > most:
        address().asked[key] = [str(most)]


def current_word(key: str, word: str) -> str:
    """What a value of a link is called now; the value itself where it was not renamed."""
    if key == "model" and word.startswith("planted:"):
        circuit, *settings = word.removeprefix("planted:").split(",")
        return "planted:" + ",".join([current_word("circuit", circuit), *settings])
    return FORMER_WORDS.get(key, {}).get(word, word)


def older(key: str) -> bool:
    """Whether this view comes from a link that does not name an input which version 0.1 did not have.

    Where the default of such an input shows other numbers than 0.1 showed, its old meaning is the default then.
    """
    here = address()
    here.always.add(key)
    if here.following:
        here.older[key] = key not in here.asked and bool(here.asked.keys() - {"model"})
    return here.older.get(key, False)


def last(key: str) -> Any:
    """The value that an input had when it was drawn last, on any page; None if it never was."""
    return address().kept.get(key)


def suggest(key: str, value: Any) -> bool:
    """What an input starts with where that is not its default; whether it stands there now and did not before.

    A suggestion that nobody changed makes way for the next one.
    """
    here = address()
    before = here.suggested.get(key)
    if key in here.kept and (here.kept[key] != before or before == value):
        return False
    here.suggested[key] = here.kept[key] = value
    here.followed.pop(key, None)
    st.session_state.pop(key, None)
    return True


def clear(key: str) -> None:
    """Before it is drawn: forget what an input holds, so that it stands at its default."""
    address().kept.pop(key, None)
    st.session_state.pop(key, None)


def unit(*keys: str) -> None:
    """Before they are drawn: these inputs are one choice, such as the two heads of an edge.

    Where one of them was chosen, none of the others follows its default: else a pair would stand there that nobody
    chose and no analysis named.
    """
    here = address()
    for key in keys:
        value = st.session_state.get(key, here.kept.get(key))
        if key in here.kept and (value != here.kept[key] or value != here.followed.get(key, value)):
            here.units |= set(keys)


def choose(
    label: str,
    options: Iterable[T],
    *,
    key: str,
    default: T | None = None,
    format: Callable[[T], str] = str,
    help: str | None = None,
    style: str = "selectbox",
    where: Any = st,
    hidden: bool = False,
    means: Callable[[T], Any] | None = None,
    follows: bool = True,
) -> T:
    """One of several; `style` is the Streamlit widget: selectbox, segmented_control, pills or radio.

    `means` says what a value stands for: where that has changed, the choice gives way to the default. Without
    `follows` a value that is left at its default stays when the default changes.
    """
    options = list(options)
    default = options[0] if default is None else default
    by_name = {str(option): option for option in options}

    def read(values: list[str]) -> T:
        return by_name[values[0] if values[0] in by_name else current_word(key, values[0])]

    _seed(label, key, default, read, lambda value: value in options, means, follows)
    extra = {"required": True, "wrap": True} if style == "segmented_control" else {}
    value = getattr(where, style)(
        label,
        options,
        key=key,
        format_func=format,
        help=help,
        label_visibility="collapsed" if hidden else "visible",
        **extra,
    )
    here = address()
    if len(options) == 1 and here.kept.get(key) == default:  # no choice here: the one made elsewhere stays one
        default_there = here.followed.get(key, default)
        _keep(key, default, default, means)
        here.followed[key] = default_there
        return default
    return _keep(key, default if value is None else value, default, means)


def several(
    label: str,
    options: Sequence[str],
    *,
    key: str,
    default: Sequence[str] = (),
    format: Callable[[str], str] = str,
    help: str | None = None,
    where: Any = st,
    means: Callable[[list[str]], Any] | None = None,
) -> list[str]:
    """Any number of several words; `means` as in `choose`."""

    def read(values: list[str]) -> list[str]:
        if unknown := [value for value in values if value not in options]:
            raise ValueError(unknown)
        return values

    _seed(label, key, list(default), read, lambda value: set(value) <= set(options), means)
    chosen = where.multiselect(label, options, key=key, format_func=format, help=help)
    return list(_keep(key, chosen, list(default), means))


def number(
    label: str,
    low: int,
    high: int,
    *,
    key: str,
    default: int,
    help: str | None = None,
    where: Any = st,
    means: Callable[[int], Any] | None = None,
    follows: bool = True,
) -> int:
    """A whole number from `low` to `high`; `means` and `follows` as in `choose`."""

    def read(values: list[str]) -> int:
        value = int(values[0])
        if not low <= value <= high:
            raise ValueError(value)
        return value

    default = min(max(default, low), high)
    _seed(label, key, default, read, lambda value: value is not None and low <= value <= high, means, follows)
    value = where.number_input(label, low, high, key=key, help=help)
    return _keep(key, default if value is None else int(value), default, means)


def text(
    label: str,
    *,
    key: str,
    default: str = "",
    help: str | None = None,
    area: bool = False,
    where: Any = st,
    means: Callable[[str], Any] | None = None,
    **options: Any,
) -> str:
    """Words; `area` gives several lines; `means` as in `choose`."""
    _seed(label, key, default, lambda values: values[0], lambda value: True, means)
    widget = where.text_area if area else where.text_input
    return _keep(key, widget(label, key=key, help=help, **options), default, means)


def switch(label: str, *, key: str, default: bool = False, help: str | None = None, where: Any = st) -> bool:
    """On or off."""
    _seed(label, key, default, lambda values: {"True": True, "False": False}[values[0]], lambda value: True)
    return _keep(key, where.toggle(label, key=key, help=help), default)


def _seed(
    label: str,
    key: str,
    default: Any,
    read: Callable[[list[str]], Any],
    valid: Callable[[Any], bool],
    means: Callable[[Any], Any] | None = None,
    follows: bool = True,
) -> None:
    """Give the widget its value before it is drawn: from the link, else as it was left, else the default."""
    here = address()
    if here.following and key in here.asked:
        try:
            st.session_state[key] = read(here.asked[key])
        except (KeyError, ValueError, IndexError):
            asked = ", ".join(here.asked[key])[:60]
            here.wrong.append(f"The link asks for {key} = {asked!r}, which does not exist here; the default is shown.")
            st.session_state[key] = default
        return
    if here.following:
        st.session_state[key] = default
        return
    if here.arrived or key not in st.session_state:
        # A widget of the page that was left has the same key and is another one: a value must be given anew.
        st.session_state[key] = st.session_state.get(key, here.kept.get(key, default))
    value = st.session_state[key]
    if key in here.kept and value == here.kept[key]:
        at_default = key in here.followed and value == here.followed[key]
        follow = at_default and follows and key not in here.units
        # Options of another page may have the same key: what is no option here was not chosen here.
        chosen_here = not here.arrived or (means is not None and here.meant.get(key) is not None)
        stale = _means_something_else(key, value, means) if valid(value) else chosen_here
        if stale and not at_default and value != default:
            here.reset.append(label)
        if stale or follow:
            st.session_state[key] = default
    if not valid(st.session_state[key]):
        st.session_state[key] = default


def _means_something_else(key: str, value: Any, means: Callable[[Any], Any] | None) -> bool:
    """Whether a value that was left here stands for something else by now."""
    before = address().meant.get(key)
    return before is not None and means is not None and means(value) != before


def _keep(key: str, value: Any, default: Any, means: Callable[[Any], Any] | None = None) -> Any:
    here = address()
    here.kept[key], here.followed[key] = value, default
    here.meant[key] = means(value) if means is not None else None
    here.current[key], here.defaults[key] = _words(value), _words(default)
    return value


def _words(value: Any) -> list[str]:
    return [str(v) for v in value] if isinstance(value, list | tuple) else [str(value)]
