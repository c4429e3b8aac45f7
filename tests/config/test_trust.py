"""What files ask for, and which directories are trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from detent import Engine
from detent.config.demands import agent_demands, config_demands, listing
from detent.config.state_directory import OPERATORS_FILE, state_directory
from detent.config.trust import Question, Trust, remember, remembered, revoke, trusted_by_environment
from detent.core.errors import ConfigError

EVERYTHING = """\
tools = ["./t.py:a", "pkg.tools:b"]
planner = "plug"
policy = "pkg:Policy"
observers = ["./t.py:O"]
import_roots = ["src"]
store = "postgresql://ann:secret@db.example.com/runs"
[workspace]
root = ".."
sandbox = "off"
sandbox_network = true
allow_delete = true
sandbox_readable = ["/etc"]
sandbox_allow_private = ["10.1.2.3/32"]
[http]
allow = ["https://api.example.com/*"]
[secrets]
a = "env:A_KEY"
b = "file:/run/b"
[mcp.files]
command = "npx"
args = ["server", "${ARG_KEY}"]
env = { K = { env = "FILES_KEY" }, HOME = "${HOME}" }
[mcp.web]
url = "https://tools.example.com/mcp"
headers = { A = "Bearer ${WEB_KEY}" }
oauth = { issuer = "https://login.example.com", client_secret = "${OAUTH_KEY}" }
[mcp.web.tools]
look = { side_effect = "read", trust = "trusted" }
wipe = { side_effect = "destructive" }
send = { idempotent = true }
[models.embedder]
model = "nomic"
base_url = "https://ann:pw@vectors.example.com/v1"
api_key_env = "VECTORS_KEY"
[models.transcriber]
model = "whisper"
base_url = "http://127.0.0.1:8000/v1"
"""


def test_a_configuration_asks_for_what_it_would_have_done(tmp_path: Path) -> None:
    """Every key by which something is imported, started, sent, read, opened or decided; passwords are not shown."""
    (tmp_path / "detent.toml").write_text(EVERYTHING)
    found = {(one.does, one.key, one.what, one.variables) for one in config_demands(tmp_path / "detent.toml")}
    assert found == {
        ("import", "tools", "./t.py:a", ()),
        ("import", "tools", "pkg.tools:b", ()),
        ("import", "planner", "plug", ()),
        ("import", "policy", "pkg:Policy", ()),
        ("import", "observers", "./t.py:O", ()),
        ("import", "import_roots", "modules in src", ()),
        ("send", "store.url", "runs are kept and found at postgresql://db.example.com/runs", ()),
        ("open", "workspace.root", "tools work in ..", ()),
        ("open", "workspace.allow_delete", "tools may remove files", ()),
        ("open", "workspace.sandbox", "programs run without a sandbox", ()),
        ("open", "workspace.sandbox_network", "sandboxed programs use this machine's network", ()),
        ("open", "workspace.sandbox_readable", "sandboxed programs read /etc", ()),
        ("open", "workspace.sandbox_allow_private", "and they may be at 10.1.2.3/32", ()),
        ("send", "models.embedder.base_url", "to https://vectors.example.com/v1", ("VECTORS_KEY",)),
        ("send", "http.allow", "requests of agents may go to https://api.example.com/*", ()),
        ("read", "secrets.a", "for tools", ("A_KEY",)),
        ("read", "secrets.b", "/run/b, for tools", ()),
        (
            "start",
            "mcp.files",
            "npx server ${ARG_KEY}, in this directory, with K=${FILES_KEY}, with HOME=${HOME}",
            ("ARG_KEY", "FILES_KEY"),
        ),
        ("send", "mcp.web", "to https://tools.example.com/mcp", ("WEB_KEY",)),
        ("send", "mcp.web.oauth", "who calls, to https://login.example.com", ("OAUTH_KEY",)),
        ("decide", "mcp.web.tools", "look: its level is read, what it returns is trusted, whatever the server says", ()),
        ("decide", "mcp.web.tools", "send: it may be repeated, whatever the server says", ()),
    }
    assert config_demands(tmp_path / "detent.toml", without=("tools", "planner"))[0].key == "observers"


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ('tools = ["glob", "read_file"]\nrules = "r.yaml"\nworkspace = "work"\nsandbox = "require"', []),
        ('tools = ["./t.py:a"]', ["tools"]),
        ('policy = "p.toml"', ["policy"]),
        ('workspace = "/"', ["workspace"]),
        ('sandbox = "off"', ["sandbox"]),
        ('[[verify]]\ngrounded = true\n[[verify]]\nrubric = "It is polite."', []),
        ('[[verify]]\nfunction = "./checks.py:cites"\n[[verify]]\ncommand = ["make", "test"]', ["verify.function", "verify.command"]),
        ("verify = [3]", []),
        ('model_settings.base_url = "http://127.0.0.1:8080/v1"', []),
        ('model_settings.base_url = "https://gw.example.com/v1"', ["model_settings.base_url"]),
        ('model_settings = { base_url = "http://127.0.0.1:8080/v1", api_key_env = "K" }', ["model_settings.base_url"]),
        ("tools = 3\nmcp = [1]\nmodel_settings = 'x'\nworkspace = {}", []),
        ("not = toml = at all", []),
    ],
)
def test_an_agent_file_asks_for_what_it_would_have_done(text: str, keys: list[str], tmp_path: Path) -> None:
    """Rules, built-in tools and a model of one's own machine need no trust; what is not valid is refused elsewhere."""
    (tmp_path / "a.toml").write_text(f'name = "a"\n{text}\n')
    assert [one.key for one in agent_demands(tmp_path / "a.toml")] == keys


