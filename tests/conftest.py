"""Every test means the embedded profile where it names none, whatever the machine would choose."""

import os

os.environ["PROFILE"] = "embedded"
