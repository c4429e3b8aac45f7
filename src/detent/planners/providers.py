"""Which model a name means: "openai:gpt-5", "anthropic:claude-sonnet-4-6", or any name at an OpenAI-compatible base URL.

The provider layer is pydantic-ai. Here its errors become messages that name the missing variable, the extra to install, and the
probable name. Retries of vendor SDKs are switched off, so every request is recorded.
"""

from __future__ import annotations

import difflib
import importlib
import os
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import msgspec

from detent.core.errors import ConfigError, UnknownModel
from detent.planners.held_keys import keys_held, keys_sent

EXTRAS = {
    "openai": "openai",
    "openai-chat": "openai",
    "openai-responses": "openai",
    "anthropic": "anthropic",
    "google": "google",
    "google-cloud": "google",
    "groq": "groq",
    "mistral": "mistral",
    "bedrock": "bedrock",
    "openrouter": "openrouter",
    "ollama": "openai",
    "llamacpp": "openai",
    "lmstudio": "openai",
    "vllm": "openai",
}
"""Provider -> the extra of Detent with its client. Other providers of pydantic-ai use OpenAI's protocol or need their own client."""

VARIABLES = {
    "openai": ("OPENAI_API_KEY",),
    "openai-chat": ("OPENAI_API_KEY",),
    "openai-responses": ("OPENAI_API_KEY",),
    "anthropic": ("ANTHROPIC_API_KEY",),
    "google": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
    "groq": ("GROQ_API_KEY",),
    "mistral": ("MISTRAL_API_KEY",),
    "bedrock": ("AWS_BEARER_TOKEN_BEDROCK", "AWS_ACCESS_KEY_ID", "AWS_PROFILE"),
    "openrouter": ("OPENROUTER_API_KEY",),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "xai": ("XAI_API_KEY",),
    "together": ("TOGETHER_API_KEY",),
    "fireworks": ("FIREWORKS_API_KEY",),
    "cerebras": ("CEREBRAS_API_KEY",),
    "azure": ("AZURE_OPENAI_API_KEY",),
}
"""Provider -> the environment variables, one of which has its key."""

SUGGESTED = {
    "openai": "openai:gpt-5",
    "anthropic": "anthropic:claude-sonnet-4-6",
    "google": "google:gemini-2.5-pro",
    "groq": "groq:llama-3.3-70b-versatile",
    "mistral": "mistral:mistral-large-latest",
    "openrouter": "openrouter:anthropic/claude-sonnet-4.6",
    "bedrock": "bedrock:us.amazon.nova-pro-v1:0",
}
"""Provider -> an example model for messages; none is ever chosen automatically."""

LOCAL = {
    "ollama": "http://127.0.0.1:11434",
    "llamacpp": "http://127.0.0.1:8080",
    "lmstudio": "http://127.0.0.1:1234",
    "vllm": "http://127.0.0.1:8000",
}
"""Local servers -> their default address; all of them offer OpenAI's chat completions below /v1."""
APIS = {
    "openai": "https://api.openai.com/v1",
    "groq": "https://api.groq.com/openai/v1",
    "mistral": "https://api.mistral.ai/v1",
}
"""Providers -> the base URL of their API, with OpenAI's `/embeddings` and `/audio/transcriptions`."""
_SHORTEST_KEY = 8
"""Fewest characters of a key: a shorter text would match ordinary words."""
_WITHOUT_RETRY_SETTING = ("bedrock", "test", "function")


class ModelRef(msgspec.Struct, frozen=True, kw_only=True):
    """Which model, and where: `name` as the user writes it, `base_url` of an OpenAI-compatible API, `api_key_env` the variable of its key.

    No agent, file or log contains a key. With a base URL only the variable that `api_key_env` names is sent there. `timeout_s` is for clients
    that take it only when they are created.
    """

    name: str
    base_url: str = ""
    api_key_env: str = ""
    timeout_s: float | None = None

    @property
    def provider(self) -> str:
        """The part before the colon, "" without one."""
        return self.name.partition(":")[0] if ":" in self.name else ""

    @property
    def billed_by(self) -> str:
        """The owner of limits and prices: the host of a base URL, else the provider."""
        return _host(self.base_url) if self.base_url else self.provider

    @property
    def model(self) -> str:
        """The provider's name of the model."""
        return self.name.partition(":")[2] if ":" in self.name else self.name


