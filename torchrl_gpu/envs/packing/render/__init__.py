"""Pictures of bins, drawn on the host: boxes and solids in perspective, overlays from above, and files of them.

What an environment holds is read by `viewer` and `viewable` beside this folder; nothing here knows an environment.
"""
