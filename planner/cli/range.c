#include "range.h"

#include <stdio.h>

static const long long MOST = 1LL << 40; /* of a value, and of a step: sums stay far from overflow */

int cli_read_range(cli_range *out, const char *text, long long most)
{
    out->count = 0;
    while (*text != '\0') {
        long long first = 0, last = 0, step = 1;
        int used = 0;
        if (sscanf(text, "%lld..%lld%n", &first, &last, &used) == 2 && used > 0) {
            text += used;
            if (*text == ':' && (sscanf(text, ":%lld%n", &step, &used) != 1 || step < 1 || step > MOST)) {
                return 0;
            }
            text += *text == ':' ? used : 0;
        } else if (sscanf(text, "%lld%n", &first, &used) == 1) {
            last = first;
            text += used;
        } else {
            return 0;
        }
        if (first < 1 || last < first || last > MOST || last > most ||
            (last - first) / step >= CLI_RANGE_POINTS - out->count) {
            return 0;
        }
        for (long long v = first; v <= last; v += step) {
            out->value[out->count++] = v;
        }
        if (*text != ',' && *text != '\0') {
            return 0;
        }
        text += *text == ',';
    }
    return out->count > 0;
}
