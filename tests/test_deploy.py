"""The files that people deploy with: they fit their schemas, name commands that exist, and leave a worker the time to stop."""

from __future__ import annotations

import asyncio
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
FILES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
OF_FILES = {path.name: list(yaml.safe_load_all(path.read_text(encoding="utf-8"))) for path in FILES}
MANIFESTS = [manifest for manifests in OF_FILES.values() for manifest in manifests]
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


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: f"{manifest['kind']}-{manifest['metadata']['name']}")
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
    unit, server = ((DEPLOY / "systemd" / f"detent-{name}.service").read_text(encoding="utf-8") for name in ("worker", "server"))
    (deployment,) = [manifest for manifest in MANIFESTS if manifest["kind"] == "Deployment"]
    waits = {
        "systemd": re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[0],
        "systemd, server": re.findall(r"^TimeoutStopSec=(\d+)$", server, re.MULTILINE)[0],
        "compose, server": re.fullmatch(r"(\d+)s", COMPOSE["services"]["server"]["stop_grace_period"])[1],  # type: ignore[index]
        "kubernetes": deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"],
        "compose": re.fullmatch(r"(\d+)s", COMPOSE["services"]["worker"]["stop_grace_period"])[1],  # type: ignore[index]
        "page": re.findall(r"docker stop -t (\d+)", (ROOT / "docs" / "operate" / "shutdown.md").read_text(encoding="utf-8"))[0],
    }
    assert {name: wait for name, wait in waits.items() if float(wait) < drain_s() + LAST_RECORDS_S} == {}


def test_the_configuration_that_is_deployed_can_be_read(tmp_path: Path) -> None:
    """The files beside the units and those inside the manifest have keys that exist and ages that can be read, and their agent runs."""
    from detent.config.loading import load_agent, load_config

    found = {DEPLOY / "detent.toml": "", DEPLOY / "restate.toml": "restate"}
    agents = [DEPLOY / "agents" / "greeter.toml"]
    for of, host in (("worker", ""), ("restate", "restate")):
        (tmp_path / of).mkdir()
        for manifest in OF_FILES[f"{of}.yaml"]:
            for name, text in manifest["data"].items() if manifest["kind"] == "ConfigMap" else ():
                (tmp_path / of / name).write_text(text, encoding="utf-8")
        found[tmp_path / of / "detent.toml"] = host
    agents.append(tmp_path / "worker" / "greeter.toml")
    for file, host in found.items():
        config = load_config(file, operators=True)
        assert (config.worker.concurrency, list(config.agents), config.worker.host or "") == (8, ["greeter"], host)
    for agent in agents:
        assert Engine().run_sync(load_agent(agent), "here").output == "hello from here"


def services() -> dict[str, set[int]]:
    """Return the names under which something answers on Kubernetes and in Compose, with the ports."""
    named = {
        manifest["metadata"]["name"]: {port["port"] for port in manifest["spec"]["ports"]}
        for manifest in MANIFESTS
        if manifest["kind"] == "Service"
    }
    return {**{name: set[int]() for name in COMPOSE["services"]}, **named}


def test_what_a_configuration_names_answers_there() -> None:
    """The database and Restate have the names under which workers look for them, and Restate finds the workers under theirs."""
    texts = [text for manifest in MANIFESTS if manifest["kind"] == "ConfigMap" for text in manifest["data"].values()]
    texts += [path.read_text(encoding="utf-8") for path in (DEPLOY / "restate.toml", DEPLOY / "compose.yaml", *FILES)]
    known = services()
    places = {place for text in texts for place in re.findall(r"(?:http://|detent@)([a-z-]+)(?:\.detent\.svc)?(?::(\d+))?", text)}
    assert {name for name, _ in places} >= {"postgres", "restate", "detent-worker", "worker"}
    assert {(name, port) for name, port in places if name not in known} == set()
    assert {(name, port) for name, port in places if port and known[name] and int(port) not in known[name]} == set()


