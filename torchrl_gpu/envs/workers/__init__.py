"""Worker pools that play the steps of an environment; `pool` is the trainer's side, `shard` a worker's."""
