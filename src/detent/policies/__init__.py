"""Policies: whether a call is allowed, denied, ends the run, or needs a person."""
