"""Append-only sequences and maps: they behave as immutable values and share what they have in common."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.core.history import NO_ENTRIES, Map, Seq

small = st.integers(-3, 3)
# Each step appends a value to one of the views made so far, so that views branch.
branches = st.lists(st.tuples(st.integers(0, 50), small), max_size=40)


def storage(view: Any) -> Any:
    """Return what a view stands on."""
    return view._items if isinstance(view, Seq) else view._index


@given(branches)
def test_a_sequence_is_a_tuple_whatever_was_appended_to_other_views(steps: list[tuple[int, int]]) -> None:
    """Length, items, slices, negative indices, iteration, membership and equality are those of the tuple it stands for."""
    views: list[tuple[Seq[int], tuple[int, ...]]] = [(Seq(), ())]
    for which, value in steps:
        view, model = views[which % len(views)]
        views.append((view.append(value), (*model, value)))
    for view, model in views:
        assert (len(view), tuple(view), list(reversed(view))) == (len(model), model, list(reversed(model)))
        assert view == Seq(model) and hash(view) == hash(Seq(model))
        assert list(view[1:]) == list(model[1:]) and list(view[::-2]) == list(model[::-2])
        assert [view[i] for i in range(-len(model), len(model))] == [model[i] for i in range(-len(model), len(model))]
        assert all((n in view) == (n in model) for n in range(-3, 4))


@given(branches)
def test_a_map_is_a_dict_whatever_was_put_into_other_views(steps: list[tuple[int, int]]) -> None:
    """Keys keep the order in which they were put; a key that is there is never replaced."""
    views: list[tuple[Map[int, int], dict[int, int]]] = [(Map(), {})]
    for which, key in steps:
        view, model = views[which % len(views)]
        if key in model:
            with pytest.raises(KeyError, match="is set already"):
                view.put(key, which)
        else:
            views.append((view.put(key, which), {**model, key: which}))
    for view, model in views:
        assert (len(view), list(view), dict(view)) == (len(model), list(model), model)
        assert all((n in view) == (n in model) and view.get(n) == model.get(n) for n in range(-3, 4))


@given(st.lists(small, max_size=10), st.lists(small, max_size=10))
def test_equality_of_sequences_is_that_of_their_items(one: list[int], other: list[int]) -> None:
    """Equal items are equal sequences; a sequence is no list."""
    assert (Seq(one) == Seq(other)) == (one == other)
    assert Seq(one) != one


def test_equality_of_maps_looks_at_values() -> None:
    """Also where a value is None, and whatever the order."""
    a, b = Map[str, Any]().put("x", None).put("y", 1), Map[str, Any]().put("y", 1).put("x", None)
    assert a == b and hash(a) == hash(b)
    assert a != Map[str, Any]().put("x", None).put("y", 2) and a != Map[str, Any]().put("z", None).put("y", 1)
    assert a != {"x": None, "y": 1}


def test_appending_to_the_longest_view_copies_nothing() -> None:
    """10,000 views of one sequence stand on one storage."""
    views = [Seq[int]()]
    for n in range(10_000):
        views.append(views[-1].append(n))
    assert all(storage(view) is storage(views[0]) for view in views)
    assert [len(views[0]), len(views[5000]), views[5000][-1]] == [0, 5000, 4999]


def test_appending_to_a_shorter_view_copies_once() -> None:
    """The branch has a storage of its own, and goes on in place from there."""
    root = Seq([1, 2])
    longest = root.append(3)
    branch = root.append(4)
    assert storage(longest) is storage(root) and storage(branch) is not storage(root)
    assert storage(branch.append(5)) is storage(branch)
    assert (list(root), list(longest), list(branch)) == ([1, 2], [1, 2, 3], [1, 2, 4])


def test_putting_into_the_longest_map_copies_nothing_and_into_a_shorter_one_once() -> None:
    """The same for maps; a key of another branch is not there."""
    root = Map[str, int]().put("a", 1)
    longest = root.put("b", 2)
    branch = root.put("b", 3)
    assert storage(longest) is storage(root) and storage(branch) is not storage(root)
    assert (dict(root), longest["b"], branch["b"]) == ({"a": 1}, 2, 3)
    assert storage(branch.put("c", 4)) is storage(branch)


def test_a_sequence_made_of_a_list_does_not_share_it() -> None:
    """What is done to the list afterwards is not seen."""
    given = [1]
    view = Seq(given)
    given.append(2)
    assert list(view) == [1]


@pytest.mark.parametrize("index", [2, -3, 100])
def test_an_index_outside_is_refused_also_where_the_storage_is_longer(index: int) -> None:
    """A view never shows what was appended after it."""
    view = Seq([1, 2])
    view.append(3)
    with pytest.raises(IndexError, match=f"index {-1 if index == -3 else index} is outside a sequence of 2"):
        view[index]


def test_a_key_of_a_longer_map_is_not_seen() -> None:
    """Neither by look-up nor by iteration."""
    view = Map[str, int]().put("a", 1)
    view.put("b", 2)
    assert "b" not in view and list(view) == ["a"] and view.get("b") is None
    with pytest.raises(KeyError, match="b"):
        view["b"]


def test_histories_say_what_they_hold() -> None:
    """For messages of failed tests and for people."""
    assert repr(Seq([1])) == "Seq([1])" and repr(Map[str, int]().put("a", 1)) == "Map({'a': 1})"


def test_the_empty_map_that_all_share_keeps_nothing() -> None:
    """What is put into it goes into storage of its own, each time."""
    one, other = NO_ENTRIES.put("a", 1), NO_ENTRIES.put("a", 2)
    assert (dict(one), dict(other), dict(NO_ENTRIES)) == ({"a": 1}, {"a": 2}, {})
    assert not storage(NO_ENTRIES) and storage(one) is not storage(other)