def test_selectors_of_kubernetes_find_their_pods() -> None:
    """A policy, a service or an autoscaler that finds nothing is accepted by a cluster, and does nothing."""
    pods = [manifest["spec"]["template"] for manifest in MANIFESTS if manifest["kind"] in ("Deployment", "StatefulSet")]
    labels = [pod["metadata"]["labels"] for pod in pods]
    ports = {port["containerPort"] for pod in pods for one in pod["spec"]["containers"] for port in one["ports"]} | {9080}

    def matches(wanted: dict[str, str]) -> bool:
        return any(wanted.items() <= of.items() for of in labels)

    for manifest in MANIFESTS:
        spec, name = manifest.get("spec", {}), f"{manifest['kind']} {manifest['metadata']['name']}"
        match manifest["kind"]:
            case "Service":
                assert matches(spec["selector"]), name
                assert {port["port"] for port in spec["ports"]} <= ports, name
            case "NetworkPolicy":
                assert matches(spec["podSelector"]["matchLabels"]), name
                sources = [source for rule in spec["ingress"] for source in rule["from"]]
                assert all(matches(one["podSelector"]["matchLabels"]) for one in sources if "podSelector" in one), name
            case "PodDisruptionBudget":
                assert matches(spec["selector"]["matchLabels"]), name
            case "HorizontalPodAutoscaler":
                target = spec["scaleTargetRef"]
                assert [m for m in MANIFESTS if (m["kind"], m["metadata"]["name"]) == (target["kind"], target["name"])], name


def test_workers_scale_by_metrics_that_exist_and_not_beyond_the_connections_of_the_database() -> None:
    """A renamed metric would leave the autoscaler without a figure; each worker process needs 8 connections."""

    async def metrics() -> str:
        async with Engine(store="ram:") as engine:
            return (await engine.health("/metrics")).text

    text = (DEPLOY / "kubernetes" / "autoscaling.yaml").read_text(encoding="utf-8")
    told = set(re.findall(r"^(detent_\w+)", asyncio.run(metrics()), re.MULTILINE))
    assert set(re.findall(r"detent_(?:runs|queue)_\w+", text)) <= told
    (scaler,) = OF_FILES["autoscaling.yaml"]
    (database,) = [manifest for manifest in OF_FILES["postgres.yaml"] if manifest["kind"] == "StatefulSet"]
    (container,) = database["spec"]["template"]["spec"]["containers"]
    most = int(re.findall(r"max_connections=(\d+)", " ".join(container["args"]))[0])
    assert scaler["spec"]["maxReplicas"] * 8 + 20 <= most
    assert scaler["spec"]["minReplicas"] >= 2, "one worker is left while the other is replaced"


def test_no_service_without_a_password_is_open_to_everybody() -> None:
    """Whoever reaches Restate can register workers, and whoever reaches the database decides what was approved."""
    for name in ("postgres", "restate"):
        service = COMPOSE["services"][name]
        assert "ports" not in service
        assert all(COMPOSE["networks"][network]["internal"] for network in service["networks"])
    guarded = [m["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for m in MANIFESTS if m["kind"] == "NetworkPolicy"]
    assert sorted(guarded) == ["detent-worker", "postgres", "restate"]


def test_a_deployed_server_is_reached_on_this_machine_and_has_tokens() -> None:
    """Whoever can reach it from elsewhere comes over a proxy with TLS; it never makes a token of its own that is printed into a log."""
    (unit,) = re.findall(
        r"^ExecStart=\S+/detent serve (.+)$", (DEPLOY / "systemd/detent-server.service").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert "--listen 127.0.0.1:" in unit and "--tokens " in unit
    server = COMPOSE["services"]["server"]
    assert [port.rpartition(":")[0].rpartition(":")[0] for port in server["ports"]] == ["127.0.0.1"]
    tokens = server["command"][server["command"].index("--tokens") + 1]
    assert any(tokens.startswith(volume.partition(":")[2]) for volume in server["volumes"] if not volume.startswith("."))
    assert {port.split(":")[-1] for port in server["ports"]} == {server["command"][server["command"].index("--listen") + 1].split(":")[1]}


def test_commands_and_variables_of_deployments_exist() -> None:
    """A renamed option or variable would show when a worker does not start."""
    import typer

    from detent.cli.main import make_app
    from detent.config.environment import ENVIRONMENT, OTHERS

    commands = typer.main.get_command(make_app()).commands  # type: ignore[attr-defined]
    every = [*UNITS, DEPLOY / "compose.yaml", *FILES, ROOT / "Dockerfile"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in every)
    assert set(re.findall(r"\bDETENT_\w+", text)) - {*ENVIRONMENT, *OTHERS} == set()
    said = [line.split() for line in re.findall(r"^ExecStart=\S+/detent (.+)$", text, re.MULTILINE)]
    (deployment,) = [manifest for manifest in MANIFESTS if manifest["kind"] == "Deployment"]
    said += [container["args"] for container in deployment["spec"]["template"]["spec"]["containers"]]
    said.append(json.loads(dict(instructions())["CMD"]))
    said += [COMPOSE["services"][name]["command"] for name in ("worker", "server")]
    assert len(said) == 7
    for name, *words in said:
        known = {option for param in commands[name].params for option in (*param.opts, *param.secondary_opts)}
        assert [word for word in words if word.startswith("--") and word not in known] == [], name
