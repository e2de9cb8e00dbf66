/* Machine files: what they express, what is refused and where; fits. */
#include "case.h"
#include "planner/machine/fit.h"
#include "planner/machine/machine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEAD "machine: m\n"
#define LEVELS "levels: [{name: gpu, size: 4, link: near}, {name: host, size: 2, link: far}]\n"
#define WORK "work: {product: {f32: {rates: 1e9}}, attention: {f32: {rates: 1e9}}, memory: {rates: 1e9}}\n"
#define LINKS "links: {near: {all_to_all: [{rates: 1e9}]}, far: {ring: [{ranks: 2, start_s: 1e-5, rates: 1e8}]}}\n"

static heddle_status parse(heddle_machine **out, const char *text)
{
    *out = NULL;
    return heddle_machine_parse(out, text, strlen(text), "m.yaml");
}

/* All figures alike; the sources, which are pointers, by their texts. */
static int same(const heddle_machine *a, const heddle_machine *b)
{
    heddle_machine x = *a, y = *b;
    x.source = y.source = NULL;
    return memcmp(&x, &y, sizeof x) == 0 && strcmp(a->source, b->source) == 0;
}

/* named: by which name, that of a file. */
static void comes_back_as(const heddle_machine *machine, const char *named)
{
    heddle_machine as = *machine;
    char path[] = "/tmp/heddle-machine-XXXXXX";
    const int fd = mkstemp(path);
    heddle_machine *back = NULL;
    assert_true(fd >= 0);
    close(fd);
    HD_OK(heddle_machine_save(machine, path));
    const heddle_status st = heddle_machine_load(&back, path);
    unlink(path);
    HD_OK(st);
    memset(as.name, 0, sizeof as.name);
    snprintf(as.name, sizeof as.name, "%s", named);
    assert_true(same(&as, back));
    heddle_machine_destroy(back);
}

static void comes_back(const heddle_machine *machine)
{
    comes_back_as(machine, machine->name);
}

HD_CASE(other_links_come_back_by_the_machines_own_name)
{
    heddle_machine *machine = NULL, *scaled = NULL;
    HD_OK(heddle_machine_load(&machine, "8xl40-pcie"));
    HD_OK(heddle_machine_scaled(&scaled, machine, NULL, 0.5));
    comes_back_as(scaled, "8xl40-pcie");
    heddle_machine_destroy(machine);
    heddle_machine_destroy(scaled);
}

HD_CASE(presets_come_back_bit_for_bit)
{
    for (int i = 0; heddle_machine_preset_name(i) != NULL; i++) {
        heddle_machine *machine = NULL;
        HD_OK(heddle_machine_load(&machine, heddle_machine_preset_name(i)));
        comes_back(machine);
        HD_OK(heddle_machine_resize(machine, 5));
        comes_back(machine);
        heddle_machine_destroy(machine);
    }
}

HD_CASE(reads_everything)
{
    heddle_machine *m = NULL;
    HD_OK(parse(&m, "machine: two+two\nsource: \"a \\\"b\\\" \\\\ c\\n\"\ncalibrated: true\non_device: true\n"
                    "ranks: 7\nmemory_bytes: 80\n"
                    "overlap_slowdown: 1.5\ncrowding_slowdown: 1.25\n" LEVELS
                    "work:\n  product: {bf16: {start_s: 0.1, rates: [[1, 2.5], [1e3, 7e14]]}, f32: {rates: 3}}\n"
                    "  attention: {f16: {rates: 4}}\n  linear: {f64: {rates: 5}}\n"
                    "  sharded_attention: {f32: {rates: 8}}\n  memory: {start_s: 1, rates: 6}\n"
                    "links:\n  far: {ring: [{rates: 7}, {ranks: 9, rates: [[2, 8]]}]}\n"
                    "  near: {all_to_all: [{rates: 9}], all_gather: [{rates: 1}], reduce_scatter: [{rates: 2}]}\n"));
    assert_string_equal(m->source, "a \"b\" \\ c\n");
    assert_true(m->is_calibrated && m->ranks == 7 && m->memory_bytes == 80 && m->overlap_slowdown == 1.5);
    assert_true(m->crowding_slowdown == 1.25 && m->on_device);
    assert_true(m->nlevels == 2 && m->level[0].link == 1 && m->level[1].link == 0 && m->level[1].size == 2);
    assert_true(m->work[HD_WORK_PRODUCT][HEDDLE_BF16].start_s == 0.1);
    assert_true(m->work[HD_WORK_PRODUCT][HEDDLE_BF16].rate.per_second[1] == 7e14);
    assert_true(m->work[HD_WORK_LINEAR][HEDDLE_F64].rate.per_second[0] == 5);
    assert_true(m->work[HD_WORK_SHARDED][HEDDLE_F32].rate.per_second[0] == 8);
    assert_true(m->link[0].exchange[HD_EXCHANGE_RING].group[1].ranks == 9);
    assert_true(m->link[0].exchange[HD_EXCHANGE_RING].group[1].rate.size[0] == 2);
    comes_back(m);
    heddle_machine_destroy(m);
}

