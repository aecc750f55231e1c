# CUDA image with the tested versions. Build: docker build -t resispec .
# Run:   docker run --gpus '"device=0"' -v "$PWD/results:/app/results" -v "$HOME/.cache/huggingface:/root/.cache/huggingface" resispec
FROM pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends git make \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY resispec ./resispec
# The image brings torch; the virtual environment sees it and installs the rest at the same pins.
RUN python3 -m venv --system-site-packages .venv \
 && .venv/bin/python -m pip install --no-cache-dir --constraint constraints.txt --editable '.[dev]' \
 && touch .venv/installed
COPY . .

ENV HYDRA_FULL_ERROR=0 CUDA_VISIBLE_DEVICES=0
CMD ["make", "reproduce-table1", "PROFILE=paper"]
