#!/bin/bash
# heddle topo: this host, others by their files, tables of links, measured times, machine files.
set -u
: "${HEDDLE:?}" "${HEDDLE_SOURCE:?}"
command=topo
. "$HEDDLE_SOURCE/tests/support/skip.sh"
command -v python3 >/dev/null || skip_test python "no Python"
. "${HEDDLE_SOURCE:?}/tests/support/says.sh"

says "this host" 0 "machine   cpu: "
says "its levels" 0 " by shm"
says "json" 0 '"schema": "heddle-topo-1", "host": {"cpu": ' --json
says "operand" 2 "heddle topo wants nothing but options, found 'x'" x

# Another host, as hwloc wrote it: two packages of four cores.
cat >"$folder/two.xml" <<'XML'
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x0f" complete_cpuset="0x0f" allowed_cpuset="0x0f" nodeset="0x3" complete_nodeset="0x3" allowed_nodeset="0x3" gp_index="1">
    <object type="Package" os_index="0" cpuset="0x03" complete_cpuset="0x03" nodeset="0x1" complete_nodeset="0x1" gp_index="2">
      <info name="CPUModel" value="Made Up &#x9b;31m 2000"/>
      <object type="NUMANode" os_index="0" cpuset="0x03" complete_cpuset="0x03" nodeset="0x1" complete_nodeset="0x1" gp_index="3" local_memory="64000000000"/>
      <object type="Core" os_index="0" cpuset="0x01" complete_cpuset="0x01" nodeset="0x1" complete_nodeset="0x1" gp_index="4">
        <object type="PU" os_index="0" cpuset="0x01" complete_cpuset="0x01" nodeset="0x1" complete_nodeset="0x1" gp_index="5"/>
      </object>
      <object type="Core" os_index="1" cpuset="0x02" complete_cpuset="0x02" nodeset="0x1" complete_nodeset="0x1" gp_index="6">
        <object type="PU" os_index="1" cpuset="0x02" complete_cpuset="0x02" nodeset="0x1" complete_nodeset="0x1" gp_index="7"/>
      </object>
    </object>
    <object type="Package" os_index="1" cpuset="0x0c" complete_cpuset="0x0c" nodeset="0x2" complete_nodeset="0x2" gp_index="8">
      <object type="NUMANode" os_index="1" cpuset="0x0c" complete_cpuset="0x0c" nodeset="0x2" complete_nodeset="0x2" gp_index="9" local_memory="64000000000"/>
      <object type="Core" os_index="0" cpuset="0x04" complete_cpuset="0x04" nodeset="0x2" complete_nodeset="0x2" gp_index="10">
        <object type="PU" os_index="2" cpuset="0x04" complete_cpuset="0x04" nodeset="0x2" complete_nodeset="0x2" gp_index="11"/>
      </object>
      <object type="Core" os_index="1" cpuset="0x08" complete_cpuset="0x08" nodeset="0x2" complete_nodeset="0x2" gp_index="12">
        <object type="PU" os_index="3" cpuset="0x08" complete_cpuset="0x08" nodeset="0x2" complete_nodeset="0x2" gp_index="13"/>
      </object>
    </object>
  </object>
</topology>
XML
says "another host" 0 "2 packages, 2 NUMA nodes, 4 cores, 4 threads, 128 GB" --xml "$folder/two.xml"
says "its ranks" 0 "machine   host: 4 ranks, 32.0 GB each" --xml "$folder/two.xml"
grep -q $'\x9b' "$folder/out" && { echo "FAILED: a control byte reaches the terminal"; failed=1; }
says "no such file" 2 "none.xml cannot be read" --xml "$folder/none.xml"
echo "<html>" >"$folder/bad.xml"
says "no topology" 2 "bad.xml is no topology" --xml "$folder/bad.xml"
sed 's/local_memory="[0-9]*"/local_memory="1152921504606846976"/' "$folder/two.xml" >"$folder/much.xml"
says "nonsense of memory" 0 '"ranks": 4, "memory_bytes": 0' --json --xml "$folder/much.xml"
sed 's/ complete_cpuset="[^"]*"//' "$folder/two.xml" >"$folder/bad.xml" # which hwloc does not survive
says "an attribute is missing" 2 "bad.xml is no topology" --xml "$folder/bad.xml"

