/* Machines: presets by name, what they say of themselves, look-up of figures. */
#include "case.h"
#include "planner/machine/machine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static heddle_machine *load(const char *name)
{
    heddle_machine *machine = NULL;
    HD_OK(heddle_machine_load(&machine, name));
    return machine;
}

static heddle_machine_info info_of(const heddle_machine *machine)
{
    heddle_machine_info info = HEDDLE_EMPTY(heddle_machine_info);
    HD_OK(heddle_machine_get_info(&info, machine));
    return info;
}

static void near(double found, double wanted, const char *what)
{
    if (!(fabs(found - wanted) <= 1e-9 * fabs(wanted))) {
        fail_msg("%s: %.12g, wanted %.12g", what, found, wanted);
    }
}

HD_CASE(presets_by_name)
{
    static const struct {
        const char *name;
        int ranks, nlinks, within[3];
        const char *link[3];
    } known[] = {
        {"8xh100-nvlink", 8, 1, {8}, {"nvlink"}},
        {"3xh100-nvlink", 3, 1, {3}, {"nvlink"}},
        {"1xa100-nvlink", 1, 1, {1}, {"nvlink"}},
        {"2x8xh100-nvlink+ib400", 16, 2, {8, 16}, {"nvlink", "ib400"}},
        {"3x5xh20-nvlink+ib200", 15, 2, {5, 15}, {"nvlink", "ib200"}},
        {"8xl20-pcie", 8, 2, {4, 8}, {"pcie", "upi"}},
        {"4xl40-pcie", 4, 1, {4}, {"pcie"}},
        {"7xl40-pcie", 7, 2, {4, 7}, {"pcie", "upi"}},
        {"2x8xl40-pcie+eth100", 16, 3, {4, 8, 16}, {"pcie", "upi", "eth100"}},
        {"100x8xa800-nvlink+ib400", 800, 2, {8, 800}, {"nvlink", "ib400"}},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        heddle_machine *machine = load(known[i].name);
        const heddle_machine_info info = info_of(machine);
        assert_string_equal(info.name, known[i].name);
        assert_int_equal(info.ranks, known[i].ranks);
        assert_int_equal(info.nlinks, known[i].nlinks);
        for (int l = 0; l < info.nlinks; l++) {
            assert_string_equal(info.link[l], known[i].link[l]);
            assert_int_equal(info.ranks_within[l], known[i].within[l]);
        }
        assert_true(info.memory_bytes > INT64_C(40) << 30 && strlen(info.source) > 60 && !info.is_calibrated);
        heddle_machine_destroy(machine);
    }
}

/* What is listed is there, whole, and finite for any operation. */
HD_CASE(every_preset_has_every_figure)
{
    for (int i = 0; heddle_machine_preset_name(i) != NULL; i++) {
        heddle_machine *machine = load(heddle_machine_preset_name(i));
        for (hd_work w = 0; w < HD_WORKS; w++) {
            for (int d = 0; d < HEDDLE_DTYPE_COUNT; d++) {
                const double s = hd_machine_work_s(machine, w, (heddle_dtype)d, 1e9, 100);
                assert_true(s > 0 && s < 1);
                near(hd_machine_work_s(machine, w, (heddle_dtype)d, 0, 100), 0, "nothing");
            }
        }
        for (int l = 0; l < machine->nlinks; l++) {
            for (hd_exchange e = 0; e < HD_EXCHANGES; e++) {
                double before = 0;
                for (double bytes = 1; bytes < 1e12; bytes *= 7) {
                    const double s = hd_machine_exchange_s(machine, l, e, machine->ranks, bytes);
                    assert_true(s > before && isfinite(s));
                    before = s;
                }
                near(hd_machine_exchange_s(machine, l, e, 2, 0), 0, "no bytes");
            }
        }
        heddle_machine_destroy(machine);
    }
}

