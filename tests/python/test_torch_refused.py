"""Models on several ranks that a plan, an argument or another rank does not fit: refused by name, on every rank."""
from ranks import JUDGE, SCALE, fork
from test_torch_modules import COMMON

COMMON += f"SCALE = {SCALE}\n" + """
import collections
import io
import contextlib
from heddle.torch import Count, Extent, Halo, Without

class Two(torch.nn.Module):
    '''What takes arguments in every way, and returns a tuple of a type of its own.'''
    Pair = collections.namedtuple("Pair", "a b")

    def forward(self, *given, more=None):
        return self.Pair(given[0], given[-1] if more is None else more)

def told(words, call):
    '''On every rank, long before the deadline.'''
    refused(heddle.MismatchError, words, call)
"""


def test_plans_that_do_not_fit(tmp_path):
    fork(tmp_path, COMMON + """
comm = heddle.Comm.open(deadline_s=60 * SCALE)
model = Model(heads=4)
x, scale = inputs(1, 7, 5, torch.float32)
wanted = model(x, scale)["y"]

def made(first=None, whole=PLACES, model=model, comm=comm):
    return lambda: ht.parallelize(model, whole if first is None else {**PLACES, **first}, comm)

for words, call in [
        ("the plan is a list", made(whole=[Attend("s")])),
        ("the plan has 'first' twice: wanted its steps in one tuple", made(whole=[
            ("first", Sizes("input", "b t s c")), ("last", Sizes("input", "b _ c")), ("first", Attend("s"))])),
        ("the plan is a NoneType", lambda: ht.parallelize(model, None, comm)),
        ("0 is no pattern", made({0: Attend("s")})),
        ("has the step None, wanted one of Sizes, Split", made({"first": None})),
        ("has the step Step(), wanted one of Sizes, Split", made({"first": ht.step.Step()})),
        ("modules.Split'>, wanted one of", made({"first": Split})),
        ("'x'], wanted one of", made({"first": [["x"]]})),
        ("a step is of None", made({"first": Split(None, "b c", "b")})),
        ("a step is of 'output.-1'", made({"first": Sizes("output.-1", "b c")})),
        ("a step is of 'output.y z'", made({"first": Sizes("output.y z", "b c")})),
        ("'None': wanted names of dims", made({"first": Sizes("input", None)})),
        ("'(b c': wanted names of dims", made({"first": Sizes("input", "(b c")})),
        ("'b (1 + s)': wanted names of dims, each once, like '(b t) s c'; rows beside others, '(1 + s)', are in one "
         "axis of a Split, a Switch or a Gather", made({"first": Halo("input", "b (1 + s)", "s", 1)})),
        ("'((b c) d)': wanted names", made({"first": Sizes("input", "((b c) d)")})),
        ("from 'b' to 'b', wanted two dims", made({"first": Switch("input", "b c", "b", "b")})),
        ("'first' (Linear): Split('input', 'b c', 'q'): 'b c' has no dim 'q'",
         made({"first": Split("input", "b c", "q")})),
        ("over is 3, wanted the name", made({"first": Count("input", 3)})),
        ("over is 'S', wanted the name", made({"first": Extent("input", "S")})),
        ("over is (), wanted", lambda: Attend(())),
        ("over is None, wanted", lambda: Attend(None)),
        ("saved_forwards is 'x', wanted 1", lambda: Attend("s", "ring", "x")),
        ("local is attention of this rank's rows", lambda: Attend("s", "local")),
        ("'space' is a ModuleList, which nobody calls: wanted the modules in it, 'space.*'",
         made({"space": Attend("s")})),
        ("'space.*' (Mix) has a step Attend already", made({"space.0": Attend("s")})),
        ("the communicator is a str", made(comm="sp")),
        ("the communicator is a dict", lambda: ht.parallelize(model, comm, PLACES)),
        ("the model is a function", made(model=lambda x: x))]:
    refused(heddle.ArgumentError, words, call)
refused(heddle.ParseError, "no attention method is called 'flash'", lambda: Attend("s", "flash"))
refused(heddle.UnsupportedError, "local has whole sequences", ht.attention, *[torch.zeros(1, 2, 3, 4)] * 3,
        comm.attention("f32[b=1 s=6 h=2 d=4] on [sp=2]: s@sp", "local"))

moved, attended, linear = (comm.reshard("f32[t=4 s=6] on [sp=2]: t@sp -> s@sp"), *(
    make("f32[b=1 s=6 h=2 d=4] on [sp=2]: s@sp") for make in (comm.attention, comm.linear_attention)))
rows = [torch.zeros(1, 2, 3, 4)] * 3
for words, call in [
        ("switch: the plan is a Tensor, wanted a heddle.Reshard, which comm.reshard(...)",
         lambda: ht.switch(moved, torch.zeros(2, 6))),
        ("split: the plan is a str", lambda: ht.split(torch.zeros(4, 6), "t@sp")),
        ("gather: the plan is a NoneType", lambda: ht.gather(torch.zeros(2, 6), None)),
        ("switch: the plan is a Attention", lambda: ht.switch(torch.zeros(2, 6), attended)),
        ("attention: the plan is a Reshard, wanted a heddle.Attention, which comm.attention(...)",
         lambda: ht.attention(*rows, moved)),
        ("attention: the plan is a LinearAttention", lambda: ht.attention(*rows, linear)),
        ("linear_attention: the plan is a Attention", lambda: ht.linear_attention(*rows, attended)),
        ("side is 'source', wanted src or dst", lambda: ht.empty(moved, torch.float32, "source"))]:
    refused(heddle.ArgumentError, words, call)

def hooks_of(model):
    return [hook for module in model.modules() for hook in
            (*module._forward_hooks, *module._forward_pre_hooks, *filter(None, [module.__dict__.get("forward")]))]
assert not hooks_of(model)  # nothing stays of a plan refused

ht.parallelize(model, list(PLACES.items()), comm).remove()  # pairs are a plan, too
handle = ht.parallelize(model, PLACES, comm)
refused(heddle.ArgumentError, "Model is parallelized over these ranks already: handle.remove() first", made())
refused(heddle.ArgumentError, "Model is parallelized over these ranks already", made(model=copy.deepcopy(model)))
outer = torch.nn.Sequential(model)
refused(heddle.ArgumentError, "'0' of Sequential is parallelized", made(whole={}, model=outer))
refused(heddle.ArgumentError, "cannot be pickled: save its state_dict()", torch.save, model, io.BytesIO())
refused(heddle.ArgumentError, "cannot be pickled: save its state_dict()", torch.save, model.space[0], io.BytesIO())
assert list(model.state_dict()) == list(Model(heads=4).state_dict())
assert torch.equal(model(x, scale)["y"], wanted)
handle.remove()
torch.save(model.space[0], io.BytesIO())

model.space[1] = model.space[0]  # one layer by two names
handle = ht.parallelize(model, PLACES, comm)
refused(heddle.ArgumentError, "'space.0' (Mix): Split('x'", model, x, scale)  # it is whole the first time only
handle.remove()
twice, rows = torch.nn.Sequential(model.time[0], model.time[0]), torch.randn(2, 5, 12)
wanted = twice(rows)
ht.parallelize(twice, {"": [Split("input", "b s c", "s"), Gather("output", "b s c", "s")], "1": Attend("s")}, comm)
assert torch.equal(twice(rows), wanted)
print("ok")
""", 2)


