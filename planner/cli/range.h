/* Numbers as a sweep wants them. */
#ifndef HD_CLI_RANGE_H
#define HD_CLI_RANGE_H

enum { CLI_RANGE_POINTS = 4096 };

typedef struct cli_range {
    long long value[CLI_RANGE_POINTS];
    int count;
} cli_range;

/* "1..64", "8..64:8", "1,2,4", of 1 to `most` and in any order; 0: it is none of them, or too long. */
int cli_read_range(cli_range *out, const char *text, long long most);

#endif
