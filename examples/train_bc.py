"""Clones demonstrations in a loop of one's own, without Lightning.

python examples/train_bc.py demonstrations.hdf5 --observations robot0_eef_pos robot0_gripper_qpos --output bc.pt
python examples/train_bc.py --check bc.pt
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tensordict import TensorDict

from torchrl_gpu import get_device
from torchrl_gpu.demonstrations import read_demonstrations
from torchrl_gpu.policies import BCPolicy, load_policy


def main() -> None:
    """Train on vectors and continuous actions, and keep the best policy.

    The best is the one with the smallest loss on episodes that were held back.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("demonstrations", nargs="?", help="folder of `torchrl-gpu record`, LeRobot or Minari, or HDF5")
    parser.add_argument("--observations", nargs="+", default=["observation"], help="vectors to act by")
    parser.add_argument("--updates", type=int, default=5000, help="how many")
    parser.add_argument("--batch_size", type=int, default=256, help="rows of an update")
    parser.add_argument("--lr", type=float, default=1e-3, help="of Adam")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--seed", type=int, default=0, help="decides weights, split and batches")
    parser.add_argument("--output", type=Path, default=Path("bc.pt"), help="the policy")
    parser.add_argument("--check", type=Path, help="loads a policy instead, and lets it act once")
    args = parser.parse_args()
    device = get_device(args.device)
    print(f"device: {device}")
    if args.check is not None:
        policy = load_policy(args.check, device)
        seen = TensorDict({name: policy.space.zeros(name, 1) for name in policy.in_keys}, [1])
        numbers = sum(value.shape[1] for value in seen.values())
        print(f"{args.check}: {numbers} numbers in, {policy(seen)['action'].shape[1]} out")
        return
    if args.demonstrations is None:
        parser.error("name a folder or file of demonstrations, or --check POLICY")

    torch.manual_seed(args.seed)
    shown = read_demonstrations(args.demonstrations, entries=args.observations)
    for name in (*args.observations, "action"):
        if name not in shown.rows or shown.rows[name].ndim != 2:
            known = ", ".join(shown.rows.keys())
            parser.error(f"{args.demonstrations} has no vectors {name}: choose --observations from {known}")
    train_episodes, held_back_episodes = shown.split(0.1, args.seed)
    train = shown.rows_of(train_episodes).to(device)
    held = shown.rows_of(held_back_episodes).to(device)
    shown = shown.to(device)
    widths = [shown.rows[name].shape[1] for name in args.observations]
    policy = BCPolicy(sum(widths), shown.rows["action"].shape[1], observations=args.observations).to(device)
    rows = shown.batch(train)
    policy.set_statistics(torch.cat([rows[name].float() for name in args.observations], 1), rows["action"])
    optimizer, best = torch.optim.Adam(policy.parameters(), lr=args.lr), float("inf")
    for update in range(1, args.updates + 1):
        drawn = train[torch.randint(len(train), (args.batch_size,), device=device)]
        loss = policy.scores(shown.batch(drawn))["loss"].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % max(1, args.updates // 10) == 0:
            with torch.no_grad():
                error = policy.scores(shown.batch(held))["loss"].mean().item()
            print(f"update {update}: loss {loss.item():.4f}, {error:.4f} on {len(held):,} rows held back")
            if error < best:
                best = error
                save(policy, widths, args.output)
    print(f"Written: {args.output}")


def save(policy: BCPolicy, widths: list[int], path: Path) -> None:
    """Save weights and statistics, with the settings of the policy.

    They are tensors and plain values only, for `load_policy`.
    """
    about = {"obs_dim": policy.obs_dim, "action_dim": policy.action_dim}
    torch.save(
        {"model_state_dict": policy.state_dict(), **about, "bc_policy": policy.settings | {"widths": widths}}, path
    )


if __name__ == "__main__":
    main()
