"""Pictures of bins, drawn on the host.

Here: boxes and solids in perspective, overlays from above, legends and colours. Not here: what an environment holds,
which `viewer` and `viewable` next to this folder read; nothing here knows an environment. Read `camera.py` first.
"""
