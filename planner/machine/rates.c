/* Look-up of figures: what an operation and an exchange take. */
#include "planner/machine/machine.h"

#include <math.h>

/* Where `x` lies between two ascending numbers, by their logarithms: 0 at `low`, 1 at `high`. */
static double between(double x, double low, double high)
{
    return log(x / low) / log(high / low);
}

double hd_rate_at(const hd_rate *rate, double size)
{
    int above = 0;
    while (above < rate->npoints && rate->size[above] < size) {
        above++;
    }
    if (above == 0) {
        return rate->per_second[0];
    }
    if (above == rate->npoints) {
        return rate->per_second[above - 1];
    }
    const double part = between(size, rate->size[above - 1], rate->size[above]);
    return rate->per_second[above - 1] * pow(rate->per_second[above] / rate->per_second[above - 1], part);
}

/* A dtype without figures has another one's: bf16 and f16 stand for each other and for those of 8 bits, f32 for all the
 * rest, and where it has none either, the first that has. Bytes of memory have no dtype: they are f32's. */
static const hd_work_rate *find_work(const heddle_machine *machine, hd_work work, heddle_dtype dtype)
{
    const hd_work_rate *of = machine->work[work];
    const int is_half = dtype == HEDDLE_BF16 || dtype == HEDDLE_F16;
    const int is_small = dtype == HEDDLE_F8E4M3 || dtype == HEDDLE_F8E5M2;
    const heddle_dtype order[] = {work == HD_WORK_MEMORY ? HEDDLE_F32 : dtype,
                                  is_half || is_small ? HEDDLE_BF16 : dtype, is_half || is_small ? HEDDLE_F16 : dtype,
                                  HEDDLE_F32};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        if (of[order[i]].rate.npoints > 0) {
            return &of[order[i]];
        }
    }
    for (int d = 0; d < HEDDLE_DTYPE_COUNT; d++) {
        if (of[d].rate.npoints > 0) {
            return &of[d];
        }
    }
    return work == HD_WORK_LINEAR || work == HD_WORK_SHARDED ? find_work(machine, HD_WORK_ATTENTION, dtype) : NULL;
}

double hd_machine_work_s(const heddle_machine *machine, hd_work work, heddle_dtype dtype, double amount, double size)
{
    const hd_work_rate *found = find_work(machine, work, dtype);
    return amount > 0 && found != NULL ? found->start_s + amount / hd_rate_at(&found->rate, size) : 0;
}

/* Between alone and all at work the logarithms are interpolated. */
double hd_machine_crowding(const heddle_machine *machine, int64_t ranks)
{
    const int64_t all = machine->level[0].size;
    if (ranks >= all || !(machine->crowding_slowdown > 1)) {
        return 1;
    }
    return pow(machine->crowding_slowdown, (double)(ranks - all) / (double)(all - 1));
}

/* An exchange without figures has those of the one that is most like it. */
static const hd_exchange_rate *find_exchange(const hd_link *link, hd_exchange exchange)
{
    static const hd_exchange like[HD_EXCHANGES][HD_EXCHANGES] = {
        [HD_EXCHANGE_ALL_TO_ALL] = {HD_EXCHANGE_ALL_TO_ALL, HD_EXCHANGE_ALL_GATHER, HD_EXCHANGE_REDUCE_SCATTER,
                                    HD_EXCHANGE_RING},
        [HD_EXCHANGE_RING] = {HD_EXCHANGE_RING, HD_EXCHANGE_ALL_GATHER, HD_EXCHANGE_REDUCE_SCATTER,
                              HD_EXCHANGE_ALL_TO_ALL},
        [HD_EXCHANGE_ALL_GATHER] = {HD_EXCHANGE_ALL_GATHER, HD_EXCHANGE_REDUCE_SCATTER, HD_EXCHANGE_RING,
                                    HD_EXCHANGE_ALL_TO_ALL},
        [HD_EXCHANGE_REDUCE_SCATTER] = {HD_EXCHANGE_REDUCE_SCATTER, HD_EXCHANGE_ALL_GATHER, HD_EXCHANGE_RING,
                                        HD_EXCHANGE_ALL_TO_ALL},
    };
    for (int i = 0; i < HD_EXCHANGES; i++) {
        if (link->exchange[like[exchange][i]].ngroups > 0) {
            return &link->exchange[like[exchange][i]];
        }
    }
    return NULL;
}

double hd_machine_exchange_s(const heddle_machine *machine, int link, hd_exchange exchange, int group, double bytes)
{
    const hd_exchange_rate *found = find_exchange(&machine->link[link], exchange);
    if (!(bytes > 0) || found == NULL) {
        return 0;
    }
    int above = 0;
    while (above < found->ngroups - 1 && found->group[above].ranks < group) {
        above++;
    }
    const double rate = hd_rate_at(&found->group[above].rate, bytes);
    if (above == 0 || found->group[above].ranks <= group) {
        return found->group[above].start_s + bytes / rate;
    }
    const double part = between(group, found->group[above - 1].ranks, found->group[above].ranks);
    const double below = hd_rate_at(&found->group[above - 1].rate, bytes), start = found->group[above - 1].start_s;
    return start + part * (found->group[above].start_s - start) + bytes / (below * pow(rate / below, part));
}

static int is_monotone(const hd_exchange_rate *exchange)
{
    for (int g = 0; g < exchange->ngroups; g++) {
        const hd_rate *rate = &exchange->group[g].rate;
        for (int i = 1; i < rate->npoints; i++) {
            if (rate->size[i] / rate->per_second[i] < rate->size[i - 1] / rate->per_second[i - 1]) {
                return 0;
            }
        }
    }
    return 1;
}

int hd_machine_is_monotone(const heddle_machine *machine)
{
    int all = 1;
    for (int l = 0; l < machine->nlinks; l++) {
        for (int x = 0; x < HD_EXCHANGES; x++) {
            all = all && is_monotone(&machine->link[l].exchange[x]);
        }
    }
    return all;
}
