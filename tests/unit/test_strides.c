/* Strides of local arrays: dense ones, and those that a caller gives. */
#include "case.h"
#include "draw.h"

#include <heddle/layout.h>
#include <string.h>

HD_CASE(strides)
{
    const heddle_box box = {3, {5, 6, 7}, {2, 3, 4}};
    const heddle_order order = {3, {2, 0, 1}};
    int64_t stride[HEDDLE_MAX_DIMS];
    heddle_box_strides(stride, &box, NULL);
    assert_int_equal(stride[0], 12);
    assert_int_equal(stride[1], 4);
    assert_int_equal(stride[2], 1);
    heddle_box_strides(stride, &box, &order);
    assert_int_equal(stride[2], 6);
    assert_int_equal(stride[0], 3);
    assert_int_equal(stride[1], 1);
}

/* One array of f64[t s c] with these strides: refused with words of the sentence, or (NULL) of so many bytes. */
HD_CASE(reach_of_strides)
{
    const int64_t most = INT64_MAX, far = (int64_t)1 << 59; /* elements of 8 bytes within 2^62 */
    const struct {
        int64_t len[3], stride[3];
        int is_written;
        const char *why;
        int64_t bytes;
    } row[] = {
        {{2, 3, 4}, {12, 4, 1}, 1, NULL, 8 * 24},
        {{2, 3, 4}, {1, 2, 6}, 1, NULL, 8 * 24},
        {{2, 3, 4}, {100, 10, 1}, 1, NULL, 8 * 124},
        {{2, 3, 4}, {0, 0, 0}, 0, NULL, 8},
        {{2, 3, 4}, {12, 0, 1}, 1, "stride of dim s is 0 elements, but its rows reach over 1", 0},
        {{2, 3, 4}, {12, 3, 1}, 1, "stride of dim s is 3 elements, but its rows reach over 4", 0},
        {{2, 3, 4}, {11, 4, 1}, 1, "stride of dim t is 11 elements, but its rows reach over 12", 0},
        {{2, 3, 4}, {12, 3, 1}, 0, NULL, 8 * 22},
        {{2, 3, 4}, {12, 4, -1}, 0, "stride of dim c is -1 elements, less than 0", 0},
        {{2, 3, 4}, {INT64_MIN, 4, 1}, 1, "less than 0", 0},
        {{2, 1, 1}, {far - 1, 0, 0}, 1, NULL, 8 * far},
        {{2, 1, 1}, {far, 0, 0}, 1, "stride of dim t is 576460752303423488 elements for 2 rows of f64", 0},
        {{2, 2, 1}, {far - 2, 1, 0}, 1, NULL, 8 * far},
        {{2, 2, 1},
         {far - 1, 1, 0},
         1,
         "stride of dim s is 1 elements for 2 rows of f64: the array reaches beyond 2^62",
         0},
        {{2, 3, 4}, {most, 1, 1}, 0, "reaches beyond 2^62 bytes", 0},
        {{2, 3, 4}, {12, most / 2 + 1, 1}, 0, "reaches beyond 2^62 bytes", 0},        /* 2 * 2^62 wraps to below 0 */
        {{2, 3, 5}, {12, 4, 4611686018427387904}, 0, "reaches beyond 2^62 bytes", 0}, /* 4 * 2^62 to 0 */
        {{1, 3, 4}, {-7, 4, 1}, 1, NULL, 8 * 12},                                     /* of one row no stride counts */
        {{1, 3, 4}, {most, 4, 1}, 1, NULL, 8 * 12},
        {{0, 3, 4}, {-7, 0, most}, 1, NULL, 0},
    };
    heddle_shape shape;
    HD_OK(heddle_shape_parse(&shape, "f64[t=2 s=3 c=5]"));
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const heddle_box box = {.ndim = 3, .len = {row[i].len[0], row[i].len[1], row[i].len[2]}};
        int64_t bytes = -1;
        HD_FAILS(row[i].why == NULL ? HEDDLE_OK : HEDDLE_ERR_ARG,
                 heddle_box_reach(&bytes, &box, row[i].stride, &shape, row[i].is_written));
        assert_int_equal(bytes, row[i].why == NULL ? row[i].bytes : -1);
        assert_true(row[i].why == NULL || strstr(heddle_last_error(), row[i].why) != NULL);
    }
    heddle_box box = {.ndim = 2, .len = {2, 3}};
    int64_t bytes = 0;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_box_reach(&bytes, &box, box.len, &shape, 0));
    box = (heddle_box){.ndim = 3, .len = {2, 4, 5}};
    HD_FAILS(HEDDLE_ERR_ARG, heddle_box_reach(&bytes, &box, box.len, &shape, 0));
    assert_non_null(strstr(heddle_last_error(), "the box has 4 of dim s, the shape has 3"));
    shape.dtype = HEDDLE_DTYPE_COUNT;
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_box_reach(&bytes, &box, box.len, &shape, 0));
}

/* Against marks on every element: what is taken to be written shares none, and reaches to the last mark. */
HD_CASE(reach_of_drawn_strides)
{
    enum { MOST = 400 };
    heddle_shape shape;
    int written = 0;
    HD_OK(heddle_shape_parse(&shape, "i32[a=4 b=4 c=4]"));
    for (int n = 0; n < 3000; n++) {
        heddle_box box = {.ndim = 3};
        int64_t stride[HEDDLE_MAX_DIMS] = {0}, bytes = 0;
        int marks[MOST] = {0}, shares = 0, last = -1;
        for (int d = 0; d < 3; d++) {
            box.len[d] = between(0, 4);
            stride[d] = between(0, d == 0 ? 60 : 20);
        }
        for (int i = 0; i < box.len[0]; i++) {
            for (int j = 0; j < box.len[1]; j++) {
                for (int k = 0; k < box.len[2]; k++) {
                    int at = (int)(i * stride[0] + j * stride[1] + k * stride[2]);
                    shares |= marks[at]++ > 0;
                    last = at > last ? at : last;
                }
            }
        }
        HD_OK(heddle_box_reach(&bytes, &box, stride, &shape, 0));
        assert_int_equal(bytes, 4 * (last + 1));
        int taken = heddle_box_reach(&bytes, &box, stride, &shape, 1) == HEDDLE_OK;
        assert_false(taken && shares);
        written += taken && last > 0;
    }
    assert_in_range(written, 500, 2500);
}
