#!/usr/bin/env bash
# heddle verify attention and bench attention: right answers, exit codes, sentences; saved arrays against NumPy.
set -u
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
. "${HEDDLE_SOURCE:?}/tests/support/says.sh"
limit_s=600
check() { # EXIT TEXT ARGUMENTS...
    says "heddle ${*:3}" "$@"
}

line='f64[b=2 s=37 h=6 d=16] on [sp=4]'
for method in ring rsa ulysses gather-kv; do
    check 0 "as planned" verify attention "$line" --method $method --kv-heads 2 --causal --key-lengths 37,20 --transport shm
done
check 0 "as planned" verify attention 'f64[b=2 s=37 h=6 d=16] on [a=2 b=2]' --method usp --causal --zigzag --transport threads
check 0 "as planned" verify attention 'f32[b=2 s=37 h=6 d=16] on [sp=3]' --method rsa --project 5 --transport threads
check 0 "12 attention problems right" verify attention --random 12 --ranks 3 --transport shm --seed 5
check 0 "5 attention problems right" verify attention --random 5 --ranks 2 --method rsa --all-reduce --causal
check 2 "none is such as the options ask for" verify attention --random 5 --ranks 2 --method ring --all-reduce
check 2 "none is such as the options ask for" verify attention --random 5 --ranks 2 --method local
check 2 "none is such as the options ask for" verify attention --random 5 --ranks 2 --kv-heads 1000
check 2 "--key-lengths is of one problem, not of --random" verify attention --random 5 --key-lengths 1,2
check 2 "do not divide" verify attention "$line" --method ring --kv-heads 4
check 2 "no attention method is called 'rings'" verify attention "$line" --method rings
check 2 "usp wants the dim sharded over two mesh axes" verify attention "$line" --method usp
check 2 "key lengths for a batch of 2" verify attention "$line" --method ring --key-lengths 3
check 2 "the sequence has 37 rows" verify attention "$line" --method ring --key-lengths 3,38
check 2 "bytes on 3 ranks, available are" verify attention 'f32[b=2 s=37 h=6 d=16] on [sp=3]' --method rsa --project 1000000000 --transport threads
check 1 "projections of an attention: 16 x 2147483647 x" verify attention 'f32[b=1 s=1000000000 h=1 d=1] on [sp=3]' --method rsa --project 2147483647
check 2 "a causal mask does not go with a projected length" verify attention "$line" --method rsa --project 4 --causal
check 2 "unknown option" verify attention "$line" --metod ring
check 2 "reads 'f32" verify attention 'f32[b=2 s=37 h=6 d=16]' --method ring
check 2 "not i32" verify attention 'i32[b=2 s=37 h=6 d=16] on [sp=4]' --method ring
check 0 "as planned" verify attention "$line" --method ring --causal --threads 3
check 2 "1 to 256" verify attention "$line" --method ring --threads 0
check 0 '"overlap"' bench attention 'f32[b=1 s=256 h=4 d=32] on [sp=2]' --method ring --transport threads --seconds 0 --json
check 2 "wants one problem, found 0" bench attention --method ring

check 0 "as planned" verify attention 'f64[b=2 s=19 h=4 d=8] on [sp=3]' --method ring --causal --kv-heads 2 --transport shm --save "$folder"
python=/usr/bin/python3
if "$python" -c 'import numpy' 2>/dev/null; then
    "$python" - "$folder" <<'PY' || failed=1
import sys
import numpy as np
a = {n: np.load(f"{sys.argv[1]}/{n}.npy") for n in "q k v do o dq dk dv lse".split()}
k, v = (np.repeat(a[n], 2, axis=2) for n in "kv")
s = np.einsum("bihd,bjhd->bhij", a["q"], k) / np.sqrt(8)
s = np.where(np.tril(np.ones((19, 19), bool)), s, -np.inf)
lse = np.log(np.exp(s).sum(-1))
p = np.exp(s - lse[..., None])
dv = np.einsum("bhij,bihd->bjhd", p, a["do"])
dp = np.einsum("bihd,bjhd->bhij", a["do"], v)
ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / np.sqrt(8)
fold = lambda x: x.reshape(2, 19, 2, 2, 8).sum(3)
want = {"o": np.einsum("bhij,bjhd->bihd", p, v), "lse": lse, "dv": fold(dv), "dq": np.einsum("bhij,bjhd->bihd", ds, k),
        "dk": fold(np.einsum("bhij,bihd->bjhd", ds, a["q"]))}
for name, x in want.items():
    error = np.abs(x - a[name]).max()
    if not error < 1e-12:
        sys.exit(f"{name}.npy differs from NumPy's by {error}")
PY
else
    not_here numpy "no Python with NumPy: saved arrays"
fi
[ $failed = 0 ] && echo "attention: verified"
exit $failed
