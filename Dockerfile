# One image for every service and for simulated workers: the command says which.
#   docker build -t recursant . && docker run --rm recursant doctor

FROM python:3.11-slim AS build
# What runs for every request is compiled (docs/performance.md); the compiler stays in this stage.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
# The second is for pip of 25.3 and newer, which no longer reads the first where it installs what a build requires.
ENV RECURSANT_COMPILE=1 PIP_CONSTRAINT=/src/constraints.txt PIP_BUILD_CONSTRAINT=/src/constraints.txt
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE recursant.yaml ./
COPY recursant ./recursant
COPY extproc ./extproc
COPY xds_server ./xds_server
COPY envoy ./envoy
RUN python -m venv /opt/recursant \
    && /opt/recursant/bin/pip install --no-cache-dir --disable-pip-version-check '.[gateway]'

FROM python:3.11-slim
COPY --from=build /opt/recursant /opt/recursant
ENV PATH=/opt/recursant/bin:$PATH \
    PYTHONUNBUFFERED=1
# A number, so that Kubernetes can see that it is not root.
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000 8001 8101 9002 9003 18000 18001
ENTRYPOINT ["recursant"]
CMD ["--help"]