# Tables of links: $1 GPUs, $2 the word for near ones, $3 how many are near, $4 the word for the others.
matrix() {
    local i j
    printf '\t'
    for ((i = 0; i < $1; i++)); do printf '\x1b[4mGPU%d\x1b[0m\t' "$i"; done
    printf 'NIC0\tCPU Affinity\tNUMA Affinity\n'
    for ((i = 0; i < $1; i++)); do
        printf 'GPU%d' "$i"
        for ((j = 0; j < $1; j++)); do
            if ((i == j)); then printf '\t X '; elif ((i / $3 == j / $3)); then printf '\t%s' "$2"; else printf '\t%s' "$4"; fi
        done
        printf '\tPIX\t0-31\t0\n'
    done
    printf 'NIC0\tPIX\tX\n\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n'
}
matrix 8 NV18 8 - >"$folder/nv18"
says "NVSwitch" 0 "machine   8xh100-nvlink: 8 ranks" --matrix "$folder/nv18"
says "which one is a guess" 0 "taken for the one in the name" --matrix "$folder/nv18"
says "another GPU" 0 "machine   8xh200-nvlink: 8 ranks" --matrix "$folder/nv18" --gpu H200
if "$HEDDLE" topo --matrix "$folder/nv18" --gpu h200 | grep -q "taken for"; then
    echo "the GPU that was named is called a guess" && failed=1
fi
says "a name in capitals" 0 "machine   2x8xh100-nvlink+ib400: 16 ranks" --machine 2X8xH100-NVLink+IB400
"$HEDDLE" topo --machine 8xa100-nvlink -o "$folder/CPU" >/dev/null || failed=1
cd "$folder" && says "a file in capitals" 0 "machine   8xa100-nvlink: 8 ranks" --machine CPU
cd "$OLDPWD" && rm "$folder/CPU"
says "a name as it was typed" 2 "no machine is called 'MyMachine'" --machine MyMachine
says "a GPU's name as it was typed" 2 "machine '8xH300-nvlink': no GPU is called 'h300'" --machine 8xH300-nvlink
says "cpu in capitals" 0 "machine   cpu: " --machine CPU
says "a GPU alone, in capitals" 2 "did you mean '8xh100-nvlink'" --machine H100
says "a folder as links" 2 "cannot be read: Is a directory" --matrix "$folder"
says "a folder as times" 2 "cannot be read: Is a directory" --machine 8xa100-nvlink --nccl-tests "$folder"
says "no such GPU" 2 "no GPU is called 'h300'" --matrix "$folder/nv18" --gpu h300
matrix 8 NV12 8 - >"$folder/nv12"
says "a100" 0 "machine   8xa100-nvlink" --matrix "$folder/nv12"
matrix 8 NODE 4 SYS >"$folder/sockets"
says "two sockets" 0 "machine   8xl20-pcie: 8 ranks" --matrix "$folder/sockets" --gpu l20
says "their levels" 0 '"levels": [{"link": "pcie", "ranks_within": 4}, {"link": "upi", "ranks_within": 8}]' \
    --matrix "$folder/sockets" --json
matrix 4 NV4 2 SYS >"$folder/bridges"
says "pairs" 0 '"levels": [{"link": "nvlink", "ranks_within": 2}, {"link": "upi", "ranks_within": 4}]' \
    --matrix "$folder/bridges" --json --gpu a100