HD_CASE(published_figures)
{
    heddle_machine *a100 = load("8xa100-nvlink"), *l20 = load("8xl20-pcie"), *far = load("2x8xh100-nvlink+ib400"),
                   *lan = load("2x8xl40-pcie+eth100");
    /* Galvatron's all-to-all of 8 ranks, 1 GiB each: 4.815 ms; 64 MiB 0.3997 */
    const double gib = 1024.0 * 1024 * 1024 * 7 / 8, mib64 = 64.0 * 1024 * 1024 * 7 / 8;
    assert_true(fabs(hd_machine_exchange_s(a100, 0, HD_EXCHANGE_ALL_TO_ALL, 8, gib) / 4.815e-3 - 1) < 0.06);
    assert_true(fabs(hd_machine_exchange_s(a100, 0, HD_EXCHANGE_ALL_TO_ALL, 8, mib64) / 0.3997e-3 - 1) < 0.06);
    /* across two sockets: all-to-all 1.0 to 1.4 GB/s of all bytes sent, of which 4/7 cross; a ring about 10 */
    const double all = 1e9 * 7 / 4 / hd_machine_exchange_s(l20, 1, HD_EXCHANGE_ALL_TO_ALL, 8, 1e9);
    assert_true(all > 1.0e9 && all < 1.4e9);
    assert_true(fabs(1e9 / hd_machine_exchange_s(l20, 1, HD_EXCHANGE_RING, 8, 1e9) / 1e10 - 1) < 0.05);
    /* pairs over the sockets share what a ring of all has */
    assert_true(fabs(1e9 / hd_machine_exchange_s(l20, 1, HD_EXCHANGE_RING, 2, 1e9) / 2.5e9 - 1) < 0.05);
    /* a card for each GPU; one card for eight */
    const double ib = 1e9 / hd_machine_exchange_s(far, 1, HD_EXCHANGE_ALL_TO_ALL, 16, 1e9);
    assert_true(fabs(ib / (50e9 * (1 - 0.44 / 2)) - 1) < 0.06);
    const double eth = 1e9 / hd_machine_exchange_s(lan, 2, HD_EXCHANGE_ALL_TO_ALL, 16, 1e9);
    assert_true(fabs(eth / (12e9 / 8 * (1 - 0.44 / 2)) - 1) < 0.02);
    assert_true(fabs(1e9 / hd_machine_exchange_s(lan, 2, HD_EXCHANGE_RING, 16, 1e9) / 12e9 - 1) < 0.02);
    heddle_machine_destroy(a100);
    heddle_machine_destroy(l20);
    heddle_machine_destroy(far);
    heddle_machine_destroy(lan);
}

HD_CASE(this_host)
{
    heddle_host_info host = HEDDLE_EMPTY(heddle_host_info);
    heddle_machine *machine = load("cpu");
    const heddle_machine_info info = info_of(machine);
    HD_OK(heddle_host_get_info(&host, NULL));
    assert_int_equal(info.ranks, host.cores);
    assert_true(host.threads >= host.cores && host.packages >= 0 && host.memory_bytes > 0);
    assert_true(info.memory_bytes == host.memory_bytes / host.cores);
    assert_string_equal(info.link[0], "shm");
    HD_FAILS(HEDDLE_ERR_IO, heddle_host_get_info(&host, "/nowhere/host.xml"));
    HD_FAILS(HEDDLE_ERR_PARSE, heddle_host_get_info(&host, "/dev/null"));
    heddle_machine_destroy(machine);
}

