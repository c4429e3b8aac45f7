"""Agents and engines as data, and their assembly from files, environment and import paths.

Rule: reading creates nothing, assembling reads nothing, and every mistake is a `ConfigError` that names the file, the key and the nearest valid one.
Start with `agents` (`Agent`) and `engines` (`Config`). `loading` reads `detent.toml` and agent files, `environment` variables and options,
`imports` loads import paths, `demands` lists what files ask for, `trust` decides in which directories that is allowed,
`assembly` creates the parts of an engine, `planners` chooses the planner of an agent, and `schema_lines` names the
JSON Schemas in `schemas/`. `core.agent.AgentOptions` defines the options of an agent; `scripts/docs.py` generates schemas and tables from them.
"""
