"""The loop: how a step works. Knows core and ports only."""
