"""Module-level switching, for the author of a backend: a model in torch that knows nothing of ranks runs on several, by
hooks before its modules; its gradients are those of one rank.

    python -m heddle -n 4 02_modules.py
"""
import heddle
import heddle.torch
import torch

# What the planner needs to know: the dims, and which stage mixes which of them.
MODEL = """
model: two-axes
dtype: f32
dims: {b: {size: 1, role: batch}, t: {size: 9, role: seq}, s: {size: 30, role: seq}, c: {size: 16, role: channel}}
tensors: {x: [b, t, s, c]}
repeat: 3
stages:
  - {name: space, kind: attention, over: s, heads: 1}
  - {name: time, kind: attention, over: t, heads: 1}
"""


class Attention(torch.nn.Module):
    """The framework's module, as it is: attention over one dim, which it finds whole in x[b t s c]."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim, self.qkv = dim, torch.nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x.movedim(self.dim, -2)).chunk(3, -1)
        return x + torch.nn.functional.scaled_dot_product_attention(q, k, v).movedim(-2, self.dim)


def make_model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(Attention(dim) for _ in range(3) for dim in (2, 1)))  # space, time, space, ...


def shard(model: torch.nn.Sequential, comm: heddle.Comm) -> heddle.Schedule:
    """The whole of the integration. Outside of the model every rank has the whole tensor, before and after."""
    schedule = heddle.plan(MODEL, comm.mesh, prologue="*")
    *inner, last = [comm.reshard(edge.line) for edge in schedule.edges]
    for module, plan, edge in zip(model, inner, schedule.edges):
        move = heddle.torch.split if edge.kind == "split" else heddle.torch.switch
        if edge.kind != "keep":
            module.register_forward_pre_hook(lambda _, args, move=move, plan=plan: (move(args[0], plan),))
    model.register_forward_hook(lambda _, args, x: heddle.torch.gather(x, last))
    return schedule


def step(model: torch.nn.Sequential, x: torch.Tensor) -> tuple:
    x = x.clone().requires_grad_()
    y = model(x)
    y.square().mean().backward()
    return y.detach(), x.grad, [p.grad for p in model.parameters()]


def main() -> None:
    torch.set_num_threads(1)
    with heddle.Comm.open() as comm:
        model, alone = make_model(), make_model()
        schedule = shard(model, comm)
        x = torch.randn(1, 9, 30, 16, generator=torch.Generator().manual_seed(1))
        y, dx, dw = step(model, x)
        for gradient in dw:  # every rank has the addend of its own rows
            comm.allreduce_sum(gradient.numpy())
        y1, dx1, dw1 = step(alone, x)
        worst = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip([y, dx, *dw], [y1, dx1, *dw1]))
        print(f"rank {comm.rank}: {schedule.switches} switches, {schedule.bytes_total} bytes in all; result and "
              f"gradients {'as' if worst < 1e-5 else 'NOT as'} one rank, within {worst:.1e}", flush=True)
        if worst >= 1e-5:
            raise SystemExit(1)


main()