def test_arguments_that_do_not_fit(tmp_path):
    fork(tmp_path, COMMON + """
comm = heddle.Comm.open(deadline_s=60 * SCALE)
x, scale = inputs(1, 7, 5, torch.float32)

def ran(more, *given, plan=PLACES, model=None):
    model = model or Model(heads=4)
    handle = ht.parallelize(model, {**plan, **more}, comm)
    try:
        return model(*(given or (x, scale)))
    finally:
        handle.remove()

class Masked(torch.nn.Module):
    '''Attention whose mask is made of the rows that are there.'''
    def forward(self, x):
        there = torch.ones(1, 1, x.shape[1], x.shape[1], dtype=torch.bool)
        return F.scaled_dot_product_attention(*[x[:, None]] * 3, attn_mask=there)[:, 0]

def masked(*steps):
    return lambda: ran({}, torch.zeros(1, 5, 4), model=Masked(), plan={"": [Split("x", "b s c", "s"), *steps]})

def at(*steps):
    return {"": [Sizes("x", "b t _ _"), *steps]}

for words, call in [
        ("'first' (Linear): Sizes('output.0', 'b c'): 'output.0' wants place 0 of a tuple, there is a Tensor",
         lambda: ran({"first": Sizes("output.0", "b c")})),
        ("wants place 7 of a tuple, there is a tuple of 1", lambda: ran(at(Sizes("output.7", "b c")), x, scale, False)),
        ("wants 'z' of a dict, which has 'y'", lambda: ran(at(Sizes("output.z", "b t s c")))),
        ("'output' is a dict, wanted a tensor", lambda: ran(at(Sizes("output", "b c")))),
        ("'is_last_wanted' is a bool, wanted a tensor",
         lambda: ran(at(Split("is_last_wanted", "b", "b")), x, scale, True)),
        ("'is_last_wanted' is a bool, wanted a number", lambda: ran(at(Count("is_last_wanted", "b")), x, scale, True)),
        ("'x' is a Tensor, wanted a number", lambda: ran(at(Count("x", "t")))),
        ("'is_last_wanted' is 3, the whole dim t has 7", lambda: ran(at(Extent("is_last_wanted", "t")), x, scale, 3)),
        ("extent of 'q' is not known yet", lambda: ran(at(Extent("is_last_wanted", "q")), x, scale, 3)),
        ("'x' is a ndarray, wanted a tensor", lambda: ran({}, x.numpy(), scale)),
        ("'x' is of torch.sparse_coo, wanted a dense", lambda: ran({}, x.to_sparse(), scale)),
        ("extent of 'q' is not known yet: a Split or Sizes", lambda: ran({"space.*": Attend("q")})),
        ("'space.0' (Mix): Switch('x', '(b t) s c'", lambda: ran({"space.0": Switch("x", "(b t) s c", "s", "t")})),
        ("s is cut here, ", lambda: ran({"space.1": Split("x", "(b t) s c", "s")})),
        ("s is whole here, and wanted cut", lambda: ran({"last": [Gather("input", "(b t) s c", "s")] * 2})),
        ("'': Attend('s', method='ulysses'): the mask is (1, 1, ", masked(Attend("s"))),
        (", of its rows, wanted one of all 5 rows of s", masked(Attend("s"))),
        (" rows, this rank has 1 of b", masked(Attend("b"))),
        ("'' (Two) has no argument 'given': more",
         lambda: ran({}, x, model=Two(), plan={"": Split("given", "b t s c", "t")})),
        ("wanted its parameters: model.parameters()", lambda: ht.reduce_gradients(Model(4), comm)),
        ("a tuple among the parameters", lambda: ht.reduce_gradients(Model(4).named_parameters(), comm)),
        ("sum_over: the communicator is a str", lambda: ht.reduce_gradients(Model(4).parameters(), "sp"))]:
    refused(heddle.ArgumentError, words, call)
refused(heddle.UnsupportedError, "'is_last_wanted' is there, wanted None: no", ran, at(Without("is_last_wanted", "no")),
        x, scale, 3)

class Told(torch.nn.Module):
    '''Shapes its rows by a number that nobody has cut.'''
    def forward(self, x, frames):
        return x.view(frames, -1, 2)

try:
    ran({}, torch.zeros(5, 2), 5, model=Told(), plan={"": Split("x", "t c", "t")})
except RuntimeError as error:  # torch's own, with what heddle knows of it
    notes = getattr(error, "__notes__", [] if hasattr(error, "add_note") else ["of Python 3.11"])
    assert "is invalid for input" in str(error) and len(notes) == 1, notes
    assert f"rank {comm.rank} has {3 - comm.rank} of t=5. " in notes[0] or "of Python" in notes[0], notes
else:
    raise AssertionError("not refused")
sparse = torch.nn.Embedding(5, 3, sparse=True)
sparse(torch.tensor([1])).sum().backward()
refused(heddle.UnsupportedError, "sparse=False", ht.reduce_gradients, sparse.parameters(), comm)

# A name behind *given is no place among them, and results of a type of their own stay of it.
model, rows = Two(), [torch.arange(30.).view(5, 6) + n for n in range(3)]
ht.parallelize(model, {"": [Split("more", "s c", "s"), Gather("output.1", "s c", "s")]}, comm)
pair = model(*rows[:2], more=rows[2])
assert type(pair) is Two.Pair and torch.equal(pair.a, rows[0]) and torch.equal(pair.b, rows[2])
model = Two()
ht.parallelize(model, {"": [Split("more.*", "s c", "s"), Gather("output.1.*", "s c", "s")]}, comm)
pair = model(rows[0], more=Two.Pair(*rows[1:]))
assert type(pair.b) is Two.Pair and all(map(torch.equal, pair.b, rows[1:]))
print("ok")
""", 2)


