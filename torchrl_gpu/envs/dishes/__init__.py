"""Dishwashing: how fast and how carefully to wash in a shift, observed as numbers or as video."""
