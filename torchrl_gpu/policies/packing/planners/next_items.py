"""Next-item probabilities, for boxes that are cut from one bin."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import CutBoxes
from torchrl_gpu.envs.packing.items.cutting import CutSequences
from torchrl_gpu.envs.packing.items.source import NUM_BITS
from torchrl_gpu.envs.packing.protocols import SUITE_EPISODES, SUITE_SEED, protocol_of
from torchrl_gpu.policies.indices import indices
from torchrl_gpu.policies.weights import float32_zeros, read_json, read_tensors, without_memory
from torchrl_gpu.system import arguments

FORMAT = "torchrl_gpu next items, 1"
FOLDER = Path(__file__).parent.parent / "weights" / "next_items"
# Bytes of a file, and of the weights that it asks for.
_MOST_BYTES = 2**26
# Sums over all items, and their scale: about 1 in a full bin.
_SUMS = 4
# Longest side in cells: up to this, half precision tells base areas apart.
_MOST_SIDE = 45
_MOST_ITEMS = 2**20
_MOST_AGES = 256
_MOST_WIDTH = 4096
_MOST_CELLS = 2**20
# Updates that a mean loss is of.
_LOSSES = 100


@final
class NextItems(nn.Module):
    """Next-item probabilities, by a small network over the items that came before.

    It sees which items came, the last ones by their order, and four sums over all of them: their number, volume, base
    area and height. It learns from sequences alone, see `learn_next_items`, and needs no packing. If boxes come by the
    height of their base, it also sees how the bin that they were cut from is filled so far, see `_layer`.

    Args:
        num_items: I, items of the catalogue.
        ages: Number of last items that are known by their order.
        width: Units of each of the three hidden layers.
        layer_cells: Cells of the bin's floor and along its height, if boxes come by the height of their base.
    """

    def __init__(
        self, num_items: int, ages: int = 20, width: int = 256, layer_cells: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        where = type(self).__name__
        self.num_items = arguments.whole(where, "num_items", num_items, 1, _MOST_ITEMS)
        self.ages = arguments.whole(where, "ages", ages, 1, _MOST_AGES)
        self.width = arguments.whole(where, "width", width, 1, _MOST_WIDTH)
        self.floor = self.height = 0
        if layer_cells is not None:
            wanted = f"cells of a floor and of a height, from 1 to {_MOST_CELLS}"
            self.floor, self.height = arguments.pair(where, "layer_cells", wanted, layer_cells, 1, _MOST_CELLS)
        # The first row stands for no item.
        self.item_sums: Tensor
        self.register_buffer("item_sums", float32_zeros(self.num_items + 1, _SUMS))
        num_ages = self.ages * (self.num_items + 1)
        self.recent = nn.EmbeddingBag(num_ages, self.width, mode="sum")
        self.sums = nn.Linear(_SUMS, self.width, bias=False)
        if self.floor:
            # The first kind is of boxes that others lie on.
            kinds = 1 + 2 * self.num_items * (self.height + 1)
            self.boxes = nn.EmbeddingBag(kinds, self.width, mode="sum", padding_idx=0)
            self.level = nn.Embedding(self.height + 1, self.width)
            self.open_area = nn.Embedding(self.floor + 1, self.width)
        second = nn.Linear(self.width, self.width)
        third = nn.Linear(self.width, self.width)
        last = nn.Linear(self.width, self.num_items)
        self.layers = nn.Sequential(nn.ReLU(), second, nn.ReLU(), third, nn.ReLU(), last)

    @classmethod
    def of(cls, env: PackingEnv, ages: int = 20, width: int = 256) -> NextItems:
        """An untrained network for the items of an environment, `CutBoxes` without a pool."""
        cut = cut_as(env)
        if cut is None:
            raise ValueError(f"NextItems: items must be CutBoxes without a pool, not {type(env.items).__name__}")
        cells = layer_cells_of(cut)
        number = env.catalogue.num_items
        if cells is not None:
            num_bytes = 8 * width * number * (cells[1] + 1)
            if max(cut.whole[:2]) > _MOST_SIDE or num_bytes > _MOST_BYTES:
                cells = None
        network = cls(number, ages, width, cells)
        # In half precision, as a file holds them.
        network.item_sums[1:] = _sums_of(env).half().float()
        return network.to(env.device)

    def forward(self, packed_items: Tensor, item_id: Tensor) -> Tensor:
        """Logarithms of probabilities (B, I) float32, up to a constant for each row.

        Args:
            packed_items: (B, T) int64, the items packed so far in their order, −1 behind the last.
            item_id: (B,) int64, the item at hand, −1 for none.
        """
        # Rows of `item_sums`, 0 for none.
        packed = (packed_items + 1).clamp(0, self.num_items)  # (B, T)
        number = (packed > 0).sum(1, keepdim=True)
        age = indices(self.ages - 1, packed.device)
        # Places of the last items, the latest first.
        at = number - 1 - age
        inside = at.clamp(0, packed.shape[1] - 1)
        last = packed.gather(1, inside)
        last = torch.where(at >= 0, last, 0)
        here = (item_id + 1).clamp(0, self.num_items)[:, None]
        ages = indices(self.ages, packed.device)
        # Each age has embeddings of its own.
        recent = torch.cat([here, last], 1)
        recent = recent + ages * (self.num_items + 1)
        sums = self.item_sums[packed].sum(1)  # (B, 4)
        sums = sums + self.item_sums[here[:, 0]]
        seen = self.recent(recent) + self.sums(sums)
        if self.floor:
            seen = seen + self._layer(packed, here, number)
        scores: Tensor = self.layers(seen)
        return scores

    def _layer(self, packed: Tensor, here: Tensor, number: Tensor) -> Tensor:
        """Embedding (B, W) of how the bin is filled.

        Bases never fall, and each level is filled before the next begins: on the floor, then wherever boxes end. So
        base and top of each box follow from the boxes before it, and so does the level that the next one stands on,
        without any packing. Seen are this level and its area that is still open, and each box whose top is at the
        level or above: which it is, how far above, and whether it stands on the level.

        Args:
            packed: (B, T), rows of `item_sums`.
            here: Row of the item at hand, (B, 1).
            number: Items in `packed`, (B, 1).
        """
        items = torch.cat([packed, torch.zeros_like(here)], 1)
        items = items.scatter(1, number, here)
        # Back from the scale of the sums to cells.
        area = self.item_sums[:, 2] * (2 * self.floor)
        area = area.round().int()[items]
        tall = self.item_sums[:, 3] * (8 * self.height)
        tall = tall.round().int()[items]
        until = area.cumsum(1, dtype=torch.int32)
        total = until[:, -1:]
        base = torch.full_like(until, -1)
        top = torch.full_like(until, -1)
        filled = torch.zeros_like(total)
        level = torch.full_like(total, self.height)
        left = torch.zeros_like(total)
        for z in range(self.height):
            if z == 0:
                room: int | Tensor = self.floor
            else:
                room = (area * (top == z)).sum(1, keepdim=True, dtype=torch.int32)
            is_on_level = (until > filled) & (until <= filled + room)
            stands = is_on_level & (items > 0)
            base = torch.where(stands, z, base)
            top = torch.where(stands, z + tall, top)
            is_open = (filled <= total) & (total < filled + room)
            level = torch.where(is_open, z, level)
            left = torch.where(is_open, filled + room - total, left)
            filled = filled + room
        above = top - level
        stands_on_level = base == level
        above_item = (items - 1) * (self.height + 1) + above
        kind = 1 + above_item * 2 + stands_on_level
        is_seen = (items > 0) & (above >= 0) & (top <= self.height)
        kind = torch.where(is_seen, kind, 0)
        open_area = left[:, 0].clamp_max(self.floor)
        seen: Tensor = self.boxes(kind) + self.level(level[:, 0])
        return seen + self.open_area(open_area)

    def save(self, path: str | Path, about: dict[str, object]) -> None:
        """Write the weights in half precision, with their origin as plain data.

        The file is a safetensors file.
        """
        from safetensors.torch import save_file

        settings: dict[str, object] = {"num_items": self.num_items, "ages": self.ages, "width": self.width}
        if self.floor:
            settings["layer_cells"] = [self.floor, self.height]
        plain = {"format": FORMAT, "settings": json.dumps(settings), "about": json.dumps(about)}
        state = self.state_dict()
        weights = {name: each.detach().half().cpu() for name, each in state.items()}
        save_file(weights, str(path), plain)

    @classmethod
    def from_file(cls, path: str | Path) -> NextItems:
        """Read the network of a file that `save` wrote.

        ValueError if it is something else, or cut off.
        """
        path = Path(path)
        where = f"next items {path}"
        plain, held = read_tensors(path, where, _MOST_BYTES)
        (settings,) = read_json(where, plain, "settings")
        if plain.get("format") != FORMAT or not isinstance(settings, dict):
            raise ValueError(f"{where}: {sorted(held)} is not what NextItems.save writes")
        number = arguments.whole(where, "num_items", settings.get("num_items"), 1)
        ages = arguments.whole(where, "ages", settings.get("ages"), 1)
        width = arguments.whole(where, "width", settings.get("width"), 1)
        cells = settings.get("layer_cells")
        untrained = without_memory(lambda: cls(number, ages, width, cells), where, 2 * _MOST_BYTES)
        shapes = untrained.state_dict()
        if set(shapes) != set(held):
            raise ValueError(f"{where}: weights must be {sorted(shapes)}, not {sorted(held)}")
        for name, each in held.items():
            shape = tuple(shapes[name].shape)
            arguments.tensor(where, name, each, torch.float16, shape)
            if not bool(each.isfinite().all()):
                raise ValueError(f"{where}: {name} must be finite")
        # Whatever torch's defaults are.
        with torch.device("cpu"):
            network = cls(number, ages, width, cells).float()
        weights = {name: each.float() for name, each in held.items()}
        network.load_state_dict(weights)
        return network.eval()


def pretrained_next_items(env: PackingEnv) -> NextItems | None:
    """Load the package's network for the boxes of an environment's protocol, if any."""
    path = FOLDER / f"{protocol_of(env)}.safetensors"
    return NextItems.from_file(path).to(env.device) if path.is_file() else None


def _sums_of(env: PackingEnv) -> Tensor:
    """Contribution of each item to the four sums, (I, 4).

    Each sum is about 1 in a full bin.
    """
    catalogue = env.catalogue
    bin_ = env.bin
    floor = bin_.cells[0] * bin_.cells[1]
    cells = catalogue.extent[:, 0].prod(1)
    base = cells.float() / (2 * floor)
    volume = catalogue.volume / bin_.volume
    bin_height = bin_.size[2]
    height = catalogue.height[:, 0] / (8 * bin_height)
    number = torch.full_like(volume, 1 / 16)
    return torch.stack([number, volume, base, height], 1).float()


def cut_as(env: PackingEnv) -> CutSequences | None:
    """Sequences that the items of an environment are drawn as, or None.

    None if they are not cut afresh.
    """
    sequences = env.item_sequences
    if isinstance(sequences, CutSequences):
        return sequences
    source = env.items.drawn_as
    if isinstance(source, CutBoxes) and source.pool is None:
        return source.fresh(env.bin, env.num_items)
    return None


def layer_cells_of(cut: CutSequences | None) -> tuple[int, int] | None:
    """Cells of the floor and along the height of a bin that is cut in layers, or None."""
    if cut is None or not cut.by_layers:
        return None
    x, y, height = cut.whole
    return x * y, height


def sequences_cut(env: PackingEnv, seed: int, first: int, number: int) -> Tensor:
    """Item ids (number, T) int64 of sequences that are cut as in an environment.

    They are −1 behind the last item of each. No sequence is of a protocol's suite, unless it is the suite's seed: where
    a key is one of theirs, the next one is taken.
    """
    cut = cut_as(env)
    assert cut is not None
    end = first + number
    which = torch.arange(first, end, device=env.device, dtype=torch.int64)
    key = cut.begin(seed, which, torch.zeros_like(which))
    if seed != SUITE_SEED:
        suite = indices(SUITE_EPISODES, env.device)
        suite_keys = cut.begin(SUITE_SEED, suite, torch.zeros_like(suite))
        again = torch.isin(key, suite_keys)
        while bool(again.any()):
            key = (key + again) % NUM_BITS
            again = torch.isin(key, suite_keys)
    return cut.rows(key)[:, : cut.length]


def next_item_loss(network: NextItems, rows: Tensor, draws: Tensor) -> Tensor:
    """Mean negative log-likelihood of one item of each sequence by those before it.

    Args:
        network: The network that is scored.
        rows: (B, T) int64, sequences of at least two items, −1 behind the last.
        draws: (B,) float32 in [0, 1): which item of each.
    """
    number = (rows >= 0).sum(1)
    # Place of the item at hand: the item behind it is to be predicted.
    last = ((number - 1) * draws).long().clamp_max(number - 2)
    place = indices(rows.shape[1], rows.device)
    before = place < last[:, None]
    item = rows.gather(1, last[:, None])[:, 0]
    behind = (last + 1)[:, None]
    following = rows.gather(1, behind)[:, 0]
    packed = torch.where(before, rows, -1)
    return functional.cross_entropy(network(packed, item), following)


def learn_next_items(
    network: NextItems, env: PackingEnv, steps: int, *, batch: int = 4096, lr: float = 1e-3, seed: int = 0x0DD_17E15
) -> list[float]:
    """Fit a network to the next items of freshly cut sequences.

    None of the sequences is in a protocol's suite.

    Args:
        network: Written to.
        env: Environment whose boxes are cut; its own sequences are of another seed.
        steps: Updates by Adam, whose learning rate falls from `lr` to 0 along half a cosine.
        batch: Sequences of each update; one item of each is predicted.
        lr: Learning rate at first.
        seed: Seed of sequences and draws.

    Returns:
        Mean loss of each hundred updates, nats.
    """
    where = "learn_next_items"
    steps = arguments.whole(where, "steps", steps, 1)
    batch = arguments.whole(where, "batch", batch, 1)
    generator = torch.Generator(env.device).manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    means = []
    for step in range(steps):
        rows = sequences_cut(env, seed, step * batch, batch)
        draws = torch.rand(batch, generator=generator, device=env.device, dtype=torch.float32)
        loss = next_item_loss(network, rows, draws)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        if len(losses) == _LOSSES or step == steps - 1:
            means.append(float(torch.stack(losses).mean()))
            losses = []
    return means
