"""Whether runs go to W&B: `wandb.mode`, or what the machine is set up for, known without importing wandb."""

from __future__ import annotations

import configparser
import netrc
import os
from pathlib import Path
from urllib.parse import urlsplit

HOST = "https://api.wandb.ai"
SAME = {"dryrun": "offline", "run": "online", "shared": "online"}  # W&B's own synonyms
NO_KEY = (
    "W&B: no key is known, so no dashboard is written; `wandb login`, WANDB_API_KEY or wandb.mode=offline "
    "turns it on, wandb.mode=disabled leaves out this line"
)


def decided(mode: str) -> tuple[str, str]:
    """ "online", "offline" or "disabled", and a line for people where nobody chose what is done.

    mode: `wandb.mode`. "auto" follows WANDB_MODE or W&B's settings file; where neither says anything, it is
    online if W&B will find a key.
    """
    if mode != "auto":
        return mode, ""
    if chosen := _setting("mode"):
        return SAME.get(chosen, chosen), ""
    return ("online", "") if has_key() else ("disabled", NO_KEY)


def has_key() -> bool:
    """Whether W&B will find a key: in the environment, its settings files or the user's netrc file."""
    if os.environ.get("WANDB_IDENTITY_TOKEN_FILE") or _setting("api_key"):
        return True
    try:
        return netrc.netrc(_netrc_file()).authenticators(_host()) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _setting(name: str) -> str:
    """A setting from where W&B looks: the environment, ./wandb/settings, and the user's own file."""
    if found := os.environ.get(f"WANDB_{name.upper()}"):
        return found
    own = Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser()
    files = configparser.ConfigParser(interpolation=None)
    try:
        files.read([own / "settings", Path(os.environ.get("WANDB_DIR") or ".") / "wandb" / "settings"])
    except (OSError, configparser.Error):
        return ""
    return files.get("default", name, fallback="")


def _host() -> str:
    return urlsplit(_setting("base_url") or HOST).netloc


def _netrc_file() -> Path:
    if given := os.environ.get("NETRC"):
        return Path(given).expanduser()
    unix, windows = (Path(name).expanduser() for name in ("~/.netrc", "~/_netrc"))
    return windows if windows.exists() and not unix.exists() else unix
