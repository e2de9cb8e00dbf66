/* Base services of every room: failing with a sentence, arguments of callers, allocation, time, the environment. */
#ifndef HD_BASE_H
#define HD_BASE_H

#include <heddle/status.h>
#include <stddef.h>
#include <stdint.h>

/* Write the thread's error sentence (printf-like, no newline) and return `status`. Only the function that first knows
 * calls it; callers pass the code on. */
heddle_status hd_fail(heddle_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Put "PREFIX: " in front of the present sentence (a file name, say) and return `status`. */
heddle_status hd_fail_prefix(heddle_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The present sentence, for what may write another on the way out: hd_sentence_say leaves it again, with `status`. */
enum { HD_SENTENCE_BYTES = 8192 };
typedef struct hd_sentence {
    char text[HD_SENTENCE_BYTES];
} hd_sentence;
hd_sentence hd_sentence_keep(void);
heddle_status hd_sentence_say(const hd_sentence *kept, heddle_status status);
/* `text` into less room than a sentence has: what is cut ends in "...". */
void hd_copy_text(char *out, size_t bytes, const char *text);
/* Behind the text that is in `out`, which is cut where there is no room for both. */
void hd_add_text(char *out, size_t bytes, const char *text);

/* The first failure of an object stays, and is said again to whoever uses it. Zeros: there was none. */
typedef struct hd_broken {
    heddle_status status;
    char why[1024];
    int64_t resets; /* of a communicator at that time, for who begins anew with it */
} hd_broken;
void hd_broken_keep(hd_broken *broken, heddle_status status); /* with the sentence of the moment, once */
heddle_status hd_broken_say(const hd_broken *broken);         /* HEDDLE_OK: there was none */

/* The one control-flow macro: on failure go to `out` with the code in `st`. */
#define HD_TRY(expression)                                                                                             \
    do {                                                                                                               \
        st = (expression);                                                                                             \
        if (st != HEDDLE_OK) {                                                                                         \
            goto out;                                                                                                  \
        }                                                                                                              \
    } while (0)

/* HEDDLE_ERR_ARG "FUNCTION: ARGUMENT is NULL". HD_NEED is for the public functions, whose names callers know; of
 * several arguments the first that is NULL is named. */
heddle_status hd_need(const void *pointer, const char *function, const char *argument);
heddle_status hd_need_ith(int i, const char *function, const char *arguments);
#define HD_NEED(...)                                                                                                   \
    hd_need_all((const void *const[]){__VA_ARGS__}, sizeof((const void *const[]){__VA_ARGS__}) / sizeof(void *),       \
                __func__, #__VA_ARGS__)

static inline heddle_status hd_need_all(const void *const *pointer, int n, const char *function, const char *arguments)
{
    for (int i = 0; i < n; i++) {
        if (pointer[i] == NULL) {
            return hd_need_ith(i, function, arguments);
        }
    }
    return HEDDLE_OK;
}

/* Public structs that grow begin with size_t struct_bytes, which the caller sets to the size it knows. The one rule for
 * all of them: smaller is a caller built with an older header (what it does not know keeps its default, nothing is
 * written behind its struct); larger is refused, and so is a number that no version of the struct ever had, less than
 * the fields of its first version up to `first`, or no struct's size. HEDDLE_ERR_ARG gives the numbers. */
#define HD_STRUCT(type, first) sizeof(type), offsetof(type, first) + sizeof(((type *)0)->first), #type
/* Options in: the caller's over the defaults in `out`, which has the whole struct; NULL: the defaults stay. */
heddle_status hd_struct_take(void *out, const void *given, size_t known_bytes, size_t first_bytes, const char *name);
/* Results out: of the whole struct `made` what `out` has room for; struct_bytes stays the caller's. */
heddle_status hd_struct_give(void *out, const void *made, size_t known_bytes, size_t first_bytes, const char *name);
/* The check of hd_struct_give alone, before long work. */
heddle_status hd_struct_room(const void *out, size_t known_bytes, size_t first_bytes, const char *name);

/* A time that is an option. HEDDLE_ERR_ARG: negative, or so long that no clock gets there: nanoseconds from now on
 * would not fit. */
heddle_status hd_check_ms(int64_t ms, const char *name);

/* *out: the product of n factors of 0 or more. HEDDLE_ERR_NOMEM names `what` and the factors when it passes 2^63 - 1.
 */
heddle_status hd_product(int64_t *out, const char *what, int n, const int64_t *factor);

/* HEDDLE_ERR_NOMEM: what there still is (hd_available_bytes) is too little for these bytes and those that others are
 * about to use. To look takes a tenth of
 * a millisecond, so for less than HD_CHECKED_FROM nobody does. */
enum { HD_CHECKED_FROM = 4 << 20 };
heddle_status hd_check_available(size_t bytes, size_t others_bytes, const char *what);

/* Zeroed memory, `count * bytes` checked for overflow. HEDDLE_ERR_NOMEM names `what` and the bytes; also where the
 * machine or a control group has not that much left, while the kernel would hand it out. */
heddle_status hd_alloc(void **out, size_t count, size_t bytes, const char *what);
heddle_status hd_alloc_aligned(void **out, size_t alignment, size_t bytes, const char *what);
/* At least `bytes` at *memory, which holds *held_bytes; what lay there is lost when it grows. */
heddle_status hd_reserve(void **memory, size_t *held_bytes, size_t alignment, size_t bytes, const char *what);
/* Room for one more behind `count` elements of a list, which stay. */
heddle_status hd_grow(void **list, int *capacity, int count, size_t elem_bytes, const char *what);
heddle_status hd_strdup(char **out, const char *text);
void hd_free(void *memory);
/* Each of them: what an object held, and last itself. */
void hd_free_all(void *const *memory, size_t n);
#define HD_FREE_ALL(...)                                                                                               \
    hd_free_all((void *const[]){__VA_ARGS__}, sizeof((void *const[]){__VA_ARGS__}) / sizeof(void *))
/* Tests: let the n-th allocation of this process from now on fail (1 = the next), 0 = never. */
void hd_alloc_fail_at(long n);

int64_t hd_now_ns(void); /* CLOCK_MONOTONIC */
/* Between two looks at what a device does, `turn` counted from 0: gives the core away, later sleeps for a while. */
void hd_nap(int turn);

/* A descriptor that was just opened, moved behind 0, 1 and 2 if it got one of those: they are the program's even while
 * it has them closed, and what it prints would land in this file. -1 stays -1, as does errno; -1 also when the
 * descriptors run out. Keeps close-on-exec. */
int hd_fd_aside(int fd);

/* From the kernel, for what nobody must guess; `bytes` at most 256. -1: errno. */
int hd_random_bytes(void *out, size_t bytes);

/* A word for this process that no other one of any host has. A pid would not do: two containers may have it in common.
 */
heddle_status hd_process_self(uint64_t *out);

/* Does this program run with more rights than who started it (set-user-ID, file capabilities)? Then the environment is
 * that person's, and nothing may go by it. */
int hd_is_privileged(void);
/* The only reader of the environment; NULL when unset, and in a program with more rights. */
const char *hd_env(const char *name);

#endif