def make_model(ref: ModelRef) -> Any:
    """Return the pydantic-ai model of `ref`. Raise `ConfigError` that names the wrong variable, extra or name."""
    if not ref.name.strip():
        raise ConfigError('no model is given; write one as "provider:name", such as model = "openai:gpt-5"')
    _needs_library()
    if not ref.base_url:
        if not ref.provider:
            raise UnknownModel(_unknown(ref.name, "it has no provider; write it as 'provider:name', or give a base_url"))
        _needs_key(ref)
    for variable in (ref.api_key_env,) if ref.base_url else VARIABLES.get(ref.provider, ()):
        if not variable.endswith("PROFILE"):
            refuse_unsendable(variable)
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model

    try:
        if ref.base_url:
            return _compatible(ref)
        if ref.provider in LOCAL and not (ref.provider == "ollama" and os.environ.get("OLLAMA_BASE_URL")):
            return _compatible(msgspec.structs.replace(ref, base_url=f"{LOCAL[ref.provider]}/v1"))
        if ref.provider == "bedrock":
            return _bedrock(ref)
        return infer_model(ref.name)
    except ImportError as error:
        raise ConfigError(f"model {ref.name!r} needs a client that is not installed: {_install(ref.provider)} ({error})") from error
    except UserError as error:
        if str(error).startswith("Unknown model"):
            raise UnknownModel(_unknown(ref.name, f"there is no provider {ref.provider!r}")) from error
        first = str(error).split(" To try Pydantic AI")[0]
        raise ConfigError(f"model {ref.name!r} cannot be used: {first}") from error
    except ConfigError:
        raise
    except Exception as error:  # foreign code: a vendor's client refuses its arguments with its own errors
        raise ConfigError(f"model {ref.name!r} cannot be used: {str(error) or type(error).__name__}") from error


def refuse_unsendable(variable: str) -> None:
    """Raise `ConfigError` if a variable has an unusable key, for example one with the line end of the file it came from."""
    key = os.environ.get(variable, "")
    if key and not (key.isascii() and key.isprintable() and key == key.strip()):
        raise ConfigError(f"{variable} holds spaces, line ends or other characters that a key cannot have; set it again without them")


def no_sdk_retries(provider: str) -> dict[str, Any]:
    """Return the setting that turns off the retries of a vendor's client."""
    return {} if provider in _WITHOUT_RETRY_SETTING else {"max_retries": 0}


def api_of(ref: ModelRef) -> tuple[str, str] | None:
    """Return the base URL of a model's OpenAI-like API and the key to send ("": none). None for a provider with another API.

    Raise `ConfigError` for a model without a provider or URL, and if its key is missing.
    """
    if ref.base_url:
        if ref.api_key_env and not os.environ.get(ref.api_key_env, "").strip():
            raise ConfigError(f"model {ref.name!r}: api_key_env names {ref.api_key_env!r}, which is not set")
        if ref.api_key_env:
            refuse_unsendable(ref.api_key_env)
        return ref.base_url, os.environ.get(ref.api_key_env, "").strip() if ref.api_key_env else ""
    if not ref.provider:
        raise UnknownModel(f"unknown model {ref.name!r}: it has no provider; write it as 'provider:name', or give a base_url")
    if ref.provider in LOCAL:
        return f"{LOCAL[ref.provider]}/v1", ""
    if ref.provider not in APIS:
        return None
    _needs_key(ref, "give your own server, such as Ollama, with base_url")
    variable = VARIABLES[ref.provider][0]
    if os.environ.get(variable):
        refuse_unsendable(variable)
    elsewhere = os.environ.get("OPENAI_BASE_URL", "").strip() if ref.provider == "openai" else ""
    return elsewhere or APIS[ref.provider], os.environ.get(variable, "").strip()


def near_misses(name: str) -> list[str]:
    """Return the known model names nearest to `name`, at most three, the nearest first."""
    known = _known_names()
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.75)
    if not near:
        bare = {k.partition(":")[2]: k for k in reversed(known)}
        near = [bare[m] for m in difflib.get_close_matches(name.partition(":")[2] or name, list(bare), n=3, cutoff=0.75)]
    return [found for found in near if found != name]


def key_hint(name: str) -> str:
    """Return what to do about a key, for messages."""
    provider = name.partition(":")[0]
    variables = VARIABLES.get(provider)
    if variables is None:
        return "check the key that its variable holds (with a base_url: the variable that model_settings.api_key_env names)"
    return f"check that {' or '.join(variables)} holds a valid key with access to this model"


def key_hint_at(ref: ModelRef) -> str:
    """Return what to do about a key that an OpenAI-compatible URL refused, "" if `ref` has no URL: the provider's own key is never sent there."""
    if not ref.base_url:
        return ""
    host = ref.billed_by
    if ref.api_key_env:
        return f"check that {ref.api_key_env} holds a valid key of {host} with access to this model"
    return f"no key was sent to {host}: name the variable that holds its key with model_settings.api_key_env"


def address_hint(ref: ModelRef) -> str:
    """Return what to check if an answer does not come from an API, "" without a given or usual URL; user names and passwords are removed."""
    base_url = ref.base_url or LOCAL.get(ref.provider, "")
    if not base_url or (not ref.base_url and os.environ.get("OLLAMA_BASE_URL")):
        return ""
    if not ref.base_url:
        return f"that its server runs at {base_url} (or give its address with base_url)"
    parts = urlsplit(base_url)
    url = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
    return f"base_url: {url} must be where an API like OpenAI's begins (mostly it ends in /v1)"


