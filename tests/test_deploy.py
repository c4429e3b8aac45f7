"""The files that people deploy with: they fit their schemas, name commands that exist, and leave a worker the time to stop."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from amounts import in_check
from detent import Bounds, Engine
from source_code import ROOT

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").iterdir())
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "worker.yaml").read_text(encoding="utf-8")))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
ISSUES = ROOT / ".github" / "ISSUE_TEMPLATE"
LAST_RECORDS_S = 5
"""What a worker needs after its calls have ended: suspend its runs, close the store."""


def schema(name: str) -> Any:
    """Return a published JSON Schema, as the package check-jsonschema brings it."""
    return json.loads((files("check_jsonschema") / f"builtin_schemas/vendor/{name}.json").read_text(encoding="utf-8"))


def drain_s() -> float:
    """Return how long the calls of a stopped worker may take."""
    return getattr(Bounds(), "drain_s", 25.0)


# Shape ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest["kind"])
def test_a_kubernetes_manifest_fits_the_schema_of_its_kind(manifest: dict[str, Any]) -> None:
    """A misspelt key is refused here, and not ignored in a cluster."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install '.[dev]' brings it")
    assert kubernetes_validate.validate(manifest, "1.32", strict=True)
    wrong = {**manifest, "metadata": {**manifest["metadata"], "nmae": "x"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.32", strict=True)


def test_the_compose_file_fits_the_compose_specification() -> None:
    """Docker reads it as it is meant."""
    jsonschema.Draft202012Validator(schema("compose-spec")).validate(COMPOSE)


@pytest.mark.parametrize("form", sorted(ISSUES.glob("*.yml")), ids=lambda path: path.name)
def test_an_issue_form_fits_its_schema(form: Path) -> None:
    """Else people get an empty page in its place."""
    kind = "github-issue-config" if form.name == "config.yml" else "github-issue-forms"
    jsonschema.validate(yaml.safe_load(form.read_text(encoding="utf-8")), schema(kind))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="NO systemd-analyze HERE: the units are not verified")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    """No key is misspelt, no value unreadable. What they start is not installed here, so another program stands for it."""
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8")
        (tmp_path / unit.name).write_text(re.sub(r"^(Exec\w+=)/\S+", r"\1/bin/true", text, flags=re.MULTILINE), encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / unit.name) for unit in UNITS)]
    verified = subprocess.run(command, capture_output=True, text=True, check=False)
    assert [line for line in verified.stderr.splitlines() if str(tmp_path) in line or "detent-" in line] == []


# Dockerfile -------------------------------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with what follows them, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE))
    found = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [(name, rest) for name, rest in found]


def test_the_image_runs_as_a_user_without_rights_and_gets_its_signals() -> None:
    """Root in a container is root on the host in too many places; a shell as the first process keeps SIGTERM for itself."""
    known = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in instructions()} <= known
    last = dict(instructions()[max(n for n, (name, _) in enumerate(instructions()) if name == "FROM") :])
    assert last["USER"] == "detent"
    assert json.loads(last["ENTRYPOINT"])[-1] == "detent"
    assert json.loads(last["CMD"])[0] == "worker"
    assert last["STOPSIGNAL"] == "SIGTERM"


def test_what_the_image_copies_is_there_and_sent_to_the_engine() -> None:
    """`.dockerignore` leaves everything out but these: no store, key or history gets into an image."""
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.startswith("!")]
    copied = {word for name, rest in instructions() if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]}
    assert copied == set(sent)
    assert [name for name in sent if not (ROOT / name).exists()] == []
    assert (ROOT / ".dockerignore").read_text(encoding="utf-8").startswith("*\n")


