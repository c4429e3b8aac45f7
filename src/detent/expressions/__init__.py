"""What others wrote, read for several rooms: CEL expressions, markup, patterns, JSON Schemas. Below the adapters, which share it."""
