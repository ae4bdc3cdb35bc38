"""Marine navigation: robots that cross a square of sea among currents, obstacles and each other."""
