"""A shift at the sink: how fast and how carefully to wash dishes, seen as numbers or as video."""
