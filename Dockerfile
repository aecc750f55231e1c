# The tested versions, for one machine with an NVIDIA GPU and the container toolkit (a driver for CUDA 13).
#   docker build -t resispec .
#   mkdir -p ~/.cache/huggingface ~/.cache/resispec
#   docker run --rm --gpus all --user "$(id -u):$(id -g)" -v "$PWD/results:/app/results" \
#     -v ~/.cache/huggingface:/cache/huggingface -v ~/.cache/resispec:/cache/resispec resispec make reproduce-table1
# What it writes belongs to whoever runs it; compose.yaml says the same to `docker compose`, and runs without a
# GPU, too. PyTorch's wheels bring CUDA, so the image needs none, and its Python is the one that the published
# numbers were measured with.
FROM python:3.11-slim-bookworm

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# gcc: torch.compile makes its launchers with it.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends curl gcc git libc6-dev make \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY resispec ./resispec
COPY referee ./referee
# Outside of /app, so that what follows changes no file of it.
RUN python3 -m venv /opt/venv \
 && ln -s /opt/venv .venv \
 && .venv/bin/python -m pip install --no-cache-dir --constraint constraints.txt --editable '.[dev]'
COPY . .
# The stamp is newer than every file that was copied, so that `make` installs nothing again. Any user may read the
# code and its commit, and write to the home, the results and the caches; all but the home are places to mount
# folders of one's own.
RUN touch .venv/installed \
 && git config --system --add safe.directory /app \
 && chmod -R a+rX . \
 && install --directory --mode=1777 /home/anyone results \
      /cache /cache/huggingface /cache/resispec

# A user without an entry in /etc/passwd has no name and no home of its own.
ENV HOME=/home/anyone USER=anyone PYTHONDONTWRITEBYTECODE=1 \
    HF_HOME=/cache/huggingface RESISPEC_CACHE=/cache/resispec \
    TORCHINDUCTOR_CACHE_DIR=/cache/resispec/inductor TRITON_CACHE_DIR=/cache/resispec/triton \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000:1000
CMD ["make", "reproduce-table1", "PROFILE=paper"]
