"""Explores a model to its end: every state that can be reached, breadth first, and the shortest way to one that breaks a promise."""

from __future__ import annotations

from typing import NamedTuple

from protocol.model import Model, State


class Explored(NamedTuple):
    """How many states and steps there are; `broken` is the first promise that does not hold, and `way` how it came to that."""

    states: int
    steps: int
    broken: str = ""
    way: tuple[str, ...] = ()


def explore(model: Model, *, most: int = 5_000_000) -> Explored:
    """Visit every state. A promise breaks in a state, or where workers that are left to themselves can no longer come to rest."""
    first = State()
    came: dict[State, tuple[State | None, str]] = {first: (None, "")}
    before: dict[State, list[State]] = {}
    resting: list[State] = []
    queue, steps = [first], 0
    for state in queue:
        for said, plain in model.steps(state):
            steps += 1
            after = alike(plain)
            if after not in came:
                came[after] = state, said
                queue.append(after)
                if broken := model.violation(after):
                    return Explored(len(came), steps, broken, _way(came, after))
            if said[0] != "!":
                before.setdefault(after, []).append(state)
        if model.at_rest(state):
            resting.append(state)
        assert len(came) < most, "the model has more states than it is meant to have"
    ends = set(resting)
    for state in resting:
        fresh = [one for one in before.get(state, ()) if one not in ends]
        ends.update(fresh)
        resting.extend(fresh)
    for state in queue:
        if state not in ends:
            return Explored(len(came), steps, "a signal is never decided, or the run never goes on", _way(came, state))
    return Explored(len(came), steps)


def alike(state: State) -> State:
    """Return the one that stands for a state and for its mirror image: the workers are alike, and only which is which differs."""
    first, second = state.workers
    if first <= second:
        return state
    return state._replace(workers=(second, first), holder=state.holder if state.holder < 0 else 1 - state.holder)


def _way(came: dict[State, tuple[State | None, str]], state: State | None) -> tuple[str, ...]:
    way: list[str] = []  # from state to state; where one stands for its mirror image, the workers have changed their numbers
    while state is not None:
        state, said = came[state]
        way.append(said)
    return tuple(reversed(way[:-1]))