says "pairs have a name" 0 "machine   4xa100-pcie-topo: 4 ranks" --matrix "$folder/bridges" --gpu a100
printf '\tGPU0\tGPU1\tGPU2\nGPU0\tX\tSYS\tNV4\nGPU1\tSYS\tX\tSYS\nGPU2\tNV4\tSYS\tX\n' >"$folder/mixed"
says "not in order" 2 "GPU0 and GPU2 are nearer than groups of 1 by number" --matrix "$folder/mixed"
printf 'machine: bare\nlevels: [{name: rank, size: 2, link: wire}]\nwork: {product: {f32: {start_s: 0, rates: 1e9}}, memory: {start_s: 0, rates: 1e9}, attention: {f32: {start_s: 0, rates: 1e9}}}\nlinks: {wire: {ring: [{start_s: 0, rates: 1e9}]}}\n' >"$folder/bare.yaml"
says "figures of no source" 0 "level 1   2 ranks by wire" --machine "$folder/bare.yaml"
! grep -q figures "$folder/out" || { echo "FAILED figures of no source: $(cat "$folder/out")" && failed=1; }
sed 's/NV18/NVL/' "$folder/nv18" >"$folder/bad"
says "a word" 2 "bad:2: GPUs are linked by NV1 .. NV64, PIX, PXB, PHB, NODE or SYS, not by 'NVL'" --matrix "$folder/bad"
head -5 "$folder/nv18" >"$folder/bad"
says "cut" 2 "no whole table of nvidia-smi topo -m: 4 rows of 8 GPUs" --matrix "$folder/bad"
printf '\tGPU0\tGPU1\nGPU0\tX\tSYS\nGPU1\tNODE\tX\n' >"$folder/bad"
says "one way" 2 "bad:3: GPU1 is linked to GPU0 by 'NODE', the other way round by another" --matrix "$folder/bad"
printf '\tGPU0\tGPU1\nGPU0\tSYS\tX\nGPU1\tX\tSYS\n' >"$folder/bad"
says "no diagonal" 2 "bad:2: a GPU and itself are X, not 'SYS'" --matrix "$folder/bad"
says "no table" 2 "no whole table" --matrix /dev/null
says "endless" 2 "/dev/zero:" --matrix /dev/zero
says "no matrix" 2 "cannot be read" --matrix "$folder/none"
says "a GPU alone" 2 "without a table of links" --gpu h100
says "two machines" 2 "--machine names the machine" --machine cpu --matrix "$folder/nv18"

# Times: eight ranks, t = 100 us + bytes 7/8 / 200 GB/s
nccl() {
    echo "# nccl-tests version 2.17.6"
    echo "# Collective test starting: $1"
    echo "# nThread 1 nGpus 8 minBytes 1048576 maxBytes 1073741824 step: 4(factor)"
    for r in 0 1 2 3 4 5 6 7; do echo "#  Rank  $r Group  0 Pid   77 on  h device  $r [0x1b] NVIDIA A100"; done
    echo "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong"
    echo "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"
    awk 'BEGIN { for (b = 1048576; b <= 1073741824; b *= 4) { t = 100 + b * 7 / 8 / 200e3; a = b / t / 1e3
        printf "%12d %12d float none -1 %.2f %.2f %.2f 0 %.2f %.2f %.2f N/A\n", b, b / 4, t, a, a * 7 / 8, t, a, a * 7 / 8 } }'
    echo "# Avg bus bandwidth    : 1"
}
{ nccl alltoall_perf; nccl all_gather_perf; } >"$folder/nccl"
says "times" 0 '"link": "nvlink", "exchange": "all_to_all", "ranks": 8, "times": 6, "start_s": 0.0001' \
    --machine 8xa100-nvlink --nccl-tests "$folder/nccl" --json
