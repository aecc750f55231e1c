"""Quiet, quick and offline: one thread a test process, and no hub."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["WANDB_MODE"] = "disabled"  # whatever key this machine knows
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

torch.set_num_threads(1)
