"""Any sequence of operations leaves the PostgreSQL store as it leaves a dict of lists."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from amounts import in_check, times
from stores.test_store_machine import StoreMachine


@in_check
def test_any_sequence_of_operations_leaves_it_as_a_dict_of_lists(postgres_url: str) -> None:
    """Each example in a schema of its own, closed and opened again between operations."""

    class PostgresMachine(StoreMachine):
        scheme = f"{postgres_url}&schema={{}}"

    run_state_machine_as_test(PostgresMachine, settings=settings(max_examples=times(20), stateful_step_count=20))
