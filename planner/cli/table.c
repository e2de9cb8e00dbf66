#include "table.h"
#include "launch.h"
#include "runtime/verify/samples.h"

#include <limits.h>
#include <stddef.h>

#define BENCHES (CLI_BENCH | CLI_BENCH_ATTENTION | CLI_BENCH_LINEAR | CLI_BENCH_PRODUCTS)
#define VERIFIES (CLI_VERIFY | CLI_VERIFY_ATTENTION | CLI_VERIFY_LINEAR)
#define NAME_OF(name, text) " " text
#define WORD_OF(name, text) "|" text
#define WORDS(LIST) &LIST(WORD_OF)[1] /* "peer|any" */
#define ATTENTION_METHODS HEDDLE_ATTENTION_METHOD_LIST(NAME_OF)
#define LINEAR_METHODS HEDDLE_LINEAR_METHOD_LIST(NAME_OF)
#define AT(field) offsetof(cli_arguments, field)

/* An option that means another thing elsewhere has a row for each. In the order in which usages list them. */
const cli_option cli_options[] = {
    {"ranks", "N", CLI_RANKS, NUMBER, AT(ranks), NULL, "ranks to run on; else those of the mesh, or of the launcher", 1,
     4096},
    {"transport", "T", CLI_RANKS, TRANSPORT, AT(transport), "auto",
     "one of" CLI_TRANSPORTS ", or fault(SPEC):T; auto joins a launcher's ranks and else starts threads"},
    {"messages", NULL, CLI_RANKS, FLAG, AT(messages), NULL,
     "boxes travel as messages even between ranks of one host (mpi, tcp)"},
    {"hosts", "K", CLI_RANKS, NUMBER, AT(hosts), NULL, "pretend that the ranks sit on K hosts (mpi, tcp)", 1, 4096},
    {"deadline", "S", CLI_RANKS, NUMBER, AT(deadline_s), NULL, "seconds that a rank waits for another (60)", 1,
     1000000},
    {"arena", "BYTES", CLI_RANKS, BYTES, AT(arena_bytes), NULL,
     "address space reserved per rank for what its peers reach, 512M say; the machine's memory, less where a limit "
     "(ulimit -v, ulimit -f) says so"},
    {"ranks", "N", CLI_ASKS & ~CLI_SWEEP, NUMBER, AT(ranks), NULL,
     "the best of all meshes of N ranks, where --mesh names none; else those of --machine. Also -n N", 1, 1 << 20},
    {"ranks", "1..64", CLI_SWEEP, TEXT, AT(sweep), NULL,
     "these numbers of ranks: 1..64, 8..64:8 or 1,2,4; without, those of the mesh or the machine. Also -n 1..64"},
    {"ranks", "N", CLI_BENCH_PRODUCTS, NUMBER, AT(ranks), NULL,
     "rows are those of one of N ranks, on the mesh sp=N where --mesh names none (1). Also -n N", 1, 1 << 20},
    {"mesh", "MESH", CLI_ASKS | CLI_RUN | CLI_STAGES | CLI_BENCH_PRODUCTS, TEXT, AT(mesh), NULL,
     "ranks by axis: sp=4, or 'node=2 gpu=4'"},
    {"machine", "NAME|FILE", CLI_ASKS | CLI_RUN | CLI_STAGES, TEXT, AT(machine), NULL,
     "whose seconds, links and memory count: 8xh100-nvlink, 2x8xh100-nvlink+ib400, cpu, or a file of heddle calibrate; "
     "without, what heddle calibrate saved, else cpu (run: bytes alone)"},
    {"links", "ib400=0.25", CLI_ASKS | CLI_STAGES, LIST, AT(links), NULL,
     "that machine with links that carry so many times the bytes per second, those of a class, or with 0.25 all of "
     "them"},
    {"objective", CLI_OBJECTIVES, CLI_ASKS | CLI_RUN, CHOICE, AT(objective), NULL,
     "what is made smallest (time; run without --machine: bytes)"},
    {"memory", "BYTES", CLI_ASKS, BYTES, AT(memory_bytes), NULL,
     "no rank may need more, 76G say; infeasible (exit 3) where no plan fits"},
    {"longest", "DIM", CLI_MEMORY, TEXT, AT(longest), NULL,
     "the largest extent of this dim whose best plan fits --memory, else what a rank of the machine has"},
    {"training", NULL, CLI_ASKS, FLAG, AT(training), NULL,
     "a training step: the way back, gradients and the optimiser's state count too"},
    {"recompute", NULL, CLI_ASKS, FLAG, AT(recompute), NULL,
     "with --training: stages keep their inputs alone and run again on the way back"},
    {"workspace", "BYTES", CLI_ASKS, BYTES, AT(workspace_bytes), NULL,
     "stages whose workspace would be larger go through their box in parts, 2G say, as blocks on a device do"},
    {"force", "STAGE=LAYOUT/METHOD", CLI_ASKS, PARTS, AT(force), NULL,
     "stages that must run so, several with ';': 's.attn=s@sp/ring', 's.attn=/ring', 't.attn#3=s@sp'"},
    {"layers", "L", CLI_ASKS | CLI_RUN, NUMBER, AT(layers), NULL,
     "run the model's stages L times over; its own number without", 1, 65536},
    {"size", "t=16,s=256", (CLI_ASKS & ~CLI_SWEEP) | CLI_RUN | CLI_BENCH_PRODUCTS, LIST, AT(sizes), NULL,
     "extents instead of the model's"},
    {"size", "t=15..120:15", CLI_SWEEP, LIST, AT(sizes), NULL,
     "extents instead of the model's; one of them may be a range, FIRST..LAST:STEP, which is swept"},
    {"prologue", "LAYOUT", CLI_ASKS, TEXT, AT(prologue), NULL, "layout the activation arrives in (free choice)"},
    {"epilogue", "LAYOUT", CLI_ASKS, TEXT, AT(epilogue), NULL,
     "layout it must end in, or 'any' (*, replicated; any where the model has a final layer or patches)"},
    {"method", "STAGE=METHOD", CLI_ASKS | CLI_RUN, LIST, AT(methods), NULL,
     "how an attention runs over a sharded dim, several with commas; STAGE is a name or *, METHOD one "
     "of" ATTENTION_METHODS " or auto; for linear attention of" LINEAR_METHODS " or auto (auto)"},
    {"backward", NULL, CLI_ASKS & ~CLI_FORECASTS, FLAG, AT(training), NULL, "as --training"},
    {"slack", "P", CLI_ASKS, NUMBER, AT(slack_percent), "25",
     "where bytes are the objective a stage's largest part may exceed that of its most even layout by P%", 0, 1000000},
    {"max-waste", "P", CLI_ASKS, NUMBER, AT(max_waste_percent), NULL,
     "infeasible (exit 3) when a stage must waste more than P%", 1, 1000000},
    {"output", "FILE", CLI_PLAN, TEXT, AT(output), NULL,
     "save the schedule as JSON; - is standard output. Also -o FILE"},
    {"analyze", NULL, CLI_PLAN, FLAG, AT(analyze), NULL,
     "run the plan and print what was predicted beside what is measured, stage by stage"},
    {"candidates", "N", CLI_PLAN, NUMBER, AT(candidates), NULL,
     "with --analyze: run the N ways of attention that are predicted fastest, the plan among them, and compare", 1,
     10000},
    {"transport", "T", CLI_PLAN, TRANSPORT, AT(transport), "auto", "with --analyze: one of" CLI_TRANSPORTS},
    {"why-not", "STAGE=LAYOUT/METHOD", CLI_EXPLAIN, PARTS, AT(why_not), NULL,
     "what would happen if this stage ran so in every repetition, several with ';'; 't.attn#3=...': in repetition 3"},
    {"top", "N", CLI_EXPLAIN, NUMBER, AT(top), "3", "so many alternatives of every stage", 0, 100},
    {"methods", "LIST", CLI_COMPARE, TEXT, AT(listed), "best,dsp,ulysses,ring,usp",
     "rows: best, dsp, ulysses, ring, usp, rsa, gather-kv, lasp, lasp2, scan, megatron-sp, megatron-tp"},
    {"meshes", "MESH,MESH", CLI_COMPARE, TEXT, AT(meshes), NULL,
     "rows: the best plan on each of these meshes instead, 'sp=16,cfg=2 sp=8'"},
    {"baseline", "ROW", CLI_COMPARE, TEXT, AT(baseline), NULL, "the row that the last column compares with"},
    {"csv", NULL, CLI_COMPARE | CLI_SWEEP, FLAG, AT(csv), NULL, "comma-separated values instead of text"},
    {"schedule", "FILE", CLI_FORECASTS, TEXT, AT(schedule), NULL,
     "of this schedule (heddle plan --output) instead of planning"},
    {"output", "FILE", CLI_DRAW, TEXT, AT(output), NULL,
     "a picture (.svg), a report (.html) or a timeline (.json, for Perfetto or chrome://tracing). Also -o FILE"},
    {"measured", "RUN.json", CLI_DRAW, TEXT, AT(measured), NULL,
     "timeline: what heddle run --json printed of this schedule, beside the forecast"},
    {"curves", "N", CLI_DRAW, NUMBER, AT(curves), NULL,
     "report: curves of the best plans of 1 to N ranks, as far as the machine has them", 1, 1024},
    {"schedule", "FILE", CLI_DRAW, TEXT, AT(schedule), NULL, "of the model, drawn instead of the best plan"},
    {"schedule", "FILE", CLI_RUN, TEXT, AT(schedule), NULL,
     "run this schedule (heddle plan --output) instead of planning"},
    {"input", "FILE", CLI_RUN, TEXT, AT(input), NULL,
     "clip.y4m (- is standard input: ffmpeg -i any.mp4 -f yuv4mpegpipe - | heddle run ...), or x.npy, an activation of "
     "the model's shape; seeded numbers without"},
    {"output", "FILE", CLI_RUN, TEXT, AT(output), NULL,
     "y.npy, the activation behind the last stage (f32), or y.y4m, a clip made from it"},
    {"weights", "FILE", CLI_RUN, TEXT, AT(weights), NULL,
     "safetensors with the tensors blocks.LAYER.STAGE.PARAMETER; seeded without"},
    {"seed", "S", CLI_RUN, NUMBER, AT(seed), "1", "of input, weights, text and conditioning", 0, 1000000000},
    {"dtype", "f32|bf16", CLI_RUN, CHOICE, AT(dtype), NULL, "of the activation, instead of the model's"},
    {"rows", "R", CLI_BENCH_PRODUCTS, NUMBER, AT(rows), NULL, "so many instead of a rank's, or of a layer", 1,
     1LL << 40},
    {"in", "K", CLI_BENCH_PRODUCTS, NUMBER, AT(in), NULL, "a layer's inputs, instead of a model", 1, INT_MAX},
    {"out", "N", CLI_BENCH_PRODUCTS, NUMBER, AT(out), NULL, "a layer's outputs, instead of a model", 1, INT_MAX},
    {"dtype", "f32|bf16|f16", CLI_BENCH_PRODUCTS, CHOICE, AT(dtype), NULL,
     "of the activation, instead of the model's (of a layer bf16); f16 with --device"},
    {"backward", NULL, CLI_RUN, FLAG, AT(backward), NULL,
     "a training step: the way back from a seeded gradient of the output, and the sum of the parameters' gradients "
     "over "
     "the ranks"},
    {"recompute", NULL, CLI_RUN, FLAG, AT(recompute), NULL, "the way back has kept the inputs of the stages only"},
    {"threads", "N", CLI_RUN, NUMBER, AT(threads), "1", "compute threads of each rank", 1, 256},
    {"passes", "N", CLI_RUN, NUMBER, AT(passes), "1",
     "forward passes, the fastest is reported; with blocks on a device more than one also in one go and by a graph", 1,
     1000000},
    {"check", NULL, CLI_RUN, FLAG, AT(check), NULL,
     "repeat on one rank and compare, bitwise where all attention is local, else within a tolerance; compare all "
     "ranks' "
     "copies of the result, and bytes sent with bytes planned"},
    {"random", "COUNT", VERIFIES, NUMBER, AT(random), NULL,
     "so many problems drawn from the seed, such as other options ask for", 1, 100000000},
    {"seed", "S", CLI_VERIFY, NUMBER, AT(seed), NULL, "of random problems (1)", 0, LLONG_MAX},
    {"seed", "S", CLI_VERIFY_ATTENTION | CLI_VERIFY_LINEAR | CLI_BENCH_LINEAR, NUMBER, AT(seed), "1",
     "of random problems, and of values", 0, LLONG_MAX},
    {"input", "X.npy", CLI_VERIFY, TEXT, AT(input), NULL,
     "the global array; without it element i has the value i modulo 2^n, what the dtype holds exactly (n = 53 f64, 24 "
     "f32, 11 f16, 8 bf16 u8, 4 f8e4m3, 3 f8e5m2, 31 i32, 7 i8, 1 bool), and is checked in up to 16 rounds, a digit "
     "of the index each, which tell all elements apart but those of more than 65536 bool; the first is the one that is "
     "saved"},
    {"save", "DIR", CLI_VERIFY, TEXT, AT(save), NULL,
     "writes DIR/from-RANK.npy and DIR/to-RANK.npy, the local arrays in their memory order"},
    {"method", "M", CLI_ATTENTION | CLI_SIMULATE_ATTENTION, TEXT, AT(method), NULL,
     "one of" ATTENTION_METHODS " (local; of random problems any); usp wants two mesh axes, ring first"},
    {"method", "M", CLI_LINEAR | CLI_SIMULATE_LINEAR, TEXT, AT(method), NULL,
     "one of" LINEAR_METHODS " (lasp; of random problems any)"},
    {"kv-heads", "K", CLI_ATTENTION | CLI_SIMULATE_ATTENTION, NUMBER, AT(kv_heads), NULL,
     "heads of k and v, divides those of q", 1, INT_MAX},
    {"causal", NULL, CLI_ATTENTION | CLI_SIMULATE_ATTENTION, FLAG, AT(causal), NULL, "query i sees keys 0..i"},
    {"zigzag", NULL, CLI_ATTENTION | CLI_SIMULATE_ATTENTION, FLAG, AT(zigzag), NULL,
     "rows placed so that this is balanced"},
    {"key-lengths", "A,B", CLI_ATTENTION, TEXT, AT(key_lengths), NULL, "keys seen per sample"},
    {"all-reduce", NULL, CLI_ATTENTION, FLAG, AT(all_reduce), NULL, "rsa: the paper's own sums"},
    {"project", "M", CLI_VERIFY_ATTENTION, NUMBER, AT(projected), NULL, "rsa: keys and values projected to length M", 1,
     INT_MAX},
    {"save", "DIR", CLI_VERIFY_ATTENTION, TEXT, AT(save), NULL,
     "writes q k v do o dq dk dv lse .npy: q and o [b s h d], k and v [b s kv-heads d]"},
    {"dv", "D", CLI_LINEAR, NUMBER, AT(dv), NULL, "width of v and o; that of the shape", 1, 65536},
    {"decay", "G", CLI_LINEAR, TEXT, AT(decay), NULL,
     "one number above 0 and at most 1 for all heads, or per-head (slopes of ALiBi) (1)"},
    {"causal", NULL, CLI_LINEAR, FLAG, AT(causal), NULL, "what is done without --bidirectional"},
    {"bidirectional", NULL, CLI_LINEAR, FLAG, AT(bidirectional), NULL, "every row sees every other, decay by distance"},
    {"receive-first", NULL, CLI_LINEAR, FLAG, AT(receive_first), NULL,
     "lasp in the published order: nothing before the state has come"},
    {"chunk", "C", CLI_LINEAR, NUMBER, AT(chunk), NULL, "rows worked on at once", 1, 1024},
    {"backward", NULL, CLI_STAGES, FLAG, AT(backward), NULL, "the way back counts, too"},
    {"backward", NULL, CLI_BENCH_LINEAR, FLAG, AT(backward), NULL, "time backward instead of forward"},
    {"save", "DIR", CLI_VERIFY_LINEAR, TEXT, AT(save), NULL, "writes q k v do o dq dk dv .npy, [b s h d]"},
    {"threads", "N", CLI_ATTENTION | CLI_LINEAR | CLI_BENCH_PRODUCTS, NUMBER, AT(threads), NULL,
     "compute threads of each rank (1)", 1, 256},
    {"iterations", "N", CLI_BENCH, NUMBER, AT(iterations), NULL,
     "executions timed; at least 30 rounds of 4, and until --seconds are over", 1, 400000},
    {"iterations", "N", CLI_BENCH_LINEAR, NUMBER, AT(iterations), NULL,
     "calls timed; as many as fit --seconds, at least 10", 1, SAMPLES_AT_MOST},
    {"seconds", "S", BENCHES, NUMBER, AT(seconds), "3", "time to spend", 0, 86400},
    {"seconds", "S", CLI_CALIBRATE, NUMBER, AT(seconds), "20", "time to spend on times, about", 1, 3600},
    {"output", "FILE", CLI_CALIBRATE, TEXT, AT(output), NULL,
     "save the machine there; - is standard output, and nothing else is printed. Also -o FILE"},
    {"memory", WORDS(HEDDLE_MEMORY_LIST), CLI_BENCH | CLI_VERIFY, CHOICE, AT(memory), "peer",
     "any: private buffers, which peers cannot reach"},
    {"device", "KIND[:N]", CLI_BENCH | CLI_VERIFY, TEXT, AT(device), NULL,
     "arrays lie in this device's memory: cuda, each rank's own, or cuda:1; exit 77 where there is none"},
    {"device", "KIND[:N]", CLI_RUN, TEXT, AT(device), NULL,
     "blocks compute on this device, and switches are done in its memory: cuda, each rank's own, or cuda:1; exit 77 "
     "where there is none"},
    {"device", "KIND[:N]", CLI_BENCH_PRODUCTS, TEXT, AT(device), NULL,
     "products of blocks on this device: cuda, or cuda:1; exit 77 where there is none"},
    {"device", "KIND[:N]", CLI_CALIBRATE, TEXT, AT(device), NULL,
     "measure this device's kernels, memory and wire: cuda, each rank's own, or cuda:1; exit 77 where there is none"},
    {"blocks", "device|host", CLI_RUN, CHOICE, AT(blocks), "device",
     "of --device; host: on the CPU, and what goes between is copied"},
    {"fused", "yes|no", CLI_RUN, CHOICE, AT(fused), "yes",
     "of --device, wire peer: a stage's last kernel stores where the switch would; no: one after the other"},
    {"wire", WORDS(HEDDLE_WIRE_LIST), CLI_RUN | CLI_BENCH | CLI_VERIFY | CLI_CALIBRATE, CHOICE, AT(wire), "auto",
     "how bytes go from device to device"},
    {"tuning", WORDS(HEDDLE_TUNING_LIST), CLI_BENCH, CHOICE, AT(tuning), "trials", "how the copy kernel is chosen"},
    {"kernel", "NAME", CLI_BENCH, TEXT, AT(kernel), NULL, "this copy kernel instead of the chosen one"},
    {"list-kernels", NULL, CLI_BENCH, FLAG, AT(list_kernels), NULL, "the copy kernels of this CPU"},
    {"output", "FILE", CLI_IMPORT | CLI_TOPO, TEXT, AT(output), NULL,
     "write the file there that is read back; - is standard output. Also -o FILE"},
    {"frames", "N", CLI_IMPORT, NUMBER, AT(frames), NULL, "of the clip; the model's usual number without", 1, 1000000},
    {"height", "N", CLI_IMPORT, NUMBER, AT(height), NULL, "of a picture; the model's usual number without", 1, 1000000},
    {"width", "N", CLI_IMPORT, NUMBER, AT(width), NULL, "of a picture; the model's usual number without", 1, 1000000},
    {"machine", "NAME|FILE", CLI_TOPO, TEXT, AT(machine), NULL, "this machine instead of what the host shows"},
    {"xml", "FILE", CLI_TOPO, TEXT, AT(xml), NULL, "another host, as `hwloc-ls FILE.xml` describes it there"},
    {"matrix", "FILE", CLI_TOPO, TEXT, AT(matrix), NULL, "the text of `nvidia-smi topo -m`: GPUs and their links"},
    {"gpu", "NAME", CLI_TOPO, TEXT, AT(gpu), NULL,
     "which GPUs the matrix is of: h100 h200 h800 h20 a100 a800 l20 l40; without, what the number of NVLinks suggests"},
    {"nccl-tests", "FILE", CLI_TOPO, TEXT, AT(nccl_tests), NULL,
     "times of links, as alltoall_perf, all_gather_perf, reduce_scatter_perf, all_reduce_perf and sendrecv_perf print "
     "them, several behind one another too"},
    {"galvatron", "FILE", CLI_TOPO, TEXT, AT(galvatron), NULL,
     "links in Galvatron's JSON: sp_time, allreduce_bandwidth, p2p_bandwidth, overlap_coefficient"},
    {"json", NULL,
     (CLI_ASKS & ~CLI_DRAW) | CLI_STAGES | CLI_DIFF | CLI_RUN | BENCHES | CLI_PRESETS | CLI_TOPO | CLI_CALIBRATE, FLAG,
     AT(json), NULL, "JSON instead of text"},
    {"help", NULL, ~0U, FLAG, AT(help), NULL, "this text"},
    {NULL},
};