HD_CASE(refuses_names)
{
    static const char *const wrong[][2] = {
        {"8xh100", "no machine is called '8xh100': a preset's name is cpu or [HOSTSx]NxGPU-INTERCONNECT[+NETWORK]"},
        {"8xh100-nvlnik", "did you mean 'nvlink'?"},
        {"8xh101-nvlink", "no GPU is called 'h101' (there are h100, h200"},
        {"8xh101-nvlink", "did you mean 'h100'?"},
        {"8xl20-nvlink", "l20 has no NVLink; did you mean 'l20-pcie'?"},
        {"8xh100-infiniband", "linked by nvlink or pcie, not by 'infiniband'"},
        {"2x8xh100-nvlink", "2 hosts want a network; did you mean '2x8xh100-nvlink+ib400'?"},
        {"8xh100-nvlink+ib400", "a network wants two hosts or more; did you mean '2x8xh100-nvlink+ib400'?"},
        {"1x8xh100-nvlink+ib400", "did you mean '2x8xh100-nvlink+ib400'?"},
        {"2x8xh100-nvlink+ib401",
         "no network is called 'ib401' (there are ib400, ib200, eth100); did you mean 'ib400'?"},
        {"2x8xh100-nvlink+", "no network is called ''"},
        {"0xh100-nvlink", "a host has 1 to 1024 GPUs"},
        {"99999999999999999999xh100-nvlink", "a host has 1 to 1024 GPUs"},
        {"99999999x8xh100-nvlink+ib400", "1048576 at most"},
        {"2x7xl20-pcie+eth100", "7 GPUs do not fill two sockets alike"},
        {"cpux", "did you mean 'cpu'?"},
        {"8h100-nvlink", "did you mean '8xh100-nvlink'?"},
        {"", "no machine is called ''"},
        {"\x1b[31m", "no machine is called"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        heddle_machine *machine = NULL;
        HD_FAILS(HEDDLE_ERR_ARG, heddle_machine_load(&machine, wrong[i][0]));
        assert_null(machine);
        if (strstr(heddle_last_error(), wrong[i][1]) == NULL) {
            fail_msg("'%s' says: %s", wrong[i][0], heddle_last_error());
        }
    }
    heddle_machine *machine = NULL;
    HD_FAILS(HEDDLE_ERR_IO, heddle_machine_load(&machine, "/nowhere/machine.yaml"));
    HD_FAILS(HEDDLE_ERR_IO, heddle_machine_load(&machine, "nothing.yaml"));
}

HD_CASE(levels_and_sizes)
{
    heddle_machine *machine = load("2x8xl40-pcie+eth100");
    assert_int_equal(hd_machine_level(machine, 0, 3), 0);
    assert_int_equal(hd_machine_level(machine, 3, 4), 1);
    assert_int_equal(hd_machine_level(machine, 7, 8), 2);
    assert_int_equal(hd_machine_level(machine, 15, 0), 2);
    HD_OK(heddle_machine_resize(machine, 12)); /* the second host is half full */
    assert_int_equal(info_of(machine).ranks, 12);
    assert_int_equal(info_of(machine).ranks_within[2], 12);
    HD_OK(heddle_machine_resize(machine, 3)); /* one socket, whose links are all there are */
    assert_int_equal(info_of(machine).nlinks, 1);
    assert_int_equal(info_of(machine).ranks_within[0], 3);
    HD_OK(heddle_machine_resize(machine, 40)); /* and five hosts, each as before */
    assert_int_equal(info_of(machine).ranks_within[1], 8);
    assert_int_equal(info_of(machine).ranks_within[2], 40);
    assert_int_equal(hd_machine_level(machine, 31, 32), 2);
    assert_int_equal(hd_machine_level(machine, 32, 39), 1);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_machine_resize(machine, 0));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_machine_resize(NULL, 1));
    assert_int_equal(info_of(machine).ranks, 40);
    HD_OK(heddle_machine_resize(machine, INT32_MAX));
    assert_int_equal(info_of(machine).ranks, INT32_MAX);
    heddle_machine_destroy(machine);
    heddle_machine_destroy(NULL);
}

