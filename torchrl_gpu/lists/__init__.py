"""Lists of boxes as warehouse systems write them: files, words, numbers, units.

Here a file becomes a `BoxList`, with what was understood and what is doubtful; nothing here knows a pallet or an
environment, and nothing needs torch. Packing such a list is in `palletizing`, training on it in
`envs/packing/items/sequences.py`. Read `reading.py` first; a new column is one row of `columns.py`.
"""