def test_ranks_that_disagree(tmp_path):
    fork(tmp_path, COMMON + """
comm = heddle.Comm.open(deadline_s=60 * SCALE)
first = comm.rank == 0
model = Model(heads=4)
x, scale = inputs(2, 7, 5, torch.float32)

told("rank 1 has 'space.*': Attend('s', method='ring'", lambda: ht.parallelize(
    model, PLACES if first else {**PLACES, "space.*": Attend("s", "ring")}, comm))
told("rank 1 has nothing, rank 0 has 'last': Gather", lambda: ht.parallelize(
    model, PLACES if first else {name: step for name, step in PLACES.items() if name != "last"}, comm))
told("rank 1 has model: Linear", lambda: ht.parallelize(
    *((model, PLACES) if first else (torch.nn.Linear(2, 2), {})), comm))
for who in (0, 1):  # one refuses, the others hear of it
    call = lambda: ht.parallelize(model, {"nothing": Attend("s")} if comm.rank == who else PLACES, comm)
    refused(*((heddle.ArgumentError, "parallelize: no module") if comm.rank == who else
              (heddle.MismatchError, f"rank {who} refused: parallelize: no module of Model is called 'nothing'")), call)
    assert not model._forward_pre_hooks and "forward" not in model.space[0].__dict__

handle = ht.parallelize(model, PLACES, comm)
wanted = model(x, scale)["y"].detach()
model(x[:1], scale[:1])  # plans of both are there: nothing is made that could tell
torch.manual_seed(comm.rank)
told("rank 1 has argument 0: torch.float32(2, 7, 5, 12) on cpu, rank 0 has argument 0: torch.float32(1, 7",
     lambda: model(x[:1] if first else x, scale))
told("argument 0 has other elements on rank 1", lambda: model(torch.randn(2, 7, 5, 12), scale))
told("rank 1 has argument 'is_last_wanted': False", lambda: model(x, scale, is_last_wanted=first))
told("rank 1 has train: False", lambda: model.train(first)(x, scale))
model.train()
with contextlib.nullcontext() if first else torch.no_grad():
    told("rank 1 has gradients: False", lambda: model(x, scale))
with contextlib.nullcontext() if first else torch.autocast("cpu", torch.bfloat16):
    told("rank 1 has autocast: [torch.bfloat16]", lambda: model(x, scale))
y = model(x, scale)["y"]
told("rank 1 has in: forward of a model, rank 0 has in: backward of a model",
     (lambda: y.sum().backward()) if first else (lambda: model(x, scale)))
told("gradient of the result has other elements", lambda: model(x, scale)["y"].sum().mul(1 + comm.rank).backward())
for nan in (torch.nan, torch.inf):
    model(torch.full_like(x, nan), scale)  # alike
assert torch.equal(model(x, scale)["y"], wanted)  # of all this nothing stays

y = model(x, scale)["y"].sum().backward()
held = [p.grad for p in model.parameters()]
if not first:
    model.zero_grad()
told("rank 1 has a gradient of any: False", lambda: ht.reduce_gradients(model.parameters(), comm))
for p, gradient in zip(model.parameters(), held):
    p.grad = gradient
told("rank 1 has parameters: 1, rank 0 has parameters: 2",
     lambda: ht.reduce_gradients(list(model.parameters())[:2 if first else 1], comm))
ht.reduce_gradients(model.parameters(), comm)
with torch.no_grad():
    model.first.weight.mul_(1 + comm.rank)
told("parameter 'first.weight' has other elements on rank 1", lambda: model(x, scale))
handle.remove()

# No Gather: results are pieces. Even, so that nothing else could tell.
alone = torch.nn.Sequential(torch.nn.Identity())
ht.parallelize(alone, {"0": Split("input", "s c", "s")}, comm)
told("end of a model: result has other elements on rank 1", lambda: alone(torch.arange(12.).view(4, 3)))
told("end of a model: rank 1 has result: torch.float32(2, 3)", lambda: alone(torch.arange(15.).view(5, 3)))
comm.barrier()
print("ok")
""", 2)