/* Rates of a class, or of all, and nothing else. */
HD_CASE(links_with_other_rates)
{
    heddle_machine *machine = load("2x8xl40-pcie+eth100"), *one = NULL, *all = NULL, *more = NULL;
    HD_OK(heddle_machine_scaled(&one, machine, "eth100", 0.25));
    HD_OK(heddle_machine_scaled(&all, machine, NULL, 3));
    for (int l = 0; l < machine->nlinks; l++) {
        for (hd_exchange e = 0; e < HD_EXCHANGES; e++) {
            const double start = hd_machine_exchange_s(machine, l, e, 4, 1e-30);
            for (double bytes = 1; bytes < 1e10; bytes *= 30) {
                const double s = hd_machine_exchange_s(machine, l, e, 4, bytes) - start;
                near(hd_machine_exchange_s(one, l, e, 4, bytes), start + s * (l == 2 ? 4 : 1), "one class");
                near(hd_machine_exchange_s(all, l, e, 4, bytes), start + s / 3, "all classes");
            }
        }
    }
    near(hd_machine_work_s(all, HD_WORK_PRODUCT, HEDDLE_BF16, 1e12, 4096),
         hd_machine_work_s(machine, HD_WORK_PRODUCT, HEDDLE_BF16, 1e12, 4096), "work");
    assert_string_equal(info_of(one).name, "2x8xl40-pcie+eth100 with links eth100=0.25");
    HD_OK(heddle_machine_scaled(&more, one, "pcie", 2));
    assert_string_equal(info_of(more).name, "2x8xl40-pcie+eth100 with links eth100=0.25,pcie=2");
    heddle_machine_destroy(more);
    assert_non_null(strstr(info_of(one).source, " Links of eth100: 0.25 times these rates."));
    assert_int_equal(info_of(one).ranks_within[1], 8);
    heddle_machine_destroy(one);
    one = NULL;
    const double wrong[] = {0, -1, (double)NAN, (double)INFINITY, -(double)INFINITY, 1e-12, 1e12};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        HD_FAILS(HEDDLE_ERR_ARG, heddle_machine_scaled(&one, machine, NULL, wrong[i]));
        assert_null(one);
    }
    HD_FAILS(HEDDLE_ERR_ARG, heddle_machine_scaled(&one, machine, "nvlink", 2));
    assert_non_null(strstr(heddle_last_error(), "no links of class 'nvlink': pcie, upi, eth100"));
    heddle_machine_destroy(machine); /* which the other one does not need */
    assert_int_equal(info_of(all).ranks, 16);
    heddle_machine_destroy(all);
}

/* Four ranks at work take 1.6 times as long as one alone; by equal steps of the logarithm between. */
HD_CASE(work_of_few_is_not_crowded)
{
    static heddle_machine m;
    m.nlevels = m.nlinks = 1;
    m.level[0].size = 4;
    near(hd_machine_crowding(&m, 1), 1, "not known");
    m.crowding_slowdown = 1.6;
    near(hd_machine_crowding(&m, 1), 1 / 1.6, "alone");
    near(hd_machine_crowding(&m, 2), pow(1.6, -2.0 / 3), "two");
    near(hd_machine_crowding(&m, 4), 1, "all");
    near(hd_machine_crowding(&m, 8), 1, "more than the innermost level holds");
    m.level[0].size = 1;
    near(hd_machine_crowding(&m, 1), 1, "no other");
}