def test_the_wheel_can_be_built_from_what_the_image_copies() -> None:
    """Each file that the build configuration names lies in a folder that is copied."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = [*wheel["packages"], *wheel["force-include"], project["project"]["readme"], *project["project"]["license-files"]]
    copied = {word for name, rest in instructions() if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]}
    assert [name for name in needed if not any(name == one or fnmatch(name, f"{one}/*") for one in copied)] == []


def engine() -> str:
    """Return a container engine that answers, else ""."""
    for name in ("docker", "podman"):
        if shutil.which(name) and subprocess.run([name, "info"], capture_output=True, check=False).returncode == 0:
            return name
    return ""


@in_check
@pytest.mark.timeout(900)
def test_the_image_is_built_and_runs_the_demo() -> None:
    """What the page about deploying promises, where a container engine is available."""
    program = engine()
    if not program:
        pytest.skip("NO CONTAINER ENGINE HERE: the image is not built (docker or podman, with its daemon running)")
    subprocess.run([program, "build", "--tag", "detent-test", "."], cwd=ROOT, check=True)
    shown = subprocess.run([program, "run", "--rm", "detent-test", "demo"], capture_output=True, text=True, check=True)
    assert shown.stdout


# What they say ----------------------------------------------------------------------------------------------------------------


def test_every_supervisor_waits_longer_than_calls_may_take() -> None:
    """Else a deploy kills a call with an effect that would have ended in time, and a person must settle it."""
    unit = (DEPLOY / "systemd" / "detent-worker.service").read_text(encoding="utf-8")
    (deployment,) = [manifest for manifest in MANIFESTS if manifest["kind"] == "Deployment"]
    waits = {
        "systemd": re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[0],
        "kubernetes": deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"],
        "compose": re.fullmatch(r"(\d+)s", COMPOSE["services"]["worker"]["stop_grace_period"])[1],  # type: ignore[index]
        "page": re.findall(r"docker stop -t (\d+)", (ROOT / "docs" / "operate" / "shutdown.md").read_text(encoding="utf-8"))[0],
    }
    assert {name: wait for name, wait in waits.items() if float(wait) < drain_s() + LAST_RECORDS_S} == {}


def test_the_configuration_that_is_deployed_can_be_read(tmp_path: Path) -> None:
    """The files beside the units and those inside the manifest have keys that exist and ages that can be read, and their agent runs."""
    from detent.config.loading import load_agent, load_config

    inside = {name: text for manifest in MANIFESTS if manifest["kind"] == "ConfigMap" for name, text in manifest["data"].items()}
    for name, text in inside.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for place, agent in ((DEPLOY, DEPLOY / "agents" / "greeter.toml"), (tmp_path, tmp_path / "greeter.toml")):
        config = load_config(place / "detent.toml", operators=True)
        assert (config.worker.concurrency, list(config.agents)) == (8, ["greeter"])
        assert Engine().run_sync(load_agent(agent), "here").output == "hello from here"


def test_commands_and_variables_of_deployments_exist() -> None:
    """A renamed option or variable would show when a worker does not start."""
    import typer

    from detent.cli.main import make_app
    from detent.config.environment import ENVIRONMENT, OTHERS

    commands = typer.main.get_command(make_app()).commands  # type: ignore[attr-defined]
    every = [*UNITS, DEPLOY / "compose.yaml", DEPLOY / "kubernetes" / "worker.yaml", ROOT / "Dockerfile"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in every)
    assert set(re.findall(r"\bDETENT_\w+", text)) - {*ENVIRONMENT, *OTHERS} == set()
    said = [line.split() for line in re.findall(r"^ExecStart=\S+/detent (.+)$", text, re.MULTILINE)]
    (deployment,) = [manifest for manifest in MANIFESTS if manifest["kind"] == "Deployment"]
    said += [container["args"] for container in deployment["spec"]["template"]["spec"]["containers"]]
    said.append(json.loads(dict(instructions())["CMD"]))
    assert len(said) == 4
    for name, *words in said:
        known = {option for param in commands[name].params for option in param.opts}
        assert [word for word in words if word.startswith("--") and word not in known] == [], name
