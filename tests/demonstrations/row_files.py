"""Small files of demonstrations in every format that is read as rows.

They are made from the published formats alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import torch
from tensordict import TensorDict

from torchrl_gpu.demonstrations import Demonstrations, memmap

LENGTHS = (5, 3, 7)
STATE = 4
HAND = 2
ACTION = 3


def arrays(seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Return the numbers of each episode.

    `state` (T + 1, 4), `hand` (T + 1, 2) and `action`, where the last row follows the end.
    """
    rng = np.random.default_rng(seed)
    widths = {"state": STATE, "hand": HAND, "action": ACTION}

    def episode(length: int) -> dict[str, np.ndarray]:
        return {name: rng.normal(size=(length + 1, width)) for name, width in widths.items()}

    return [episode(length) for length in LENGTHS]


def joined(name: str) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([each[name][:-1] for each in arrays()]).astype(np.float32))


def write_robomimic(path: Path, **changes: Any) -> Path:
    """Write a file of robomimic.

    `changes` are arrays of the second episode by their places in it, with None for an array to leave out.
    """
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = "{}"
        for number, episode in enumerate(arrays()):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = LENGTHS[number]
            places = {"actions": episode["action"][:-1], "obs/state": episode["state"][:-1]}
            places |= {"obs/hand": episode["hand"][:-1], "next_obs/state": episode["state"][1:]}
            places |= {"rewards": np.zeros(LENGTHS[number])}
            for place, values in (places | (changes if number == 1 else {})).items():
                if values is not None:
                    demo.create_dataset(place, data=values)
        file.create_group("mask").create_dataset("train", data=np.array([b"demo_0", b"demo_1"]))
    return path


def write_minari(folder: Path, grouped: bool = True) -> Path:
    """A dataset of Minari in HDF5: observations are a group, or one array."""
    (folder / "data").mkdir(parents=True)
    with h5py.File(folder / "data" / "main_data.hdf5", "w") as file:
        for number, episode in enumerate(arrays()):
            group = file.create_group(f"episode_{number}")
            group.create_dataset("actions", data=episode["action"][:-1])
            group.create_dataset("rewards", data=np.zeros(LENGTHS[number]))
            if grouped:
                group.create_group("observations").create_dataset("state", data=episode["state"])
            else:
                group.create_dataset("observations", data=episode["state"])
    (folder / "data" / "metadata.json").write_text('{"data_format": "hdf5", "total_episodes": 3}')
    return folder


def write_minari_arrow(folder: Path, grouped: bool = True) -> Path:
    """Write the same in Arrow, as Minari 0.5 does.

    Lists have a fixed size, and a row of zeros follows the last action.
    """
    (folder / "data").mkdir(parents=True)
    for number, episode in enumerate(arrays()):
        length = LENGTHS[number]
        action = np.concatenate([episode["action"][:-1], np.zeros((1, ACTION))])
        state = _lists(episode["state"])
        observations = pa.StructArray.from_arrays([state], names=["state"]) if grouped else state
        columns = {"observations": observations, "actions": _lists(action)}
        columns["rewards"] = pa.array(np.zeros(length + 1))
        columns["terminations"] = pa.array(np.zeros(length + 1, bool))
        columns["infos"] = pa.array([{"word": "x"}] * (length + 1))
        write_arrow(folder / "data" / str(number) / "part-0.arrow", pa.RecordBatch.from_pydict(columns))
    (folder / "data" / "metadata.json").write_text('{"data_format": "arrow", "total_episodes": 3}')
    return folder


def _lists(values: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(values.reshape(-1), values.shape[1])


def write_arrow(path: Path, *batches: pa.RecordBatch, compression: str | None = None) -> None:
    path.parent.mkdir(exist_ok=True)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)


def write_rows(folder: Path) -> Path:
    """Write rows of a discrete environment as `torchrl-gpu record` does.

    They hold maps of bytes, vectors and choices.
    """
    generator = torch.Generator().manual_seed(0)
    total = sum(LENGTHS)
    rows = {
        "heights": torch.randint(0, 11, (total, 3, 3), generator=generator, dtype=torch.uint8),
        "state": torch.randn(total, STATE, generator=generator),
        "action": torch.randint(0, 9, (total,), generator=generator, dtype=torch.uint8),
    }
    dtypes = {"heights": torch.float32, "action": torch.int64}
    about = {"policy": "nobody", "seed": 7}
    return memmap.save(Demonstrations(TensorDict(rows, [total]), torch.tensor(LENGTHS), dtypes, about), folder)