python3 - "$folder/out" <<'PY' || { echo "FAILED: the rates are not those of the times"; failed=1; }
import json, sys
rows = json.load(open(sys.argv[1]))["times"]
assert [r["exchange"] for r in rows] == ["all_to_all", "all_gather"], rows
assert all(abs(r["bytes_per_s"] / 200e9 - 1) < 0.01 and abs(r["start_s"] / 100e-6 - 1) < 0.01 for r in rows), rows
PY
says "a machine of times" 0 "machine   8xa100-nvlink" --machine 8xa100-nvlink --nccl-tests "$folder/nccl" -o "$folder/m.yaml"
says "is read back" 0 "Links: times in nccl" --machine "$folder/m.yaml"
"$HEDDLE" topo --machine "$folder/m.yaml" -o - >"$folder/again.yaml"
cmp -s "$folder/m.yaml" "$folder/again.yaml" || { echo "FAILED: a machine file comes back changed"; failed=1; }
sed '/starting/d' "$folder/nccl" >"$folder/bad"
says "no test is named" 2 "which test these times are of is not said" --machine 8xa100-nvlink --nccl-tests "$folder/bad"
sed 's/alltoall_perf/gather_perf/' "$folder/nccl" >"$folder/bad"
says "another test" 2 "bad:2: times of alltoall_perf" --machine 8xa100-nvlink --nccl-tests "$folder/bad"
sed '/Rank  [67]/d' "$folder/nccl" >"$folder/bad"
says "ranks are missing" 2 "alltoall_perf of 6 ranks has a bus rate of 0.833 times" --machine 8xa100-nvlink --nccl-tests "$folder/bad"
says "more ranks" 2 "nccl has times of 8 ranks, machine '4xa100-nvlink' has 4" --machine 4xa100-nvlink --nccl-tests "$folder/nccl"
says "no times" 2 "has no times in the format nccl-tests" --machine 8xa100-nvlink --nccl-tests /dev/null
grep -vE '^ *(41|16|6|26|1073)[0-9]+ ' "$folder/nccl" >"$folder/bad"
says "one size" 3 "a start and a rate want times of two sizes or more, found one" --machine 8xa100-nvlink --nccl-tests "$folder/bad"

# Galvatron's published times of one node
cat >"$folder/sp.json" <<'JSON'
{"all2all_size_8_1MB_time": 0.1124, "all2all_size_8_4MB_time": 0.1109, "all2all_size_8_16MB_time": 0.2003,
 "all2all_size_8_64MB_time": 0.3997, "all2all_size_8_256MB_time": 1.298, "all2all_size_8_1024MB_time": 4.815,
 "allreduce_size_8_1MB_time": 0.0790, "allreduce_size_8_64MB_time": 0.6519, "allreduce_size_8_1024MB_time": 8.141}
JSON
says "Galvatron" 0 "all_to_all" --machine 8xa100-nvlink --galvatron "$folder/sp.json" --json
python3 - "$folder/out" <<'PY' || { echo "FAILED: Galvatron's times are fitted otherwise"; failed=1; }
import json, sys
rows = {r["exchange"]: r for r in json.load(open(sys.argv[1]))["times"]}
assert abs(rows["all_to_all"]["start_s"] / 104e-6 - 1) < 0.05, rows
assert abs(rows["all_to_all"]["bytes_per_s"] / 197e9 - 1) < 0.05, rows
assert abs(rows["all_gather"]["bytes_per_s"] / 231e9 - 1) < 0.05, rows
PY
says "the table" 0 "all_to_all           8      6      103.1      195.9      9.9 %" --machine 8xa100-nvlink --galvatron "$folder/sp.json"
echo '{"all2all_size_8_1MB": 1}' >"$folder/bad"
says "another key" 2 "bad:1:24: no figure of Galvatron: 'all2all_size_8_1MB'" --machine 8xa100-nvlink --galvatron "$folder/bad"
echo '{"all2all_size_8_1MB_time": 5, "all2all_size_8_64MB_time": 0.001}' >"$folder/bad"
says "faster with more" 3 "do not grow with the bytes" --machine 8xa100-nvlink --galvatron "$folder/bad"
# Galvatron's published bandwidths of two nodes: of an all-reduce over 16 ranks a rank sends 8/15 to the other host, of two
# or four that are spread over all everything that goes there; spread groups of one host tell nothing more.
cat >"$folder/reduce.json" <<'JSON'
{"allreduce_size_16_consec_1": 45.6885, "allreduce_size_8_consec_1": 153.454, "allreduce_size_8_consec_0": 32.111,
 "allreduce_size_4_consec_1": 152.376, "allreduce_size_4_consec_0": 19.2516, "allreduce_size_2_consec_1": 151.229,
 "allreduce_size_2_consec_0": 9.28218}
