"""Orders of boxes onto pallets: `packer` decides where each box goes, on whichever open pallet."""
