"""heddle.torch.mem_pool on two ranks that share a device: what switches return in it is stored to at once.

    python3 tests/device/mem_pool.py          with the package on PYTHONPATH

Exit 77: torch or a device is missing.
"""
import subprocess
import sys

RANKS, LIMIT_S = 2, 100
ROOM_BYTES = 64 << 20
DIRECT, LANDS = "at its place in the peers' memory", "into the plan's memory"

try:
    import torch
except ImportError as error:
    print(f"no torch: {error}")
    sys.exit(77)


def expect(condition, *facts):
    if not condition:
        raise AssertionError(facts)


def switches(comm, pool):
    import heddle.torch

    plan = comm.reshard(f"bf16[t=16 s=24 c=64] on [sp={comm.size}]: t@sp -> s@sp", space="device")
    whole = torch.arange(16 * 24 * 64, device="cuda").remainder(251).to(torch.bfloat16).reshape(16, 24, 64)
    x = whole.chunk(comm.size, 0)[comm.rank].contiguous()

    def check(y, wanted, why):
        torch.cuda.current_stream().synchronize()
        expect(torch.equal(y, wanted.chunk(comm.size, 1)[comm.rank]), "elements differ", why)
        expect(why in plan.info().why, plan.info().why)

    for step in range(3):
        with torch.cuda.use_mem_pool(pool):
            y = heddle.torch.switch(x + step, plan)
        check(y, whole + step, DIRECT)
    check(heddle.torch.switch(x, plan), whole, LANDS)  # memory of torch's own

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        y = heddle.torch.switch(x, plan)
    for step in range(3):
        x += 1
        whole += 1
        graph.replay()
        check(y, whole, "")


def rank():
    import heddle
    import heddle.torch

    with heddle.Comm.open(deadline_s=LIMIT_S / 2) as comm, torch.cuda.device(0):
        comm.attach_device("cuda:current", "peer")
        pool = heddle.torch.mem_pool()
        with torch.cuda.use_mem_pool(pool):
            torch.empty(ROOM_BYTES, dtype=torch.uint8, device="cuda")  # what later tensors lie in
        with torch.cuda.stream(torch.cuda.Stream()):
            switches(comm, pool)
        comm.barrier()
        if comm.rank == 0:
            print(f"{comm.size} ranks, torch {torch.__version__}: results in the pool are stored to at once",
                  flush=True)


def main():
    if "--rank" in sys.argv:
        return rank()
    if not torch.cuda.is_available():
        print("no device: torch finds none")
        return 77
    return subprocess.run([sys.executable, "-m", "heddle", "-n", str(RANKS), __file__, "--rank"],
                          timeout=LIMIT_S).returncode


if __name__ == "__main__":
    sys.exit(main())
