# The controller's image: the shoal command without Ray, as a user without rights, on a root that is never written.
# `make image` builds it with docker, podman or buildah. Give BASE with a digest to build from exactly one base:
#   make image BASE=docker.io/library/python:3.12-slim-bookworm@sha256:…
ARG BASE=docker.io/library/python:3.12-slim-bookworm

FROM ${BASE} AS build
WORKDIR /build
RUN python -m venv /opt/shoal
COPY requirements-image.txt ./
RUN /opt/shoal/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes --only-binary :all: -r requirements-image.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY tools/sbom.py ./
RUN python -m pip install --no-cache-dir --disable-pip-version-check "setuptools>=77" wheel \
 && python -m pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
 && /opt/shoal/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps dist/*.whl \
 && /opt/shoal/bin/python -m compileall -q /opt/shoal/lib \
 && /opt/shoal/bin/pip freeze --all > /opt/shoal/packages.txt \
 && /opt/shoal/bin/pip uninstall --yes --quiet pip setuptools \
 && /opt/shoal/bin/python sbom.py > /opt/shoal/sbom.cdx.json \
 && chmod -R a+rX,go-w /opt/shoal

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE=
LABEL org.opencontainers.image.title="shoal" \
      org.opencontainers.image.description="Queues Ray workloads and starts each one whole or not at all." \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/shoal /opt/shoal
ENV PATH=/opt/shoal/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/nonexistent
USER 65532:65532
WORKDIR /
ENTRYPOINT ["shoal"]
CMD ["--help"]