static const struct {
    heddle_status status;
    const char *text, *says;
} wrong[] = {
    {HEDDLE_ERR_PARSE, LEVELS WORK LINKS, "m.yaml:1:1: the machine"},
    {HEDDLE_ERR_PARSE, HEAD HEAD LEVELS WORK LINKS, "m.yaml:2:1: duplicate key 'machine'"},
    {HEDDLE_ERR_PARSE, HEAD LEVELS WORK LINKS "lnks: 1\n", "m.yaml:5:1: "},
    {HEDDLE_ERR_PARSE, "machine: a b\n" LEVELS WORK LINKS, "m.yaml:1:10: 'machine' must be"},
    {HEDDLE_ERR_PARSE, HEAD "levels: []\n" WORK LINKS, "m.yaml:2:9: "},
    {HEDDLE_ERR_PARSE, HEAD "levels: [{name: gpu, size: 0, link: near}]\n" WORK LINKS, "m.yaml:2:28: "},
    {HEDDLE_ERR_PARSE, HEAD "levels: [{name: gpu, size: 4, link: nera}]\n" WORK LINKS, "m.yaml:2:37: "},
    {HEDDLE_ERR_LAYOUT, HEAD "levels: [{name: gpu, size: 4, link: near}]\n" WORK LINKS,
     "no level has the link class 'far'"},
    {HEDDLE_ERR_LAYOUT, HEAD "levels: [{name: gpu, size: 4, link: near}, {name: gpu, size: 2, link: far}]\n" WORK LINKS,
     "m.yaml:2:44: levels 1 and 2 are both called 'gpu'"},
    {HEDDLE_ERR_LAYOUT,
     HEAD "levels: [{name: gpu, size: 2048, link: near}, {name: host, size: 1024, link: far}]\n" WORK LINKS,
     "2097152 ranks, at most 1048576"},
    {HEDDLE_ERR_LAYOUT, HEAD "ranks: 9\n" LEVELS WORK LINKS, "m.yaml:2:8: 9 ranks, but the levels hold 5 to 8"},
    {HEDDLE_ERR_LAYOUT, HEAD "ranks: 4\n" LEVELS WORK LINKS, "hold 5 to 8"},
    {HEDDLE_ERR_LAYOUT, HEAD "overlap_slowdown: 0.5\n" LEVELS WORK LINKS, "m.yaml:2:19: 'overlap_slowdown'"},
    {HEDDLE_ERR_LAYOUT, HEAD "crowding_slowdown: 0.5\n" LEVELS WORK LINKS, "m.yaml:2:20: 'crowding_slowdown'"},
    {HEDDLE_ERR_PARSE, HEAD "overlap_slowdown: .nan\n" LEVELS WORK LINKS, "must be a number"},
    {HEDDLE_ERR_PARSE, HEAD "overlap_slowdown: 0x2\n" LEVELS WORK LINKS, "must be a number"},
    {HEDDLE_ERR_PARSE, HEAD "overlap_slowdown: \"2\"\n" LEVELS WORK LINKS, "must be a number"},
    {HEDDLE_ERR_PARSE, HEAD "overlap_slowdown: 1e\n" LEVELS WORK LINKS, "must be a number"},
    {HEDDLE_ERR_PARSE, HEAD "overlap_slowdown: [2]\n" LEVELS WORK LINKS, "found no single value"},
    {HEDDLE_ERR_LAYOUT, HEAD "overlap_slowdown: 1e999\n" LEVELS WORK LINKS, "found 1e999"},
    {HEDDLE_ERR_PARSE, HEAD "memory_bytes: -1\n" LEVELS WORK LINKS, "m.yaml:2:15: "},
    {HEDDLE_ERR_PARSE, HEAD LEVELS "work: {product: {f32: {rates: 1e9}}, memory: {rates: 1e9}}\n" LINKS, "attention"},
    {HEDDLE_ERR_PARSE, HEAD LEVELS "work: {product: {}, attention: {f32: {rates: 1}}, memory: {rates: 1}}\n" LINKS,
     "'product' has figures of no dtype"},
    {HEDDLE_ERR_PARSE, HEAD LEVELS "work: {product: {f23: {rates: 1}}, attention: {}, memory: {}}\n" LINKS, "f23"},
    {HEDDLE_ERR_LAYOUT, HEAD LEVELS "work: {product: {f32: {rates: 0}}, attention: {}, memory: {}}\n" LINKS,
     "m.yaml:3:31: 'rates' must be from 1"},
    {HEDDLE_ERR_LAYOUT, HEAD LEVELS "work: {product: {f32: {rates: -5}}, attention: {}, memory: {}}\n" LINKS,
     "found -5"},
    {HEDDLE_ERR_LAYOUT,
     HEAD LEVELS "work: {product: {f32: {rates: [[8, 1], [8, 2]]}}, attention: {}, memory: {}}\n" LINKS,
     "m.yaml:3:40: sizes must ascend, found 8 behind 8"},
    {HEDDLE_ERR_PARSE, HEAD LEVELS "work: {product: {f32: {rates: [[8, 1, 2]]}}, attention: {}, memory: {}}\n" LINKS,
     "m.yaml:3:32: "},
    {HEDDLE_ERR_PARSE, HEAD LEVELS "work: {product: {f32: {rates: []}}, attention: {}, memory: {}}\n" LINKS, "rates"},
    {HEDDLE_ERR_LAYOUT,
     HEAD LEVELS "work: {product: {f32: {start_s: -1, rates: 1}}, attention: {}, memory: {}}\n" LINKS, "start_s"},
    {HEDDLE_ERR_PARSE, HEAD LEVELS WORK "links: {}\n", "m.yaml:4:8: 'links' must be a map of 1 to 4"},
    {HEDDLE_ERR_PARSE, HEAD LEVELS WORK "links: {near: {}, far: {}}\n", "link class 'near' has no figures"},
    {HEDDLE_ERR_PARSE, HEAD LEVELS WORK "links: {near: {ring: [{ranks: 1, rates: 2}]}}\n", "m.yaml:4:31: "},
    {HEDDLE_ERR_LAYOUT, HEAD LEVELS WORK "links: {near: {ring: [{ranks: 4, rates: 2}, {ranks: 3, rates: 2}]}}\n",
     "groups must grow, found 3 ranks behind 4"},
    {HEDDLE_ERR_PARSE, HEAD LEVELS WORK "links: {nearnearnearnear: {ring: [{rates: 2}]}}\n", "link class's name"},
    {HEDDLE_ERR_PARSE, "[1, 2]\n", "m.yaml:1:1: "},
    {HEDDLE_ERR_PARSE, "", "m.yaml"},
};

