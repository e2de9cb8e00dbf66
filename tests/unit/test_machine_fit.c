/* From times to a machine: known rates come back, files keep them, what no machine explains is refused. */
#include "case.h"
#include "planner/machine/machine.h"

#include <heddle/sys/calibrate.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TIMES = 64 };

static const double rows_at[] = {16, 64, 256, 1024};
static const double keys_at[] = {16, 64, 256};
static const double product[] = {4e10, 6e10, 9e10, 1e11}, attention[] = {2e10, 5e10, 7e10}, memory = 3e10;

static heddle_calibration about(void)
{
    heddle_calibration out = HEDDLE_EMPTY(heddle_calibration);
    out.name = "known";
    out.source = "a test";
    out.link = "wire";
    out.ranks = 4;
    out.overlap_slowdown = 1.5;
    out.crowding_slowdown = 1.25;
    out.on_device = 1;
    return out;
}

/* A start and a rate: 20 us, 5 GB/s among 2 ranks, 3 GB/s among 4. */
static double exchange_s(int ranks, double bytes)
{
    return 2e-5 + bytes / (ranks == 2 ? 5e9 : 3e9);
}

/* Every size of products alone and with each size of attention, passes over memory in both; exchanges. */
static int make_times(heddle_measured *m)
{
    int n = 0;
    for (int r = 0; r < 4; r++) {
        for (int k = -1; k < 3; k++) {
            const double flops = rows_at[r] * 1e6 * (k + 2), bytes = rows_at[r] * 3e3 * (k + 3);
            m[n] = (heddle_measured){.nterms = 2, .seconds = flops / product[r] + bytes / memory};
            m[n].term[0] = (heddle_measured_term){HEDDLE_WORK_PRODUCT, HEDDLE_BF16, flops, rows_at[r]};
            m[n].term[1] = (heddle_measured_term){HEDDLE_WORK_MEMORY, HEDDLE_BF16, bytes, 1 << 20};
            if (k >= 0) {
                const double scores = rows_at[r] * keys_at[k] * 3e3;
                m[n].term[m[n].nterms++] =
                    (heddle_measured_term){HEDDLE_WORK_ATTENTION, HEDDLE_BF16, scores, keys_at[k]};
                m[n].seconds += scores / attention[k];
            }
            n++;
        }
    }
    m[n] = (heddle_measured){.nterms = 1, .seconds = 3e7 / memory};
    m[n++].term[0] = (heddle_measured_term){HEDDLE_WORK_MEMORY, HEDDLE_F32, 3e7, 1 << 20};
    for (int ranks = 2; ranks <= 4; ranks += 2) {
        for (double bytes = 4096; bytes < 1e8; bytes *= 8) {
            m[n++] = (heddle_measured){.ranks = ranks,
                                       .exchange = HEDDLE_EXCHANGE_ALL_TO_ALL,
                                       .bytes = bytes,
                                       .seconds = exchange_s(ranks, bytes)};
        }
    }
    return n;
}

static void near(double found, double wanted, double part, const char *what)
{
    if (!(fabs(found / wanted - 1) <= part)) {
        fail_msg("%s: %.9g, wanted %.9g", what, found, wanted);
    }
}

static void refused(heddle_status wanted, heddle_status found, const char *says)
{
    HD_FAILS(wanted, found);
    if (strstr(heddle_last_error(), says) == NULL) {
        fail_msg("'%s' does not say '%s'", heddle_last_error(), says);
    }
}

HD_CASE(known_rates_come_back)
{
    heddle_measured m[TIMES];
    heddle_machine *machine = NULL;
    heddle_machine_info info = HEDDLE_EMPTY(heddle_machine_info);
    const heddle_calibration given = about();
    const int n = make_times(m);
    HD_OK(heddle_machine_fit(&machine, m, n, &given));
    for (int r = 0; r < 4; r++) {
        near(hd_machine_work_s(machine, HD_WORK_PRODUCT, HEDDLE_BF16, 1e9, rows_at[r]), 1e9 / product[r], 0.02,
             "products");
    }
    for (int k = 0; k < 3; k++) {
        near(hd_machine_work_s(machine, HD_WORK_ATTENTION, HEDDLE_BF16, 1e9, keys_at[k]), 1e9 / attention[k], 0.05,
             "attention");
    }
    near(hd_machine_work_s(machine, HD_WORK_MEMORY, HEDDLE_F32, 1e9, 1 << 20), 1e9 / memory, 0.02, "memory");
    near(hd_machine_exchange_s(machine, 0, HD_EXCHANGE_ALL_TO_ALL, 2, 1e6), exchange_s(2, 1e6), 0.15, "2 ranks");
    near(hd_machine_exchange_s(machine, 0, HD_EXCHANGE_ALL_TO_ALL, 4, 1e6), exchange_s(4, 1e6), 0.15, "4 ranks");
    for (int i = 0; i < n; i++) {
        near(m[i].fitted, m[i].seconds, 0.02, "a time that was fitted");
    }
    HD_OK(heddle_machine_get_info(&info, machine));
    assert_string_equal(info.name, "known");
    assert_string_equal(info.link[0], "wire");
    assert_int_equal(info.ranks, 4);
    assert_int_equal(info.is_calibrated, 1);
    heddle_machine_destroy(machine);
}

