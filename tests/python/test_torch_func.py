"""Transforms of torch.func over what moves tensors between ranks, and copies of models that hold plans."""
from ranks import fork
from test_torch import COMMON


def test_transforms_are_as_autograd(tmp_path):
    fork(tmp_path, COMMON + """
from torch.func import functional_call, grad, jacrev, jvp, vjp, vmap

def close(a, b):
    assert a.shape == b.shape and (a - b).abs().max() <= 1e-13 * (1 + b.abs().max()), (a - b).abs().max()

def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(comm.rank))

def autograd_of(function, x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(function(x), x)[0]

with heddle.Comm.open() as comm:
    moved = comm.reshard(f"f64[t=5 s=3] on {comm.mesh}: t@sp -> s@sp")
    whole = comm.reshard(f"f64[t=5 s=3] on {comm.mesh}: t@sp -> *")
    x = drawn(*moved.src_shape)
    loss = lambda x: (ht.switch(x.sin(), moved) ** 3).sum()
    assert torch.equal(grad(loss)(x), autograd_of(loss, x))
    assert torch.equal(vjp(loss, x)[1](torch.ones((), dtype=x.dtype))[0], autograd_of(loss, x))
    curve = lambda x: (grad(loss)(x) ** 2).sum()  # twice
    twice = lambda x: torch.autograd.grad(loss(x), x, create_graph=True)[0].square().sum()
    close(grad(curve)(x), autograd_of(twice, x))
    several = torch.stack([x, 2 * x, 3 * x], 1)
    got = vmap(grad(loss), in_dims=1)(several)
    assert torch.equal(got, torch.stack([grad(loss)(one) for one in several.unbind(1)]))
    got = grad(lambda several: vmap(loss, in_dims=1)(several).sum())(several)
    close(got, torch.stack([grad(loss)(one) for one in several.unbind(1)], 1))
    along = drawn(*x.shape)
    y, tangent = jvp(lambda x: ht.switch(x, moved), (x,), (along,))
    assert torch.equal(y, ht.switch(x, moved)) and torch.equal(tangent, ht.switch(along, moved))
    assert jacrev(lambda x: ht.gather(x, whole).sum(0))(x).sum() == x.numel()

    row = lambda *given: ht.attention(*given, comm.attention(f"f64[b=1 s=6 h=2 d=4] on {comm.mesh}: s@sp"),
                                      sdpa=lambda q, k, v: (q @ k.mT).softmax(-1) @ v)
    q, k, v = drawn(3, 1, 2, 6 // comm.size, 4)
    for at, got in enumerate(grad(lambda *given: row(*given).square().sum(), argnums=(0, 1, 2))(q, k, v)):
        one = [q, k, v]
        def of(x):
            return row(*one[:at], x, *one[at + 1:]).square().sum()
        close(got, autograd_of(of, one[at]))
    along = drawn(*k.shape)
    tangent = jvp(lambda k: row(q, k, v), (k,), (along,))[1]  # q and v stand still
    near = (row(q, k + 1e-6 * along, v) - row(q, k - 1e-6 * along, v)) / 2e-6
    assert (tangent - near).abs().max() < 1e-6
    ring = comm.attention(f"f64[b=1 s=6 h=2 d=4] on {comm.mesh}: s@sp", "ring")
    refused(heddle.UnsupportedError, "method ring is not seen by transforms of torch.func",
            grad(lambda q: ht.attention(q, k, v, ring).sum()), q)

    layer = torch.nn.Linear(3, 3).double()
    run = lambda weights: ht.switch(functional_call(layer, weights, (x,)), moved).square().sum()
    run(dict(layer.named_parameters())).backward()
    for name, got in grad(run)({name: p.detach() for name, p in layer.named_parameters()}).items():
        assert torch.equal(got, layer.get_parameter(name).grad), name
print("ok")
""", 2)


def test_copies_of_what_holds_plans(tmp_path):
    fork(tmp_path, COMMON + """
import copy
import io

class Holds(torch.nn.Module):
    def __init__(self, comm):
        super().__init__()
        self.layer, self.comm = torch.nn.Linear(3, 3), comm
        self.plans = {"there": comm.reshard(f"f32[t=5 s=3] on {comm.mesh}: t@sp -> s@sp")}
        self.attention = comm.attention(f"f32[b=1 s=6 h=2 d=4] on {comm.mesh}: s@sp", "ring")

    def forward(self, x):
        return ht.switch(self.layer(x), self.plans["there"])

with heddle.Comm.open() as comm:
    model = Holds(comm)
    x = torch.randn(model.plans["there"].src_shape)
    kept = copy.deepcopy(model)  # of weights that are averaged, say
    with torch.no_grad():
        model.layer.weight.zero_()
    assert not torch.equal(kept(x), model(x)) and kept.layer.weight.any()
    model.load_state_dict(kept.state_dict())
    assert torch.equal(kept(x), model(x))
    assert kept.comm is comm and copy.copy(comm) is comm and kept.plans["there"] is model.plans["there"]
    assert kept.attention is model.attention
    for what in (comm, model.plans["there"], model.attention, model):
        refused(heddle.ArgumentError, "is of this process and cannot be pickled", torch.save, what, io.BytesIO())
print("ok")
""", 2)