HD_CASE(refuses)
{
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        heddle_machine *machine = NULL;
        const heddle_status st = parse(&machine, wrong[i].text);
        if (st != wrong[i].status || machine != NULL || strstr(heddle_last_error(), wrong[i].says) == NULL ||
            strncmp(heddle_last_error(), "m.yaml", 6) != 0) {
            fail_msg("%s\ngives %d: %s\nwanted %d: %s", wrong[i].text, st, st == HEDDLE_OK ? "" : heddle_last_error(),
                     wrong[i].status, wrong[i].says);
        }
    }
}

HD_CASE(points_and_groups_have_limits)
{
    char text[2048];
    heddle_machine *machine = NULL;
    for (int points = HD_RATE_POINTS; points <= HD_RATE_POINTS + 1; points++) {
        int n = snprintf(text, sizeof text,
                         HEAD LEVELS LINKS "work: {attention: {f32: {rates: 1}}, memory: {rates: 1}, "
                                           "product: {f32: {rates: [");
        for (int i = 0; i < points; i++) {
            n += snprintf(text + n, sizeof text - (size_t)n, "[%d, 1],", i + 1);
        }
        snprintf(text + n, sizeof text - (size_t)n, "]}}}\n");
        if (points == HD_RATE_POINTS) {
            HD_OK(parse(&machine, text));
            heddle_machine_destroy(machine);
        } else {
            HD_FAILS(HEDDLE_ERR_PARSE, parse(&machine, text));
        }
    }
    char *large = calloc(1, HD_MACHINE_LIMIT_BYTES + 2);
    memset(large, '#', HD_MACHINE_LIMIT_BYTES + 1);
    HD_FAILS(HEDDLE_ERR_PARSE, heddle_machine_parse(&machine, large, HD_MACHINE_LIMIT_BYTES + 1, "large"));
    free(large);
}