/* Of a device: each term begins with a launch, and rates are of what is left; of a launch that would take more than
 * half of a time so much is believed. */
HD_CASE(launches_are_no_part_of_rates)
{
    heddle_measured m[TIMES];
    heddle_machine *machine = NULL;
    heddle_calibration given = about();
    const int n = make_times(m);
    given.launch_s = 5e-6;
    double least = HUGE_VAL;
    for (int i = 0; i < n; i++) {
        m[i].seconds += m[i].nterms * given.launch_s;
        least = m[i].ranks == 0 ? fmin(least, m[i].seconds / m[i].nterms) : least;
    }
    assert_true(least > 2 * given.launch_s);
    HD_OK(heddle_machine_fit(&machine, m, n, &given));
    near(hd_machine_work_s(machine, HD_WORK_PRODUCT, HEDDLE_BF16, 1, 16), given.launch_s, 1e-3, "a launch");
    for (int r = 0; r < 4; r++) {
        near(hd_machine_work_s(machine, HD_WORK_PRODUCT, HEDDLE_BF16, 1e9, rows_at[r]),
             given.launch_s + 1e9 / product[r], 0.02, "products behind a launch");
    }
    for (int i = 0; i < n; i++) {
        near(m[i].fitted, m[i].seconds, 0.02, "a time that was fitted");
    }
    heddle_machine_destroy(machine);
    given.launch_s = 1;
    HD_OK(heddle_machine_fit(&machine, m, n, &given));
    near(hd_machine_work_s(machine, HD_WORK_PRODUCT, HEDDLE_BF16, 1e-9, 16), least / 2, 1e-6, "half of a term");
    heddle_machine_destroy(machine);
}

/* What was fitted and what is read back predict alike. */
HD_CASE(a_file_keeps_the_fit)
{
    heddle_measured m[TIMES];
    heddle_machine *machine = NULL, *back = NULL;
    const heddle_calibration given = about();
    char path[] = "/tmp/heddle-fit-XXXXXX";
    const int n = make_times(m), fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    HD_OK(heddle_machine_fit(&machine, m, n, &given));
    HD_OK(heddle_machine_save(machine, path));
    const heddle_status st = heddle_machine_load(&back, path);
    unlink(path);
    HD_OK(st);
    for (int i = 0; i < n; i++) {
        double again =
            m[i].ranks > 0 ? hd_machine_exchange_s(back, 0, HD_EXCHANGE_ALL_TO_ALL, m[i].ranks, m[i].bytes) : 0;
        for (int k = 0; k < m[i].nterms; k++) {
            const heddle_measured_term *t = &m[i].term[k];
            again += hd_machine_work_s(back, (hd_work)t->work, t->dtype, t->amount, t->size);
        }
        near(again, m[i].fitted, 1e-12, "a time by the file");
    }
    assert_true(back->overlap_slowdown == 1.5 && back->crowding_slowdown == 1.25);
    assert_true(back->is_calibrated && back->on_device);
    heddle_machine_destroy(machine);
    heddle_machine_destroy(back);
}

/* Equal operations that take other times each time. */
HD_CASE(times_that_no_rates_explain)
{
    heddle_measured m[8];
    heddle_machine *machine = NULL;
    const heddle_calibration given = about();
    for (int i = 0; i < 8; i++) {
        m[i] = (heddle_measured){.nterms = 1, .seconds = i % 2 == 0 ? 1e-3 : 9e-3};
        m[i].term[0] = (heddle_measured_term){HEDDLE_WORK_PRODUCT, HEDDLE_F32, 1e9, 64};
    }
    refused(HEDDLE_ERR_INFEASIBLE, heddle_machine_fit(&machine, m, 8, &given), "off by more than 50 %");
    assert_null(machine);
}

HD_CASE(rows_out_of_range)
{
    heddle_measured good[TIMES], m[TIMES];
    heddle_machine *machine = NULL;
    heddle_calibration given = about();
    const int n = make_times(good);
    for (int bad = 0; bad < 8; bad++) {
        for (int i = 0; i < n; i++) {
            m[i] = good[i];
        }
        m[3].seconds = bad == 0 ? 0 : bad == 1 ? NAN : m[3].seconds;
        m[3].nterms = bad == 2 ? 0 : bad == 3 ? HEDDLE_MEASURED_TERMS + 1 : m[3].nterms;
        m[3].term[0].amount = bad == 4 ? -1 : m[3].term[0].amount;
        m[3].term[1].size = bad == 5 ? INFINITY : m[3].term[1].size;
        m[3].ranks = bad == 6 ? 1 : bad == 7 ? -2 : 0;
        refused(HEDDLE_ERR_ARG, heddle_machine_fit(&machine, m, n, &given), "measured time 3");
    }
    refused(HEDDLE_ERR_ARG, heddle_machine_fit(&machine, good, 0, &given), "0 times");
    given.ranks = 0;
    refused(HEDDLE_ERR_ARG, heddle_machine_fit(&machine, good, n, &given), "0 ranks");
}