const cli_command cli_commands[] = {
    {"verify attention", CLI_VERIFY_ATTENTION, "problem", &cli_verify_attention},
    {"verify linear-attention", CLI_VERIFY_LINEAR, "problem", &cli_verify_linear},
    {"bench attention", CLI_BENCH_ATTENTION, "problem", &cli_bench_attention},
    {"bench linear-attention", CLI_BENCH_LINEAR, "problem", &cli_bench_linear},
    {"bench products", CLI_BENCH_PRODUCTS, "model", &cli_bench_products, 1},
    {"simulate attention", CLI_SIMULATE_ATTENTION, "problem", &cli_simulate_attention},
    {"simulate linear-attention", CLI_SIMULATE_LINEAR, "problem", &cli_simulate_linear},
    {"plan", CLI_PLAN, "model", &cli_plan},
    {"explain", CLI_EXPLAIN, "model", &cli_explain},
    {"compare", CLI_COMPARE, "model", &cli_compare},
    {"sweep", CLI_SWEEP, "model", &cli_sweep},
    {"memory", CLI_MEMORY, "model", &cli_memory},
    {"simulate", CLI_SIMULATE, "model", &cli_simulate},
    {"diff", CLI_DIFF, "schedule", &cli_diff, 0, 2},
    {"run", CLI_RUN, "model", &cli_run},
    {"bench", CLI_BENCH, "reshard line", &cli_bench},
    {"verify", CLI_VERIFY, "reshard line", &cli_verify},
    {"volume", CLI_VOLUME, "reshard line or model", &cli_volume},
    {"presets", CLI_PRESETS, "name", &cli_presets, 1},
    {"import", CLI_IMPORT, "config.json", &cli_import},
    {"topo", CLI_TOPO, NULL, &cli_topo},
    {"draw", CLI_DRAW, "model or schedule", &cli_draw},
    {"calibrate", CLI_CALIBRATE, NULL, &cli_calibrate},
    {NULL},
};

