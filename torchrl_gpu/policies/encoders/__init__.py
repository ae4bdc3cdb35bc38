"""Encoders of video clips, and agents that observe clips.

Another encoder is another module here, whose class has the decorator `register_encoder`.
"""

import importlib
import pkgutil

for module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{module.name}")