def keys_in_use(model: Any, api_key_env: str = "", error: BaseException | None = None) -> tuple[str, ...]:
    """Return the keys that requests of a model may carry, the longest first, to keep them out of messages.

    They come from the model object, its variables, and the requests that ended with `error`.
    """
    variables = (*VARIABLES.get(model.system, ()), *((api_key_env,) if api_key_env else ()))
    found = {os.environ.get(variable, "").strip() for variable in variables if not variable.endswith("PROFILE")}
    found |= keys_held(model) | (set() if error is None else keys_sent(error))
    return tuple(sorted((key for key in found if len(key) >= _SHORTEST_KEY), key=len, reverse=True))


def missing_variables(provider: str) -> tuple[str, ...]:
    """Return the variables of a provider, one of which must be set; empty if one is set or none is known to be needed."""
    variables = VARIABLES.get(provider, ())
    return () if any(os.environ.get(variable, "").strip() for variable in variables) else variables


def providers_with_key() -> list[str]:
    """Return the providers of `SUGGESTED` with a key variable that is set."""
    return [provider for provider in SUGGESTED if not missing_variables(provider)]


@cache
def _known_names() -> list[str]:
    from pydantic_ai.models import known_model_names

    return sorted(name for name in known_model_names() if not name.startswith("gateway/"))


def _needs_library() -> None:
    try:
        import pydantic_ai.models  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise ConfigError('models need an extra that is not installed: pip install "detent[openai]" (or anthropic, google, ...)') from error


def _needs_key(ref: ModelRef, instead: str = "give the agent rules instead of a model, or name a local one with base_url") -> None:
    missing = missing_variables(ref.provider)
    if not missing or ref.provider == "bedrock":  # boto3 finds credentials in many places
        return
    if ref.provider.startswith("openai") and os.environ.get("OPENAI_BASE_URL"):
        return
    unused = f" ({ref.api_key_env} is not read: api_key_env is for a base_url)" if ref.api_key_env else ""
    raise ConfigError(
        f"model {ref.name!r} needs a key: set {' or '.join(missing)}{unused}\n"
        f"without a key: {instead} (`detent doctor` shows what is available)"
    )


def _install(provider: str) -> str:
    extra = EXTRAS.get(provider)
    return f'pip install "detent[{extra}]"' if extra else f'pip install "pydantic-ai-slim[{provider}]"'


_FAMILIES = {
    "gpt": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "claude": "anthropic",
    "gemini": "google",
    "mistral": "mistral",
}


def _unknown(name: str, why: str) -> str:
    provider, _, model = name.rpartition(":")
    near = [f"{p}:{model}" for p in difflib.get_close_matches(provider, [*EXTRAS, *VARIABLES], n=1)] if provider else []
    near = near or [f"{p}:{name}" for family, p in _FAMILIES.items() if name.startswith(family)] or near_misses(name)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"providers: {', '.join(sorted(EXTRAS))}, and others of pydantic-ai"
    return f"unknown model {name!r}: {why}; {hint}"


def _host(url: str) -> str:
    """Return host and port of a web address, "" if it is not one."""
    try:
        parts = urlsplit(url)
        found = url.isprintable() and " " not in url and parts.hostname is not None and (parts.port is None or parts.port > 0)
    except ValueError:
        return ""
    return parts.netloc.rpartition("@")[2] if found and parts.scheme in ("http", "https") else ""


def _compatible(ref: ModelRef) -> Any:
    """Return a model at an OpenAI-compatible URL; `OPENAI_API_KEY` is never sent there."""
    if not ref.billed_by:
        raise ConfigError(f"base_url {ref.base_url!r} is not a URL; write it as http://localhost:8080/v1")
    key = os.environ.get(ref.api_key_env, "").strip() if ref.api_key_env else ""
    if ref.api_key_env and not key:
        raise ConfigError(f"model {ref.name!r}: api_key_env names {ref.api_key_env!r}, which is not set")
    try:
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider
    except ImportError as error:
        raise ConfigError(f'a base_url needs a client that is not installed: pip install "detent[openai]" ({error})') from error
    name = ref.model if ref.provider in EXTRAS else ref.name
    return OpenAIChatModel(name, provider=OpenAICompatibleProvider(ref.billed_by, base_url=ref.base_url, api_key=key or None))


def _bedrock(ref: ModelRef) -> Any:
    from pydantic_ai.models.bedrock import BedrockConverseModel
    from pydantic_ai.providers.bedrock import BedrockProvider

    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region and not os.environ.get("AWS_PROFILE"):
        raise ConfigError(f"model {ref.name!r} needs a region: set AWS_REGION, such as AWS_REGION=us-east-1")
    boto3: Any = importlib.import_module("boto3")
    botocore: Any = importlib.import_module("botocore.config")
    wait = 300 if ref.timeout_s is None else ref.timeout_s  # a waiting thread cannot be stopped: it must end by itself
    config = botocore.Config(retries={"total_max_attempts": 1, "mode": "standard"}, read_timeout=wait, connect_timeout=min(60, wait))
    client = boto3.client("bedrock-runtime", region_name=region, config=config)
    return BedrockConverseModel(ref.model, provider=BedrockProvider(bedrock_client=client))
