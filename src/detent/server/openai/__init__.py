"""The API of OpenAI over agents: an agent is a model, so the `openai` SDK and front ends made for it work unchanged.

Rule: a parameter that is not honoured is refused by name, and a request that is sent again runs nothing twice.
Start with `chat`, which has a run for each request; `requests` reads what clients send.
"""