/* Between two points logarithms are interpolated, outside the nearest holds; so between groups. */
HD_CASE(looks_up_between_points)
{
    static heddle_machine m; /* zeroed, of one level */
    m.nlevels = m.nlinks = 1;
    hd_work_rate *f32 = &m.work[HD_WORK_PRODUCT][HEDDLE_F32], *bf16 = &m.work[HD_WORK_PRODUCT][HEDDLE_BF16];
    *f32 = (hd_work_rate){1e-6, {3, {10, 100, 1000}, {1e9, 4e9, 8e9}}};
    near(hd_machine_work_s(&m, HD_WORK_PRODUCT, HEDDLE_F32, 1e9, 1), 1 + 1e-6, "below");
    near(hd_machine_work_s(&m, HD_WORK_PRODUCT, HEDDLE_F32, 1e9, 10), 1 + 1e-6, "the first");
    near(hd_machine_work_s(&m, HD_WORK_PRODUCT, HEDDLE_F32, 1e9, sqrt(1000)), 0.5 + 1e-6, "between");
    near(hd_machine_work_s(&m, HD_WORK_PRODUCT, HEDDLE_F32, 1e9, 100), 0.25 + 1e-6, "the second");
    near(hd_machine_work_s(&m, HD_WORK_PRODUCT, HEDDLE_F32, 1e9, 1e9), 0.125 + 1e-6, "above");
    near(hd_machine_work_s(&m, HD_WORK_PRODUCT, HEDDLE_BF16, 1e9, 10), 1 + 1e-6, "bf16 of f32");
    *bf16 = (hd_work_rate){0, {1, {1}, {1e10}}};
    near(hd_machine_work_s(&m, HD_WORK_PRODUCT, HEDDLE_F16, 1e9, 10), 0.1, "f16 of bf16");
    near(hd_machine_work_s(&m, HD_WORK_PRODUCT, HEDDLE_F8E4M3, 1e9, 10), 0.1, "f8 of bf16");
    near(hd_machine_work_s(&m, HD_WORK_PRODUCT, HEDDLE_F64, 1e9, 10), 1 + 1e-6, "f64 of f32");
    m.work[HD_WORK_ATTENTION][HEDDLE_BF16] = *bf16;
    near(hd_machine_work_s(&m, HD_WORK_ATTENTION, HEDDLE_F32, 1e9, 10), 0.1, "f32 of the only one");
    near(hd_machine_work_s(&m, HD_WORK_LINEAR, HEDDLE_F32, 1e9, 10), 0.1, "linear of softmax");
    near(hd_machine_work_s(&m, HD_WORK_SHARDED, HEDDLE_BF16, 1e9, 10), 0.1, "by a method of whole fibres");
    m.work[HD_WORK_SHARDED][HEDDLE_BF16] = (hd_work_rate){0, {1, {1}, {5e9}}};
    near(hd_machine_work_s(&m, HD_WORK_SHARDED, HEDDLE_BF16, 1e9, 10), 0.2, "by a method");
    hd_exchange_rate *ring = &m.link[0].exchange[HD_EXCHANGE_RING];
    ring->ngroups = 2;
    ring->group[0].ranks = 2;
    ring->group[0].start_s = 0.5;
    ring->group[0].rate = (hd_rate){1, {1}, {1e9}};
    ring->group[1].ranks = 8;
    ring->group[1].start_s = 1.5;
    ring->group[1].rate = (hd_rate){2, {1e3, 1e9}, {1e6, 4e9}};
    near(hd_machine_exchange_s(&m, 0, HD_EXCHANGE_RING, 2, 1e9), 1.5, "two");
    near(hd_machine_exchange_s(&m, 0, HD_EXCHANGE_RING, 8, 1e9), 1.75, "eight");
    near(hd_machine_exchange_s(&m, 0, HD_EXCHANGE_RING, 8, 1e3), 1.501, "eight, few bytes");
    near(hd_machine_exchange_s(&m, 0, HD_EXCHANGE_RING, 4, 1e9), 1 + 0.5, "four");
    near(hd_machine_exchange_s(&m, 0, HD_EXCHANGE_RING, 64, 1e9), 1.75, "more");
    near(hd_machine_exchange_s(&m, 0, HD_EXCHANGE_RING, 1, 1e9), 1.5, "fewer");
    near(hd_machine_exchange_s(&m, 0, HD_EXCHANGE_ALL_TO_ALL, 8, 1e9), 1.75, "what is not known is as a ring");
    assert_true(hd_machine_is_monotone(&m));
    ring->group[1].rate.per_second[1] = 1e13; /* 1e9 bytes in 0.1 ms, 1e3 in 1 ms */
    assert_true(!hd_machine_is_monotone(&m));
}