/* Galvatron's published times of 8 ranks by MiB of each, all-to-all, in ms. */
HD_CASE(fits_published_times)
{
    static const double mib[] = {1, 4, 16, 64, 256, 1024}, ms[] = {.1124, .1109, .2003, .3997, 1.298, 4.815};
    hd_sample sample[6];
    hd_line line;
    hd_exchange_rate rate = {0};
    for (int i = 0; i < 6; i++) {
        sample[i] = (hd_sample){mib[i] * 1048576 * 7 / 8, 1e-3 * ms[i]};
    }
    HD_OK(hd_fit_line(&line, sample, 6, "all-to-all"));
    assert_true(fabs(line.start_s / 104e-6 - 1) < 0.05);
    assert_true(fabs(line.per_second / 197e9 - 1) < 0.05);
    assert_true(line.worst_error < 0.12);
    HD_OK(hd_fit_group(&line, &rate, 8, sample, 6, "all-to-all"));
    assert_true(line.worst_error < 0.12 && line.median_error < 0.02);
    HD_OK(hd_fit_group(&line, &rate, 4, sample, 6, "all-to-all"));
    HD_OK(hd_fit_group(&line, &rate, 8, sample, 5, "all-to-all"));
    assert_true(rate.ngroups == 2 && rate.group[0].ranks == 4 && rate.group[1].ranks == 8);
}

/* Times that follow the form come back, in whatever order and however often they stand. */
HD_CASE(fits_what_it_made)
{
    for (int round = 0; round < 50; round++) {
        const double start = round % 5 == 0 ? 0 : 1e-6 * (round + 1), per_second = 1e8 * (round + 1);
        hd_sample sample[60];
        hd_line line;
        double start_s = 0;
        hd_rate rate;
        const int n = 2 + round;
        for (int i = 0; i < n; i++) {
            const double bytes = ldexp(1000, (i * 53) % n % 23);
            sample[i] = (hd_sample){bytes, start + bytes / per_second};
        }
        HD_OK(hd_fit_rate(&line, &start_s, &rate, sample, n, "made"));
        assert_true(fabs(line.per_second / per_second - 1) < 1e-6 && fabs(line.start_s - start) < 1e-9);
        assert_true(line.worst_error < 1e-3 && rate.npoints <= HD_RATE_POINTS);
    }
}

HD_CASE(fits_that_are_none)
{
    hd_line line;
    hd_exchange_rate full = {.ngroups = HD_RATE_GROUPS};
    const hd_sample one[] = {{1e6, 1e-3}, {1e6, 2e-3}}, falls[] = {{1e3, 1}, {1e6, 1e-3}},
                    broken[] = {{1e3, 0}, {1, 1}}, nan[] = {{1e3, NAN}, {1, 1}}, fine[] = {{1e3, 1e-3}, {1e6, 1}},
                    wild[] = {{1, 1e-6}, {2, 1}, {3, 1e-6}, {4, 1}, {5, 1e-6}, {6, 1}, {7, 1e-6}, {8, 1}};
    HD_FAILS(HEDDLE_ERR_INFEASIBLE, hd_fit_line(&line, one, 0, "t"));
    HD_FAILS(HEDDLE_ERR_INFEASIBLE, hd_fit_line(&line, one, 2, "t"));
    assert_non_null(strstr(heddle_last_error(), "two sizes or more, found one"));
    HD_FAILS(HEDDLE_ERR_INFEASIBLE, hd_fit_line(&line, falls, 2, "t"));
    assert_non_null(strstr(heddle_last_error(), "do not grow with the bytes"));
    HD_FAILS(HEDDLE_ERR_ARG, hd_fit_line(&line, broken, 2, "t"));
    HD_FAILS(HEDDLE_ERR_ARG, hd_fit_line(&line, nan, 2, "t"));
    HD_FAILS(HEDDLE_ERR_INFEASIBLE, hd_fit_line(&line, wild, 8, "t"));
    assert_non_null(strstr(heddle_last_error(), "are off by more than"));
    for (int i = 0; i < HD_RATE_GROUPS; i++) {
        full.group[i].ranks = 10 * (i + 1);
    }
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, hd_fit_group(&line, &full, 15, fine, 2, "t"));
    HD_OK(hd_fit_group(&line, &full, 20, fine, 2, "t"));
}