const char cli_overview[] =
    "usage: heddle COMMAND ...   (heddle help COMMAND, or heddle COMMAND --help, for each)\n\n"
    "  plan       layout and method of every stage of a model, and what each of them moves and takes\n"
    "  explain    why a plan is as it is, and what another layout or method would cost\n"
    "  compare    methods or meshes side by side\n"
    "  sweep      plans for many numbers of ranks, or many lengths\n"
    "  volume     bytes that every rank sends to every other, or those of a model's edges; nothing is run\n"
    "  memory     what the fullest rank holds, and when\n"
    "  simulate   seconds and memory of one plan, part by part\n"
    "  draw       a schedule as a picture, a report or a timeline\n"
    "  diff       where two plans differ\n"
    "  run        run a model's blocks on several ranks, switching between stages\n"
    "  bench      time a reshard against a contiguous copy of the same bytes, an attention method,\n"
    "             or the products of a model's blocks\n"
    "  verify     run a reshard or an attention method, or random ones, and check every element and byte\n"
    "  calibrate  measure this machine's ranks, for plans and forecasts in seconds\n"
    "  topo       what this host consists of, and the machine that is like it\n"
    "  presets    models and machines that are known by name\n"
    "  import     the model file of a diffusers config.json\n"
    "\nheddle help man, heddle help bash, heddle help zsh: the manual page, and what these shells complete\n"
    "\nexit codes: 0 done, 1 failed while running, 2 bad input, 3 infeasible, 5 mismatch,\n"
    "            77 no such device here (--device)\n";