JSON
echo '{"pp_size_2": 7.96595, "pp_size_4": 8.8167, "pp_size_8": 8.90184, "pp_size_16": 8.81364}' >"$folder/hop.json"
echo '{"overlap_coe": 1.145979403115153}' >"$folder/overlap.json"
two="--machine 2x8xa100-nvlink+ib200"
says "bandwidths" 0 "reduce_scatter" $two --galvatron "$folder/reduce.json" --json
cp "$folder/out" "$folder/reduce.out"
says "hops" 0 "ring" $two --galvatron "$folder/hop.json" --json
python3 - "$folder/reduce.out" "$folder/out" <<'PY' || { echo "FAILED: Galvatron's bandwidths are taken otherwise"; failed=1; }
import json, sys
reduce, hop = ({(r["exchange"], r["link"], r["ranks"]): r for r in json.load(open(f))["times"]} for f in sys.argv[1:])
want = {("nvlink", 2): 151.229, ("nvlink", 4): 152.376, ("nvlink", 8): 153.454, ("ib200", 16): 45.6885 * 8 / 15,
        ("ib200", 8): 32.111 * 4 / 7, ("ib200", 4): 19.2516 * 2 / 3, ("ib200", 2): 9.28218}
for exchange in ("reduce_scatter", "all_gather"):
    for (link, ranks), rate in want.items():
        r = reduce.pop((exchange, link, ranks))
        assert abs(r["bytes_per_s"] / rate / 1e9 - 1) < 1e-5 and r["start_s"] > 0 and r["times"] == 0, r
assert not reduce, reduce
assert {k: v["bytes_per_s"] for k, v in hop.items()} == {
    ("ring", "ib200", n): rate * 1e9 for n, rate in ((2, 7.96595), (4, 8.8167), (8, 8.90184), (16, 8.81364))}, hop
PY
says "an overlap" 0 "overlap_slowdown: 1.145979403115153" $two --galvatron "$folder/overlap.json" -o -
says "and its source" 0 "Overlap: coefficient in overlap.json (galvatron)." $two --galvatron "$folder/overlap.json" --json
echo '{"all2all_size_8_1MB_time": 0.1, "all2all_size_8_64MB_time": 0.4, "allreduce_size_8_consec_1": 150, "overlap_coe": 1.2}' >"$folder/all.json"
says "a file of all of them" 0 "Links: times and bandwidths; overlap: coefficient in all.json (galvatron)." \
    --machine 8xa100-nvlink --galvatron "$folder/all.json" --json
python3 - "$folder/out" <<'PY' || { echo "FAILED: an error of a rate that nothing was compared to"; failed=1; }
import json, sys
worst = {r["exchange"]: r["worst_error"] for r in json.load(open(sys.argv[1]))["times"]}
assert worst["all_to_all"] is not None and worst["all_gather"] is None and worst["reduce_scatter"] is None, worst
PY
says "an error of nothing" 0 "all_gather           8      0       32.2        150          -" \
    --machine 8xa100-nvlink --galvatron "$folder/all.json"
says "spread groups of one host" 0 '"times": [{"link": "nvlink", "exchange": "reduce_scatter", "ranks": 8' \
    --machine 8xa100-nvlink --galvatron <(echo '{"allreduce_size_8_consec_1": 160, "allreduce_size_4_consec_0": 3}') --json
