"""What things are: actions, events, records, state, fold. Pure: the standard library and msgspec only, no async, I/O or clock."""
