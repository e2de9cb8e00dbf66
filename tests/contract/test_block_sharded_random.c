/* Blocks whose mixed dim is sharded: random problems. */
#include "block_sharded.h"

typedef struct drawn_lines {
    char shape[96], mesh[64], layout[128];
    int ranks;
} drawn_lines;

static int within(random_source *dice, int low, int high)
{
    return (int)random_between(dice, low, high);
}

/* Explicit lengths of `n` blocks of `extent`, some empty, or none. */
static void draw_blocks(char *out, size_t bytes, random_source *dice, int extent, int n)
{
    *out = 0;
    if (within(dice, 0, 1) == 0) {
        return;
    }
    snprintf(out, bytes, "(");
    for (int i = 0, left = extent; i < n; i++) {
        int length = i == n - 1 ? left : within(dice, 0, left);
        snprintf(out + strlen(out), bytes - strlen(out), "%s%d", i > 0 ? " " : "", length);
        left -= length;
    }
    snprintf(out + strlen(out), bytes - strlen(out), ")");
}

/* A block whose dim t is on one or two axes, with b or s on another or none. */
static job draw_problem(drawn_lines *text, random_source *dice, heddle_stage_kind kind)
{
    int linear = kind == HEDDLE_STAGE_LINEAR, two = within(dice, 0, 2) == 0, other = within(dice, 0, 2);
    int t = within(dice, 0, 24), first = within(dice, 1, two ? 3 : 5), second = two ? within(dice, 1, 3) : 1;
    int third = within(dice, 1, first * second > 4 ? 1 : 2), heads = within(dice, 1, 4);
    char blocks[48];
    draw_blocks(blocks, sizeof blocks, dice, t, first);
    snprintf(text->shape, sizeof text->shape, "%s[b=%d t=%d s=%d c=%d]", within(dice, 0, 4) == 0 ? "bf16" : "f32",
             within(dice, 1, 3), t, within(dice, 1, 4), heads * 2 * within(dice, 2, 6));
    snprintf(text->mesh, sizeof text->mesh, within(dice, 0, 1) ? "[z=%3$d x=%1$d y=%2$d]" : "[x=%1$d y=%2$d z=%3$d]",
             first, second, third);
    snprintf(text->layout, sizeof text->layout, "t@x%s%s%s", blocks, two ? ",t@y" : "",
             (const char *[]){"", ",b@z", ",s@z"}[other]);
    text->ranks = first * second * third;
    int methods = linear ? 3 : two ? 5 : 4, m = within(dice, 0, methods - 1);
    const char *method = m == 4 ? "usp" : linear ? linear_methods[m] : softmax_methods[m];
    return (job){kind, text->shape, text->mesh, text->layout, method, 1, heads, within(dice, 0, 11)};
}

HD_CASE(random_problems)
{
    random_source dice = {2024};
    for (int i = 0; i < 2 * hd_rounds(30); i++) {
        drawn_lines text;
        job j = draw_problem(&text, &dice, i & 1 ? HEDDLE_STAGE_LINEAR : HEDDLE_STAGE_ATTENTION);
        run(text.ranks, "threads", i % 3 == 0 ? forward_case : backward_case, j);
    }
}