def test_the_digest_covers_what_files_name(tmp_path: Path) -> None:
    """Configuration, agents, rules, policies, tool files, modules below import roots, scripts of servers; nothing else of the directory."""
    written = {
        "detent.toml": 'policy = "p.toml"\nimport_roots = ["src"]\n[mcp.x]\ncommand = "python"\nargs = ["server.py"]\n',
        "agent.toml": 'name = "a"\ntools = ["./t.py:a"]\nrules = "r.yaml"\n'
        '[[verify]]\nfunction = "./v.py:f"\n[[verify]]\ncommand = ["python", "check.py"]\n',
        **dict.fromkeys(("check.py", "v.py", "p.toml", "src/pkg/m.py", "server.py", "t.py", "r.yaml"), ""),
        **dict.fromkeys(("pyproject.toml", "notes.txt", "other.py"), ""),
    }
    for name, text in written.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    bound = ["agent.toml", "check.py", "detent.toml", "p.toml", "r.yaml", "server.py", "src/pkg/m.py", "t.py", "v.py"]
    assert sorted(listing(tmp_path).files) == bound
    for name, text in written.items():
        before = listing(tmp_path).digest
        (tmp_path / name).write_text(f"{text}\n# changed\n")
        assert (listing(tmp_path).digest != before) == (name in bound), name
    before = listing(tmp_path).digest
    (tmp_path / "t.py").unlink()
    assert listing(tmp_path).digest != before


def test_trust_is_remembered_for_one_directory_and_forgotten(tmp_path: Path) -> None:
    """Not for the one above it or inside; a file that cannot be read, or is of another directory, is no trust."""
    (tmp_path / "inside").mkdir()
    remember(listing(tmp_path))
    assert remembered(tmp_path) is not None
    assert (remembered(tmp_path / "inside"), remembered(tmp_path.parent)) == (None, None)
    kept = state_directory(tmp_path) / "trust.json"
    kept.write_text(kept.read_text().replace(tmp_path.name, "another"))
    assert remembered(tmp_path) is None
    kept.write_text("{")
    assert remembered(tmp_path) is None
    assert (revoke(tmp_path), revoke(tmp_path)) == (True, False)


def test_the_environment_names_directories_with_and_without_a_digest(tmp_path: Path) -> None:
    """Several stand with the separator of PATH between them; what is neither is an error."""
    digest = "a" * 64
    assert trusted_by_environment({"DETENT_TRUST": f"{tmp_path}:/b={digest}:"}) == {tmp_path: "", Path("/b"): digest}
    assert trusted_by_environment({}) == {}
    for wrong in ("relative", f"{tmp_path}=abc", f"={digest}"):
        with pytest.raises(ConfigError, match="DETENT_TRUST"):
            trusted_by_environment({"DETENT_TRUST": wrong})


def test_files_that_change_while_a_person_is_asked_are_not_what_was_trusted(tmp_path: Path) -> None:
    """The answer is for what was shown."""
    file = tmp_path / "agent.toml"
    file.write_text('name = "a"\ntools = ["./t.py:a"]\n')

    def ask(question: Question) -> bool:
        (tmp_path / "t.py").write_text("other\n")
        return True

    with pytest.raises(ConfigError, match="changed while you were asked"):
        Trust(ask=ask).need_agent(file)
    Trust(ask=ask).need_agent(file)
    Trust().need_agent(file)


def test_the_operator_names_variables_for_files(tmp_path: Path) -> None:
    """`environment` of the operator's file; a project's own is refused; a program that vouches for its file names them all."""
    (tmp_path / "detent.toml").write_text('store = "ram:"\n[secrets]\na = "env:A_KEY"\n')
    with pytest.raises(ConfigError, match="is not trusted"):
        Engine.from_config(tmp_path / "detent.toml")
    remember(listing(tmp_path))
    with pytest.raises(ConfigError, match="A_KEY, which the operator has not allowed"):
        Engine.from_config(tmp_path / "detent.toml")
    assert Engine.from_config(tmp_path / "detent.toml", trust=True).store.url == "ram:"
    (state_directory(tmp_path) / OPERATORS_FILE).write_text('environment = ["A_KEY"]\n')
    assert Engine.from_config(tmp_path / "detent.toml").store.url == "ram:"
