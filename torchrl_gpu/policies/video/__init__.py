"""Features of clips of frames."""
