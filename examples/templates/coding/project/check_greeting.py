"""Checks greeting.py. Run it with: python3 check_greeting.py."""

from greeting import greeting

assert greeting("Ann") == "Hello, Ann!", greeting("Ann")
print("ok")
