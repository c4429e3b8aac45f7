# syntax=docker/dockerfile:1
# A worker, or any other command of Detent: docker build -t detent . && docker run --rm detent demo
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY examples examples
# Extras to install, for example "postgres,openai,anthropic".
ARG EXTRAS=postgres,openai
RUN python -m venv /opt/detent && /opt/detent/bin/pip install --no-cache-dir ".[${EXTRAS}]"

FROM python:${PYTHON}-slim
# bubblewrap is the sandbox of `exec`; tini passes signals on and collects children.
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 detent \
    && install -d -o detent -g detent -m 0700 /var/lib/detent /srv/work
COPY --from=build /opt/detent /opt/detent
ENV PATH=/opt/detent/bin:$PATH PYTHONUNBUFFERED=1 DETENT_TRUST=/etc/detent/agents
USER detent
WORKDIR /srv/work
# The first SIGTERM lets calls with an effect finish (drain_s, 25 s): stop with `docker stop -t 40`.
STOPSIGNAL SIGTERM
ENTRYPOINT ["tini", "--", "detent"]
CMD ["worker", "--config", "/etc/detent/detent.toml"]
