# CPU image: docker build -f docker/cpu.Dockerfile -t pcdet:cpu .
# BASE needs Python 3.10 or 3.11 with venv; docker/build_cpu.sh gives one made from Debian's own packages.
ARG BASE=python:3.11.13-slim-bookworm
# hadolint ignore=DL3006
FROM ${BASE}

ENV VIRTUAL_ENV=/opt/pcdet-env PYTHONUNBUFFERED=1
ENV PATH=$VIRTUAL_ENV/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /pcdet
COPY requirements.txt ./
# The one version of torch that requirements.txt pins, without CUDA where the index has it.
RUN useradd --create-home --uid 1000 pcdet \
  && python3 -m venv "$VIRTUAL_ENV" \
  && pip install --quiet --no-cache-dir --extra-index-url "$TORCH_INDEX" -r requirements.txt
# The user owns the code, since kernels that are compiled on first use are cached beside it.
COPY --chown=1000:1000 . .
RUN pip install --quiet --no-cache-dir --no-deps --no-build-isolation -e . \
  && mkdir -p data output && chown 1000:1000 . data output
USER 1000
HEALTHCHECK --interval=5m --timeout=60s --start-period=60s CMD ["python", "docker/health.py"]
CMD ["python", "tools/train.py", "--help"]
