"""Agents and engines as data, and their assembly from files, environment and import paths.

Rule: reading makes nothing, assembling reads nothing, and every mistake is a `ConfigError` that names file, key and the nearest right one.
Start with `agents` (`Agent`) and `engines` (`Config`). `loading` reads `detent.toml` and agent files, `environment` variables and options,
`imports` loads what an import path names, `demands` lists what files ask for, `trust` says in which directories that may happen,
`assembly` makes an engine's parts, `planners` picks who plans for an agent, and `schema_lines` names the
JSON Schemas in `schemas/`. The options of an agent are defined in `core.agent.AgentOptions`; `scripts/docs.py` makes schemas and tables of them.
"""
