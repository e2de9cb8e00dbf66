/* Which rows of a member other members see within a window: where the window is narrow, the borders of its part. */
#include "runtime/method/method.h"

/* The first of n ascending numbers that is larger than x; n: none. */
static int first_above(const int64_t *number, int n, int64_t x)
{
    int low = 0;
    while (low < n) {
        int middle = low + (n - low) / 2;
        if (number[middle] > x) {
            n = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static int within(int x, int low, int high)
{
    return x < low ? low : x > high ? high : x;
}

/* Along one dim: what the parts first .. first + count - 1, itself among them, see of part m and m of them. Most of the
 * parts that see some of it see all of it, which is counted; the others are its neighbours, or as far as the window. */
static hd_seen along(const hd_halo *r, int dim, int m, int first, int count)
{
    const int64_t *start = r->along[dim].start, back = r->along[dim].back, ahead = r->along[dim].ahead;
    const int *place = r->along[dim].place;
    const int n = r->along[dim].full, me = place[m];
    const int a = place[first], b = place[first + count];
    hd_seen seen = {0, 0, 0, 0};
    if (place[m + 1] == me || a == b) {
        return seen;
    }
    const int64_t lo = start[me], hi = start[me + 1];
    const int from = within(first_above(start + 1, n, lo - ahead), a, b);
    const int to = within(first_above(start, n, hi + back - 1), from, b);
    const int all_from = within(first_above(start + 1, n, hi - ahead - 1), from, to);
    const int all_to = within(first_above(start, n, lo + back), all_from, to);
    seen.sent = (__int128)(all_to - all_from) * (hi - lo);
    for (int p = from == all_from ? all_to : from; p < to; p = p + 1 == all_from ? all_to : p + 1) {
        seen.sent += hd_smaller(hi, start[p + 1] + ahead) - hd_larger(lo, start[p] - back);
    }
    seen.sent_to = to - from;
    const int see_from = within(first_above(start + 1, n, lo - back), a, b);
    const int see_to = within(first_above(start, n, hi + ahead - 1), see_from, b);
    if (see_to > see_from) {
        seen.received = hd_smaller(start[see_to], hi + ahead) - hd_larger(start[see_from], lo - back);
        seen.received_from = see_to - see_from;
    }
    return seen;
}

static hd_seen both(hd_seen x, hd_seen y)
{
    return (hd_seen){x.sent * y.sent, x.received * y.received, x.sent_to * y.sent_to,
                     x.received_from * y.received_from};
}

/* A rectangle of members: some rows of them, of each those from `first` on. */
static void add_rectangle(hd_seen *sum, const hd_halo *halo, int member, int row, int nrows, hd_members columns)
{
    const int inner = halo->along[1].parts;
    if (nrows > 0 && columns.count > 0) {
        const hd_seen here = both(along(halo, 0, member / inner, row, nrows),
                                  along(halo, 1, member % inner, columns.first, columns.count));
        sum->sent += here.sent;
        sum->received += here.received;
        sum->sent_to += here.sent_to;
        sum->received_from += here.received_from;
    }
}

/* Of a run of members over two dims the rest of a row, whole rows, and the beginning of one. */
static hd_seen seen_by(const hd_halo *halo, int member, hd_members among)
{
    hd_seen sum = {0, 0, 0, 0};
    if (halo->count == 1) {
        return along(halo, 0, member, among.first, among.count);
    }
    const int inner = halo->along[1].parts, end = among.first + among.count;
    const int row = among.first / inner, last = end / inner;
    const int head = among.first % inner, tail = end % inner;
    if (row == last) {
        add_rectangle(&sum, halo, member, row, 1, (hd_members){head, among.count});
        return sum;
    }
    add_rectangle(&sum, halo, member, row, head > 0, (hd_members){head, inner - head});
    add_rectangle(&sum, halo, member, row + (head > 0), last - row - (head > 0), (hd_members){0, inner});
    add_rectangle(&sum, halo, member, last, 1, (hd_members){0, tail});
    return sum;
}

hd_seen hd_halo_seen(const hd_halo *halo, int member, hd_members among)
{
    hd_seen sum = seen_by(halo, member, among);
    if (member >= among.first && member < among.first + among.count) {
        const hd_seen own = seen_by(halo, member, (hd_members){member, 1});
        sum = (hd_seen){sum.sent - own.sent, sum.received - own.received, sum.sent_to - own.sent_to,
                        sum.received_from - own.received_from};
    }
    sum.sent *= halo->rest;
    sum.received *= halo->rest;
    return sum;
}
