/* The adjoint of every kind of reshard: <y, F x> = <F* y, x>, exactly. */
#include "reshard_check.h"
#include "reshard_setup.h"

/* Small whole numbers: sums are exact in f64 as well. */
static void fill_numbers(heddle_comm *comm, void *data, size_t bytes, int is_float, uint64_t seed)
{
    random_source source = {seed + (uint64_t)heddle_comm_rank(comm)};
    char *image = placed_borrow(comm, data, bytes);
    for (size_t i = 0; i < bytes / 8; i++) {
        int64_t n = random_between(&source, -100, 100);
        double d = (double)n;
        memcpy(image + i * 8, is_float ? (void *)&d : (void *)&n, 8);
    }
    placed_return(comm, data, image, bytes);
}

static void inner_product(void *sum, heddle_comm *comm, void *left, void *right, size_t bytes, int is_float)
{
    void *a = placed_borrow(comm, left, bytes), *b = placed_borrow(comm, right, bytes);
    double f = 0;
    uint64_t n = 0;
    for (size_t i = 0; i < bytes / 8; i++) {
        if (is_float) {
            f += ((const double *)a)[i] * ((const double *)b)[i];
        } else {
            n += (uint64_t)((const int64_t *)a)[i] * (uint64_t)((const int64_t *)b)[i];
        }
    }
    memcpy(sum, is_float ? (void *)&f : (void *)&n, 8);
    placed_return(comm, left, a, bytes);
    placed_return(comm, right, b, bytes);
}

static heddle_status check_adjoint(heddle_comm *comm, const char *text)
{
    setup s;
    heddle_reshard *adjoint = NULL;
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    void *y = NULL, *x_back = NULL;
    int64_t product[2];
    int is_float = text[0] == 'f';
    heddle_status st = HEDDLE_OK;
    HD_TRY(set_up(&s, comm, text, HEDDLE_MEMORY_PEER));
    HD_TRY(heddle_reshard_create_adjoint(&adjoint, s.reshard));
    HD_TRY(heddle_reshard_get_info(&info, adjoint));
    if (info.src_bytes != s.info.dst_bytes || info.dst_bytes != s.info.src_bytes) {
        st = hd_fail(HEDDLE_ERR_INTERNAL, "%s: the adjoint %s has other sizes", text, info.line);
        goto out;
    }
    HD_TRY(heddle_buffer_alloc(&y, comm, info.src_bytes + 8, placed_space(comm)));
    HD_TRY(heddle_buffer_alloc(&x_back, comm, info.dst_bytes + 8, placed_space(comm)));
    fill_numbers(comm, s.src, s.info.src_bytes, is_float, 3);
    fill_numbers(comm, y, info.src_bytes, is_float, 300);
    HD_TRY(heddle_reshard_execute(s.reshard, s.src, s.dst, placed_stream));
    HD_TRY(heddle_reshard_execute(adjoint, y, x_back, placed_stream));
    inner_product(&product[0], comm, y, s.dst, s.info.dst_bytes, is_float);
    inner_product(&product[1], comm, x_back, s.src, s.info.src_bytes, is_float);
    HD_TRY(heddle_comm_allreduce_sum(comm, product, 2, is_float ? HEDDLE_F64 : HEDDLE_I64));
    if (product[0] != product[1]) {
        st = hd_fail(HEDDLE_ERR_INTERNAL, "%s: <y,Fx> and <F*y,x> differ (F* is %s)", text, info.line);
    }
    HD_TRY(heddle_comm_barrier(comm));
out:
    heddle_reshard_destroy(adjoint);
    heddle_buffer_free(comm, y);
    heddle_buffer_free(comm, x_back);
    return tear_down(&s, comm, st);
}

HD_RANK_CASE(adjoints_are_exact, "4 threads", "4 shm")
{
    static const char *const problems[] = {
        "[t=6 s=9 c=4] on [a=2 b=2]: t@a,s@b -> s@a,c@b",     "[t=6 s=9 c=4] on [a=2 b=2]: t@a -> s@a",
        "[t=6 s=9 c=4] on [a=2 b=2]: * -> t@a,t@b",           "[t=6 s=9 c=4] on [a=2 b=2]: t@a,t@b -> *",
        "[t=6 s=9 c=4] on [a=2 b=2]: sum@a,t@b -> s@a,t@b",   "[t=6 s=9 c=4] on [a=2 b=2]: sum@a,sum@b -> *",
        "[t=6 s=9 c=4] on [a=2 b=2]: t@a,sum@b -> t@a",       "[t=6 s=9 c=4] on [a=2 b=2]: * -> sum@a,t@b",
        "[t=6 s=9 c=4] on [a=2 b=2]: t@a,sum@b -> sum@a,t@b", "[t=6 s=9 c=4] on [a=2 b=2]: sum@a -> sum@b",
        "[t=6 s=9 c=4] on [a=2 b=2]: t@a -> s@b as s,c,t",
    };
    for (int i = 0; i < (int)(sizeof problems / sizeof *problems); i++) {
        for (int k = 0; k < 2; k++) {
            char text[200];
            snprintf(text, sizeof text, "%s%s", k == 0 ? "f64" : "i64", problems[i]);
            heddle_status st = check_adjoint(comm, text);
            if (st != HEDDLE_OK) {
                return st;
            }
        }
    }
    return HEDDLE_OK;
}
