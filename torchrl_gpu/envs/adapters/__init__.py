"""Our environments as other libraries want them."""
