"""An environment whose steps are played by several processes; `pool` is the side of the run, `shard` a worker's."""