! grep -q '"ranks": 4,' "$folder/out" || { echo "FAILED: spread groups of one host count"; failed=1; }
# So they erase nothing of what was measured, and a file of nothing else is refused.
{ nccl reduce_scatter_perf; nccl all_gather_perf; } >"$folder/halves"
"$HEDDLE" topo --machine 8xa100-nvlink --nccl-tests "$folder/halves" -o "$folder/measured.yaml" >/dev/null || failed=1
echo '{"allreduce_size_4_consec_0": 3, "pp_size_8": 100}' >"$folder/mixed.json"
says "spread groups of one host and hops" 0 "ring" --machine "$folder/measured.yaml" --galvatron "$folder/mixed.json" -o "$folder/after.yaml"
for exchange in reduce_scatter all_gather; do
    table=$(sed -n "/$exchange:/,/ranks/p" "$folder/measured.yaml")
    [ -n "$table" ] && [ "$table" = "$(sed -n "/$exchange:/,/ranks/p" "$folder/after.yaml")" ] ||
        { echo "FAILED: spread groups of one host erase what was measured of $exchange"; failed=1; }
done
echo '{"allreduce_size_8_consec_0": 3, "allreduce_size_4_consec_0": 3}' >"$folder/needless.json"
says "and nothing else" 2 "needless.json has only groups that are spread over links of neighbours, which tell nothing more than neighbours do" \
    --machine "$folder/measured.yaml" --galvatron "$folder/needless.json"
echo '{"allreduce_size_16_consec_0": 3}' >"$folder/bad"
says "spread groups of a larger one" 2 "has times of 16 ranks, machine '8xa100-nvlink' has 8" --machine 8xa100-nvlink --galvatron "$folder/bad"
says "groups of a smaller machine" 2 "reduce.json is of 16 ranks, machine '4x8xa100-nvlink+ib200' has 32: groups that are spread" \
    --machine 4x8xa100-nvlink+ib200 --galvatron "$folder/reduce.json"
says "of a larger one" 2 "has times of 16 ranks, machine '8xa100-nvlink' has 8" --machine 8xa100-nvlink --galvatron "$folder/hop.json"
echo '{"allreduce_size_8_consec_2": 1}' >"$folder/bad"
says "no such group" 2 "bad:1:31: no figure of Galvatron: 'allreduce_size_8_consec_2'" $two --galvatron "$folder/bad"
echo '{"allreduce_size_8_consec_1": 1, "allreduce_size_8_1MB_time": 1}' >"$folder/bad"
says "two figures" 2 "reduce_scatter among 8 ranks has two figures" $two --galvatron "$folder/bad"
for profile in '{"layertype_0_bsz8_seq4096": 5.3}' '{"layertype_0": {"4096": {"parameter_size": 800}}}' '{"other_memory_pp_off": {}}'; do
    echo "$profile" >"$folder/bad"
    says "$profile" 2 "a machine has none: of its files sp_time, allreduce_bandwidth, p2p_bandwidth and overlap_coefficient are read" \
        $two --galvatron "$folder/bad"
done
says "two files of times" 2 "times are taken from one file" --nccl-tests a --galvatron b

# The example of the manual
sed -n '/^## Machine file/,/^## /p' "$HEDDLE_SOURCE/docs/formats.md" | sed -n '/^```yaml/,/^```/p' | grep -v '^```' >"$folder/lab.yaml"
says "the manual's example" 0 "machine   lab: 7 ranks, 85.9 GB each" --machine "$folder/lab.yaml"
says "a name" 2 "did you mean '8xh100-nvlink'?" --machine 8h100-nvlink
while read -r name near; do
    says "$name" 2 "did you mean '$near'?" --machine $name
done <<'END'
h100 8xh100-nvlink
4xa100 4xa100-nvlink
2x8xh100 2x8xh100-nvlink+ib400
l20 8xl20-pcie
END
says "a place" 2 "/nowhere" --output /nowhere/m.yaml
"$HEDDLE" topo -o - >/dev/full 2>"$folder/out" && { echo "FAILED: a full disk goes unnoticed"; failed=1; }
exit $failed
