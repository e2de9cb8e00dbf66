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

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
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
        seen.sent += smaller(hi, start[p + 1] + ahead) - larger(lo, start[p] - back);
    }
    seen.sent_to = to - from;
    const int see_from = within(first_above(start + 1, n, lo - back), a, b);
    const int see_to = within(first_above(start, n, hi + ahead - 1), see_from, b);
    if (see_to > see_from) {
        seen.received = smaller(start[see_to], hi + ahead) - larger(start[see_from], lo - back);
        seen.received_from = see_to - see_from;
    }
    return seen;
}

static hd_seen both(hd_seen x, hd_seen y)
{
    return (hd_seen){x.sent * y.sent, x.received * y.received, x.sent_to * y.sent_to,
                     x.received_from * y.received_from};
}

/* Does part `other` of the outer dim have tokens that the windows of part m reach, or the other way round? */
static int may_see(const hd_halo *r, int m, int other)
{
    const int64_t *start = r->along[0].start, far = larger(r->along[0].back, r->along[0].ahead);
    const int me = r->along[0].place[m], there = r->along[0].place[other];
    return r->along[0].place[m + 1] > me && r->along[0].place[other + 1] > there &&
           start[there] < start[me + 1] + far && start[there + 1] > start[me] - far;
}

hd_seen hd_halo_seen(const hd_halo *halo, int member, hd_members among)
{
    const int inner = halo->count > 1 ? halo->along[1].parts : 1;
    const int end = among.first + among.count;
    hd_seen sum = {0, 0, 0, 0};
    if (halo->count == 1) {
        sum = along(halo, 0, member, among.first, among.count);
    }
    for (int row = among.first / inner; halo->count > 1 && row * inner < end; row++) {
        if (!may_see(halo, member / inner, row)) {
            continue;
        }
        const int first = (int)larger(among.first - row * inner, 0), last = (int)smaller(end - row * inner, inner);
        const hd_seen here =
            both(along(halo, 0, member / inner, row, 1), along(halo, 1, member % inner, first, last - first));
        sum.sent += here.sent;
        sum.received += here.received;
        sum.sent_to += here.sent_to;
        sum.received_from += here.received_from;
    }
    if (member >= among.first && member < end) {
        const hd_seen own = halo->count == 1 ? along(halo, 0, member, member, 1)
                                             : both(along(halo, 0, member / inner, member / inner, 1),
                                                    along(halo, 1, member % inner, member % inner, 1));
        sum = (hd_seen){sum.sent - own.sent, sum.received - own.received, sum.sent_to - own.sent_to,
                        sum.received_from - own.received_from};
    }
    sum.sent *= halo->rest;
    sum.received *= halo->rest;
    return sum;
}
